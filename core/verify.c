/* SPDX-License-Identifier: Apache-2.0 */
#include "verify_internal.h"

#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_VALUES (1 << 20) /* of a tensor, compared at a time */

struct dtp_verify {
	struct dtp_verify_options options;
	struct dtp_comm *tp;
	struct dtp_whole *whole;
	struct dtp_observer observer;
	struct dtp_watch watch;
	struct dtp_arena arena, whole_arena; /* for dense copies of a chunk */
	struct dtp_backend *be, *whole_be;
	float *mine, *theirs;
	int64_t *map;                        /* of each local column: its place among the columns that are compared */
	int64_t room, map_room;
	struct dtp_verify_report *report;
	int steps;                           /* done */
	char last[DTP_VERIFY_NAME];          /* the event before this one */
	char block[DTP_VERIFY_NAME];         /* row of the last layer */
};

/* ---- memory for one chunk */

static enum dtp_code make_room(struct dtp_verify *v, int64_t values, int64_t columns, struct dtp_err *err)
{
	if (columns > v->map_room) {
		int64_t *map = realloc(v->map, (size_t)columns * sizeof *map);
		if (!map)
			return dtp_fail(err, DTP_FAILED, "out of memory for %lld columns", (long long)columns);
		v->map = map;
		v->map_room = columns;
	}
	if (values <= v->room)
		return DTP_OK;
	free(v->mine);
	free(v->theirs);
	v->room = 0;
	v->mine = malloc((size_t)values * sizeof *v->mine);
	v->theirs = malloc((size_t)values * sizeof *v->theirs);
	dtp_arena_free(&v->arena);
	dtp_arena_free(&v->whole_arena);
	uint64_t bytes = (uint64_t)values * sizeof(float) + 64;
	if (!v->mine || !v->theirs)
		return dtp_fail(err, DTP_FAILED, "out of memory for a comparison of %lld values", (long long)values);
	if (dtp_arena_init(&v->arena, v->be, bytes, err) ||
	    (v->whole_be && dtp_arena_init(&v->whole_arena, v->whole_be, bytes, err)))
		return err->code;
	v->room = values;
	return DTP_OK;
}

static int64_t row_length(const struct dtp_tensor *x)
{
	return x->ndim == 3 ? x->shape[1] * x->shape[2] : x->shape[1];
}

/* Rows to or from the host, through a dense copy in `arena`: the pass's own scratch has no room to spare. */
static void move_rows(struct dtp_ctx *c, struct dtp_arena *arena, struct dtp_tensor x, int64_t row, int64_t n, float *host,
		      bool store)
{
	struct dtp_arena own = c->scratch;
	struct dtp_tensor part = dtp_narrow(x, 0, row, n);

	c->scratch = *arena;
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor dense = dtp_new(c, part.dtype, part.ndim, part.shape);
	if (store && dtp_ok(c))
		c->be->ops->upload(c->be, dense, host, DTP_F32, &c->err);
	dtp_copy(c, store ? part : dense, store ? dense : part);
	if (!store && dtp_ok(c))
		c->be->ops->download(c->be, host, DTP_F32, dense, &c->err);
	dtp_arena_release(&c->scratch, mark);
	*arena = c->scratch;
	c->scratch = own;
}

/* ---- one event */

/* What rank 0 tells the others of an event before its values. */
struct header {
	int64_t rows, columns, column, kind;
	double rms;
};

/* The whole model's columns that this rank's columns [from, from + n) are. */
static enum dtp_code map_columns(struct dtp_verify *v, const struct dtp_point *e, const struct header *h, struct dtp_err *err)
{
	struct dtp_split s = {.dim = -1};
	int64_t n = row_length(&e->x), local = 0, found = 0;

