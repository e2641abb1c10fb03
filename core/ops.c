/* SPDX-License-Identifier: Apache-2.0 */
#include "ops.h"
#include "clock.h"

#include <string.h>

/* Every operation starts and ends here: nothing runs after a failure or a stop, each call is a heartbeat and is counted. */
static bool begin(struct dtp_ctx *c, double *start)
{
	if (!dtp_ok(c))
		return false;
	if (c->mon->stopped(c->mon->arg)) {
		dtp_fail(&c->err, DTP_INTERRUPTED, "stopped");
		return false;
	}
	*start = c->timing ? dtp_seconds() : 0;
	return true;
}

static void end(struct dtp_ctx *c, enum dtp_op op, double start, double flops, double bytes)
{
	struct dtp_opstat *s = &c->stat[op];
	s->calls++;
	s->flops += flops;
	s->bytes += bytes;
	if (c->timing)
		s->seconds += dtp_seconds() - start;
	c->mon->beat(c->mon->arg);
}

/* A bug in a model's code, not in its input: the shapes that meet here were all derived from one declaration. */
static bool expect(struct dtp_ctx *c, bool condition, const char *op, struct dtp_tensor a, struct dtp_tensor b)
{
	if (condition)
		return true;
	dtp_fail(&c->err, DTP_FAILED, "internal error: %s of [%lld, %lld] with [%lld, %lld]", op, (long long)a.shape[0],
		 (long long)a.shape[a.ndim - 1], (long long)b.shape[0], (long long)b.shape[b.ndim - 1]);
	return false;
}

static void before(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor in)
{
	if (c->observer && dtp_ok(c))
		c->observer->before(c->observer->arg, c, l, in);
}

static void after(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor out)
{
	if (c->observer && dtp_ok(c))
		c->observer->after(c->observer->arg, c, l, out);
}

static const struct dtp_tensor nothing;

/* ---- scratch */

struct dtp_tensor dtp_new(struct dtp_ctx *c, enum dtp_dtype t, int ndim, const int64_t *shape)
{
	struct dtp_tensor x = dtp_tensor_make(NULL, t, ndim, shape);
	if (!dtp_ok(c))
		return x;
	uint64_t bytes = (uint64_t)dtp_numel(&x) * dtp_dtype_size(t);
	x.data = dtp_arena_alloc(&c->scratch, bytes);
	if (!x.data)
		dtp_fail(&c->err, DTP_FAILED, "internal error: scratch of %llu bytes is too small for %llu more",
			 (unsigned long long)c->scratch.size, (unsigned long long)bytes);
	return x;
}

struct dtp_tensor dtp_new2(struct dtp_ctx *c, int64_t rows, int64_t cols)
{
	return dtp_new(c, c->be->compute, 2, (int64_t[]){rows, cols});
}

struct dtp_tensor dtp_new3(struct dtp_ctx *c, int64_t a, int64_t b, int64_t cols)
{
	return dtp_new(c, c->be->compute, 3, (int64_t[]){a, b, cols});
}

struct dtp_tensor dtp_from_host(struct dtp_ctx *c, enum dtp_dtype t, int ndim, const int64_t *shape, const float *values)
{
	struct dtp_tensor x = dtp_new(c, t, ndim, shape);
	double start;
	if (begin(c, &start)) {
		c->be->ops->upload(c->be, x, values, DTP_F32, &c->err);
		end(c, DTP_OP_COPY, start, 0, 0);
	}
	return x;
}

/* ---- linear layers and sums over ranks */

static struct dtp_comm *sums_of(const struct dtp_ctx *c)
{
	return c->sums ? c->sums : c->tp;
}

static double bytes_of(struct dtp_tensor x)
{
	return (double)dtp_numel(&x) * (double)dtp_dtype_size(x.dtype);
}

static void reduce(struct dtp_ctx *c, struct dtp_tensor x)
{
	double start;
	if (!begin(c, &start))
		return;
	if (!c->be->dry)
		dtp_all_reduce(sums_of(c), x.data, dtp_numel(&x), x.dtype, &c->err);
	end(c, DTP_OP_REDUCE, start, 0, bytes_of(x));
}

