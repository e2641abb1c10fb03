/* SPDX-License-Identifier: Apache-2.0 */
/* The other side of a comparison: the whole model as one rank computes it, in a thread of its own that stands still at every
 * event until the next one is asked for.  A layer's weights are read when it is about to be used and freed when it has
 * been: one layer is in memory at a time, so that a rank can do this beside its part of a model that it could never hold. */
#ifndef DTP_WHOLE_H
#define DTP_WHOLE_H

#include "ops.h"
#include "safetensors.h"

enum dtp_point_kind {
	DTP_POINT_INPUT,  /* what a layer is given */
	DTP_POINT_OUTPUT, /* what it gives */
	DTP_POINT_STAGE,  /* a named place in the forward pass (ops.h) */
	DTP_POINT_END     /* the passes are done */
};

struct dtp_point {
	enum dtp_point_kind kind;
	struct dtp_ctx *ctx;           /* of the pass */
	const struct dtp_layer *layer; /* NULL at a stage */
	const char *stage;
	struct dtp_tensor x;
	/* The columns of x: those of `of`, on the given side of it, from `column` on (counted as this rank has them). */
	const struct dtp_layer *of;    /* NULL: x has all columns of the model */
	enum dtp_columns side;
	int64_t column;
};

/* Turns what an observer sees into events.  stages_only: of the stages alone. */
#define DTP_TRAIL 8
struct dtp_watch {
	void (*event)(void *arg, const struct dtp_point *e);
	void *arg;
	bool stages_only;
	/* The last outputs: heads that are normed in place lie in one of them. */
	struct {
		const struct dtp_layer *layer;
		struct dtp_tensor out;
	} trail[DTP_TRAIL];
	int ntrail;
};
void dtp_watch_before(struct dtp_watch *w, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in);
void dtp_watch_after(struct dtp_watch *w, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out);
void dtp_watch_stage(struct dtp_watch *w, struct dtp_ctx *c, struct dtp_tensor x, const char *name);

/* A tree whose layers are bound as one rank has them, and the files of its weights. */
struct dtp_whole_source {
	struct dtp_tree *tree;
	const struct dtp_st *st;
	const char *prefix; /* of their names in the files, as a rule "" */
};

struct dtp_whole_job {
	/* Runs the forward passes, watched by the observer; called in the thread. */
	enum dtp_code (*run)(void *arg, const struct dtp_observer *o, struct dtp_err *err);
	void *arg;
	const struct dtp_whole_source *sources;
	int nsources;
	bool stages_only;
};

struct dtp_whole;
/* Sets `needed` of all modules of the sources to false: from now on they are loaded here.  The job's parts must outlive it. */
enum dtp_code dtp_whole_start(const struct dtp_whole_job *job, struct dtp_whole **out, struct dtp_err *err);
/* Computes up to the next event, which is valid until the next call.  Its tensor and context may be used meanwhile. */
enum dtp_code dtp_whole_next(struct dtp_whole *w, struct dtp_point *e, struct dtp_err *err);
/* Ends the thread, wherever it stands.  NULL is allowed. */
void dtp_whole_stop(struct dtp_whole *w);

struct dtp_whole_stats {
	uint64_t peak;  /* bytes of weights in memory at once */
	uint64_t read;  /* bytes of weights loaded, in all */
	uint64_t loads; /* of layers */
};
struct dtp_whole_stats dtp_whole_stats(const struct dtp_whole *w);
#endif
