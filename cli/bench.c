/* SPDX-License-Identifier: Apache-2.0 */
/* The command that runs the pipeline and tells where the time goes. */
#include "commands.h"
#include "clock.h"
#include "footprints.h"
#include "offload.h"
#include "output.h"
#include "progress.h"
#include "text.h"
#include "units.h"

#include <stdlib.h>
#include <string.h>

#define LAST (sizeof((struct dtp_phase_report *)0)->last_seconds / sizeof(double))

/* A phase of one rank, as it travels to rank 0. */
struct row {
	char name[40];
	int64_t calls;
	double seconds, flops, reduce_seconds, reduce_bytes;
	uint64_t reductions, bytes_read, bytes_gaps, peak_rss;
	double last[LAST];
};
_Static_assert(sizeof(struct row) % sizeof(int64_t) == 0, "rows travel as whole numbers of 64 bits");

/* What rank 0 knows of all ranks. */
struct measured {
	int ranks, nrows;    /* rows of each rank; those that a rank does not have are empty */
	struct row *rows;    /* [ranks][nrows] */
	struct dtp_footprints memory;
	double *peak;        /* [ranks], FLOP/s of a matrix product while all ranks computed one */
	double seconds;      /* of all runs of the pipeline */
};

/* ---- collecting, on every rank */

static enum dtp_code gather(struct dtp_rank *r, void *dst, const void *src, size_t bytes, struct dtp_err *err)
{
	return dtp_all_gather(r->world, dst, src, (int64_t)(bytes / sizeof(int64_t)), DTP_I64, err);
}

static enum dtp_code measure_peak(struct dtp_rank *r, struct measured *m, struct dtp_err *err)
{
	double mine = 0;

	r->mon->stage(r->mon->arg, DTP_PHASE_START, "measure the peak");
	/* All at the same time: ranks share caches, memory and the processor's power. */
	if (dtp_barrier(r->world, err) || r->backend->ops->measure_peak(r->backend, &mine, err))
		return err->code;
	return gather(r, m->peak, &mine, sizeof mine, err);
}

static void fill_row(struct row *to, const struct dtp_phase_report *from)
{
	*to = (struct row){
		.calls = from->calls, .seconds = from->seconds, .flops = from->flops,
		.reduce_seconds = from->reduce_seconds, .reduce_bytes = from->reduce_bytes, .reductions = from->reductions,
		.bytes_read = from->bytes_read, .bytes_gaps = from->bytes_gaps, .peak_rss = from->peak_rss,
	};
	snprintf(to->name, sizeof to->name, "%s", from->name);
	memcpy(to->last, from->last_seconds, sizeof to->last);
}

static enum dtp_code collect(struct dtp_rank *r, struct measured *m, struct dtp_err *err)
{
	const struct dtp_phase_report *report;
	int64_t mine = dtp_pipeline_reports(r->pipeline, &report), *counts = calloc((size_t)r->size, sizeof *counts);

	/* A rank may have taken part in fewer phases than another. */
	if (!counts)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code code = gather(r, counts, &mine, sizeof mine, err);
	for (int i = 0; i < r->size && !code; i++)
		m->nrows = counts[i] > m->nrows ? (int)counts[i] : m->nrows;
	free(counts);
	if (code)
		return code;
	struct row *own = calloc((size_t)m->nrows + 1, sizeof *own);
	m->rows = calloc((size_t)m->nrows * (size_t)r->size + 1, sizeof *m->rows);
	if (!own || !m->rows) {
		free(own);
		return dtp_fail(err, DTP_FAILED, "out of memory");
	}
	for (int i = 0; i < mine; i++)
		fill_row(&own[i], &report[i]);
	code = gather(r, m->rows, own, (size_t)m->nrows * sizeof *own, err);
	free(own);
	return code;
}

/* ---- one phase of all ranks */

struct phase {
	const struct row *first;               /* rank 0's, for what is the same everywhere */
	double median, least, total;           /* seconds of a call; a call takes as long as its slowest rank */
	double flops, peak_fraction;           /* per second, of all ranks, in the median call; fraction 0: no peak */
	uint64_t bytes_read, bytes_gaps, rss;  /* sums; rss is the largest rank's */
	double wait;                           /* of the rank that waited longest; -1: not known */
};

