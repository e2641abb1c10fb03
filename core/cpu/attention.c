/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in two products per block of queries: all scores of the block, softmax of whole rows in F32, then the weighted
 * values.  The products' operands are of the dtype that the CPU multiplies fastest: where that is BF16, weights are rounded to
 * it before they meet the values, and their sum is that of the unrounded ones, as in the reference's fused kernels.
 * Keys and values of as many kv heads as there are threads are packed at a time, so that memory is bounded by the sequence,
 * not by its square nor by the number of heads. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "cpu.h"
#include "dnnl.h"
#include "vec.h"

#define QUERY_ROWS 128
#define QUERY_LEAST 32
#define SCORES (1 << 18) /* floats per thread, where the least rows are not more */
#define VALUE_COLUMNS 256 /* at most, of a product of weights and values */

struct attend {
	struct dtp_cpu *cpu;
	struct dtp_tensor out, q, k, v;      /* k, v: only the keys that count */
	const struct dtp_attention *a;
	enum dtp_dtype type;                 /* of the products' operands */
	int64_t size;                        /* of an element of it */
	int64_t sq, sk, d, rows, blocks;     /* queries, keys, head dim, queries per block, blocks */
	int64_t k_size, v_size, v_block;     /* elements of a packed head, and between 64 value columns */
	int64_t width;                       /* value columns of a product */
	int64_t kv0, nkv, q0, nq;            /* the heads at hand */
	struct dtp_mm **scores, **values[2]; /* per block; values: of width columns, of the last ones */
};

static char *packed_k(const struct attend *t, int64_t kv)
{
	return (char *)t->cpu->shared + (kv - t->kv0) * (t->k_size + t->v_size) * t->size;
}

static char *packed_v(const struct attend *t, int64_t kv)
{
	return packed_k(t, kv) + t->k_size * t->size;
}

/* Query head i's kv head. */
static int64_t kv_of(const struct dtp_attention *a, int64_t i)
{
	return (a->q_head0 + i) / a->group - a->kv_head0;
}

/* Keys that the block's last query may attend to. */
static int64_t block_keys(const struct attend *t, int64_t block)
{
	int64_t end = (block + 1) * t->rows < t->sq ? (block + 1) * t->rows : t->sq;
	int64_t n = t->a->causal ? end - t->a->key_begin : t->sk;
	return n < 0 ? 0 : n < t->sk ? n : t->sk;
}

static int64_t block_rows(const struct attend *t, int64_t block)
{
	int64_t left = t->sq - block * t->rows;
	return left < t->rows ? left : t->rows;
}

/* A row of d values as an operand. */
static void load_operand(const struct attend *t, void *dst, const void *src)
{
	if (t->type == DTP_F32)
		dtp_vec_load(dst, src, t->q.dtype, t->d);
	else
		memcpy(dst, src, (size_t)(t->d * t->size));
}

/* Where oneDNN has no kernels for packed operands, rows of keys and values serve as they are. */
static void pack_part(const struct attend *t, int64_t kv, int64_t key0, int64_t n)
{
	enum dtp_dtype from = t->k.dtype;
	char *k = packed_k(t, kv), *v = packed_v(t, kv);

	if (!t->cpu->blocked) {
		for (int64_t i = key0; i < key0 + n; i++) {
			load_operand(t, k + i * t->d * t->size, dtp_at(&t->k, i, kv));
			load_operand(t, v + i * t->d * t->size, dtp_at(&t->v, i, kv));
		}
		return;
	}
	dtp_pack_rows(k + key0 / DTP_NB * dtp_pack_block_size(t->type, t->d) * t->size, t->type, dtp_at(&t->k, key0, kv), from,
		      t->k.stride[0], n, t->d, false);
	for (int64_t c = 0; c < t->d; c += DTP_NB) {
		int64_t cols = t->d - c < DTP_NB ? t->d - c : DTP_NB;
		const char *src = (const char *)dtp_at(&t->v, key0, kv) + c * (int64_t)dtp_dtype_size(from);
		dtp_pack_columns(v + (c / DTP_NB * t->v_block + key0 * DTP_NB) * t->size, t->type, src, from, t->v.stride[0], n,
				 cols);
	}
}

/* Softmax over the first `keys` of each row, not normalised, as operands in `weights` (which may be s itself where those are
 * F32); sums gets what to divide by, 0 for a row of no keys.  It takes powers of 2. */
