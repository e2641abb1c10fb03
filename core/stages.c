/* SPDX-License-Identifier: Apache-2.0 */
/* Recording stages (ops.h): columns that the ranks split are put together in the order of the whole model. */
#include "dump.h"
#include "ops.h"
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* x [rows, cols] as dense f32 on the host, malloc'd. */
static float *to_host(struct dtp_ctx *c, struct dtp_tensor x)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	if (!dtp_is_dense(&x)) {
		struct dtp_tensor dense = dtp_new(c, x.dtype, x.ndim, x.shape);
		dtp_copy(c, dense, x);
		x = dense;
	}
	float *host = NULL;
	if (dtp_ok(c) && !c->be->dry) {
		size_t n = (size_t)dtp_numel(&x);
		host = malloc((n ? n : 1) * sizeof *host);
		if (!host)
			dtp_fail(&c->err, DTP_FAILED, "out of memory for a recorded stage of %zu values", n);
		else if (c->be->ops->download(c->be, host, DTP_F32, x, &c->err)) {
			free(host);
			host = NULL;
		}
	}
	dtp_arena_release(&c->scratch, mark);
	return host;
}

void dtp_stage_columns(const struct dtp_ctx *c, enum dtp_columns side, const struct dtp_layer *l, int r, struct dtp_split *s)
{
	struct dtp_param weight;
	int dim = side == DTP_OUT_OF ? 0 : 1;

	s->dim = -1;
	if (side == DTP_WHOLE || !dtp_module_param(l->module, 0, &weight))
		return;
	dtp_placement(c->tree, &weight, r, c->tp->size, s);
	if (s->dim != dim)
		s->dim = -1;
}

/* local [rows, n] of every rank -> whole [rows, total]. */
static float *gather(struct dtp_ctx *c, float *local, int64_t rows, enum dtp_columns side, const struct dtp_layer *l,
		     int64_t total)
{
	struct dtp_split s;
	int64_t most = 0;
	for (int r = 0; r < c->tp->size; r++) {
		dtp_stage_columns(c, side, l, r, &s);
		if (dtp_split_length(&s) > most)
			most = dtp_split_length(&s);
	}
	dtp_stage_columns(c, side, l, c->tp->rank, &s);
	int64_t mine = dtp_split_length(&s), slot = rows * most;
	float *send = calloc((size_t)slot + 1, sizeof *send), *recv = calloc((size_t)(slot * c->tp->size) + 1, sizeof *recv);
	float *out = calloc((size_t)(rows * total) + 1, sizeof *out);
	if (!send || !recv || !out) {
		dtp_fail(&c->err, DTP_FAILED, "out of memory for a recorded stage");
	} else {
		memcpy(send, local, (size_t)(rows * mine) * sizeof *send);
		dtp_all_gather(c->tp, recv, send, slot, DTP_F32, &c->err);
	}
	for (int r = 0; dtp_ok(c) && r < c->tp->size; r++) {
		dtp_stage_columns(c, side, l, r, &s);
		int64_t n = dtp_split_length(&s), at = 0;
		for (int k = 0; k < s.nruns; k++) {
			int64_t len = s.run[k].end - s.run[k].begin;
			for (int64_t i = 0; i < rows; i++)
				memcpy(out + i * total + s.run[k].begin, recv + r * slot + i * n + at,
				       (size_t)len * sizeof *out);
			at += len;
		}
	}
	free(send);
	free(recv);
	free(local);
	return out;
}

static void keep(struct dtp_ctx *c, const char *name, const float *values, int ndim, const int64_t *shape)
{
	if (!values || !dtp_ok(c) || c->tp->rank != 0)
		return;
	float *p = dtp_dump_add(c->dump, name, dtp_depth(c), DTP_F32, ndim, shape);
	if (!p) {
		dtp_fail(&c->err, DTP_FAILED, "out of memory for recorded stage '%s'", name);
		return;
	}
	size_t n = 1;
	for (int d = 0; d < ndim; d++)
		n *= (size_t)shape[d];
	memcpy(p, values, n * sizeof *p);
}

#define NAME(buf, fmt) \
	do { \
		va_list ap; \
		va_start(ap, fmt); \
		vsnprintf(buf, sizeof buf, fmt, ap); \
		va_end(ap); \
	} while (0)

/* x [rows, local columns] as [rows, *cols] in the order of the whole model; malloc'd, NULL on failure or in a dry run. */
static float *whole(struct dtp_ctx *c, struct dtp_tensor x, enum dtp_columns side, const struct dtp_layer *l, int64_t *cols)
{
	struct dtp_split s;
	float *host = to_host(c, x);

	*cols = x.ndim == 3 ? x.shape[1] * x.shape[2] : x.shape[1];
	if (!host)
		return NULL;
	dtp_stage_columns(c, side, l, c->tp->rank, &s);
	if (s.dim < 0)
		return host;
	*cols = l->module->shape[s.dim];
	return gather(c, host, x.shape[0], side, l, *cols);
}

void dtp_stage(struct dtp_ctx *c, struct dtp_tensor x, enum dtp_columns side, const struct dtp_layer *l, const char *fmt, ...)
{
	char name[256];
	int64_t cols;
	if ((!c->dump && !c->observer) || !dtp_ok(c))
		return;
	NAME(name, fmt);
	if (c->observer)
		c->observer->stage(c->observer->arg, c, x, name);
	if (!c->dump)
		return;
	float *host = whole(c, x, side, l, &cols);
	if (x.ndim == 3)
		keep(c, name, host, 4, (int64_t[]){1, x.shape[0], cols / x.shape[2], x.shape[2]});
	else
		keep(c, name, host, 3, (int64_t[]){1, x.shape[0], cols});
	free(host);
}

void dtp_stage_heads(struct dtp_ctx *c, struct dtp_tensor x, const struct dtp_layer *l, int64_t from, int64_t n, int64_t dim,
		     const char *name)
{
	int64_t cols, rows = x.shape[0];
	if (!c->dump || !dtp_ok(c))
		return;
	float *host = whole(c, x, DTP_OUT_OF, l, &cols);
	for (int64_t i = 0; host && i < rows; i++) /* the kept columns move to the front */
		memmove(host + i * n, host + i * cols + from, (size_t)n * sizeof *host);
	keep(c, name, host, 4, (int64_t[]){1, rows, n / dim, dim});
	free(host);
}

void dtp_stage_plain(struct dtp_ctx *c, struct dtp_tensor x, const char *fmt, ...)
{
	char name[256];
	if (!c->dump || !dtp_ok(c))
		return;
	NAME(name, fmt);
	float *host = to_host(c, x);
	keep(c, name, host, x.ndim, x.shape);
	free(host);
}

void dtp_stage_picture(struct dtp_ctx *c, struct dtp_tensor x, const char *fmt, ...)
{
	char name[256];
	if (!c->dump || !dtp_ok(c))
		return;
	NAME(name, fmt);
	float *host = to_host(c, x);
	if (!host)
		return;
	int64_t pixels = x.shape[0] * x.shape[1], n = x.shape[2];
	float *chw = malloc((size_t)(pixels * n + 1) * sizeof *chw);
	if (!chw)
		dtp_fail(&c->err, DTP_FAILED, "out of memory for recorded stage '%s'", name);
	else
		dtp_hwc_to_chw(chw, host, pixels, n);
	keep(c, name, chw, 4, (int64_t[]){1, n, x.shape[0], x.shape[1]});
	free(chw);
	free(host);
}
