/* SPDX-License-Identifier: Apache-2.0 */
/* A run's stages against recorded ones. */
#include "verify_internal.h"

#include "pipeline_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 65536 /* values compared at a time */

/* One stage on both sides, in doubles: pictures in 8 bits as the values -1 to 1 that they stand for. */
struct pair {
	const struct dtp_dump_entry *ours;
	const struct dtp_st *st;
	const struct dtp_st_entry *theirs;
	int64_t values;
	double mine[CHUNK], other[CHUNK], raw[CHUNK];
};

static void widen(double *dst, const void *src, enum dtp_dtype t, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float f;
		if (t == DTP_F64) {
			dst[i] = ((const double *)src)[i];
		} else if (t == DTP_I64) {
			dst[i] = (double)((const int64_t *)src)[i];
		} else if (t == DTP_U8) {
			dst[i] = ((const uint8_t *)src)[i] / 127.5 - 1;
		} else {
			dtp_to_f32(&f, (const char *)src + i * dtp_dtype_size(t), t, 1);
			dst[i] = f;
		}
	}
}

static enum dtp_code read_chunk(struct pair *p, int64_t at, int64_t n, struct dtp_err *err)
{
	size_t size = dtp_dtype_size(p->theirs->dtype), own = dtp_dtype_size(p->ours->tensor.dtype);

	if (dtp_st_read(p->st, p->theirs, (uint64_t)at * size, (uint64_t)n * size, p->raw, err))
		return err->code;
	widen(p->other, p->raw, p->theirs->dtype, (size_t)n);
	widen(p->mine, (const char *)p->ours->tensor.data + (size_t)at * own, p->ours->tensor.dtype, (size_t)n);
	return DTP_OK;
}

typedef void (*chunk_fn)(void *arg, const struct pair *p, int64_t n);

static enum dtp_code each_chunk(struct pair *p, chunk_fn fn, void *arg, struct dtp_err *err)
{
	for (int64_t at = 0; at < p->values; at += CHUNK) {
		int64_t n = p->values - at < CHUNK ? p->values - at : CHUNK;
		if (read_chunk(p, at, n, err))
			return err->code;
		fn(arg, p, n);
	}
	return DTP_OK;
}

static void add_squares(void *arg, const struct pair *p, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		*(double *)arg += isfinite(p->other[i]) ? p->other[i] * p->other[i] : 0;
}

struct comparison {
	struct dtp_sums sums;
	double rms;
};

static void compare_chunk(void *arg, const struct pair *p, int64_t n)
{
	struct comparison *c = arg;
	for (int64_t i = 0; i < n; i++)
		dtp_sums_add(&c->sums, p->mine[i], p->other[i], c->rms);
}

/* Two programs share no rounding: a layer, with the norms, products and sums around it, rounds some twice in either. */
#define ROUNDINGS 4

/* Whole numbers are the same; a picture may be one level off besides. */
static double tolerance_of(const struct pair *p, const struct dtp_verify_job *job, double rms)
{
	const struct dtp_tensor *t = &p->ours->tensor;
	int64_t longest = 1;

	if (t->dtype == DTP_I64)
		return 0;
	for (int d = 0; d < t->ndim; d++)
		longest = t->shape[d] > longest ? t->shape[d] : longest;
	double x = job->options.tolerance;
	if (!(x > 0))
		x = dtp_verify_tolerance_at(job->backend->compute, longest, ROUNDINGS * p->ours->depth);
	return t->dtype == DTP_U8 ? x + 1 / 127.5 / rms : x;
}

/* Numbers that can be compared with each other. */
static bool comparable(enum dtp_dtype a, enum dtp_dtype b)
{
	bool floating = b == DTP_F32 || b == DTP_F64 || b == DTP_BF16 || b == DTP_F16;
	return a == DTP_I64 || a == DTP_U8 ? a == b : floating;
}

static enum dtp_code check_shape(const struct dtp_dump_entry *ours, const struct dtp_st *st, const struct dtp_st_entry *theirs,
				 struct dtp_err *err)
{
	char here[128], there[128];
	bool same = ours->tensor.ndim == theirs->ndim && comparable(ours->tensor.dtype, theirs->dtype);

	for (int d = 0; same && d < theirs->ndim; d++)
		same = ours->tensor.shape[d] == theirs->shape[d];
	if (same)
		return DTP_OK;
	return dtp_fail(err, DTP_FAILED, "'%s': stage '%s' has the shape %s (%s), this run's has %s (%s): another model, size or prompt "
			"length was recorded", st->files[theirs->file].path, theirs->name,
			dtp_shape_text(there, sizeof there, theirs->ndim, theirs->shape), theirs->dtype_name,
			dtp_shape_text(here, sizeof here, ours->tensor.ndim, ours->tensor.shape),
			dtp_dtype_name(ours->tensor.dtype));
}