static void add_bias(struct dtp_ctx *c, struct dtp_tensor x, const struct dtp_weight *bias)
{
	double start;
	if (!bias || !begin(c, &start))
		return;
	c->be->ops->add_bias(c->be, x, bias, &c->err);
	end(c, DTP_OP_POINTWISE, start, 0, 0);
}

static bool begin_product(struct dtp_ctx *c, double *start, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor *x)
{
	if (l->split_input)
		*x = dtp_narrow(*x, 1, l->in_begin, l->in);
	return begin(c, start) && expect(c, x->shape[1] == l->in && out.shape[1] == l->out && out.shape[0] == x->shape[0],
					 l->module->name, out, *x);
}

static void end_product(struct dtp_ctx *c, double start, const struct dtp_layer *l, struct dtp_tensor x)
{
	end(c, DTP_OP_LINEAR, start, 2.0 * (double)x.shape[0] * (double)l->in * (double)l->out, 0);
}

/* The local product, with the bias where no sum follows. */
static void product(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor x)
{
	double start;
	if (!begin_product(c, &start, out, l, &x))
		return;
	c->be->ops->linear(c->be, out, x, l->weight, l->reduce ? NULL : l->bias, &c->err);
	end_product(c, start, l, x);
}

/* What each part must have for a sum in two parts to win: rows that still fill a GPU with a product's tiles, and bytes of which the sum
 * takes longer than the launches that the second part costs.  Reckoned, not measured. */
#define OVERLAP_ROWS 512
#define OVERLAP_BYTES (INT64_C(4) << 20)
#define OVERLAP_TILE 128 /* the first part is a multiple of it, so that only the last tile of all has rows to spare */

/* How many tokens of the product y are summed while the rest is multiplied: the same on all ranks.  0: everything is summed at the end. */
static int64_t first_part(const struct dtp_ctx *c, struct dtp_tensor y)
{
	int64_t first = y.shape[0] / 2, row = y.shape[1] * (int64_t)dtp_dtype_size(y.dtype);

	if (c->be->dry || c->overlap == DTP_OVERLAP_OFF || sums_of(c)->size == 1 || !sums_of(c)->ops->start_all_reduce)
		return 0;
	if (c->overlap == DTP_OVERLAP_ON)
		return first;
	first = first / OVERLAP_TILE * OVERLAP_TILE;
	return first >= OVERLAP_ROWS && first * row >= OVERLAP_BYTES ? first : 0;
}

/* The product and its sum over the ranks, of the first tokens while the others are multiplied.  One product and one sum in the
 * counts.  An element is the same sum of the same products; but on a GPU cuBLASLt may add them up in another order for half of the rows. */
static void product_and_sum(struct dtp_ctx *c, struct dtp_tensor y, const struct dtp_layer *l, struct dtp_tensor x, int64_t first)
{
	const int64_t at[] = {0, first, y.shape[0]};
	struct dtp_comm *sums = sums_of(c);
	struct dtp_err later = DTP_ERR_INIT;
	double start;

	if (!begin_product(c, &start, y, l, &x))
		return;
	for (int i = 0; i < 2 && dtp_ok(c); i++) {
		struct dtp_tensor part = dtp_narrow(y, 0, at[i], at[i + 1] - at[i]);
		if (!c->be->ops->linear(c->be, part, dtp_narrow(x, 0, at[i], at[i + 1] - at[i]), l->weight, NULL, &c->err))
			dtp_start_all_reduce(sums, part.data, dtp_numel(&part), part.dtype, &c->err);
	}
	end_product(c, start, l, x);
	start = c->timing ? dtp_seconds() : 0;
	sums->ops->join(sums, dtp_ok(c) ? &c->err : &later);
	end(c, DTP_OP_REDUCE, start, 0, bytes_of(y));
}

