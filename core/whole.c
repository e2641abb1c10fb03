/* SPDX-License-Identifier: Apache-2.0 */
#include "whole.h"

#include "weights.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events */

static size_t row_bytes(struct dtp_tensor x)
{
	return (size_t)(x.ndim == 3 ? x.shape[1] * x.shape[2] : x.shape[1]) * dtp_dtype_size(x.dtype);
}

/* The layer in whose output x begins, the latest first: heads that are normed are columns of a projection. */
static void find_columns(const struct dtp_watch *w, struct dtp_point *e)
{
	const char *at = e->x.data;

	for (int i = w->ntrail - 1; i >= 0 && i >= w->ntrail - DTP_TRAIL; i--) {
		const struct dtp_tensor *out = &w->trail[i % DTP_TRAIL].out;
		const char *begin = out->data;
		if (at < begin || at >= begin + row_bytes(*out))
			continue;
		e->of = w->trail[i % DTP_TRAIL].layer;
		e->column = (at - begin) / (int64_t)dtp_dtype_size(out->dtype);
		return;
	}
}

void dtp_watch_before(struct dtp_watch *w, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in)
{
	struct dtp_point e = {.kind = DTP_POINT_INPUT, .ctx = c, .layer = l, .x = in, .side = DTP_INTO};

	if (w->stages_only || !in.data)
		return;
	if (!l->split_input && l->module->kind == DTP_MODULE_LINEAR)
		e.of = l;
	w->event(w->arg, &e);
}

void dtp_watch_after(struct dtp_watch *w, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out)
{
	struct dtp_point e = {.kind = DTP_POINT_OUTPUT, .ctx = c, .layer = l, .x = out, .side = DTP_OUT_OF};

	if (w->stages_only)
		return;
	if (l->module->kind == DTP_MODULE_LINEAR) {
		e.of = l;
		w->trail[w->ntrail % DTP_TRAIL].layer = l;
		w->trail[w->ntrail++ % DTP_TRAIL].out = out;
	} else if (out.ndim == 3) {
		find_columns(w, &e);
	}
	w->event(w->arg, &e);
}

void dtp_watch_stage(struct dtp_watch *w, struct dtp_ctx *c, struct dtp_tensor x, const char *name)
{
	struct dtp_point e = {.kind = DTP_POINT_STAGE, .ctx = c, .stage = name, .x = x};

	w->event(w->arg, &e);
}

/* ---- the thread */

struct dtp_whole {
	struct dtp_whole_job job;
	struct dtp_watch watch;
	struct dtp_observer observer;
	struct dtp_whole_stats stats;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool its_turn, cancelled, ended;
	struct dtp_point event;
	char stage[256];
	struct dtp_err err;
};

static void wait_for_turn(struct dtp_whole *w, bool its)
{
	pthread_mutex_lock(&w->lock);
	while (w->its_turn != its)
		pthread_cond_wait(&w->changed, &w->lock);
	pthread_mutex_unlock(&w->lock);
}

static void give_turn(struct dtp_whole *w, bool its)
{
	pthread_mutex_lock(&w->lock);
	w->its_turn = its;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

static void hand_over(void *arg, const struct dtp_point *e)
{
	struct dtp_whole *w = arg;

	w->event = *e;
	if (e->stage) {
		snprintf(w->stage, sizeof w->stage, "%s", e->stage);
		w->event.stage = w->stage;
	}
	dtp_sync(e->ctx);
	give_turn(w, false);
	wait_for_turn(w, true);
	if (w->cancelled)
		dtp_fail(&e->ctx->err, DTP_INTERRUPTED, "stopped");
}

static const struct dtp_whole_source *source_of(const struct dtp_whole *w, const struct dtp_module *m)
{
	for (int i = 0; i < w->job.nsources; i++) {
		const struct dtp_tree *t = w->job.sources[i].tree;
		if (m >= t->modules && m < t->modules + t->n)
			return &w->job.sources[i];
	}
	return NULL;
}

/* Layers of no source have their weights already. */
static void load(struct dtp_whole *w, struct dtp_ctx *c, const struct dtp_layer *l)
{
	const struct dtp_whole_source *s = source_of(w, l->module);
	struct dtp_load_stats stats;

	if (!s || l->weight)
		return;
	struct dtp_module *m = &s->tree->modules[l->module - s->tree->modules];
	m->needed = true;
	dtp_weights_load(s->tree, s->st, s->prefix, 0, 1, c->be, c->mon, &stats, &c->err);
	m->needed = false;
	if (!dtp_ok(c))
		return;
	uint64_t bytes = l->weight->nbytes + (l->bias ? l->bias->nbytes : 0);
	w->stats.peak = bytes > w->stats.peak ? bytes : w->stats.peak;
	w->stats.read += bytes;
	w->stats.loads++;
}

static void before(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in)
{
	struct dtp_whole *w = arg;

	load(w, c, l);
	if (dtp_ok(c))
		dtp_watch_before(&w->watch, c, l, in);
}

static void after(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out)
{
	struct dtp_whole *w = arg;
	const struct dtp_whole_source *s = source_of(w, l->module);

	dtp_sync(c);
	if (s)
		dtp_weights_free(s->tree, c->be);
	dtp_watch_after(&w->watch, c, l, out);
}

static void stage(void *arg, struct dtp_ctx *c, struct dtp_tensor x, const char *name)
{
	dtp_watch_stage(&((struct dtp_whole *)arg)->watch, c, x, name);
}

static void *run(void *arg)
{
	struct dtp_whole *w = arg;

	wait_for_turn(w, true);
	if (!w->cancelled)
		w->job.run(w->job.arg, &w->observer, &w->err);
	w->event = (struct dtp_point){.kind = DTP_POINT_END};
	w->ended = true;
	give_turn(w, false);
	return NULL;
}

enum dtp_code dtp_whole_start(const struct dtp_whole_job *job, struct dtp_whole **out, struct dtp_err *err)
{
	struct dtp_whole *w = calloc(1, sizeof *w);

	*out = NULL;
	if (!w)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	w->job = *job;
	w->watch = (struct dtp_watch){.event = hand_over, .arg = w, .stages_only = job->stages_only};
	w->observer = (struct dtp_observer){w, before, after, stage};
	w->err = (struct dtp_err)DTP_ERR_INIT;
	for (int i = 0; i < job->nsources; i++)
		for (int m = 0; m < job->sources[i].tree->n; m++)
			job->sources[i].tree->modules[m].needed = false;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	int rc = pthread_create(&w->thread, NULL, run, w);
	if (rc) {
		free(w);
		return dtp_fail(err, DTP_FAILED, "cannot start a thread: %s", strerror(rc));
	}
	*out = w;
	return DTP_OK;
}

enum dtp_code dtp_whole_next(struct dtp_whole *w, struct dtp_point *e, struct dtp_err *err)
{
	if (!w->ended) {
		give_turn(w, true);
		wait_for_turn(w, false);
	}
	*e = w->event;
	if (!w->err.code)
		return DTP_OK;
	*err = w->err;
	return dtp_err_prefix(err, "in the whole model, as one rank computes it: ");
}

void dtp_whole_stop(struct dtp_whole *w)
{
	if (!w)
		return;
	w->cancelled = true;
	give_turn(w, true);
	pthread_join(w->thread, NULL);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->changed);
	free(w);
}

struct dtp_whole_stats dtp_whole_stats(const struct dtp_whole *w)
{
	return w->stats;
}
