/* SPDX-License-Identifier: Apache-2.0 */
/* The command that draws images. */
#include "commands.h"
#include "batch.h"
#include "footprints.h"
#include "grid.h"
#include "naming.h"
#include "output.h"
#include "preview.h"
#include "progress.h"
#include "worker.h"

#include <limits.h>
#include <stdlib.h>

/* ---- --preview: rank 0 draws small pictures, its launcher shows them */

struct watching {
	struct dtp_rank *rank;
	struct dtp_preview *preview; /* NULL: nobody looks */
};

static void on_step(void *arg, int step, int steps, const float *tokens, int64_t h, int64_t w, int64_t channels)
{
	const struct watching *a = arg;
	uint8_t *rgb = channels == dtp_preview_channels(a->preview) ? malloc((size_t)(12 * h * w)) : NULL;

	(void)step, (void)steps;
	if (!rgb)
		return;
	dtp_preview_draw(a->preview, tokens, h, w, rgb);
	dtp_worker_preview(a->rank->worker, rgb, 2 * w, 2 * h);
	free(rgb);
}

/* A preview that cannot be is no reason not to draw. */
static void begin_watching(struct watching *w, struct dtp_rank *r)
{
	struct dtp_err err = DTP_ERR_INIT;
	char text[512];

	*w = (struct watching){.rank = r};
	if (!r->args->preview || r->rank || r->options.encode_only || r->args->progress == DTP_ARG_PROGRESS_JSON ||
	    !dtp_progress_redraws(stderr))
		return;
	if (dtp_preview_open(r->args->model, r->args->variant, r->backend, r->options.device, r->mon, &w->preview, &err)) {
		snprintf(text, sizeof text, "--preview has no effect: %.450s", err.message);
		r->mon->warn(r->mon->arg, text);
		return;
	}
	dtp_pipeline_watch(r->pipeline, on_step, w);
}

static enum dtp_code work(struct dtp_rank *r, struct dtp_err *err)
{
	struct watching w;

	begin_watching(&w, r);
	enum dtp_code code = r->args->prompts ? dtp_batch_work(r, err) : r->args->grid ? dtp_grid_draw(r, err)
		: dtp_pipeline_run(r->pipeline, &r->request, r->backend, &r->mesh, r->mon, r->node_threads, dtp_output_write, r, err);
	dtp_pipeline_watch(r->pipeline, NULL, NULL);
	dtp_preview_close(w.preview);
	return code || r->args->prompts ? code : dtp_footprints_tell(r, err); /* a batch has told */
}

/* "out/{seed}.png" of a batch: the folder, and the pattern of the names in it. */
static enum dtp_code split_output(struct dtp_args *args, char folder[PATH_MAX], struct dtp_err *err)
{
	size_t n = args->output ? dtp_name_folder(args->output) : 0;

	if (!args->prompts || !args->output || !dtp_name_is_pattern(args->output))
		return DTP_OK;
	if (n >= PATH_MAX)
		return dtp_fail(err, DTP_REFUSED, "the name of the output folder has %zu bytes, at most %d can be used", n, PATH_MAX - 1);
	args->pattern = args->output + (args->output[n] == '/' ? n + 1 : n);
	snprintf(folder, PATH_MAX, "%.*s", n ? (int)n : args->output[0] == '/', n ? args->output : args->output[0] == '/' ? "/" : "");
	args->output = *folder ? folder : ".";
	return DTP_OK;
}

enum dtp_code dtp_cmd_generate(const struct dtp_args *given, char **argv, struct dtp_err *err)
{
	struct dtp_args args = *given;
	char folder[PATH_MAX];

	if (split_output(&args, folder, err) || dtp_batch_check_options(&args, err))
		return err->code;
	if (!args.prompt && !args.prompts && !args.prompt_embeds)
		return dtp_fail(err, DTP_REFUSED, "option '--prompt' is missing: what to draw (it may be empty: --prompt '')");
	return dtp_job_run(&args, argv, true, work, err);
}