struct dtp_tensor dtp_linear_sum(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x)
{
	struct dtp_tensor y = dtp_new(c, l->reduce && c->reduce ? c->reduce : DTP_F32, 2, (int64_t[]){x.shape[0], l->out});
	int64_t first = l->reduce ? first_part(c, y) : 0;

	before(c, l, x);
	if (first) {
		product_and_sum(c, y, l, x, first);
	} else {
		product(c, y, l, x);
		if (l->reduce)
			reduce(c, y);
	}
	if (l->reduce)
		add_bias(c, y, l->bias);
	after(c, l, y);
	return y;
}

void dtp_linear_into(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor x)
{
	if (!l->reduce) {
		before(c, l, x);
		product(c, out, l, x);
		after(c, l, out);
		return;
	}
	uint64_t mark = dtp_arena_mark(&c->scratch);
	dtp_copy(c, out, dtp_linear_sum(c, l, x));
	dtp_arena_release(&c->scratch, mark);
}

struct dtp_tensor dtp_linear(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x)
{
	struct dtp_tensor y = dtp_new2(c, x.shape[0], l->out);
	dtp_linear_into(c, y, l, x);
	return y;
}

struct dtp_tensor dtp_embed(struct dtp_ctx *c, const struct dtp_layer *l, const int32_t *ids, int64_t n)
{
	struct dtp_tensor y = dtp_new2(c, n, l->in);
	double start;
	before(c, l, nothing);
	if (begin(c, &start)) {
		c->be->ops->embedding(c->be, y, ids, l->weight, l->out_begin, &c->err);
		end(c, DTP_OP_COPY, start, 0, 0);
	}
	if (l->reduce)
		reduce(c, y); /* one term is not zero, so that the sum is exact in any dtype */
	after(c, l, y);
	return y;
}

/* ---- tokens */

struct dtp_tensor dtp_modulated_norm(struct dtp_ctx *c, struct dtp_tensor x, struct dtp_tensor shift, struct dtp_tensor scale,
				     float eps)
{
	struct dtp_tensor y = dtp_new2(c, x.shape[0], x.shape[1]);
	double start;
	if (begin(c, &start) && expect(c, shift.shape[0] == x.shape[1] && scale.shape[0] == x.shape[1], "norm", x, shift)) {
		c->be->ops->modulated_norm(c->be, y, x, shift, scale, eps, &c->err);
		end(c, DTP_OP_NORM, start, 0, 0);
	}
	return y;
}

struct dtp_tensor dtp_rms_norm(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, float eps)
{
	struct dtp_tensor y = dtp_new2(c, x.shape[0], x.shape[1]);
	double start;
	before(c, l, x);
	if (begin(c, &start) && expect(c, l->out == x.shape[1], l->module->name, x, y)) {
		c->be->ops->rms_norm(c->be, y, x, l->weight, eps, &c->err);
		end(c, DTP_OP_NORM, start, 0, 0);
	}
	after(c, l, y);
	return y;
}

void dtp_qk_norm_rope(struct dtp_ctx *c, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_layer *norm_q,
		      const struct dtp_layer *norm_k, float eps, const struct dtp_rope_table *rope)
{
	const struct dtp_tensor x[] = {q, k};
	const struct dtp_layer *norm[] = {norm_q, norm_k};
	double start;

	if (!begin(c, &start))
		return;
	for (int i = 0; i < 2; i++)
		if (!expect(c, rope->cos.shape[0] == x[i].shape[0] && 2 * rope->cos.shape[1] == x[i].shape[2], "rotary embedding", x[i], rope->cos))
			return;
	for (int i = 0; i < 2 && norm[i]; i++)
		before(c, norm[i], nothing);
	if (!dtp_ok(c))
		return;
	c->be->ops->qk_norm_rope(c->be, q, k, norm_q ? norm_q->weight : NULL, norm_k ? norm_k->weight : NULL, eps, rope->kind, rope->cos,
				 rope->sin, &c->err);
	end(c, DTP_OP_NORM, start, 0, 0);
	for (int i = 0; i < 2 && norm[i]; i++)
		after(c, norm[i], x[i]);
}

