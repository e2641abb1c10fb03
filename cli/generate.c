/* SPDX-License-Identifier: Apache-2.0 */
/* The command that draws images. */
#include "commands.h"
#include "batch.h"
#include "output.h"

static enum dtp_code work(struct dtp_rank *r, struct dtp_err *err)
{
	return dtp_pipeline_run(r->pipeline, &r->request, r->backend, &r->mesh, r->mon, r->node_threads, dtp_output_write, r,
				err);
}

enum dtp_code dtp_cmd_generate(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	if (dtp_batch_check_options(args, err))
		return err->code;
	if (!args->prompt && !args->prompts && !args->prompt_embeds)
		return dtp_fail(err, DTP_REFUSED, "option '--prompt' is missing: what to draw (it may be empty: --prompt '')");
	return dtp_job_run(args, argv, true, args->prompts ? dtp_batch_work : work, err);
}
