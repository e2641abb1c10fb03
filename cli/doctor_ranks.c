/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"

#include "clock.h"
#include "gpu.h"
#include "launch.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 2
#define LARGE ((int64_t)4 << 20) /* floats: what a step of a large model sums at 1024x1024, and past every cache */
#define LARGE_TIMES 3
#define SMALL_TIMES 200
#define TIMEOUT_S 5.0
#define ABOUT_NCCL "DIFFTP_DOCTOR_NCCL" /* in the environment of ranks that load NCCL instead of summing */
#define SLOW 2e8 /* bytes per second: below, sums take longer than the products between them */

/* ---- in a rank */

/* Seconds of one sum of n floats; the sums are checked. */
static enum dtp_code time_sums(struct dtp_comm *world, float *x, int64_t n, int times, double *seconds, struct dtp_err *err)
{
	double best = 1e9;

	for (int t = 0; t < times; t++) {
		for (int64_t i = 0; i < n; i++)
			x[i] = (float)((i + t) % 1000 + world->rank);
		if (dtp_barrier(world, err))
			return err->code;
		double begin = dtp_seconds();
		if (dtp_all_reduce(world, x, n, DTP_F32, err))
			return err->code;
		double took = dtp_seconds() - begin;
		best = took < best ? took : best;
		for (int64_t i = 0; i < n; i++)
			if (x[i] != (float)((i + t) % 1000 * RANKS + RANKS * (RANKS - 1) / 2))
				return dtp_fail(err, DTP_FAILED, "the sum over the ranks is wrong: element %lld is %g", (long long)i, (double)x[i]);
	}
	*seconds = best;
	return DTP_OK;
}

static void note(const struct dtp_monitor *mon, const struct dtp_comm *world, const char *text)
{
	if (world->rank == 0)
		mon->note(mon->arg, text);
}

static enum dtp_code measure(struct dtp_comm *c, const struct dtp_monitor *mon, struct dtp_err *err)
{
	float *x = malloc((size_t)LARGE * sizeof *x);
	double small = 0, large = 0;
	char text[96];

	if (!x)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	mon->stage(mon->arg, DTP_PHASE_STEP, "sum over the ranks");
	enum dtp_code code = time_sums(c, x, 1, SMALL_TIMES, &small, err);
	if (!code)
		code = time_sums(c, x, LARGE, LARGE_TIMES, &large, err);
	free(x);
	if (code)
		return code;
	snprintf(text, sizeof text, "sums %s %.9g %.9g", c->ops->name, small, large);
	note(mon, c, text);
	return DTP_OK;
}

/* As a run on this host does it, and as one on several would. */
static enum dtp_code measure_all(struct dtp_worker *w, struct dtp_err *err)
{
	struct dtp_comm *world = dtp_worker_world(w), *loopback;
	const struct dtp_monitor *mon = dtp_worker_monitor(w);

	if (measure(world, mon, err) || !strcmp(world->ops->name, "gloo"))
		return err->code;
	if (dtp_comm_gloo(world->rank, world->size, dtp_worker_store(w), "doctor", NULL, mon, &loopback, err))
		return err->code;
	enum dtp_code code = measure(loopback, mon, err);
	dtp_comm_destroy(loopback);
	return code;
}

static enum dtp_code compare_nccl(struct dtp_worker *w, struct dtp_err *err)
{
	struct dtp_comm *world = dtp_worker_world(w);
	const struct dtp_monitor *mon = dtp_worker_monitor(w);
	struct dtp_nccl nccl;
	int version = 0; /* there is none */
	char why[256], text[96];

	mon->stage(mon->arg, DTP_PHASE_START, "load NCCL");
	if (dtp_nccl_open(&nccl, why, sizeof why) && nccl.version && nccl.version(&version))
		version = 0;
	int32_t mine = version, all[RANKS];
	if (dtp_all_gather(world, all, &mine, 1, DTP_I32, err))
		return err->code;
	snprintf(text, sizeof text, "nccl %d %d", (int)all[0], (int)all[1]);
	note(mon, world, text);
	return DTP_OK;
}

enum dtp_code dtp_doctor_rank(struct dtp_err *err)
{
	struct dtp_worker *w;
	enum dtp_code code = dtp_worker_open(&w, err);

	if (code == DTP_OK) {
		code = (getenv(ABOUT_NCCL) ? compare_nccl : measure_all)(w, err);
		code = dtp_worker_close(w, code, err);
		err->code = DTP_OK; /* the launcher has it */
	}
	return code;
}

/* ---- in the probe */

static void tell_sums(struct dtp_findings *f, const char *by, double small, double large)
{
	double bytes = (double)LARGE * sizeof(float), rate = bytes / large;
	cJSON *data = cJSON_CreateObject();

	cJSON_AddStringToObject(data, "by", by);
	cJSON_AddNumberToObject(data, "latency_seconds", small);
	cJSON_AddNumberToObject(data, "bytes", bytes);
	cJSON_AddNumberToObject(data, "bytes_per_second", rate);
	dtp_found(f, rate < SLOW ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, data,
		  rate < SLOW ? "see what else runs here; more threads per rank and fewer ranks need fewer sums" : NULL,
		  "two ranks sum %.1f MB through %s at %.2f GB/s, and 4 bytes in %.0f microseconds", bytes / 1e6,
		  strcmp(by, "shared") ? "the loopback interface" : "shared memory", rate / 1e9, small * 1e6);
}

static void tell_nccl(struct dtp_findings *f, int a, int b)
{
	char x[48], y[48];

	dtp_nccl_text(a, x, sizeof x);
	dtp_nccl_text(b, y, sizeof y);
	if (a != b)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "give all ranks the same library path", "rank 0 loads %s%s, rank 1 %s%s",
			  a ? "NCCL " : "no NCCL", a ? x : "", b ? "NCCL " : "no NCCL", b ? y : "");
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, a ? "both ranks load NCCL %s" : "neither rank finds NCCL", x);
}

static void on_event(void *arg, const struct dtp_event *e)
{
	double small, large;
	char by[16];
	int a, b;

	if (e->kind == DTP_EVENT_NOTE && sscanf(e->text, "sums %15s %lg %lg", by, &small, &large) == 3)
		tell_sums(arg, by, small, large);
	else if (e->kind == DTP_EVENT_NOTE && sscanf(e->text, "nccl %d %d", &a, &b) == 2)
		tell_nccl(arg, a, b);
}

static enum dtp_code launch(char **argv, const char *const *env, struct dtp_findings *f, struct dtp_err *err)
{
	const struct dtp_launch l = {
		.nranks = RANKS,
		.argv = argv,
		.env = env,
		.threads_per_rank = 1,
		.timeout_s = TIMEOUT_S,
		.on_event = on_event,
		.arg = f,
	};
	return dtp_launch(&l, err);
}

void dtp_look_ranks(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)args;
	if (launch(argv, NULL, f, &err))
		dtp_found(f, DTP_VERDICT_FAILURE, NULL, "a run on several ranks will fail alike; the message says where",
			  "two ranks cannot sum over each other: %s", err.message);
}

void dtp_look_rank_nccl(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	static const char *const env[] = {ABOUT_NCCL "=1", NULL};
	struct dtp_err err = DTP_ERR_INIT;

	(void)args;
	if (launch(argv, env, f, &err))
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "ranks on CPUs do not need NCCL; reinstall it", "NCCL breaks the ranks: %s",
			  err.message);
}