void dtp_attend(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
		const struct dtp_attention *a)
{
	double start;
	if (!begin(c, &start) || !expect(c, q.shape[2] == k.shape[2] && k.shape[0] == v.shape[0] && k.shape[1] == v.shape[1] &&
					     out.shape[0] == q.shape[0] && out.shape[1] == q.shape[1], "attention", q, k))
		return;
	c->be->ops->attention(c->be, out, q, k, v, a, &c->err);
	double pairs = (double)q.shape[0] * (double)k.shape[0] * (a->causal ? 0.5 : 1);
	end(c, DTP_OP_ATTENTION, start, 4 * pairs * (double)q.shape[1] * (double)q.shape[2], 0);
}

void dtp_swiglu(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up)
{
	double start;
	if (!begin(c, &start) || !expect(c, gate.shape[1] == up.shape[1] && out.shape[1] == up.shape[1], "swiglu", gate, up))
		return;
	c->be->ops->swiglu(c->be, out, gate, up, &c->err);
	end(c, DTP_OP_POINTWISE, start, 0, 0);
}

void dtp_residual(struct dtp_ctx *c, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y)
{
	double start;
	if (!begin(c, &start) || !expect(c, x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], "residual", x, y))
		return;
	c->be->ops->gated_residual(c->be, x, gate, y, &c->err);
	end(c, DTP_OP_POINTWISE, start, 0, 0);
}

struct dtp_tensor dtp_silu(struct dtp_ctx *c, struct dtp_tensor x)
{
	struct dtp_tensor y = dtp_new(c, x.dtype, x.ndim, x.shape);
	double start;
	if (begin(c, &start)) {
		c->be->ops->silu(c->be, y, x, &c->err);
		end(c, DTP_OP_POINTWISE, start, 0, 0);
	}
	return y;
}

struct dtp_tensor dtp_add(struct dtp_ctx *c, struct dtp_tensor a, struct dtp_tensor b)
{
	struct dtp_tensor y = dtp_new(c, a.dtype, a.ndim, a.shape);
	double start;
	if (begin(c, &start) && expect(c, dtp_numel(&a) == dtp_numel(&b), "sum", a, b)) {
		c->be->ops->add(c->be, y, a, b, &c->err);
		end(c, DTP_OP_POINTWISE, start, 0, 0);
	}
	return y;
}

void dtp_copy(struct dtp_ctx *c, struct dtp_tensor dst, struct dtp_tensor src)
{
	double start;
	if (!begin(c, &start) || !expect(c, dtp_numel(&dst) == dtp_numel(&src), "copy", dst, src))
		return;
	c->be->ops->copy(c->be, dst, src, &c->err);
	end(c, DTP_OP_COPY, start, 0, 0);
}

void dtp_euler(struct dtp_ctx *c, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt)
{
	double start;
	if (!begin(c, &start) || !expect(c, dtp_numel(&latents) == dtp_numel(&noise) && dtp_numel(&dt) == 1, "step", latents, noise))
		return;
	c->be->ops->euler_step(c->be, latents, noise, dt, &c->err);
	end(c, DTP_OP_POINTWISE, start, 0, 0);
}

/* ---- pictures */

void dtp_conv_into(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *l, struct dtp_tensor x, int stride,
		   int pad_tl, int pad_br)
{
	const int64_t *k = l->module->shape; /* [out, in, kh, kw] */
	double start;
	if (!begin(c, &start) || !expect(c, x.shape[2] == k[1] && out.shape[2] == k[0] &&
					     out.shape[0] == (x.shape[0] + pad_tl + pad_br - k[2]) / stride + 1 &&
					     out.shape[1] == (x.shape[1] + pad_tl + pad_br - k[3]) / stride + 1,
					 l->module->name, x, out))
		return;
	c->be->ops->conv2d(c->be, out, x, l->weight, l->bias, stride, pad_tl, pad_br, &c->err);
	end(c, DTP_OP_CONV, start, 2.0 * (double)dtp_numel(&out) * (double)(k[1] * k[2] * k[3]), 0);
}

