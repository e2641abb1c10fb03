/* SPDX-License-Identifier: Apache-2.0 */
/* The command that says whether a split run is right. */
#include "commands.h"
#include "output.h"
#include "cli_verify.h"
#include "shards.h"

#define PROMPT "A cat holding a sign that says hello world"
#define SIDE 256 /* pixels: every layer works as it does in a large picture, only sooner */

static enum dtp_code open_whole(const struct dtp_rank *r, struct dtp_verify_job *job, struct dtp_err *err)
{
	struct dtp_options alone = r->options;

	alone.tp_degree = 1;
	alone.tp_plan = NULL;
	if (dtp_pipeline_open(&alone, &r->muted, &job->whole, err))
		return err->code;
	return dtp_backend_cpu(alone.compute, r->node_threads, &job->whole_backend, err);
}

static enum dtp_code compare(struct dtp_rank *r, struct dtp_verify_report *report, struct dtp_err *err)
{
	struct dtp_verify_job job = {
		.options = {.tolerance = r->args->tolerance, .free_run = r->args->free_run},
		.pipeline = r->pipeline, .request = &r->request, .backend = r->backend, .mesh = &r->mesh, .mon = r->mon,
		.node_threads = r->node_threads,
	};

	if (r->rank || !open_whole(r, &job, err))
		dtp_verify_run(&job, report, err);
	if (job.whole)
		dtp_pipeline_close(job.whole);
	if (job.whole_backend)
		job.whole_backend->ops->destroy(job.whole_backend);
	return err->code;
}

static enum dtp_code work(struct dtp_rank *r, struct dtp_err *err)
{
	struct dtp_verify_report report = {0};
	char verdict[1024];

	if (!compare(r, &report, err) && r->rank == 0 && !dtp_verify_print(r, &report, err) && report.differ) {
		r->mon->stage(r->mon->arg, DTP_PHASE_WRITE, "compare");
		dtp_verify_verdict(&report, verdict, sizeof verdict);
		dtp_fail(err, DTP_FAILED, "%s", verdict);
	}
	dtp_verify_report_free(&report);
	return err->code;
}

enum dtp_code dtp_cmd_verify(const struct dtp_args *given, char **argv, struct dtp_err *err)
{
	struct dtp_args args = *given;
	int sharded = 0;

	if (args.model && dtp_shards_degree(args.model, &sharded, err))
		return err->code;
	if (sharded)
		return dtp_fail(err, DTP_REFUSED, "'%s' is sharded, and one rank must read the whole model: verify the folder that it was "
				"made from, or what 'difftp unshard' restores", args.model);
	args.beside_whole = true;
	args.output_type = DTP_ARG_LATENT; /* the VAE is not split: there is nothing to compare */
	args.prompt = args.prompt ? args.prompt : PROMPT;
	args.height = args.height ? args.height : SIDE;
	args.width = args.width ? args.width : SIDE;
	args.steps = args.steps || args.free_run ? args.steps : 1;
	dtp_args_give(&args, offsetof(struct dtp_args, seed));
	return dtp_job_run(&args, argv, false, work, err);
}
