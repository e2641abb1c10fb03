/* SPDX-License-Identifier: Apache-2.0 */
/* What the forward passes are written in.  Each operation checks shapes, takes its result from the scratch arena, calls the
 * backend and, where a layer's input dimension is split, sums over the ranks.  After a first failure every operation
 * returns at once, so that a forward pass needs no check per line: the caller looks at ctx->err at the end of a block.
 * No model file knows a rank, a degree, a dtype or a device. */
#ifndef DTP_OPS_H
#define DTP_OPS_H

#include "arena.h"
#include "backend.h"
#include "comm.h"
#include "module.h"
#include "monitor.h"

struct dtp_dump;
struct dtp_split;

/* Counted by every operation: for `bench` and the fit report. */
enum dtp_op { DTP_OP_LINEAR, DTP_OP_ATTENTION, DTP_OP_CONV, DTP_OP_NORM, DTP_OP_POINTWISE, DTP_OP_REDUCE, DTP_OP_COPY,
	DTP_NOPS };
struct dtp_opstat {
	uint64_t calls;
	double flops, bytes, seconds; /* bytes: of REDUCE on the wire; seconds only while ctx->timing */
};

struct dtp_ctx;

/* Watches the layers of a forward pass at work, from within the operations: the forward pass knows nothing of it.  What is
 * pointed to may be changed: a layer's weights need be there only after `before`, and values that are written into a tensor are
 * those that the pass goes on with.  Convolutions and group norms, which no plan splits, are not watched. */
struct dtp_observer {
	void *arg;
	/* A layer is about to be used on `in` (data NULL: token ids, or heads that are normed in place). */
	void (*before)(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in);
	/* What it gave, summed over the ranks: tokens [M, columns], or heads [M, heads, dim] normed in place. */
	void (*after)(void *arg, struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out);
	/* A stage (below) was passed. */
	void (*stage)(void *arg, struct dtp_ctx *c, struct dtp_tensor x, const char *name);
};

struct dtp_ctx {
	struct dtp_backend *be;
	struct dtp_comm *tp;        /* moves host memory */
	struct dtp_comm *sums;      /* of the same ranks, for tensors; NULL: tp does */
	struct dtp_arena scratch;
	const struct dtp_monitor *mon;
	const struct dtp_tree *tree;/* of the model that runs: how its columns are split */
	struct dtp_dump *dump;      /* NULL unless stages are recorded */
	const struct dtp_observer *observer; /* NULL as a rule */
	enum dtp_dtype reduce;      /* what partial sums are rounded to before they are added: F32 (0, too) or be->compute */
	enum dtp_overlap overlap;   /* of sums with the products that they belong to */
	bool timing;
	struct dtp_opstat stat[DTP_NOPS];
	struct dtp_err err;
};

static inline bool dtp_ok(const struct dtp_ctx *c)
{
	return c->err.code == DTP_OK;
}

/* Waits for the device, unless something has failed: the first failure is the one that is told. */
static inline void dtp_sync(struct dtp_ctx *c)
{
	if (dtp_ok(c))
		c->be->ops->sync(c->be, &c->err);
}

/* How many products and convolutions have been computed: how far rounding has come. */
static inline uint64_t dtp_depth(const struct dtp_ctx *c)
{
	return c->stat[DTP_OP_LINEAR].calls + c->stat[DTP_OP_CONV].calls;
}

/* A dense scratch tensor; valid until the arena is released below it. */
struct dtp_tensor dtp_new(struct dtp_ctx *c, enum dtp_dtype t, int ndim, const int64_t *shape);
struct dtp_tensor dtp_new2(struct dtp_ctx *c, int64_t rows, int64_t cols);            /* compute dtype */
struct dtp_tensor dtp_new3(struct dtp_ctx *c, int64_t a, int64_t b, int64_t cols);

/* y = x W^T + b for tokens x [M, in] (in: the layer's own, or the replicated width where it cuts its input).
 * Where the layer's input dimension is split the partial products are summed over the ranks (in ctx->reduce; see ctx->overlap), then the bias
 * is added.
 * _into writes to a given (strided) tensor. */
struct dtp_tensor dtp_linear(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x);
void dtp_linear_into(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor x);
/* The same, left in f32 or, where it is summed over the ranks, in ctx->reduce: for a sum that is added to the residual stream and
 * rounded there. */
struct dtp_tensor dtp_linear_sum(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x);
/* [M, width] f32 sums over vocabulary rows where the table is split; rounded. */
struct dtp_tensor dtp_embed(struct dtp_ctx *c, const struct dtp_layer *l, const int32_t *ids, int64_t n);
struct dtp_tensor dtp_modulated_norm(struct dtp_ctx *c, struct dtp_tensor x, struct dtp_tensor shift, struct dtp_tensor scale,
				     float eps);