struct dtp_tensor dtp_conv(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, int stride, int pad_tl, int pad_br)
{
	const int64_t *k = l->module->shape;
	struct dtp_tensor y = dtp_new3(c, (x.shape[0] + pad_tl + pad_br - k[2]) / stride + 1,
				       (x.shape[1] + pad_tl + pad_br - k[3]) / stride + 1, k[0]);
	dtp_conv_into(c, y, l, x, stride, pad_tl, pad_br);
	return y;
}

struct dtp_tensor dtp_group_norm(struct dtp_ctx *c, const struct dtp_layer *l, struct dtp_tensor x, int groups, float eps)
{
	struct dtp_tensor y = dtp_new3(c, x.shape[0], x.shape[1], x.shape[2]);
	double start;
	if (begin(c, &start) && expect(c, l->out == x.shape[2], l->module->name, x, y)) {
		c->be->ops->group_norm(c->be, y, x, l->weight, l->bias, groups, eps, false, &c->err);
		end(c, DTP_OP_NORM, start, 0, 0);
	}
	return y;
}

/* Rows of a strip.  A multiple of 4, so that convolutions that work in tiles cut each strip as they would the whole. */
static int64_t strip_rows(int64_t h, int64_t w, int64_t channels, enum dtp_dtype t)
{
	int64_t row = (w + 2) * channels * (int64_t)dtp_dtype_size(t), n = DTP_STRIP_BYTES / row / 4 * 4;

	n = n > 4 ? n : 4;
	return n < h ? n : h;
}

static struct dtp_tensor group_maps(struct dtp_ctx *c, const struct dtp_layer *norm, struct dtp_tensor x, int groups, float eps)
{
	struct dtp_tensor maps = dtp_new(c, DTP_F32, 2, (int64_t[]){2, x.shape[2]});
	double start;
	if (begin(c, &start) && expect(c, norm->out == x.shape[2], norm->module->name, x, maps)) {
		c->be->ops->group_maps(c->be, maps, x, norm->weight, norm->bias, groups, eps, &c->err);
		end(c, DTP_OP_NORM, start, 0, 0);
	}
	return maps;
}

static void window(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first)
{
	double start;
	if (!begin(c, &start))
		return;
	c->be->ops->window(c->be, out, x, maps, first, &c->err);
	end(c, DTP_OP_NORM, start, 0, 0);
}

/* A picture [h, w, C] as tokens [h*w, C]. */
static struct dtp_tensor as_tokens(struct dtp_tensor x)
{
	return dtp_tensor_make(x.data, x.dtype, 2, (int64_t[]){x.shape[0] * x.shape[1], x.shape[2]});
}

void dtp_norm_conv(struct dtp_ctx *c, struct dtp_tensor out, bool add, const struct dtp_layer *norm, int groups, float eps,
		   const struct dtp_layer *conv, struct dtp_tensor x)
{
	int64_t h = x.shape[0], w = x.shape[1], rows = strip_rows(h, w, x.shape[2], x.dtype);
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor maps = group_maps(c, norm, x, groups, eps), strip = dtp_new3(c, rows + 2, w + 2, x.shape[2]), sum = {0};

	if (add)
		sum = dtp_new3(c, rows, w, out.shape[2]);
	for (int64_t y = 0; y < h && dtp_ok(c); y += rows) {
		int64_t n = h - y < rows ? h - y : rows;
		struct dtp_tensor part = dtp_narrow(out, 0, y, n), to = add ? dtp_narrow(sum, 0, 0, n) : part;
		window(c, dtp_narrow(strip, 0, 0, n + 2), x, maps, y - 1);
		dtp_conv_into(c, to, conv, dtp_narrow(strip, 0, 0, n + 2), 1, 0, 0);
		if (add)
			dtp_residual(c, as_tokens(part), (struct dtp_tensor){0}, as_tokens(to));
	}
	dtp_arena_release(&c->scratch, mark);
}

