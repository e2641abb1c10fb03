/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in two products per block of queries: all scores of the block, softmax of whole rows, then the weighted values.
 * Keys and values of as many kv heads as there are threads are widened and packed at a time, so that memory is bounded by
 * the sequence, not by its square nor by the number of heads. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "cpu.h"
#include "dnnl.h"
#include "vec.h"

#define QUERY_ROWS 128
#define QUERY_LEAST 32
#define SCORES (1 << 18) /* floats per thread, where the least rows are not more */

struct attend {
	struct dtp_cpu *cpu;
	struct dtp_tensor out, q, k, v;      /* k, v: only the keys that count */
	const struct dtp_attention *a;
	int64_t sq, sk, d, rows, blocks;     /* queries, keys, head dim, queries per block, blocks */
	int64_t k_size, v_size, v_block;     /* floats of a packed head, and between 64 value columns */
	int64_t kv0, nkv, q0, nq;            /* the heads at hand */
	struct dtp_mm **scores, **values[2]; /* per block; values: of 64 columns, of the last ones */
};

static float *packed_k(const struct attend *t, int64_t kv)
{
	return (float *)t->cpu->shared + (kv - t->kv0) * (t->k_size + t->v_size);
}

static float *packed_v(const struct attend *t, int64_t kv)
{
	return packed_k(t, kv) + t->k_size;
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

/* Where oneDNN has no kernels for packed operands, rows of keys and values serve as they are. */
static void pack_part(const struct attend *t, int64_t kv, int64_t key0, int64_t n)
{
	enum dtp_dtype type = t->k.dtype;
	float *k = packed_k(t, kv), *v = packed_v(t, kv);

	if (!t->cpu->blocked) {
		for (int64_t i = key0; i < key0 + n; i++) {
			dtp_vec_load(k + i * t->d, dtp_at(&t->k, i, kv), type, t->d);
			dtp_vec_load(v + i * t->d, dtp_at(&t->v, i, kv), type, t->d);
		}
		return;
	}
	dtp_pack_rows(k + key0 / DTP_NB * dtp_pack_block_size(DTP_F32, t->d), DTP_F32, dtp_at(&t->k, key0, kv), type,
		      t->k.stride[0], n, t->d, false);
	for (int64_t c = 0; c < t->d; c += DTP_NB) {
		int64_t cols = t->d - c < DTP_NB ? t->d - c : DTP_NB;
		const char *src = (const char *)dtp_at(&t->v, key0, kv) + c * (int64_t)dtp_dtype_size(type);
		dtp_pack_columns(v + c / DTP_NB * t->v_block + key0 * DTP_NB, src, type, t->v.stride[0], n, cols);
	}
}

/* Softmax over the first `keys` of each row, not normalised; sums gets what to divide by, 0 for a row of no keys. */
static void softmax(const struct attend *t, float *s, int64_t row0, int64_t rows, int64_t keys, float *sums)
{
	for (int64_t r = 0; r < rows; r++, s += keys) {
		int64_t n = t->a->causal ? row0 + r + 1 - t->a->key_begin : keys;
		n = n < 0 ? 0 : n < keys ? n : keys;
		sums[r] = n ? dtp_vec_softmax(s, dtp_vec_max(s, n), n) : 0;
		memset(s + n, 0, (size_t)(keys - n) * sizeof *s);
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

/* A thread's piece: queries, sums, scores, values. */
static uint64_t local_bytes(const struct attend *t)
{
	return (uint64_t)(t->rows * (t->d + 1 + t->sk + t->d) + 3 * 16) * sizeof(float);
}

static bool run_block(const struct attend *t, int64_t head, int64_t block)
{
	int thread = omp_get_thread_num();
	int64_t row0 = block * t->rows, rows = block_rows(t, block), keys = block_keys(t, block), kv = kv_of(t->a, head);
	float *q = dtp_cpu_local(t->cpu, thread), *sums = q + dtp_round_up(t->rows * t->d, 16);
	float *scores = sums + dtp_round_up(t->rows, 16), *values = scores + dtp_round_up(t->rows * t->sk, 16);
	int64_t width = t->cpu->blocked ? DTP_NB : t->d;

	memset(sums, 0, (size_t)rows * sizeof *sums);
	for (int64_t r = 0; keys && r < rows; r++) {
		dtp_vec_load(q + r * t->d, dtp_at(&t->q, row0 + r, head), t->q.dtype, t->d);
		dtp_vec_scale(q + r * t->d, t->a->scale * 0x1.715476p0f, t->d); /* log2(e): softmax takes powers of 2 */
	}
	if (keys) {
		if (!dtp_mm_run(t->cpu->dnnl, t->scores[block], thread, q, packed_k(t, kv), scores))
			return false;
		softmax(t, scores, row0, rows, keys, sums);
	}
	for (int64_t c = 0; c < t->d; c += width) {
		int64_t cols = t->d - c < width ? t->d - c : width;
		const float *v = packed_v(t, kv) + c / width * t->v_block;
		if (keys && !dtp_mm_run(t->cpu->dnnl, t->values[cols != width][block], thread, scores, v, values))
			return false;
		store_values(t, head, row0, rows, c, cols, values, sums);
	}
	return true;
}

static enum dtp_code get_products(struct attend *t, struct dtp_err *err)
{
	enum dtp_mm_layout kl = t->cpu->blocked ? DTP_MM_PACKED : DTP_MM_COLUMNS;
	enum dtp_mm_layout vl = t->cpu->blocked ? DTP_MM_PACKED : DTP_MM_ROWS;
	int64_t width = t->cpu->blocked ? DTP_NB : t->d, last = t->d % width ? t->d % width : width;
	enum dtp_code rc = DTP_OK;

	for (int64_t b = 0; !rc && b < t->blocks; b++) {
		int64_t rows = block_rows(t, b), keys = block_keys(t, b);
		struct dtp_mm_shape s = {rows, keys, t->d, DTP_F32, kl}, v = {rows, width, keys, DTP_F32, vl};
		if (keys == 0)
			continue;
		rc = dtp_mm_get(t->cpu->dnnl, &s, &t->scores[b], err);
		if (!rc && t->d >= width)
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
	t->v_block = dtp_pack_block_size(DTP_F32, t->sk);
	if (t->cpu->blocked) {
		t->k_size = dtp_pack_size(DTP_F32, t->sk, t->d);
		t->v_size = dtp_pack_size(DTP_F32, t->d, t->sk);
	} else {
		t->k_size = t->v_size = dtp_round_up(t->sk * t->d, 16);
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
	struct attend t = {.cpu = cpu, .out = out, .q = q, .a = &range, .sq = q.shape[0], .d = q.shape[2]};
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
	uint64_t heads_bytes = (uint64_t)together * (uint64_t)(t.k_size + t.v_size) * sizeof(float);
	enum dtp_code rc = dtp_cpu_scratch(cpu, heads_bytes + table, local_bytes(&t), err);
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
