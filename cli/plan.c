/* SPDX-License-Identifier: Apache-2.0 */
/* The command that says beforehand what a run would do with the machine. */
#include "plan.h"

#include "commands.h"
#include "device.h"
#include "exclude.h"
#include "file.h"
#include "plan_make.h"
#include "progress.h"
#include "request.h"
#include "text.h"
#include "units.h"

#include <stdlib.h>
#include <string.h>

/* What is assumed of a GPU, and of a thread of this machine; said in the output. */
#define DEVICE_TFLOPS 100.0
#define THREAD_TFLOPS 0.2

static void warn(void *arg, const char *text)
{
	dtp_progress_warn(arg, text);
}

/* ---- looking */

static enum dtp_code look_at_ranks(struct dtp_plan_view *v, struct dtp_err *err)
{
	int degree = v->options.tp_degree;

	v->memory = calloc((size_t)degree, sizeof *v->memory);
	if (!v->memory)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", degree);
	for (int rank = 0; rank < degree; rank++)
		if (dtp_pipeline_memory(v->pipeline, &v->request, rank, v->memory[rank], err))
			return err->code;
	/* Rank 0 computes as much as any other in a step, and decodes. */
	return dtp_pipeline_cost(v->pipeline, &v->request, 0, v->cost, err);
}

static enum dtp_code look_at_fit(struct dtp_plan_view *v, struct dtp_err *err)
{
	int degree = v->options.tp_degree;

	v->host = dtp_host_memory("");
	v->bound = (struct dtp_bound){.host = v->devices.n ? NULL : &v->host, .device = v->devices.n ? &v->devices : NULL,
				      .limit = v->limit.n ? &v->limit : NULL};
	const struct dtp_offload_wish wish = dtp_offload_wish(v->args);
	if (dtp_offload_choose(v->pipeline, &v->options, &v->request, &wish, &v->bound, 1, &v->offload, err))
		return err->code;
	v->enough_devices = !v->devices.n || degree <= v->devices.n;
	v->fits = v->enough_devices && !v->offload.over;
	return DTP_OK;
}

/* What would fit: with as little in memory as is allowed. */
static void look_at_degrees(struct dtp_plan_view *v)
{
	int degree = v->options.tp_degree;

	dtp_pipeline_stay(v->pipeline, v->options.stay);
	/* One that fits needs no search above it. */
	v->smallest = dtp_fit_smallest(v->pipeline, &v->options, &v->request, &v->bound, 1,
				       v->fits ? degree - 1 : DTP_MAX_DEGREE_TRIED, &v->smallest_fit);
	if (!v->smallest && v->fits) {
		v->smallest = degree;
		v->smallest_fit = v->offload.fit;
	}
}

static void look_at_speed(struct dtp_plan_view *v)
{
	v->threads = v->args->threads ? (int)v->args->threads : dtp_host_threads("");
	v->tflops_assumed = !DTP_HAS(v->args, tflops);
	if (!v->tflops_assumed)
		v->tflops = v->args->tflops;
	else if (v->devices.n)
		v->tflops = DEVICE_TFLOPS;
	else
		v->tflops = THREAD_TFLOPS * dtp_host_share(v->threads, v->options.tp_degree, 0);
}

static enum dtp_code look(struct dtp_plan_view *v, struct dtp_err *err)
{
	if (look_at_fit(v, err) || look_at_ranks(v, err))
		return err->code;
	look_at_degrees(v);
	look_at_speed(v);
	dtp_plan_advise(v);
	/* Last: what was tried with other degrees has placed the weights anew. */
	return dtp_report_make(v->pipeline, &v->request, &v->report, err);
}

/* Whose memory is counted: that of devices that are listed, else where the run would compute. */
static enum dtp_code find_device(struct dtp_plan_view *v, struct dtp_progress *progress, struct dtp_err *err)
{
	struct dtp_gpus gpus;

	if (v->devices.n) {
		v->options.device = v->args->device == DTP_ARG_CPU ? DTP_DEVICE_CPU : DTP_DEVICE_CUDA;
		return DTP_OK;
	}
	if (dtp_device_find(v->args, &gpus, warn, progress, err)) {
		size_t used = strlen(err->message);
		snprintf(err->message + used, sizeof err->message - used, "\n--devices 4x24GB plans for GPUs that are not here");
		return err->code;
	}
	v->options.device = gpus.n ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU;
	dtp_device_limits(&gpus, gpus.n, &v->devices);
	return DTP_OK;
}

/* ---- telling */

/* The rank that comes closest to what it is allowed, or is the farthest beyond it. */
static int tightest_rank(const struct dtp_plan_view *v)
{
	double worst = 0;
	int found = 0;

	for (int rank = 0; rank < v->options.tp_degree; rank++) {
		double part = (double)v->offload.fit.rank[rank] / (double)dtp_bound_rank(&v->bound, rank);
		if (part > worst) {
			worst = part;
			found = rank;
		}
	}
	return found;
}

