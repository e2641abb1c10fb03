/* SPDX-License-Identifier: Apache-2.0 */
/* The command that says whether a split run is right. */
#include "cli_verify.h"
#include "commands.h"
#include "json.h"
#include "safetensors.h"
#include "shards.h"

#include <string.h>

#define PROMPT "A cat holding a sign that says hello world"
#define SIDE 256 /* pixels: every layer works as it does in a large picture, only sooner */

/* ---- a rank */

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

	if (r->args->against)
		return dtp_verify_against(&job, r->args->against, report, err);
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

/* ---- the command */

/* What was recorded, as far as the file tells: said again on the command line it must be the same.  The dtype may differ: the
 * tolerance is that of the run. */
static enum dtp_code take_recorded(struct dtp_args *args, const cJSON *metadata, struct dtp_err *err)
{
	static const char *const keys[][2] = {{"prompt", "prompt"}, {"negative_prompt", "negative-prompt"},
		{"system_message", "system-message"}, {"seed", "seed"}, {"height", "height"}, {"width", "width"}, {"steps", "steps"},
		{"guidance_scale", "guidance-scale"}, {"max_sequence_length", "max-sequence-length"}, {"dtype", "dtype"},
		{"exact_timesteps", "exact-timesteps"}};

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, keys[i][0]));
		if (!value || (!strcmp(keys[i][1], "dtype") && DTP_GIVEN(args, dtype)))
			continue;
		if (dtp_args_take(args, keys[i][1], value, args->against, err))
			return err->code;
	}
	return DTP_OK;
}

static enum dtp_code against_recording(struct dtp_args *args, char **argv, struct dtp_err *err)
{
	struct dtp_st st;

	if (args->free_run)
		return dtp_fail(err, DTP_REFUSED, "--against compares a whole run with a recording, --free-run with one rank; leave one out");
	if (dtp_st_open_file(args->against, &st, err))
		return err->code;
	cJSON *metadata = dtp_st_metadata_all(&st.files[0]); /* its strings become the options' */
	dtp_st_close(&st);
	enum dtp_code code = take_recorded(args, metadata, err);
	if (!code) {
		args->prompt = args->prompt ? args->prompt : PROMPT;
		dtp_args_give(args, offsetof(struct dtp_args, seed));
		code = dtp_job_run(args, argv, false, work, err);
	}
	cJSON_Delete(metadata);
	return code;
}

enum dtp_code dtp_cmd_verify(const struct dtp_args *given, char **argv, struct dtp_err *err)
{
	struct dtp_args args = *given;
	int sharded = 0;

	if (args.against)
		return against_recording(&args, argv, err);
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