	if (e->of)
		dtp_stage_columns(e->ctx, e->side, e->of, v->tp->rank, &s);
	if (s.dim < 0) {
		s.nruns = 1;
		s.run[0].begin = 0;
		s.run[0].end = e->column + n;
	}
	for (int k = 0; k < s.nruns; k++)
		for (int64_t i = s.run[k].begin; i < s.run[k].end; i++, local++)
			if (local >= e->column && found < n && found < v->map_room)
				v->map[found++] = i - h->column;
	for (int64_t i = 0; i < n; i++)
		if (i >= found || v->map[i] < 0 || v->map[i] >= h->columns)
			return dtp_fail(err, DTP_FAILED, "internal error: column %lld of %lld has no place in '%s'", (long long)i,
					(long long)n, e->layer ? e->layer->module->name : e->stage);
	return DTP_OK;
}

/* Compares one chunk and, where the ranks are to go on with the whole model's values, stores them. */
static void compare_rows(struct dtp_verify *v, const struct dtp_point *e, const struct header *h, int64_t row, int64_t n,
			 struct dtp_sums *s)
{
	int64_t columns = row_length(&e->x);
	bool same = true;

	move_rows(e->ctx, &v->arena, e->x, row, n, v->mine, false);
	for (int64_t i = 0; dtp_ok(e->ctx) && i < n; i++)
		for (int64_t j = 0; j < columns; j++) {
			float *a = &v->mine[i * columns + j], b = v->theirs[i * h->columns + v->map[j]];
			same = same && !memcmp(a, &b, sizeof b);
			dtp_sums_add(s, *a, b, h->rms);
			*a = b;
		}
	if (!same && !v->options.free_run)
		move_rows(e->ctx, &v->arena, e->x, row, n, v->mine, true);
}

/* On rank 0: the event of the whole model that must be this one. */
static enum dtp_code meet(struct dtp_verify *v, const struct dtp_point *e, struct dtp_point *theirs, struct dtp_err *err)
{
	if (dtp_whole_next(v->whole, theirs, err))
		return err->code;
	const char *a = e->layer ? e->layer->module->name : e->stage;
	const char *b = theirs->layer ? theirs->layer->module->name : theirs->stage ? theirs->stage : "the end";
	if (e->kind != theirs->kind || strcmp(a, b) || e->x.shape[0] != theirs->x.shape[0])
		return dtp_fail(err, DTP_FAILED, "the ranks compute '%s' of %lld rows where one rank computes '%s' of %lld", a,
				(long long)e->x.shape[0], b, (long long)theirs->x.shape[0]);
	return DTP_OK;
}

static int64_t chunk_rows(int64_t columns)
{
	return columns && columns < CHUNK_VALUES ? CHUNK_VALUES / columns : 1;
}

/* The RMS of the whole tensor, 1 where it is all zeros. */
static double whole_rms(struct dtp_verify *v, const struct dtp_point *e)
{
	int64_t columns = row_length(&e->x), step = chunk_rows(columns), rows = e->x.shape[0];
	double square = 0;

	for (int64_t row = 0; row < rows && dtp_ok(e->ctx); row += step) {
		int64_t n = rows - row < step ? rows - row : step;
		move_rows(e->ctx, &v->whole_arena, e->x, row, n, v->theirs, false);
		for (int64_t i = 0; i < n * columns; i++)
			square += isfinite(v->theirs[i]) ? (double)v->theirs[i] * v->theirs[i] : 0;
	}
	return square > 0 ? sqrt(square / (double)(rows * columns)) : 1;
}

static enum dtp_code compare_event(struct dtp_verify *v, const struct dtp_point *e, struct dtp_sums *s, struct dtp_err *err)
{
	struct dtp_point theirs = {.kind = DTP_POINT_END};
	struct header h = {0};
	bool root = v->tp->rank == 0;