void dtp_plan_verdict(const struct dtp_plan_view *v, char *buf, size_t len)
{
	int degree = v->options.tp_degree, rank = tightest_rank(v);
	uint64_t allowed = dtp_bound_rank(&v->bound, rank);
	struct dtp_text_pair all = dtp_bytes_apart(v->offload.fit.total, v->host.available);
	struct dtp_text_pair one = dtp_bytes_apart(v->offload.fit.rank[rank], allowed);

	if (!v->enough_devices)
		snprintf(buf, len, "%d ranks need as many devices, %d %s %s", degree, v->devices.n, v->devices.n == 1 ? "is" : "are",
			 v->args->devices ? "given" : "here");
	else if (v->bound.host && v->host.available == UINT64_MAX && allowed == UINT64_MAX)
		snprintf(buf, len, "%d rank%s take%s %s at the peak; what this machine has is not known", degree,
			 degree == 1 ? "" : "s", degree == 1 ? "s" : "", all.a.s);
	else if (v->bound.host && (v->offload.fit.total > v->host.available || allowed == UINT64_MAX))
		snprintf(buf, len, "%d rank%s take%s %s at the peak, %s are available (%s)", degree, degree == 1 ? "" : "s",
			 degree == 1 ? "s" : "", all.a.s, all.b.s,
			 v->host.cgroup < v->host.machine ? "control group's limit" : "MemAvailable");
	else if (degree == 1)
		snprintf(buf, len, "the rank takes %s at the peak, it may have %s", one.a.s, one.b.s);
	else
		snprintf(buf, len, "the rank with least room, %d, takes %s at the peak, it may have %s", rank, one.a.s, one.b.s);
}

enum dtp_code dtp_plan_write(const struct dtp_plan *plan, const struct dtp_args *args, struct dtp_err *err)
{
	struct dtp_outkeep keep, *k = dtp_output_keep(args, args->emit, 0, &keep);
	struct dtp_progress progress;
	struct dtp_outfile out;
	char *text = dtp_plan_text(plan);

	if (!text)
		return dtp_fail(err, DTP_FAILED, "out of memory for the text of a plan");
	enum dtp_code code = dtp_outfile_open(args->emit, k, &out, err);
	if (code == DTP_OK) {
		fputs(text, out.f);
		code = dtp_outfile_commit(&out, err);
	}
	dtp_progress_init(&progress, stderr, DTP_ARG_PROGRESS_PLAIN, args->quiet);
	dtp_outkeep_tell(k, args->emit, &(struct dtp_monitor){.arg = &progress, .warn = warn});
	dtp_outkeep_free(&keep);
	free(text);
	return code;
}

static enum dtp_code emit(const struct dtp_plan_view *v, struct dtp_err *err)
{
	struct dtp_plan plan;

	if (dtp_plan_explicit(dtp_pipeline_tree(v->pipeline, "transformer"), v->args->emit, &plan, err))
		return err->code;
	enum dtp_code code = dtp_plan_write(&plan, v->args, err);
	dtp_plan_free(&plan);
	return code;
}

static enum dtp_code tell(const struct dtp_plan_view *v, struct dtp_err *err)
{
	char text[300];

	if (v->args->emit && emit(v, err))
		return err->code;
	if (!v->args->json)
		dtp_plan_print(v, stdout);
	else if (dtp_plan_print_json(v, stdout, err))
		return err->code;
	if (dtp_flush(stdout, err) || v->fits)
		return err->code;
	dtp_plan_verdict(v, text, sizeof text);
	return dtp_fail(err, DTP_REFUSED, "does not fit: %s", text);
}

/* ---- the command */

static enum dtp_code report(const struct dtp_args *args, struct dtp_err *err)
{
	struct dtp_plan_view *v = calloc(1, sizeof *v);
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_progress progress;

	if (!v)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	dtp_progress_init(&progress, stderr, DTP_ARG_PROGRESS_PLAIN, args->quiet);
	mon.arg = &progress;
	mon.warn = warn;
	v->args = args;
	dtp_request_make(args, &v->options, &v->request);
	v->options.no_tokenizer = true;
	err->code = DTP_OK;
	if (!dtp_devices_parse(args->devices, &v->devices, err) && !dtp_max_memory_parse(args->max_memory, &v->limit, err) &&
	    !dtp_max_memory_check(&v->limit, v->options.tp_degree, err) &&
	    !(args->emit && dtp_output_check_file(args, args->emit, err)) && !find_device(v, &progress, err) &&
	    !dtp_pipeline_open(&v->options, &mon, &v->pipeline, err) &&
	    !dtp_inputs_read(args, &v->inputs, &v->request, err) &&
	    !dtp_pipeline_resolve(v->pipeline, &v->request, err) && !look(v, err))
		tell(v, err);
	dtp_inputs_free(&v->inputs);
	dtp_report_free(&v->report);
	dtp_pipeline_close(v->pipeline);
	free(v->memory);
	free(v);
	return err->code;
}

enum dtp_code dtp_cmd_plan(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	(void)argv;
	if (args->diff)
		return dtp_plan_diff(args, err);
	if (args->nwords)
		return dtp_fail(err, DTP_REFUSED, "unexpected argument '%s': two plans are compared with --diff", args->word[0]);
	if (!args->model)
		return dtp_fail(err, DTP_REFUSED, "option '--model' is missing: the folder of the pipeline");
	if (dtp_synthetic_options_check(args, err))
		return err->code;
	return args->suggest ? dtp_plan_suggest(args, err) : report(args, err);
}