static void softmax(const struct attend *t, float *s, void *weights, int64_t row0, int64_t rows, int64_t keys, float *sums)
{
	float scale = t->a->scale * 0x1.715476p0f; /* log2(e) */

	for (int64_t r = 0; r < rows; r++, s += keys) {
		int64_t n = t->a->causal ? row0 + r + 1 - t->a->key_begin : keys;
		n = n < 0 ? 0 : n < keys ? n : keys;
		sums[r] = n ? dtp_vec_softmax(s, scale, dtp_vec_max(s, n), n) : 0;
		memset(s + n, 0, (size_t)(keys - n) * sizeof *s);
		if (t->type != DTP_F32)
			dtp_vec_store((char *)weights + r * keys * t->size, t->type, s, keys);
	}
}

static void store_values(const struct attend *t, int64_t head, int64_t row0, int64_t rows, int64_t col0, int64_t cols,
			 float *values, const float *sums)
{
	for (int64_t r = 0; r < rows; r++) {
		float *v = values + r * cols;
		char *dst = (char *)dtp_at(&t->out, row0 + r, head) + col0 * (int64_t)dtp_dtype_size(t->out.dtype);
		if (sums[r] == 0)
			memset(v, 0, (size_t)cols * sizeof *v);
		else
			dtp_vec_scale(v, 1.0f / sums[r], cols);
		dtp_vec_store(dst, t->out.dtype, v, cols);
	}
}

/* A thread's piece. */
struct piece {
	char *q;         /* [rows, d] */
	float *sums;     /* [rows] */
	float *scores;   /* [rows, keys] */
	void *weights;   /* [rows, keys], as operands */
	float *values;   /* [rows, width] */
};

static uint64_t lay_out(const struct attend *t, char *base, struct piece *p)
{
	int64_t at = 0, rows = t->rows;
#define PART(n) (at += dtp_round_up(n, 64), base + at - dtp_round_up(n, 64))
	p->q = PART(rows * t->d * t->size);
	p->sums = (float *)PART(rows * (int64_t)sizeof(float));
	p->scores = (float *)PART(rows * t->sk * (int64_t)sizeof(float));
	p->weights = t->type == DTP_F32 ? (void *)p->scores : PART(rows * t->sk * t->size);
	p->values = (float *)PART(rows * t->width * (int64_t)sizeof(float));
#undef PART
	return (uint64_t)at;
}

static bool run_block(const struct attend *t, int64_t head, int64_t block)
{
	int thread = omp_get_thread_num();
	int64_t row0 = block * t->rows, rows = block_rows(t, block), keys = block_keys(t, block), kv = kv_of(t->a, head);
	struct piece p;

	lay_out(t, dtp_cpu_local(t->cpu, thread), &p);
	memset(p.sums, 0, (size_t)rows * sizeof *p.sums);
	for (int64_t r = 0; keys && r < rows; r++)
		load_operand(t, p.q + r * t->d * t->size, dtp_at(&t->q, row0 + r, head));
	if (keys) {
		if (!dtp_mm_run(t->cpu->dnnl, t->scores[block], thread, p.q, packed_k(t, kv), p.scores))
			return false;
		softmax(t, p.scores, p.weights, row0, rows, keys, p.sums);
	}
	for (int64_t c = 0; c < t->d; c += t->width) {
		int64_t cols = t->d - c < t->width ? t->d - c : t->width;
		const char *v = packed_v(t, kv) + (t->cpu->blocked ? c / DTP_NB * t->v_block : 0) * t->size;
		if (keys && !dtp_mm_run(t->cpu->dnnl, t->values[cols != t->width][block], thread, p.weights, v, p.values))
			return false;
		store_values(t, head, row0, rows, c, cols, p.values, p.sums);
	}
	return true;
}

static enum dtp_code get_products(struct attend *t, struct dtp_err *err)
{
	enum dtp_mm_layout kl = t->cpu->blocked ? DTP_MM_PACKED : DTP_MM_COLUMNS;
	enum dtp_mm_layout vl = t->cpu->blocked ? DTP_MM_PACKED : DTP_MM_ROWS;
	int64_t last = t->d % t->width ? t->d % t->width : t->width;
	enum dtp_code rc = DTP_OK;

	for (int64_t b = 0; !rc && b < t->blocks; b++) {
		int64_t rows = block_rows(t, b), keys = block_keys(t, b);
		struct dtp_mm_shape s = {rows, keys, t->d, t->type, kl, false}, v = {rows, t->width, keys, t->type, vl, false};
		if (keys == 0)
			continue;
		rc = dtp_mm_get(t->cpu->dnnl, &s, &t->scores[b], err);
		if (!rc && t->d >= t->width)
			rc = dtp_mm_get(t->cpu->dnnl, &v, &t->values[0][b], err);
		v.n = last;
		if (!rc)
			rc = dtp_mm_get(t->cpu->dnnl, &v, &t->values[1][b], err);
	}
	return rc;
}