	if (root) {
		if (meet(v, e, &theirs, err))
			return err->code;
		h = (struct header){theirs.x.shape[0], row_length(&theirs.x), theirs.column, theirs.kind, 0};
		if (make_room(v, chunk_rows(h.columns) * h.columns, h.columns, err))
			return err->code;
		h.rms = whole_rms(v, &theirs);
	}
	if (dtp_broadcast(v->tp, &h, sizeof h, 0, err) || make_room(v, chunk_rows(h.columns) * h.columns, h.columns, err))
		return err->code;
	if (h.kind != (int64_t)e->kind || h.rows != e->x.shape[0])
		return dtp_fail(err, DTP_FAILED, "internal error: the ranks are at different events");
	if (map_columns(v, e, &h, err))
		return err->code;
	int64_t step = chunk_rows(h.columns);
	for (int64_t row = 0; row < h.rows; row += step) {
		int64_t n = h.rows - row < step ? h.rows - row : step;
		if (root)
			move_rows(theirs.ctx, &v->whole_arena, theirs.x, row, n, v->theirs, false);
		if (dtp_broadcast(v->tp, v->theirs, n * h.columns * (int64_t)sizeof *v->theirs, 0, err))
			return err->code;
		compare_rows(v, e, &h, row, n, s);
	}
	s->square = dtp_sums_rms(s, h.rms);
	return DTP_OK;
}

/* ---- naming */

/* "transformer_blocks.3" of a module in a list, else the module's own name. */
static void block_of(const struct dtp_tree *t, const char *module, char name[DTP_VERIFY_NAME])
{
	snprintf(name, DTP_VERIFY_NAME, "%s", module);
	for (int i = 0; i < t->n; i++) {
		const struct dtp_module *m = &t->modules[i];
		size_t len = strlen(m->name);
		if (m->kind != DTP_MODULE_LIST || strncmp(module, m->name, len) || module[len] != '.')
			continue;
		len += 1 + strspn(module + len + 1, "0123456789");
		if (len < DTP_VERIFY_NAME)
			name[len] = '\0';
		return;
	}
}

/* The reference records the inside of the first step only and names it so; here it may be any. */
static const char *stage_name(const char *stage)
{
	return strncmp(stage, "step0.", 6) ? stage : stage + 6;
}

static void name_row(struct dtp_verify *v, const struct dtp_point *e, char name[DTP_VERIFY_NAME])
{
	const char *stage = e->stage;

	if (e->layer)
		block_of(e->ctx->tree, e->layer->module->name, v->block);
	if (!v->options.free_run)
		snprintf(name, DTP_VERIFY_NAME, "%s", v->block);
	else if (strncmp(stage, "step0.", 6))
		snprintf(name, DTP_VERIFY_NAME, "%s", stage);
	else
		snprintf(name, DTP_VERIFY_NAME, "step.%d", v->steps);
}

static int64_t reduction_length(const struct dtp_point *e)
{
	int64_t rows = e->x.shape[0], columns = e->of ? e->of->module->shape[e->side == DTP_OUT_OF ? 0 : 1] : row_length(&e->x);

	if (e->layer && e->kind == DTP_POINT_OUTPUT && e->layer->module->kind == DTP_MODULE_LINEAR)
		return e->layer->module->shape[1];
	return rows > columns ? rows : columns; /* a norm over columns, attention over rows */
}

/* Of no difference yet. */
static struct dtp_difference none(const struct dtp_verify *v, const struct dtp_point *e)
{
	enum dtp_dtype t = v->be->compute;
	int64_t n = reduction_length(e);
	struct dtp_difference d = {.tolerance = v->options.tolerance};

	if (!(d.tolerance > 0))
		d.tolerance = v->options.free_run ? dtp_verify_tolerance_at(t, n, dtp_depth(e->ctx)) : dtp_verify_tolerance(t, n);
	d.rms_tolerance = d.tolerance * (v->options.free_run ? DTP_VERIFY_RMS_SHARE_AT : DTP_VERIFY_RMS_SHARE);
	return d;
}