static const struct row *row_of(const struct measured *m, int rank, const char *name)
{
	const struct row *rows = m->rows + (size_t)rank * (size_t)m->nrows;

	for (int i = 0; i < m->nrows; i++)
		if (rows[i].calls && !strcmp(rows[i].name, name))
			return &rows[i];
	return NULL;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct phase summarise(const struct measured *m, const struct row *first)
{
	struct phase p = {.first = first, .wait = -1};
	double calls[LAST] = {0}, peak = 0, flops = 0;
	size_t n = first->calls < (int64_t)LAST ? (size_t)first->calls : LAST;

	for (int rank = 0; rank < m->ranks; rank++) {
		const struct row *r = row_of(m, rank, first->name);
		peak += m->peak[rank];
		if (!r)
			continue;
		for (size_t i = 0; i < n && r->calls == first->calls; i++)
			calls[i] = r->last[i] > calls[i] ? r->last[i] : calls[i];
		p.total = r->seconds > p.total ? r->seconds : p.total;
		p.wait = r->reduce_seconds > p.wait ? r->reduce_seconds : p.wait;
		p.rss = r->peak_rss > p.rss ? r->peak_rss : p.rss;
		p.bytes_read += r->bytes_read;
		p.bytes_gaps += r->bytes_gaps;
		flops += r->flops;
	}
	qsort(calls, n, sizeof calls[0], by_value);
	if (n) {
		p.least = calls[0];
		p.median = n % 2 ? calls[n / 2] : (calls[n / 2 - 1] + calls[n / 2]) / 2;
	}
	if (p.median > 0)
		p.flops = flops / (double)first->calls / p.median;
	if (peak > 0)
		p.peak_fraction = p.flops / peak;
	return p;
}

/* ---- printing, on rank 0 */

static void print_table(const struct dtp_rank *r, const struct measured *m)
{
	double peak = 0;

	for (int i = 0; i < m->ranks; i++)
		peak += m->peak[i];
	char dp[32] = "";
	if (r->args->dp_degree > 1)
		snprintf(dp, sizeof dp, "dp %d x ", (int)r->args->dp_degree);
	printf("%s%s %dx%d, %d steps, %stp %d, %d threads, peak %.0f GFLOP/s %s, %d run%s in %s\n\n",
	       dtp_pipeline_class(r->pipeline), r->args->synthetic ? " (synthetic)" : "", (int)r->request.width, (int)r->request.height, r->request.steps, dp,
	       r->options.tp_degree, r->threads_in_all, peak * 1e-9, r->options.compute == DTP_F32 ? "fp32" : "bf16", (int)r->args->repeat,
	       r->args->repeat == 1 ? "" : "s", dtp_seconds_text(m->seconds).s);
	const char *refused = dtp_pipeline_step_refused(r->pipeline);
	if (r->options.device == DTP_DEVICE_CUDA)
		printf("a step is %s%s\n\n", *refused ? "one kernel after the other: " : "one CUDA graph", refused);
	printf("%-18s %5s %9s %9s %8s %5s %9s %6s %7s %9s %8s %9s\n", "phase", "calls", "median s", "min s", "GFLOP/s",
	       "peak", "read", "GB/s", "sums", "summed", "wait s", "max RSS");
	for (int i = 0; i < m->nrows && m->rows[i].calls; i++) {
		struct phase p = summarise(m, &m->rows[i]);
		printf("%-18s %5d %9.3f %9.3f", p.first->name, (int)p.first->calls, p.median, p.least);
		if (p.flops > 0)
			printf(" %8.1f %4.0f%%", p.flops * 1e-9, 100 * p.peak_fraction);
		else
			printf(" %8s %5s", "-", "-");
		if (p.bytes_read && p.total > 0)
			printf(" %9s %6.2f", dtp_bytes_text(p.bytes_read).s, (double)p.bytes_read / p.total * 1e-9);
		else
			printf(" %9s %6s", "-", "-");
		if (p.first->reductions)
			printf(" %7d %9s", (int)p.first->reductions, dtp_bytes_text((uint64_t)p.first->reduce_bytes).s);
		else
			printf(" %7s %9s", "-", "-");
		if (p.first->reductions && p.wait >= 0)
			printf(" %8.3f", p.wait);
		else
			printf(" %8s", "-");
		printf(" %9s\n", dtp_bytes_text(p.rss).s);
	}
	dtp_footprints_print(&m->memory, r->options.device == DTP_DEVICE_CUDA);
}

static cJSON *phase_json(const struct measured *m, const struct row *first)
{
	struct phase p = summarise(m, first);
	cJSON *o = cJSON_CreateObject(), *rss;

	cJSON_AddStringToObject(o, "name", first->name);
	cJSON_AddNumberToObject(o, "calls", (double)first->calls);
	cJSON_AddNumberToObject(o, "seconds_median", p.median);
	cJSON_AddNumberToObject(o, "seconds_min", p.least);
	cJSON_AddNumberToObject(o, "seconds_total", p.total);
	cJSON_AddNumberToObject(o, "gflops", p.flops * 1e-9);
	cJSON_AddNumberToObject(o, "peak_fraction", p.peak_fraction);
	cJSON_AddNumberToObject(o, "bytes_read", (double)p.bytes_read);
	cJSON_AddNumberToObject(o, "bytes_gaps", (double)p.bytes_gaps);
	cJSON_AddNumberToObject(o, "bytes_per_second", p.total > 0 ? (double)p.bytes_read / p.total : 0);
	cJSON_AddNumberToObject(o, "reductions", (double)first->reductions);
	cJSON_AddNumberToObject(o, "reduce_bytes", first->reduce_bytes);
	cJSON_AddItemToObject(o, "reduce_seconds", p.wait < 0 ? cJSON_CreateNull() : cJSON_CreateNumber(p.wait));
	rss = cJSON_AddArrayToObject(o, "peak_rss_bytes");
	for (int rank = 0; rank < m->ranks; rank++) {
		const struct row *r = row_of(m, rank, first->name);
		cJSON_AddItemToArray(rss, r ? cJSON_CreateNumber((double)r->peak_rss) : cJSON_CreateNull());
	}
	return o;
}

static enum dtp_code print_json(const struct dtp_rank *r, const struct measured *m, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *list;
	const char *refused = dtp_pipeline_step_refused(r->pipeline);
	char seed[24]; /* a JSON number holds 53 bits */

	snprintf(seed, sizeof seed, "%llu", (unsigned long long)r->request.seed);
	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	cJSON_AddStringToObject(o, "model", r->options.model);
	cJSON_AddBoolToObject(o, "synthetic", r->args->synthetic);
	cJSON_AddStringToObject(o, "class", dtp_pipeline_class(r->pipeline));
	cJSON_AddStringToObject(o, "plan", dtp_pipeline_plan(r->pipeline));
	cJSON_AddStringToObject(o, "dtype", r->options.compute == DTP_F32 ? "fp32" : "bf16");
	cJSON_AddStringToObject(o, "device", r->backend->ops->name);
	cJSON_AddNumberToObject(o, "tp_degree", r->options.tp_degree);
	cJSON_AddNumberToObject(o, "dp_degree", (double)r->args->dp_degree);
	cJSON_AddNumberToObject(o, "threads", r->threads_in_all);
	cJSON_AddNumberToObject(o, "height", (double)r->request.height);
	cJSON_AddNumberToObject(o, "width", (double)r->request.width);
	cJSON_AddNumberToObject(o, "steps", r->request.steps);
	cJSON_AddNumberToObject(o, "num_images", r->request.num_images);
	cJSON_AddNumberToObject(o, "reference_images", r->request.nimages);
	cJSON_AddNumberToObject(o, "max_sequence_length", (double)r->request.max_sequence_length);
	cJSON_AddStringToObject(o, "seed", seed);
	cJSON_AddNumberToObject(o, "repeat", (double)r->args->repeat);
	cJSON_AddNumberToObject(o, "seconds", m->seconds);
	cJSON_AddBoolToObject(o, "step_graph", !*refused);
	cJSON_AddItemToObject(o, "step_graph_refused", *refused ? cJSON_CreateString(refused) : cJSON_CreateNull());
	list = cJSON_AddArrayToObject(o, "peak_gflops");
	for (int i = 0; i < m->ranks; i++)
		cJSON_AddItemToArray(list, cJSON_CreateNumber(m->peak[i] * 1e-9));
	list = cJSON_AddArrayToObject(o, "phases");
	for (int i = 0; i < m->nrows && m->rows[i].calls; i++)
		cJSON_AddItemToArray(list, phase_json(m, &m->rows[i]));
	cJSON_AddItemToObject(o, "memory", dtp_footprints_json(&m->memory));
	return dtp_write_json(stdout, o, err);
}

static enum dtp_code print(const struct dtp_rank *r, const struct measured *m, struct dtp_err *err)
{
	if (dtp_progress_redraws(stdout))
		fputs("\r\033[K", stdout); /* the progress line of the first process may stand there */
	if (!r->args->json)
		print_table(r, m);
	else if (print_json(r, m, err))
		return err->code;
	return dtp_flush(stdout, err);
}

/* ---- the run */

/* The whole pipeline, each time: of components that stay anyway the load is no part of it but the first time. */
static enum dtp_code repeat(struct dtp_rank *r, struct dtp_err *err)
{
	dtp_image_fn done = r->args->output ? dtp_output_write : dtp_output_discard;
	bool stays = dtp_offload_asked(r->args) == DTP_ARG_OFFLOAD_NONE;
	struct dtp_session s = {.pipeline = r->pipeline, .backend = r->backend, .mesh = &r->mesh, .mon = r->mon,
				.node_threads = r->node_threads, .output = r->request.output};
	enum dtp_code code = DTP_OK;

	for (int i = 0; i < r->args->repeat && !code; i++) {
		code = dtp_session_run(&s, &r->request, done, r, err);
		if (!stays)
			dtp_session_end(&s);
	}
	dtp_session_end(&s);
	return code;
}

static enum dtp_code run(struct dtp_rank *r, struct measured *m, struct dtp_err *err)
{
	if (measure_peak(r, m, err))
		return err->code;
	double began = dtp_seconds();
	if (repeat(r, err))
		return err->code;
	m->seconds = dtp_seconds() - began;
	if (collect(r, m, err) || dtp_footprints_collect(r, &m->memory, err) || r->rank)
		return err->code;
	return print(r, m, err);
}

static enum dtp_code work(struct dtp_rank *r, struct dtp_err *err)
{
	struct measured m = {.ranks = r->size, .peak = calloc((size_t)r->size, sizeof(double))};
	enum dtp_code code = m.peak ? run(r, &m, err) : dtp_fail(err, DTP_FAILED, "out of memory");

	free(m.peak);
	free(m.rows);
	free(m.memory.rank);
	return code;
}

enum dtp_code dtp_cmd_bench(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	return dtp_job_run(args, argv, args->output != NULL, work, err);
}