struct dtp_tensor dtp_rms_norm(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, float eps);
/* The rotation of S positions. */
struct dtp_rope_table {
	enum dtp_rope kind;
	struct dtp_tensor cos, sin; /* [S, D/2] F32 */
};
/* Both norms, or none: NULL. */
void dtp_qk_norm_rope(struct dtp_ctx *c, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_layer *norm_q,
		      const struct dtp_layer *norm_k, float eps, const struct dtp_rope_table *rope);
void dtp_attend(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
		const struct dtp_attention *a);
void dtp_swiglu(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up);
/* x += gate * y; gate with data NULL: x += y. */
void dtp_residual(struct dtp_ctx *c, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y);
struct dtp_tensor dtp_silu(struct dtp_ctx *c, struct dtp_tensor x);
struct dtp_tensor dtp_add(struct dtp_ctx *c, struct dtp_tensor a, struct dtp_tensor b);
void dtp_copy(struct dtp_ctx *c, struct dtp_tensor dst, struct dtp_tensor src);
/* latents += dt * noise; dt F32 [1]. */
void dtp_euler(struct dtp_ctx *c, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt);
struct dtp_tensor dtp_conv(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, int stride, int pad_tl, int pad_br);
void dtp_conv_into(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor x, int stride,
		   int pad_tl, int pad_br);
struct dtp_tensor dtp_group_norm(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, int groups, float eps);
/* out [h, w, N] = conv(silu(group_norm(x [h, w, C]))), or += if add; 3x3, padded by 1.  The normalised picture exists a strip of
 * DTP_STRIP_BYTES at a time, its statistics are the whole picture's: the result is that of the whole. */
#define DTP_STRIP_BYTES (INT64_C(8) << 20)
void dtp_norm_conv(struct dtp_ctx *c, struct dtp_tensor out, bool add, const struct dtp_layer *norm, int groups, float eps,
		   const struct dtp_layer *conv, struct dtp_tensor x);
/* out [2h, 2w, N] = conv(nearest(x [h, w, C])); 3x3, padded by 1.  The enlarged picture exists a strip at a time, likewise. */
void dtp_upsample_conv(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *conv, struct dtp_tensor x);
/* conv(x [h, w, C]) -> [h, w, N] in the same place, x being no more; 1x1.  The place is as large as the larger of the two. */
struct dtp_tensor dtp_conv_over(struct dtp_ctx *c, const struct dtp_layer *conv, struct dtp_tensor x);
/* Packed tokens [h*w, 4C] -> picture [2h, 2w, C], with the batch norm `bn` (running mean and variance) undone. */
struct dtp_tensor dtp_unpatchify(struct dtp_ctx *c, const struct dtp_layer *bn, struct dtp_tensor tokens, int64_t h, int64_t w,
				 float eps);
/* The inverse: picture [2h, 2w, C] -> packed tokens [h*w, 4C], normalised by `bn`. */
struct dtp_tensor dtp_patchify(struct dtp_ctx *c, const struct dtp_layer *bn, struct dtp_tensor x, float eps);
/* A scratch tensor with values from the host. */
struct dtp_tensor dtp_from_host(struct dtp_ctx *c, enum dtp_dtype t, int ndim, const int64_t *shape, const float *values);
/* rgb [h, w, 3], host memory. */
void dtp_quantise(struct dtp_ctx *c, uint8_t *rgb, struct dtp_tensor picture);

/* ---- stages, recorded for --dump-stages under the names of the reference; no-ops when nothing is recorded.  All ranks
 * call them, since columns that are split over the ranks are gathered into the unsplit order; rank 0 keeps the result. */
enum dtp_columns { DTP_WHOLE, DTP_OUT_OF /* the columns are `l`'s output rows */, DTP_INTO /* `l`'s input columns */ };
/* Which of the whole model's columns rank r has of such a tensor: dim -1 when all. */
void dtp_stage_columns(const struct dtp_ctx *c, enum dtp_columns side, const struct dtp_layer *l, int r, struct dtp_split *s);
/* Tokens x [M, cols] -> [1, M, cols]; x [M, heads, dim] -> [1, M, heads, dim]. */
void dtp_stage(struct dtp_ctx *c, struct dtp_tensor x, enum dtp_columns side, const struct dtp_layer *l, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* Columns [from, from + n) of the output of `l`, as heads of dim: x [M, l->out] -> [1, M, n / dim, dim]. */
void dtp_stage_heads(struct dtp_ctx *c, struct dtp_tensor x, const struct dtp_layer *l, int64_t from, int64_t n, int64_t dim,
		     const char *name);
/* x as it is. */
void dtp_stage_plain(struct dtp_ctx *c, struct dtp_tensor x, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A picture [h, w, C] -> [1, C, h, w]. */
void dtp_stage_picture(struct dtp_ctx *c, struct dtp_tensor x, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#endif