static void upsample(struct dtp_ctx *c, struct dtp_tensor out, struct dtp_tensor x, int64_t first)
{
	double start;
	if (!begin(c, &start))
		return;
	c->be->ops->upsample2x(c->be, out, x, first, &c->err);
	end(c, DTP_OP_COPY, start, 0, 0);
}

void dtp_upsample_conv(struct dtp_ctx *c, struct dtp_tensor out, const struct dtp_layer *conv, struct dtp_tensor x)
{
	int64_t h = 2 * x.shape[0], w = 2 * x.shape[1], rows = strip_rows(h, w, x.shape[2], x.dtype);
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor strip = dtp_new3(c, rows + 2, w + 2, x.shape[2]);

	for (int64_t y = 0; y < h && dtp_ok(c); y += rows) {
		int64_t n = h - y < rows ? h - y : rows;
		upsample(c, dtp_narrow(strip, 0, 0, n + 2), x, y - 1);
		dtp_conv_into(c, dtp_narrow(out, 0, y, n), conv, dtp_narrow(strip, 0, 0, n + 2), 1, 0, 0);
	}
	dtp_arena_release(&c->scratch, mark);
}

/* From the end where the result is larger, so that no strip of it covers what is still to be read. */
struct dtp_tensor dtp_conv_over(struct dtp_ctx *c, const struct dtp_layer *conv, struct dtp_tensor x)
{
	int64_t h = x.shape[0], w = x.shape[1], N = conv->module->shape[0], rows = strip_rows(h, w, N, x.dtype), strips = (h + rows - 1) / rows;
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor strip = dtp_new3(c, rows, w, N), out = dtp_tensor_make(x.data, x.dtype, 3, (int64_t[]){h, w, N});

	for (int64_t i = 0; i < strips && dtp_ok(c); i++) {
		int64_t y = (N > x.shape[2] ? strips - 1 - i : i) * rows, n = h - y < rows ? h - y : rows;
		struct dtp_tensor part = dtp_narrow(strip, 0, 0, n);
		dtp_conv_into(c, part, conv, dtp_narrow(x, 0, y, n), 1, 0, 0);
		dtp_copy(c, dtp_narrow(out, 0, y, n), part);
	}
	dtp_arena_release(&c->scratch, mark);
	return out;
}

struct dtp_tensor dtp_unpatchify(struct dtp_ctx *c, const struct dtp_layer *bn, struct dtp_tensor tokens, int64_t h, int64_t w,
				 float eps)
{
	struct dtp_tensor y = dtp_new3(c, 2 * h, 2 * w, tokens.shape[1] / 4);
	double start;
	if (begin(c, &start) && expect(c, tokens.shape[0] == h * w && bn->out == tokens.shape[1], bn->module->name, tokens, y)) {
		c->be->ops->unpatchify(c->be, y, tokens, bn->weight, bn->bias, eps, &c->err);
		end(c, DTP_OP_COPY, start, 0, 0);
	}
	return y;
}

struct dtp_tensor dtp_patchify(struct dtp_ctx *c, const struct dtp_layer *bn, struct dtp_tensor x, float eps)
{
	struct dtp_tensor y = dtp_new2(c, x.shape[0] / 2 * (x.shape[1] / 2), 4 * x.shape[2]);
	double start;
	if (begin(c, &start) && expect(c, x.shape[0] % 2 == 0 && x.shape[1] % 2 == 0 && bn->out == y.shape[1], bn->module->name, x, y)) {
		c->be->ops->patchify(c->be, y, x, bn->weight, bn->bias, eps, &c->err);
		end(c, DTP_OP_COPY, start, 0, 0);
	}
	return y;
}

void dtp_quantise(struct dtp_ctx *c, uint8_t *rgb, struct dtp_tensor picture)
{
	double start;
	if (!begin(c, &start))
		return;
	c->be->ops->quantise(c->be, rgb, picture, &c->err);
	end(c, DTP_OP_COPY, start, 0, 0);
}