static void name_ranks(const struct dtp_verify *v, const struct dtp_sums *all, struct dtp_difference d, char *buf, size_t size)
{
	int n = 0;
	size_t len = 0;

	for (int r = 0; r < v->tp->size; r++) {
		d.rms = all[r].square;
		d.max = all[r].max;
		d.broken = all[r].broken;
		if (!dtp_differs(&d))
			continue;
		if (len < size)
			len += (size_t)snprintf(buf + len, size - len, n ? ", %d" : "%d", r);
		n++;
	}
	char list[64];
	snprintf(list, sizeof list, "%s", n ? buf : "");
	snprintf(buf, size, n == v->tp->size && n > 1 ? "all ranks" : n == 1 ? "rank %s" : n ? "ranks %s" : "%s", list);
}

static enum dtp_code report_event(struct dtp_verify *v, const struct dtp_point *e, const struct dtp_sums *all, struct dtp_err *err)
{
	struct dtp_finding f = {.kind = e->kind, .step = v->steps + 1, .d = none(v, e)};
	char name[DTP_VERIFY_NAME];

	snprintf(f.component, sizeof f.component, "%s", e->ctx->tree->component);
	snprintf(f.module, sizeof f.module, "%s", e->layer ? e->layer->module->name : stage_name(e->stage));
	snprintf(f.after, sizeof f.after, "%s", v->last);
	snprintf(v->last, sizeof v->last, "%s", f.module);
	name_row(v, e, name);
	for (int r = 0; r < v->tp->size; r++) {
		f.d.rms = all[r].square > f.d.rms ? all[r].square : f.d.rms;
		f.d.max = all[r].max > f.d.max ? all[r].max : f.d.max;
		f.d.broken += all[r].broken;
	}
	name_ranks(v, all, f.d, f.ranks, sizeof f.ranks);
	return dtp_verify_note(v->report, name, &f, err);
}

/* ---- the observer */

static void on_event(void *arg, const struct dtp_point *e)
{
	struct dtp_verify *v = arg;
	struct dtp_err *err = &e->ctx->err;
	struct dtp_sums mine = {0}, *all;
	int step, end = 0;

	all = calloc((size_t)v->tp->size, sizeof *all);
	if (!all) {
		dtp_fail(err, DTP_FAILED, "out of memory");
		return;
	}
	if (!compare_event(v, e, &mine, err) &&
	    !dtp_all_gather(v->tp, all, &mine, (int64_t)(sizeof mine / sizeof(int64_t)), DTP_I64, err) && v->tp->rank == 0)
		report_event(v, e, all, err);
	free(all);
	if (e->stage && sscanf(e->stage, "step.%d.latents%n", &step, &end) == 1 && end)
		v->steps = step + 1;
}

static void before(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in)
{
	dtp_watch_before(&((struct dtp_verify *)arg)->watch, c, l, in);
}

static void after(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out)
{
	dtp_watch_after(&((struct dtp_verify *)arg)->watch, c, l, out);
}

static void stage(void *arg, struct dtp_ctx *c, struct dtp_tensor x, const char *name)
{
	dtp_watch_stage(&((struct dtp_verify *)arg)->watch, c, x, name);
}

enum dtp_code dtp_verify_new(const struct dtp_verify_options *o, struct dtp_comm *tp, struct dtp_backend *be,
			     struct dtp_whole *whole, struct dtp_backend *whole_be, struct dtp_verify_report *report,
			     struct dtp_verify **out, struct dtp_err *err)
{
	struct dtp_verify *v = calloc(1, sizeof *v);

	*out = v;
	if (!v)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	*v = (struct dtp_verify){.options = *o, .tp = tp, .be = be, .whole = whole, .whole_be = whole_be, .report = report};
	v->observer = (struct dtp_observer){v, before, after, stage};
	v->watch = (struct dtp_watch){.event = on_event, .arg = v, .stages_only = o->free_run};
	return DTP_OK;
}

const struct dtp_observer *dtp_verify_observer(struct dtp_verify *v)
{
	return &v->observer;
}

void dtp_verify_free(struct dtp_verify *v)
{
	if (!v)
		return;
	dtp_arena_free(&v->arena);
	dtp_arena_free(&v->whole_arena);
	free(v->mine);
	free(v->theirs);
	free(v->map);
	free(v);
}