static const char *component_of(const char *stage)
{
	static const char *const names[][2] = {{"text.", "text_encoder"}, {"neg.", "text_encoder"}, {"step", "transformer"},
		{"vae.", "vae"}, {"image.", "vae"}, {"final.", "vae"}};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strncmp(stage, names[i][0], strlen(names[i][0])))
			return names[i][1];
	return "start";
}

static enum dtp_code compare_stage(struct pair *p, const struct dtp_verify_job *job, const char *after,
				   struct dtp_verify_report *report, struct dtp_err *err)
{
	struct comparison c = {.rms = 0};
	struct dtp_finding f = {.kind = DTP_POINT_STAGE, .step = 1};

	if (check_shape(p->ours, p->st, p->theirs, err) || each_chunk(p, add_squares, &c.rms, err))
		return err->code;
	c.rms = c.rms > 0 ? sqrt(c.rms / (double)p->values) : 1;
	if (each_chunk(p, compare_chunk, &c, err))
		return err->code;
	f.d = (struct dtp_difference){dtp_sums_rms(&c.sums, c.rms), c.sums.max, tolerance_of(p, job, c.rms), 0, c.sums.broken};
	f.d.rms_tolerance = DTP_VERIFY_RMS_SHARE_AT * f.d.tolerance;
	snprintf(f.component, sizeof f.component, "%s", component_of(p->ours->name));
	snprintf(f.module, sizeof f.module, "%s", p->ours->name);
	snprintf(f.after, sizeof f.after, "%s", after);
	return dtp_verify_note(report, p->ours->name, &f, err);
}

static void list(char *names, size_t size, const char *name, int n)
{
	size_t used = strlen(names);
	snprintf(names + used, size - used, "%s'%s'", n ? ", " : "", name);
}

static void list_theirs(const struct dtp_dump *ours, const struct dtp_st *st, struct dtp_verify_report *report)
{
	for (int i = 0; i < st->nentries; i++) {
		bool known = false;
		for (int k = 0; k < ours->n && !known; k++)
			known = !strcmp(ours->entries[k].name, st->entries[i].name);
		if (!known)
			list(report->theirs, sizeof report->theirs, st->entries[i].name, report->only_theirs++);
	}
}

static enum dtp_code compare_all(const struct dtp_dump *ours, const struct dtp_st *st, const struct dtp_verify_job *job,
				 struct dtp_verify_report *report, struct dtp_err *err)
{
	struct pair *p = malloc(sizeof *p);
	const char *after = "nothing";

	if (!p)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	for (int i = 0; i < ours->n && !err->code; i++) {
		const struct dtp_dump_entry *e = &ours->entries[i];
		const struct dtp_st_entry *theirs = dtp_st_find(st, e->name);
		if (!theirs) {
			list(report->ours, sizeof report->ours, e->name, report->only_ours++);
			continue;
		}
		p->ours = e;
		p->st = st;
		p->theirs = theirs;
		p->values = dtp_numel(&e->tensor);
		compare_stage(p, job, after, report, err);
		after = e->name;
	}
	free(p);
	list_theirs(ours, st, report);
	if (!err->code && !report->nrows)
		dtp_fail(err, DTP_FAILED, "'%s' holds no stage of this run, as '%s' is one", st->files[0].path, ours->entries[0].name);
	return err->code;
}

enum dtp_code dtp_verify_no_image(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	(void)arg, (void)image, (void)err;
	return DTP_OK;
}

enum dtp_code dtp_verify_against(const struct dtp_verify_job *job, const char *path, struct dtp_verify_report *report,
				 struct dtp_err *err)
{
	struct dtp_pipeline *p = job->pipeline;
	struct dtp_dump ours = {0};
	struct dtp_st st;

	*report = (struct dtp_verify_report){0};
	if (dtp_st_open_file(path, &st, err))
		return err->code;
	p->stages = &ours;
	if (!dtp_pipeline_run(p, job->request, job->backend, job->mesh, job->mon, job->node_threads, dtp_verify_no_image, NULL, err) &&
	    job->mesh->dim[DTP_MESH_TP]->rank == 0) {
		job->mon->stage(job->mon->arg, DTP_PHASE_WRITE, "compare");
		compare_all(&ours, &st, job, report, err);
	}
	p->stages = NULL;
	dtp_dump_free(&ours);
	dtp_st_close(&st);
	return err->code;
}