/* The kv heads at hand, and all query heads that read them. */
static bool run_heads(struct attend *t)
{
	int64_t parts = (t->sk + DTP_NB - 1) / DTP_NB;
	bool ok = true;

#pragma omp parallel num_threads(t->cpu->threads) reduction(&& : ok)
	{
#pragma omp for collapse(2)
		for (int64_t kv = t->kv0; kv < t->kv0 + t->nkv; kv++)
			for (int64_t p = 0; p < parts; p++)
				pack_part(t, kv, p * DTP_NB, t->sk - p * DTP_NB < DTP_NB ? t->sk - p * DTP_NB : DTP_NB);
#pragma omp for schedule(dynamic)
		for (int64_t i = 0; i < t->nq * t->blocks; i++) /* the longest rows first, where they differ */
			ok = run_block(t, t->q0 + i % t->nq, t->blocks - 1 - i / t->nq) && ok;
	}
	return ok;
}

static void set_sizes(struct attend *t)
{
	int64_t fit = SCORES / (t->sk + 1);

	t->rows = fit < QUERY_LEAST ? QUERY_LEAST : fit > QUERY_ROWS ? QUERY_ROWS : fit;
	t->blocks = (t->sq + t->rows - 1) / t->rows;
	t->rows = (t->sq + t->blocks - 1) / t->blocks;
	if (t->cpu->blocked) {
		t->v_block = dtp_pack_block_size(t->type, t->sk);
		t->k_size = dtp_pack_size(t->type, t->sk, t->d);
		t->v_size = dtp_pack_size(t->type, t->d, t->sk);
		/* Blocks of 64 columns follow each other at the distance of all keys: fewer keys, then only one block. */
		t->width = t->a->causal || t->d < DTP_NB ? DTP_NB : t->d / DTP_NB * DTP_NB;
		t->width = t->width < VALUE_COLUMNS ? t->width : VALUE_COLUMNS;
	} else {
		t->k_size = t->v_size = dtp_round_up(t->sk * t->d, 32);
		t->width = t->d;
	}
}

enum dtp_code dtp_cpu_attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
				struct dtp_tensor v, const struct dtp_attention *a, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t begin = a->key_begin < 0 ? 0 : a->key_begin, end = a->key_end < k.shape[0] ? a->key_end : k.shape[0];
	struct dtp_attention range = *a;
	int64_t heads = q.shape[1], kv_heads = k.shape[1];

	begin = begin < end ? begin : end > 0 ? end : 0;
	range.key_begin = begin;
	struct attend t = {.cpu = cpu, .type = dtp_cpu_operand(cpu), .out = out, .q = q, .a = &range, .sq = q.shape[0],
			   .d = q.shape[2]};
	struct piece none;

	t.size = (int64_t)dtp_dtype_size(t.type);
	t.sk = end > begin ? end - begin : 0;
	t.k = dtp_narrow(k, 0, begin, t.sk);
	t.v = dtp_narrow(v, 0, begin, t.sk);
	if (t.sq == 0 || heads == 0 || t.d == 0)
		return DTP_OK;
	set_sizes(&t);
	dtp_dnnl_begin(cpu->dnnl);

	/* Few kv heads at a time; fewer still where there are only few. */
	int64_t together = cpu->threads < kv_heads ? cpu->threads : kv_heads > 0 ? kv_heads : 1;
	uint64_t table = (uint64_t)(3 * t.blocks) * sizeof(struct dtp_mm *);
	uint64_t heads_bytes = (uint64_t)together * (uint64_t)((t.k_size + t.v_size) * t.size);
	enum dtp_code rc = dtp_cpu_scratch(cpu, heads_bytes + table, lay_out(&t, NULL, &none), err);
	if (rc)
		return rc;
	t.scores = (struct dtp_mm **)((char *)cpu->shared + heads_bytes);
	t.values[0] = t.scores + t.blocks;
	t.values[1] = t.values[0] + t.blocks;
	rc = get_products(&t, err);
	for (int64_t i = 0; !rc && i < heads; i += t.nq) {
		t.q0 = i;
		t.kv0 = kv_of(a, i);
		for (t.nq = 1; i + t.nq < heads && kv_of(a, i + t.nq) < t.kv0 + together; t.nq++)
			;
		t.nkv = kv_of(a, i + t.nq - 1) - t.kv0 + 1;
		if (!run_heads(&t))
			rc = dtp_fail(err, DTP_FAILED, "oneDNN failed to multiply");
	}
	return rc;
}
