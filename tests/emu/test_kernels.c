/* SPDX-License-Identifier: Apache-2.0 */
/* Every own kernel against the CPU backend's operation: shapes with tails, rows with gaps, addresses that are aligned for wide moves and
 * such that are only for elements.  Nothing here knows the emulator: the runtime API is all that is used (make gpu-tests). */
#include "../op.h"

#include <cuda_runtime_api.h>

#include "../../cuda/cuda.h"
#include "../../cuda/kernels.h"
#include "footprint.h"
#include "where.h"

#define OK(call) \
	do { \
		cudaError_t e_ = (call); \
		if (e_) \
			fail_msg("%s: %s", #call, cudaGetErrorString(e_)); \
	} while (0)

static const enum dtp_dtype types[] = {DTP_F32, DTP_BF16};
#define FOR_EACH_TYPE(be, t) \
	for (const enum dtp_dtype *t_ = types; t_ < types + 2; t_++) \
		for (enum dtp_dtype t = *t_; t; t = DTP_NO_DTYPE) \
			for (struct dtp_backend *be = open_cpu(t); be; be->ops->destroy(be), be = NULL, free_device())

static struct dtp_backend *open_cpu(enum dtp_dtype t)
{
	struct dtp_backend *be;
	MUST(dtp_cpu_create(t, 1, DTP_CPU_WIDEN, &be, err));
	return be;
}

/* ---- device memory, freed after each type */
static void *blocks[4096];
static int nblocks;

static char *device(size_t bytes)
{
	assert_true(nblocks < 4096);
	OK(cudaMalloc(&blocks[nblocks], bytes ? bytes : 1));
	return blocks[nblocks++];
}

static void free_device(void)
{
	OK(cudaDeviceSynchronize());
	while (nblocks)
		OK(cudaFree(blocks[--nblocks]));
}

/* Bytes from the first element to the end of the last one. */
static size_t extent(struct dtp_tensor x)
{
	int64_t last = 0;
	for (int d = 0; d < x.ndim; d++)
		last += (x.shape[d] - 1) * (d == x.ndim - 1 ? 1 : x.stride[d]);
	return dtp_numel(&x) ? (size_t)(last + 1) * dtp_dtype_size(x.dtype) : 0;
}

/* A copy of host tensor x in device memory, gaps included, which begins `shift` bytes after an aligned address. */
static struct dtp_tensor to_device(struct dtp_tensor x, size_t shift)
{
	size_t n = extent(x);
	char *p = device(n + shift) + shift;
	OK(cudaMemcpy(p, x.data, n, cudaMemcpyHostToDevice));
	x.data = p;
	return x;
}

static float *floats_to_device(const float *v, int64_t n, size_t shift)
{
	char *p = device((size_t)n * sizeof *v + shift) + shift;
	OK(cudaMemcpy(p, v, (size_t)n * sizeof *v, cudaMemcpyHostToDevice));
	return (float *)p;
}

/* What lies in device memory, over host tensor x of the same layout. */
static void to_host(struct dtp_tensor x, struct dtp_tensor dev)
{
	OK(cudaMemcpy(x.data, dev.data, extent(x), cudaMemcpyDeviceToHost));
}

/* The results of the kernel in dev against what the CPU has put into cpu.  Both have rounded, and so may lie a unit apart; both may be off
 * by what sums of so many terms may be off by, and so may differ by twice that, as sums of four times as many. */
static void check_same(const char *what, struct dtp_tensor cpu, struct dtp_tensor dev, int64_t terms, int roundings)
{
	float *ref = values_of(cpu);
	to_host(cpu, dev);
	check_rounded(what, cpu, ref, 4 * terms, roundings + 1);
	free(ref);
}

static void assert_equal(struct dtp_tensor cpu, struct dtp_tensor dev)
{
	char *ref = malloc(extent(cpu) + 1);
	memcpy(ref, cpu.data, extent(cpu));
	to_host(cpu, dev);
	assert_memory_equal(ref, cpu.data, extent(cpu));
	free(ref);
}

static struct dtp_tensor random2(enum dtp_dtype t, int64_t m, int64_t k, int64_t gap)
{
	float *v = random_values(t, m * k);
	struct dtp_tensor x = make2(t, m, k, gap, v);
	free(v);
	return x;
}

static struct dtp_tensor random3(enum dtp_dtype t, int64_t a, int64_t b, int64_t c, int64_t gap)
{
	float *v = random_values(t, a * b * c);
	struct dtp_tensor x = make3(t, a, b, c, gap, v);
	free(v);
	return x;
}

static struct dtp_tensor random1(enum dtp_dtype t, int64_t n)
{
	float *v = random_values(t, n);
	struct dtp_tensor x = make_tensor(t, 1, &n, 0, v);
	free(v);
	return x;
}

/* A VECTOR weight of the CPU, and its values in device memory. */
static struct dtp_weight *vector_weight(struct dtp_backend *be, const struct dtp_tensor *values, size_t shift, float **dev)
{
	int64_t n = values->shape[0];
	float *v = values_of(*values);
	struct dtp_weight *w = make_weight(be, DTP_WEIGHT_VECTOR, 1, &n, v, DTP_F32);

	*dev = floats_to_device(v, n, shift);
	free(v);
	return w;
}

/* Rows, columns, gap.  Columns: one, less than a pack, no whole pack, whole packs, more than stay in registers. */
static const int64_t sizes[][3] = {{1, 1, 0}, {3, 7, 5}, {33, 48, 0}, {2, 3072, 64}, {2, 776, 3}, {1, 20480, 0}, {0, 16, 0}, {5, 0, 0}};
#define NSIZES (sizeof sizes / sizeof sizes[0])
/* Bytes that an address is off for wide moves. */
static size_t shift_of(size_t i, enum dtp_dtype t)
{
	return i % 2 ? dtp_dtype_size(t) : 0;
}

/* ---- tokens */
static void kernel_modulated_norm(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * NSIZES; i++) {
			int64_t m = sizes[i / 2][0], k = sizes[i / 2][1];
			size_t shift = shift_of(i, t);
			struct dtp_tensor x = random2(t, m, k, sizes[i / 2][2]), out = make2(t, m, k, 3, NULL);
			struct dtp_tensor scale = random1(t, k), move = random1(t, k), dev = to_device(out, shift);
			OK(dtp_k_modulated_norm(NULL, dev, to_device(x, shift), to_device(move, shift), to_device(scale, shift), 1e-6f));
			MUST(be->ops->modulated_norm(be, out, x, move, scale, 1e-6f, err));
			check_same("modulated_norm", out, dev, k, 1);
			free(x.data), free(out.data), free(scale.data), free(move.data);
		}
}

static void kernel_rms_norm(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * NSIZES; i++) {
			int64_t m = sizes[i / 2][0], k = sizes[i / 2][1];
			size_t shift = shift_of(i, t);
			struct dtp_tensor x = random2(t, m, k, sizes[i / 2][2]), out = make2(t, m, k, 0, NULL), values = random1(t, k);
			struct dtp_tensor dev = to_device(out, shift);
			float *w_dev;
			struct dtp_weight *w = vector_weight(be, &values, i % 2 * 4, &w_dev);
			OK(dtp_k_rms_norm(NULL, dev, to_device(x, shift), w_dev, 1e-6f));
			MUST(be->ops->rms_norm(be, out, x, w, 1e-6f, err));
			check_same("rms_norm", out, dev, k, 2);
			be->ops->weight_free(be, w);
			free(x.data), free(out.data), free(values.data);
		}
}

/* Which of the addresses is only for elements: none, q's, k's, k's weight's. */
static void check_qk(struct dtp_backend *be, const int64_t z[5], bool normed, bool turned, enum dtp_rope kind, int misaligned)
{
	int64_t s = z[0], d = z[2];
	enum dtp_dtype t = be->compute;
	size_t own = dtp_dtype_size(t);
	struct dtp_tensor q = random3(t, s, z[1], d, z[3]), k = random3(t, s, z[4], d, 0), ws = random1(t, d), ws2 = random1(t, d), none = {0};
	struct dtp_tensor cos = turned ? random2(DTP_F32, s, d / 2, 0) : none, sin = turned ? random2(DTP_F32, s, d / 2, 0) : none;
	struct dtp_tensor q_dev = to_device(q, misaligned == 1 ? own : 0), k_dev = to_device(k, misaligned == 2 ? own : 0);
	float *wq_dev, *wk_dev;
	struct dtp_weight *wq = vector_weight(be, &ws, 0, &wq_dev), *wk = vector_weight(be, &ws2, misaligned == 3 ? sizeof(float) : 0, &wk_dev);

	OK(dtp_k_qk_norm_rope(NULL, q_dev, k_dev, normed ? wq_dev : NULL, normed ? wk_dev : NULL, 1e-6f, kind, turned ? to_device(cos, 0) : none,
			      turned ? to_device(sin, 0) : none));
	MUST(be->ops->qk_norm_rope(be, q, k, normed ? wq : NULL, normed ? wk : NULL, 1e-6f, kind, cos, sin, err));
	check_same("qk_norm_rope, q", q, q_dev, d, 3);
	check_same("qk_norm_rope, k", k, k_dev, d, 3);
	be->ops->weight_free(be, wq);
	be->ops->weight_free(be, wk);
	free(q.data), free(k.data), free(ws.data), free(ws2.data), free(cos.data), free(sin.data);
}

static void kernel_qk_norm_rope(void **state)
{
	/* Tokens, heads of q, D, gap, heads of k: half a head is less than a pack, no whole pack, packs of 4 and of 8, more than a warp has. */
	static const int64_t shapes[][5] = {{1, 1, 2, 0, 1},	{9, 3, 16, 0, 3},   {33, 2, 128, 8, 2}, {7, 8, 128, 0, 2}, {5, 4, 10, 7, 2},
					    {3, 2, 24, 8, 1},	{2, 3, 512, 0, 1},  {3, 1, 600, 16, 1}, {3, 3, 16, 0, 0},  {3, 0, 16, 0, 2},
					    {0, 2, 16, 0, 2},	{4, 0, 16, 0, 0}};
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 32 * sizeof shapes / sizeof shapes[0]; i++)
			check_qk(be, shapes[i / 32], i & 1, i & 2, i & 4 ? DTP_ROPE_HALF : DTP_ROPE_INTERLEAVED, (int)(i / 8 % 4));
}

static void kernel_swiglu(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * NSIZES; i++) {
			int64_t m = sizes[i / 2][0], k = sizes[i / 2][1], gap = sizes[i / 2][2];
			size_t shift = shift_of(i, t);
			struct dtp_tensor g = random2(t, m, k, gap), u = random2(t, m, k, gap), out = make2(t, m, k, gap, NULL);
			struct dtp_tensor dev = to_device(out, 0);
			OK(dtp_k_swiglu(NULL, dev, to_device(g, shift), to_device(u, shift)));
			MUST(be->ops->swiglu(be, out, g, u, err));
			check_same("swiglu", out, dev, 4, 1);
			free(g.data), free(u.data), free(out.data);
		}
}

static void kernel_gated_residual(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 8 * NSIZES; i++) {
			int64_t m = sizes[i / 8][0], k = sizes[i / 8][1], gap = sizes[i / 8][2];
			enum dtp_dtype yt = i & 2 ? DTP_F32 : t;
			struct dtp_tensor x = random2(t, m, k, gap), y = random2(yt, m, k, 0), gate = random1(t, k), none = {0};
			struct dtp_tensor dev = to_device(x, 0);
			OK(dtp_k_gated_residual(NULL, dev, i & 4 ? to_device(gate, 0) : none, to_device(y, shift_of(i, yt))));
			MUST(be->ops->gated_residual(be, x, i & 4 ? gate : none, y, err));
			check_same("gated_residual", x, dev, 2, 1);
			free(x.data), free(y.data), free(gate.data);
		}
}

static void kernel_add_bias(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 4 * NSIZES; i++) {
			int64_t m = sizes[i / 4][0], k = sizes[i / 4][1];
			enum dtp_dtype xt = i & 2 ? DTP_F32 : t;
			struct dtp_tensor x = random2(xt, m, k, sizes[i / 4][2]), values = random1(t, k), dev = to_device(x, shift_of(i, xt));
			float *b_dev;
			struct dtp_weight *b = vector_weight(be, &values, 0, &b_dev);
			OK(dtp_k_add_bias(NULL, dev, b_dev));
			MUST(be->ops->add_bias(be, x, b, err));
			check_same("add_bias", x, dev, 1, 1);
			be->ops->weight_free(be, b);
			free(x.data), free(values.data);
		}
}

static void kernel_silu_add_euler(void **state)
{
	float step = -0.2421f;
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * NSIZES; i++) {
			int64_t m = sizes[i / 2][0], k = sizes[i / 2][1];
			size_t shift = shift_of(i, t);
			struct dtp_tensor a = random2(t, m, k, 0), b = random2(t, m, k, 0), out = make2(t, m, k, 0, NULL);
			struct dtp_tensor a_dev = to_device(a, shift), b_dev = to_device(b, shift), dev = to_device(out, shift);
			OK(dtp_k_silu(NULL, dev, a_dev));
			MUST(be->ops->silu(be, out, a, err));
			check_same("silu", out, dev, 4, 1);
			OK(dtp_k_add(NULL, dev, a_dev, b_dev));
			MUST(be->ops->add(be, out, a, b, err));
			check_same("add", out, dev, 1, 1);
			OK(dtp_k_add(NULL, a_dev, a_dev, a_dev)); /* a sum of one and the same */
			MUST(be->ops->add(be, a, a, a, err));
			check_same("add to itself", a, a_dev, 1, 1);
			OK(dtp_k_euler_step(NULL, b_dev, dev, floats_to_device(&step, 1, 4)));
			MUST(be->ops->euler_step(be, b, out, dtp_tensor_make(&step, DTP_F32, 1, (int64_t[]){1}), err));
			check_same("euler_step", b, b_dev, 2, 1);
			free(a.data), free(b.data), free(out.data);
		}
}

static void kernel_copy(void **state)
{
	static const enum dtp_dtype all[] = {DTP_F32, DTP_BF16, DTP_F16};
	(void)state;
	for (int kind = 0; kind < 36; kind++, free_device()) {
		enum dtp_dtype st = all[kind / 3 % 3], dt = all[kind % 3];
		bool swapped = kind >= 18, odd = kind / 9 % 2;
		int64_t shape[4] = {3, 2, 5, odd ? 9 : 16}, n = odd ? 270 : 480, last = shape[3];
		float *v = random_values(st, n);
		v[1] = NAN, v[2] = INFINITY, v[3] = -0.0f, v[4] = 0x1p-149f, v[5] = 3e38f;
		struct dtp_tensor src = make_tensor(st, 4, shape, 0, v), from = to_device(src, 0), to, out;
		if (swapped) { /* the two dimensions in the middle */
			from.shape[1] = 5, from.stride[1] = last;
			from.shape[2] = 2, from.stride[2] = 5 * last;
			out = make_tensor(dt, 4, (int64_t[]){3, 5, 2, last}, 0, NULL);
			to = to_device(out, 0);
		} else { /* columns of a wider matrix */
			out = make_tensor(dt, 4, (int64_t[]){3, 2, 5, 24}, 0, NULL);
			to = dtp_narrow(to_device(out, 0), 3, 8, last);
		}
		OK(dtp_k_copy(NULL, to, from));
		struct dtp_tensor whole = to;
		whole.data = (char *)to.data - (swapped ? 0 : 8 * dtp_dtype_size(dt));
		to_host(out, whole);
		for (int64_t i = 0; i < n; i++) {
			int64_t w = i % last, z = i / last % to.shape[2], y = i / last / to.shape[2] % to.shape[1], x = i / last / 10;
			int64_t at = x * to.stride[0] + y * to.stride[1] + z * to.stride[2] + w + (swapped ? 0 : 8);
			float got, ref = dtp_round_to(dt, dtp_round_to(st, v[x * from.stride[0] + y * from.stride[1] + z * from.stride[2] + w]));
			dtp_to_f32(&got, (char *)out.data + at * (int64_t)dtp_dtype_size(dt), dt, 1);
			if (!(got == ref || (isnan(got) && isnan(ref))))
				fail_msg("copy %d: element %lld is %g, expected %g", kind, (long long)i, (double)got, (double)ref);
		}
		free(src.data), free(out.data), free(v);
	}
}

static void kernel_embedding(void **state)
{
	static const int32_t ids[] = {10, 14, 9, 15, 12, -1, 12, INT32_MAX, INT32_MIN};
	enum { M = sizeof ids / sizeof ids[0], ROWS = 5 };
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (int64_t k = 40; k <= 41; k++) {
			struct dtp_tensor rows = random2(t, ROWS, k, 0), out = make2(t, M, k, 8, NULL), dev = to_device(out, 0);
			float *v = values_of(rows);
			struct dtp_weight *table = make_weight(be, DTP_WEIGHT_TABLE, 2, (int64_t[]){ROWS, k}, v, DTP_F32);
			char *ids_dev = device(sizeof ids);
			OK(cudaMemcpy(ids_dev, ids, sizeof ids, cudaMemcpyHostToDevice));
			OK(dtp_k_embedding(NULL, dev, (int32_t *)ids_dev, to_device(rows, 0), 10));
			MUST(be->ops->embedding(be, out, ids, table, 10, err));
			assert_equal(out, dev);
			be->ops->weight_free(be, table);
			free(rows.data), free(out.data), free(v);
		}
}

/* ---- attention */
struct dims {
	int64_t sq, sk, heads, kv_heads, d;
};

static double log_sum(struct dtp_tensor q, struct dtp_tensor k, int64_t row, int64_t head, int64_t kv, const struct dtp_attention *a)
{
	double sum = 0, max = -INFINITY, *score = malloc((size_t)(k.shape[0] + 1) * sizeof *score);
	int64_t d = q.shape[2], n = 0;
	float *x = malloc((size_t)d * sizeof *x), *y = malloc((size_t)d * sizeof *y);

	dtp_to_f32(x, dtp_at(&q, row, head), q.dtype, (size_t)d);
	for (int64_t j = a->key_begin; j < a->key_end && j < k.shape[0] && !(a->causal && j > row); j++) {
		dtp_to_f32(y, dtp_at(&k, j, kv), k.dtype, (size_t)d);
		score[n] = 0;
		for (int64_t c = 0; c < d; c++)
			score[n] += (double)x[c] * y[c];
		score[n] *= (double)a->scale;
		max = fmax(max, score[n++]);
	}
	for (int64_t j = 0; j < n; j++)
		sum += exp(score[j] - max);
	free(score), free(x), free(y);
	return n ? max + log(sum) : -INFINITY;
}

static void check_attention(struct dtp_backend *be, struct dims s, struct dtp_attention a, int64_t gap)
{
	enum dtp_dtype t = be->compute;
	struct dtp_tensor q = random3(t, s.sq, s.heads, s.d, gap), k = random3(t, s.sk, s.kv_heads, s.d, gap);
	struct dtp_tensor v = random3(t, s.sk, s.kv_heads, s.d, gap), out = make3(t, s.sq, s.heads, s.d, gap, NULL);
	struct dtp_tensor dev = to_device(out, 0);
	size_t lse_bytes = (size_t)(s.heads * s.sq) * sizeof(float);
	float *lse = (float *)device(lse_bytes), *sums = malloc(lse_bytes + 1);
	char what[160];

	snprintf(what, sizeof what, "attention Sq %d, Sk %d, H %d/%d, D %d, causal %d, keys %d..%d, gap %d", (int)s.sq, (int)s.sk, (int)s.heads,
		 (int)s.kv_heads, (int)s.d, a.causal, (int)a.key_begin, (int)a.key_end, (int)gap);
	OK(dtp_k_attention(NULL, dev, lse, to_device(q, 0), to_device(k, 0), to_device(v, 0), &a));
	OK(cudaMemcpy(sums, lse, lse_bytes, cudaMemcpyDeviceToHost));
	MUST(be->ops->attention(be, out, q, k, v, &a, err));
	/* A result is a mean: its RMS may be well below that of the values, so allow for sums 16 times as long. */
	check_same(what, out, dev, 16 * (s.sk + s.d), 1);
	for (int64_t i = 0; i < s.heads * s.sq; i++) {
		int64_t head = i / s.sq, row = i % s.sq;
		double ref = log_sum(q, k, row, head, (a.q_head0 + head) / a.group - a.kv_head0, &a);
		if (!(fabs(sums[i] - ref) <= 1e-5 * (1 + fabs(ref)) || (isinf(ref) && sums[i] == (float)ref)))
			fail_msg("%s: log-sum-exp of head %d, row %d is %g, expected %g", what, (int)head, (int)row, (double)sums[i], ref);
	}
	free(q.data), free(k.data), free(v.data), free(out.data), free(sums);
}

static struct dtp_attention plain(struct dims s)
{
	struct dtp_attention a = {.scale = 1 / sqrtf((float)(s.d ? s.d : 1)), .key_end = s.sk, .group = s.heads / s.kv_heads};
	return a;
}

static void kernel_attention_shapes(void **state)
{
	static const struct dims shapes[] = {{1, 1, 1, 1, 1}, {5, 7, 2, 2, 16}, {66, 130, 3, 3, 64}, {40, 70, 4, 2, 128}, {65, 129, 2, 1, 20},
					     {9, 65, 2, 1, 512}, {17, 64, 1, 1, 256}, {10, 33, 2, 1, 100}, {3, 5, 1, 1, 300},
					     {0, 5, 2, 2, 8}, {5, 0, 2, 2, 8}};
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
			check_attention(be, shapes[i], plain(shapes[i]), i % 2 * 5);
}

static void kernel_attention_masks(void **state)
{
	static const int64_t ranges[][2] = {{0, 90}, {0, 50}, {33, 90}, {89, 90}, {0, 0}, {90, 90}, {70, 20}};
	struct dims s = {90, 90, 2, 1, 32};
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * sizeof ranges / sizeof ranges[0]; i++) {
			struct dtp_attention a = plain(s);
			a.key_begin = ranges[i / 2][0];
			a.key_end = ranges[i / 2][1];
			a.causal = i % 2;
			check_attention(be, s, a, 0);
		}
}

/* A rank's heads need not begin with a whole group, nor with head 0. */
static void kernel_attention_heads(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (int64_t group = 1; group <= 3; group++)
			for (int64_t first = 0; first < 3; first++)
				for (int64_t n = 1; n < 6; n += 2) {
					struct dims s = {9, 9, n, (first + n - 1) / group - first / group + 1, 8};
					struct dtp_attention a = {.scale = 0.3f, .key_end = 9, .q_head0 = first, .kv_head0 = first / group,
								  .group = group, .causal = true};
					check_attention(be, s, a, 0);
				}
}

/* NaNs in keys that do not count stay unread; a NaN in a query stays in its row; scores far apart: one key takes all. */
static void kernel_attention_extremes(void **state)
{
	enum { S = 70, D = 16, BEGIN = 7, END = 61 };
	(void)state;
	FOR_EACH_TYPE(be, t) {
		float *x[3];
		struct dtp_tensor host[3], dev[3], out = make3(t, S, 1, D, 0, NULL), to = to_device(out, 0);
		struct dtp_attention a = {.scale = 1, .key_begin = BEGIN, .key_end = END, .group = 1};
		for (int i = 0; i < 3; i++) {
			x[i] = random_values(t, S * D);
			for (int j = 0; j < S * D; j++)
				if (i && (j < BEGIN * D || j >= END * D))
					x[i][j] = NAN;
				else if (i < 2)
					x[i][j] = dtp_round_to(t, x[i][j] * 100);
			if (i == 0)
				x[i][5 * D] = NAN;
			host[i] = make3(t, S, 1, D, 0, x[i]);
			dev[i] = to_device(host[i], 0);
		}
		OK(dtp_k_attention(NULL, to, NULL, dev[0], dev[1], dev[2], &a));
		MUST(be->ops->attention(be, out, host[0], host[1], host[2], &a, err));
		float *ref = values_of(out), *got;
		to_host(out, to);
		got = values_of(out);
		for (int i = 0; i < S * D; i++)
			if (i / D == 5)
				assert_true(isnan(got[i]));
			else /* scores of some 10^4 carry absolute errors of 10^-3 */
				assert_true(fabsf(got[i] - ref[i]) <= 0.05f);
		for (int i = 0; i < 3; i++)
			free(x[i]), free(host[i].data);
		free(out.data), free(ref), free(got);
	}
}

/* Scores up to 1000, of which one takes all; and such as are alike. */
static void kernel_softmax(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 4 * NSIZES; i++) {
			int64_t m = sizes[i / 4][0], k = sizes[i / 4][1];
			float *v = random_values(DTP_F32, m * k), *ref = malloc((size_t)(m * k + 1) * sizeof *ref);
			double scale = i & 2 ? 1000 : 0.5;
			struct dtp_tensor x = make2(DTP_F32, m, k, sizes[i / 4][2], v), out = make2(t, m, k, 3, NULL), dev = to_device(out, shift_of(i, t));
			for (int64_t row = 0; row < m; row++) {
				double most = -INFINITY, sum = 0;
				for (int64_t c = 0; c < k; c++)
					most = fmax(most, v[row * k + c]);
				for (int64_t c = 0; c < k; c++)
					sum += exp(scale * (v[row * k + c] - most));
				for (int64_t c = 0; c < k; c++)
					ref[row * k + c] = (float)(exp(scale * (v[row * k + c] - most)) / sum);
			}
			OK(dtp_k_softmax(NULL, dev, to_device(x, shift_of(i, DTP_F32)), (float)scale));
			to_host(out, dev);
			float *got = values_of(out);
			for (int64_t j = 0; j < m * k; j++) {
				double half = t == DTP_BF16 ? 0x1p-8 : 0x1p-24; /* and exponents of up to 10^4 are off by 2^-24 of them */
				double allowed = ref[j] * (half + 0x1p-22 * (i & 2 ? 2e4 : sqrt((double)k))) + 0x1p-126;
				if (!(fabs((double)got[j] - (double)ref[j]) <= allowed))
					fail_msg("softmax: element %lld is %g, expected %g", (long long)j, (double)got[j], (double)ref[j]);
			}
			free(v), free(ref), free(got), free(x.data), free(out.data);
		}
}

/* In the place of the scores; a NaN takes its row and no other. */
static void kernel_softmax_in_place(void **state)
{
	const float in[] = {1, 1, 1, 1, 5, NAN, 5, 5, -3e38f, 0, -3e38f, -3e38f};
	(void)state;
	struct dtp_tensor x = make2(DTP_F32, 3, 4, 0, in), dev = to_device(x, 0);
	OK(dtp_k_softmax(NULL, dev, dev, 1));
	to_host(x, dev);
	const float *v = x.data;
	for (int i = 0; i < 4; i++) {
		assert_true(v[i] == 0.25f && isnan(v[4 + i]));
		assert_true(v[8 + i] == (i == 1));
	}
	free(x.data);
	free_device();
}

/* Attention of the whole CUDA backend for heads that cuDNN does not do: products of all queries at once, or of few at a time, are that of
 * the CPU, and what the backend chooses by itself. */
static void check_products(struct dtp_backend *cuda, struct dtp_backend *be, struct dims s, struct dtp_attention a, int64_t gap)
{
	static const uint64_t rooms[] = {DTP_CUDA_SCORES_ROOM, 4096, 1};
	enum dtp_dtype t = be->compute;
	struct dtp_tensor q = random3(t, s.sq, s.heads, s.d, gap), k = random3(t, s.sk, s.kv_heads, s.d, gap);
	struct dtp_tensor v = random3(t, s.sk, s.kv_heads, s.d, gap), out = make3(t, s.sq, s.heads, s.d, gap, NULL), first = out;
	struct dtp_tensor on[] = {to_device(q, 0), to_device(k, 0), to_device(v, 0)}, chosen = to_device(out, 0);
	char what[160];

	MUST(cuda->ops->attention(cuda, chosen, on[0], on[1], on[2], &a, err));
	for (int i = 0; i < 3; i++) {
		struct dtp_tensor dev = to_device(out, 0);
		MUST(dtp_cuda_attention_products(dtp_cuda_of(cuda), dev, on[0], on[1], on[2], &a, rooms[i], err));
		MUST(cuda->ops->sync(cuda, err));
		snprintf(what, sizeof what, "products Sq %d, Sk %d, H %d/%d, D %d, keys %d..%d, room %d", (int)s.sq, (int)s.sk, (int)s.heads,
			 (int)s.kv_heads, (int)s.d, (int)a.key_begin, (int)a.key_end, (int)rooms[i]);
		MUST(be->ops->attention(be, out, q, k, v, &a, err));
		check_same(what, out, dev, 16 * (s.sk + s.d), 2);
		if (i == 0)
			first = dev;
	}
	to_host(out, first);
	assert_equal(out, chosen);
	free(q.data), free(k.data), free(v.data), free(out.data);
}

static void kernel_attention_products(void **state)
{
	static const struct dims shapes[] = {{40, 37, 2, 1, 512}, {9, 70, 3, 3, 264}, {1, 1, 1, 1, 512}, {130, 16, 1, 1, 512}};
	const struct dtp_cuda_options options = {.attention = DTP_ATTENTION_AUTO, .mon = &dtp_monitor_none};
	(void)state;
	FOR_EACH_TYPE(be, t) {
		struct dtp_backend *cuda;
		MUST(dtp_backend_cuda(t, &options, &cuda, err));
		for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
			struct dtp_attention a = plain(shapes[i / 2]);
			if (i % 2 && a.key_end > 8) {
				a.key_begin = 3;
				a.key_end -= 4;
			}
			check_products(cuda, be, shapes[i / 2], a, (int64_t)(i % 2) * 8);
		}
		cuda->ops->destroy(cuda);
	}
}

/* ---- what is no number, or nearly none */
static void kernel_specials(void **state)
{
	static const float in[] = {0, -0.0f, 200, -200, 0x1p127f, -0x1p127f, INFINITY, -INFINITY, NAN, 0x1p-130f, 1, 2, 3, 4, 5, 6};
	int64_t n = sizeof in / sizeof in[0];
	(void)state;
	FOR_EACH_TYPE(be, t) {
		struct dtp_tensor x = make2(t, 1, n, 0, in), out = make2(t, 1, n, 0, NULL), ones = random1(t, n), dev = to_device(out, 0);
		OK(dtp_k_silu(NULL, dev, to_device(x, 0)));
		to_host(out, dev);
		float *v = values_of(out);
		assert_true(v[0] == 0 && v[1] == 0 && v[2] == 200 && v[3] == 0 && v[4] == 0x1p127f && v[5] == 0);
		assert_true(isinf(v[6]) && isnan(v[7]) && isnan(v[8]));
		free(v);
		/* One bad element makes a bad row, and leaves the next one alone. */
		struct dtp_tensor two = make2(t, 2, n, 0, NULL), to = to_device(two, 0), scale = to_device(ones, 0);
		float rows[32];
		for (int i = 0; i < 2 * n; i++)
			rows[i] = i == 3 ? INFINITY : (float)(i % 7);
		struct dtp_tensor bad = make2(t, 2, n, 0, rows);
		OK(dtp_k_modulated_norm(NULL, to, to_device(bad, 0), scale, scale, 1e-6f));
		to_host(two, to);
		v = values_of(two);
		for (int i = 0; i < 2 * n; i++)
			assert_true(isnan(v[i]) == (i < n));
		free(v), free(x.data), free(out.data), free(ones.data), free(two.data), free(bad.data);
	}
}

/* ---- pictures */
static void kernel_group_norm(void **state)
{
	static const int64_t shapes[][4] = {{1, 1, 32, 2}, {3, 5, 16, 8}, {40, 31, 32, 8}, {2, 2, 6, 1}, {9, 1, 48, 48}, {0, 3, 8, 2},
					    {11, 13, 24, 3}, {33, 40, 512, 32}};
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 4 * sizeof shapes / sizeof shapes[0]; i++) {
			const int64_t *z = shapes[i / 4];
			bool silu = i & 1;
			float offset = i & 2 ? 100 : 0, *v = random_values(t, z[0] * z[1] * z[2]), *w_dev, *b_dev;
			for (int64_t j = 0; j < z[0] * z[1] * z[2]; j++)
				v[j] = dtp_round_to(t, v[j] + offset);
			struct dtp_tensor x = make3(t, z[0], z[1], z[2], 0, v), out = make3(t, z[0], z[1], z[2], 0, NULL);
			struct dtp_tensor ws = random1(t, z[2]), bs = random1(t, z[2]), dev = to_device(out, 0), x_dev = to_device(x, 0);
			struct dtp_weight *w = vector_weight(be, &ws, 0, &w_dev), *b = vector_weight(be, &bs, 0, &b_dev);
			float *maps = (float *)device(2 * (size_t)z[2] * sizeof *maps);
			OK(dtp_k_group_maps(NULL, maps, device(dtp_cuda_norm_scratch(x_dev, false).sums), x_dev, w_dev, b_dev, (int)z[3], 1e-6f));
			OK(dtp_k_group_apply(NULL, dev, x_dev, maps, silu));
			MUST(be->ops->group_norm(be, out, x, w, b, (int)z[3], 1e-6f, silu, err));
			/* x * scale + bias: an offset is cancelled by the bias, both rounded. */
			check_same("group_norm", out, dev, 4 + (int64_t)(offset * offset), 1);
			be->ops->weight_free(be, w);
			be->ops->weight_free(be, b);
			free(x.data), free(out.data), free(ws.data), free(bs.data), free(v);
		}
}

static void kernel_window(void **state)
{
	enum { H = 5, W = 3 };
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (int i = 0; i < 12; i++) {
			int64_t c = i % 2 ? 16 : 7, first = i / 2 - 2, rows = 3;
			struct dtp_tensor x = random3(t, H, W, c, 0), maps = random2(DTP_F32, 2, c, 0), out = make3(t, rows, W + 2, c, 0, NULL);
			struct dtp_tensor dev = to_device(out, 0);
			OK(dtp_k_window(NULL, dev, to_device(x, 0), to_device(maps, 0).data, first));
			MUST(be->ops->window(be, out, x, maps, first, err));
			check_same("window", out, dev, 4, 1);
			free(x.data), free(maps.data), free(out.data);
		}
}

static void kernel_upsample2x(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (int i = 0; i < 10; i++) {
			int64_t c = 7 + i % 2, first = i / 2 * 2 - 3, rows = i / 2 == 2 ? 8 : 3; /* all with the edges, and parts */
			struct dtp_tensor x = random3(t, 3, 5, c, 0), out = make3(t, rows, 12, c, 0, NULL), dev = to_device(out, 0);
			OK(dtp_k_upsample2x(NULL, dev, to_device(x, 0), first));
			MUST(be->ops->upsample2x(be, out, x, first, err));
			assert_equal(out, dev);
			free(x.data), free(out.data);
		}
}

/* Each of the four addresses is in turn one that is only for elements; last, none is. */
static void check_patches(struct dtp_backend *be, const int64_t z[3], int misaligned)
{
	enum dtp_dtype t = be->compute;
	int64_t h = z[0], w = z[1], c = z[2], n = 4 * c;
	size_t own = dtp_dtype_size(t), shifts[5] = {0};
	struct dtp_tensor tokens = random2(t, h * w, n, 0), picture = make3(t, 2 * h, 2 * w, c, 0, NULL), ms = random1(t, n), vs = random1(t, n);
	float *mean_dev, *var_dev, *positive = values_of(vs);

	shifts[misaligned] = misaligned < 2 ? own : sizeof(float);
	for (int64_t i = 0; i < n; i++)
		positive[i] = dtp_round_to(t, fabsf(positive[i]) + 0.5f);
	dtp_from_f32(vs.data, t, positive, (size_t)n);
	struct dtp_weight *mean = vector_weight(be, &ms, shifts[2], &mean_dev), *var = vector_weight(be, &vs, shifts[3], &var_dev);
	struct dtp_tensor dev = to_device(picture, shifts[0]), back = to_device(tokens, shifts[1]);
	OK(dtp_k_unpatchify(NULL, dev, back, mean_dev, var_dev, 1e-4f));
	MUST(be->ops->unpatchify(be, picture, tokens, mean, var, 1e-4f, err));
	check_same("unpatchify", picture, dev, 4, 1);
	dev = to_device(picture, shifts[0]);
	OK(dtp_k_patchify(NULL, back, dev, mean_dev, var_dev, 1e-4f));
	MUST(be->ops->patchify(be, tokens, picture, mean, var, 1e-4f, err));
	check_same("patchify", tokens, back, 4, 1);
	be->ops->weight_free(be, mean);
	be->ops->weight_free(be, var);
	free(tokens.data), free(picture.data), free(ms.data), free(vs.data), free(positive);
}

static void kernel_patchify(void **state)
{
	/* Channels: one, no whole pack, whole packs, the model's; less than a block, and blocks that end within a token or its row. */
	static const int64_t shapes[][3] = {{1, 1, 1}, {3, 2, 5}, {9, 8, 7}, {3, 2, 16}, {5, 7, 32}, {4, 3, 200}, {0, 2, 16}};
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 5 * sizeof shapes / sizeof shapes[0]; i++)
			check_patches(be, shapes[i / 5], (int)(i % 5));
}

static void kernel_quantise(void **state)
{
	enum { MOST = 3 * 48 };
	uint8_t ref[MOST], got[MOST];
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (int64_t pixels = 47; pixels <= 48; pixels++) {
			struct dtp_tensor x = random3(t, 1, pixels, 3, 0);
			float special[] = {NAN, INFINITY, -INFINITY, 0, 0.5f, -0.5f, 0x1.01p-8f, 0.1328125f, 1, -1};
			dtp_from_f32(x.data, t, special, 10);
			uint8_t *dev = (uint8_t *)device((size_t)pixels * 3);
			OK(dtp_k_quantise(NULL, dev, to_device(x, 0)));
			OK(cudaMemcpy(got, dev, (size_t)pixels * 3, cudaMemcpyDeviceToHost));
			MUST(be->ops->quantise(be, ref, x, err));
			assert_memory_equal(got, ref, (size_t)pixels * 3);
			free(x.data);
		}
}

/* ---- weights */
static const enum dtp_dtype files[] = {DTP_F32, DTP_BF16, DTP_F16};

static void kernel_vector(void **state)
{
	enum { ALL = 300 };
	(void)state;
	for (int i = 0; i < 6; i++, free_device()) {
		enum dtp_dtype t = types[i % 2], from = files[i / 2];
		float *v = random_values(from, ALL), got[ALL], *to = (float *)device(sizeof got);
		struct dtp_tensor src = make_tensor(from, 1, (int64_t[]){ALL}, 0, v);
		OK(dtp_k_vector(NULL, to, t, to_device(src, 0)));
		OK(cudaMemcpy(got, to, sizeof got, cudaMemcpyDeviceToHost));
		for (int j = 0; j < ALL; j++)
			assert_true(got[j] == dtp_round_to(t, v[j]));
		free(src.data), free(v);
	}
}

static void check_filters(enum dtp_dtype t, enum dtp_dtype from, const int64_t z[4], size_t to_shift, size_t from_shift)
{
	int64_t c = z[1], taps = z[2] * z[3], all = z[0] * c * taps;
	float *v = random_values(from, all);
	struct dtp_tensor src = make_tensor(from, 4, z, 0, v), out = make_tensor(t, 4, (int64_t[]){z[0], z[2], z[3], c}, 0, NULL);
	struct dtp_tensor dev = to_device(out, to_shift);

	OK(dtp_k_filters(NULL, dev, to_device(src, from_shift)));
	to_host(out, dev);
	float *got = values_of(out);
	for (int64_t j = 0; j < all; j++) {
		float ref = dtp_round_to(t, v[(j / c / taps * c + j % c) * taps + j / c % taps]);
		if (got[j] != ref)
			fail_msg("filters [%lld, %lld, %lld]: element %lld is %g, expected %g", (long long)z[0], (long long)c, (long long)taps,
				 (long long)j, (double)got[j], (double)ref);
	}
	free(src.data), free(out.data), free(v), free(got);
}

static void kernel_filters(void **state)
{
	/* Channels that are no whole packs, and such that are; fewer than a block has room for, and more; one tap, and as many as there may be. */
	static const int64_t shapes[][4] = {{3, 5, 3, 3}, {2, 131, 3, 3}, {2, 48, 3, 3}, {1, 1936, 3, 3}, {3, 24, 1, 1}, {2, 40, 5, 2}, {2, 16, 32, 32},
					    {2, 3, 32, 32}, {0, 8, 3, 3}, {1, 1, 1, 1}};
	(void)state;
	for (size_t i = 0; i < 6 * sizeof shapes / sizeof shapes[0]; i++, free_device()) {
		enum dtp_dtype t = types[i % 2], from = files[i / 2 % 3];
		check_filters(t, from, shapes[i / 6], 0, 0);
		check_filters(t, from, shapes[i / 6], dtp_dtype_size(t), 0);
		check_filters(t, from, shapes[i / 6], 0, dtp_dtype_size(from));
	}
}

/* ---- values that are made on the device: those of core/fill.h, to the bit */

/* Element i of a dimension of the slice, in the whole. */
static int64_t in_whole(const struct dtp_fill *f, int64_t i)
{
	for (int r = 0; r < f->nruns; r++) {
		int64_t length = f->run[r].end - f->run[r].begin;
		if (i < length)
			return f->run[r].begin + i;
		i -= length;
	}
	return -1;
}

static float filled(const struct dtp_fill *f, enum dtp_dtype t, int64_t row, int64_t col)
{
	uint32_t key = dtp_fill_key(f->seed, f->columns ? row : in_whole(f, row));
	return dtp_round_to(t, dtp_fill_value(key, (uint32_t)(f->columns ? in_whole(f, col) : col), f->mean, f->scale));
}

static void kernel_fill(void **state)
{
	(void)state;
	FOR_EACH_TYPE(be, t)
		for (size_t i = 0; i < 2 * NSIZES; i++) {
			int64_t m = sizes[i / 2][0], k = sizes[i / 2][1];
			struct dtp_fill f = {.seed = 12345 + i, .scale = 0x1.9p-22f};
			struct dtp_tensor out = make2(t, m, k, sizes[i / 2][2], NULL), dev = to_device(out, shift_of(i, t));
			OK(dtp_k_fill(NULL, dev, &f, INT64_C(5000000000) + (int64_t)i, 7));
			to_host(out, dev);
			float *got = values_of(out);
			for (int64_t j = 0; j < m * k; j++) {
				uint32_t key = dtp_fill_key(f.seed, INT64_C(5000000000) + (int64_t)i + j / k);
				assert_true(got[j] == dtp_round_to(t, dtp_fill_value(key, (uint32_t)(7 + j % k), f.mean, f.scale)));
			}
			free(got), free(out.data);
		}
}

/* Whole weights, through both backends: the layout of each kind, and slices of several runs. */
static void check_filled(enum dtp_dtype t, struct dtp_backend *cpu, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
			 const struct dtp_fill *f)
{
	struct dtp_cuda_options options = {.mon = &dtp_monitor_none};
	struct dtp_backend *be;
	struct dtp_weight *w, *same;

	MUST(dtp_backend_cuda(t, &options, &be, err));
	MUST(be->ops->weight_new(be, kind, ndim, shape, &w, err));
	MUST(be->ops->weight_fill(be, w, f, err));
	MUST(be->ops->sync(be, err));
	const struct dtp_cuda_weight *cw = dtp_cuda_weight_of(w);
	int64_t n = cw->at.n, k = cw->at.k, C = kind == DTP_WEIGHT_CONV ? shape[1] : k, taps = k / C;
	bool vector = kind == DTP_WEIGHT_VECTOR;
	struct dtp_tensor own = make2(vector ? DTP_F32 : t, n, k, cw->at.pitch - k, NULL), dev = own;
	dev.data = cw->data;
	to_host(own, dev);
	float *got = values_of(own);
	for (int64_t i = 0; i < n * k; i++) /* [kh * kw, C] of [C, kh * kw] */
		assert_true(got[i] == filled(f, t, i / k, i % k % C * taps + i % k / C));
	if (vector && t != DTP_F32) {
		struct dtp_tensor typed = make2(t, n, 1, 0, NULL), from = typed;
		from.data = (void *)(uintptr_t)dtp_cuda_vector_as(w, t);
		to_host(typed, from);
		float *v = values_of(typed);
		assert_memory_equal(v, got, (size_t)n * sizeof *v);
		free(v), free(typed.data);
	}
	if (vector || kind == DTP_WEIGHT_TABLE) { /* the CPU's other kinds are packed: tests/test_synthetic.c looks into them */
		MUST(cpu->ops->weight_new(cpu, kind, ndim, shape, &same, err));
		MUST(cpu->ops->weight_fill(cpu, same, f, err));
		float *v = malloc((size_t)(n * k) * sizeof *v + 1);
		dtp_to_f32(v, dtp_cpu_weight_of(same)->data, vector ? DTP_F32 : t, (size_t)(n * k));
		assert_memory_equal(v, got, (size_t)(n * k) * sizeof *v);
		free(v);
		cpu->ops->weight_free(cpu, same);
	}
	free(got), free(own.data);
	be->ops->weight_free(be, w);
	be->ops->destroy(be);
}

static void kernel_filled_weights(void **state)
{
	const struct dtp_fill rows = {.seed = 1, .scale = 0x1.9p-22f, .nruns = 3, .run = {{3, 10}, {10, 10}, {170, 213}}};
	const struct dtp_fill columns = {.seed = 2, .scale = 0x1.1p-24f, .columns = true, .nruns = 2, .run = {{8, 16}, {33, 60}}};
	const struct dtp_fill filters = {.seed = 3, .scale = 0x1p-23f, .nruns = 1, .run = {{0, 3}}}, ones = {.seed = 4, .mean = 1, .nruns = 1, .run = {{0, 3}}};
	const struct dtp_fill nothing = {.seed = 5, .scale = 1, .nruns = 0};
	enum { LONG = DTP_CUDA_PANEL / sizeof(float) + 77 };
	const struct dtp_fill pieces = {.seed = 6, .scale = 0x1p-23f, .nruns = 3, .run = {{9, LONG - 80}, {LONG, LONG + 50}, {2 * LONG, 2 * LONG + 39}}};

	(void)state;
	FOR_EACH_TYPE(be, t) {
		check_filled(t, be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){50, 24}, &rows);
		check_filled(t, be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){7, 35}, &columns);
		check_filled(t, be, DTP_WEIGHT_TABLE, 2, (int64_t[]){50, 21}, &rows);
		check_filled(t, be, DTP_WEIGHT_TABLE, 2, (int64_t[]){70, 35}, &columns);
		check_filled(t, be, DTP_WEIGHT_CONV, 4, (int64_t[]){3, 5, 3, 3}, &filters);
		check_filled(t, be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){50}, &rows);
		check_filled(t, be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){3}, &ones);
		check_filled(t, be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){0, 24}, &nothing);
		/* More than is turned at a time. */
		if (t == DTP_F32)
			check_filled(t, be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){LONG}, &pieces);
	}
}

/* ---- rows do not know of each other: half of them give the bits that all give */
static void kernel_rows_alone(void **state)
{
	enum { M = 6, K = 96 };
	(void)state;
	FOR_EACH_TYPE(be, t) {
		struct dtp_tensor x = random2(t, M, K, 0), out = make2(t, M, K, 0, NULL), vec = random1(t, K);
		struct dtp_tensor v = to_device(vec, 0), from = to_device(x, 0), whole = to_device(out, 0), halves = to_device(out, 0);
		OK(dtp_k_modulated_norm(NULL, whole, from, v, v, 1e-6f));
		for (int i = 0; i < 2; i++)
			OK(dtp_k_modulated_norm(NULL, dtp_narrow(halves, 0, 3 * i, 3), dtp_narrow(from, 0, 3 * i, 3), v, v, 1e-6f));
		to_host(out, whole);
		assert_equal(out, halves);
		free(x.data), free(out.data), free(vec.data);
	}
}

/* ---- refused */
static void kernel_refused(void **state)
{
	int64_t n = 16;
	(void)state;
	struct dtp_tensor x = random2(DTP_BF16, 2, n, 0), good = to_device(x, 0), bad = to_device(x, 1), i32 = good, wide;
	float *v = (float *)device(64), *off = (float *)(device(65) + 1);
	struct dtp_tensor none = {0}, heads = dtp_split_last(good, 2, 8), fives, flat;
	struct dtp_attention a = {.scale = 1, .key_end = 2, .group = 1};
	struct dtp_fill nothing = {0};
	i32.dtype = DTP_I32;
	flat = dtp_tensor_make(good.data, DTP_BF16, 1, &n);
#define REFUSED(call) assert_int_equal(call, cudaErrorInvalidValue)
	REFUSED(dtp_k_modulated_norm(NULL, bad, good, flat, flat, 1));
	REFUSED(dtp_k_modulated_norm(NULL, good, bad, flat, flat, 1));
	REFUSED(dtp_k_modulated_norm(NULL, i32, i32, flat, flat, 1));
	REFUSED(dtp_k_rms_norm(NULL, good, bad, v, 1));
	REFUSED(dtp_k_rms_norm(NULL, good, good, off, 1));
	REFUSED(dtp_k_qk_norm_rope(NULL, dtp_split_last(bad, 2, 8), heads, v, v, 1, DTP_ROPE_HALF, none, none));
	REFUSED(dtp_k_qk_norm_rope(NULL, heads, dtp_split_last(bad, 2, 8), v, v, 1, DTP_ROPE_HALF, none, none));
	REFUSED(dtp_k_qk_norm_rope(NULL, heads, heads, v, off, 1, DTP_ROPE_HALF, none, none));
	fives = dtp_split_last(dtp_narrow(good, 1, 0, 15), 3, 5);
	REFUSED(dtp_k_qk_norm_rope(NULL, fives, fives, v, v, 1, DTP_ROPE_HALF, none, none));
	REFUSED(dtp_k_swiglu(NULL, good, bad, good));
	REFUSED(dtp_k_swiglu(NULL, i32, i32, i32));
	REFUSED(dtp_k_gated_residual(NULL, good, none, bad));
	REFUSED(dtp_k_add_bias(NULL, good, off));
	REFUSED(dtp_k_silu(NULL, bad, good));
	REFUSED(dtp_k_add(NULL, good, good, bad));
	REFUSED(dtp_k_euler_step(NULL, good, bad, v));
	REFUSED(dtp_k_euler_step(NULL, good, good, off));
	REFUSED(dtp_k_copy(NULL, good, bad));
	REFUSED(dtp_k_copy(NULL, i32, good));
	REFUSED(dtp_k_embedding(NULL, good, (int32_t *)off, good, 0));
	REFUSED(dtp_k_embedding(NULL, bad, (int32_t *)v, good, 0));
	REFUSED(dtp_k_attention(NULL, heads, NULL, heads, dtp_split_last(bad, 2, 8), heads, &a));
	REFUSED(dtp_k_attention(NULL, heads, off, heads, heads, heads, &a));
	wide = heads;
	wide.shape[2] = DTP_K_HEAD_DIM + 1;
	REFUSED(dtp_k_attention(NULL, wide, NULL, wide, wide, wide, &a));
	REFUSED(dtp_k_softmax(NULL, good, good, 1));
	REFUSED(dtp_k_softmax(NULL, i32, dtp_tensor_make(v, DTP_F32, 2, (int64_t[]){1, 16}), 1));
	REFUSED(dtp_k_softmax(NULL, good, dtp_tensor_make(off, DTP_F32, 2, (int64_t[]){1, 16}), 1));
	struct dtp_tensor picture = dtp_tensor_make(good.data, DTP_BF16, 3, (int64_t[]){1, 2, 16});
	struct dtp_tensor shifted = dtp_tensor_make(bad.data, DTP_BF16, 3, (int64_t[]){1, 2, 16});
	REFUSED(dtp_k_group_maps(NULL, v, (char *)v + 4, picture, v, v, 2, 1));
	REFUSED(dtp_k_group_maps(NULL, v, v, shifted, v, v, 2, 1));
	REFUSED(dtp_k_group_apply(NULL, picture, shifted, v, true));
	REFUSED(dtp_k_window(NULL, picture, shifted, v, 0));
	REFUSED(dtp_k_upsample2x(NULL, picture, shifted, 0));
	REFUSED(dtp_k_unpatchify(NULL, shifted, good, v, v, 1));
	REFUSED(dtp_k_patchify(NULL, bad, picture, v, v, 1));
	REFUSED(dtp_k_quantise(NULL, (uint8_t *)v, shifted));
	REFUSED(dtp_k_vector(NULL, off, DTP_BF16, flat));
	picture = dtp_tensor_make(good.data, DTP_BF16, 4, (int64_t[]){1, 2, 4, 4});
	REFUSED(dtp_k_filters(NULL, dtp_tensor_make(bad.data, DTP_BF16, 4, (int64_t[]){1, 4, 4, 2}), picture));
	picture.shape[2] = DTP_K_TAPS / 4 + 1;
	REFUSED(dtp_k_filters(NULL, picture, picture));
	REFUSED(dtp_k_fill(NULL, bad, &nothing, 0, 0));
	REFUSED(dtp_k_fill(NULL, i32, &nothing, 0, 0));
	free(x.data);
	free_device();
}

/* A pattern of names: only those cases run.  With DIFFTP_EMU_ORDER, in that order only. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernel_modulated_norm),     cmocka_unit_test(kernel_rms_norm),
		cmocka_unit_test(kernel_qk_norm_rope),	     cmocka_unit_test(kernel_swiglu),
		cmocka_unit_test(kernel_gated_residual),     cmocka_unit_test(kernel_add_bias),
		cmocka_unit_test(kernel_silu_add_euler),     cmocka_unit_test(kernel_copy),
		cmocka_unit_test(kernel_embedding),	     cmocka_unit_test(kernel_attention_shapes),
		cmocka_unit_test(kernel_attention_masks),    cmocka_unit_test(kernel_attention_heads),
		cmocka_unit_test(kernel_attention_extremes), cmocka_unit_test(kernel_softmax),
		cmocka_unit_test(kernel_softmax_in_place),   cmocka_unit_test(kernel_attention_products),
		cmocka_unit_test(kernel_specials),
		cmocka_unit_test(kernel_group_norm),	     cmocka_unit_test(kernel_window),
		cmocka_unit_test(kernel_upsample2x),	     cmocka_unit_test(kernel_patchify),
		cmocka_unit_test(kernel_quantise),	     cmocka_unit_test(kernel_vector),
		cmocka_unit_test(kernel_filters),	     cmocka_unit_test(kernel_fill),
		cmocka_unit_test(kernel_filled_weights),     cmocka_unit_test(kernel_rows_alone),
		cmocka_unit_test(kernel_refused),
	};
	const char *order = getenv("DIFFTP_EMU_ORDER");
	char only[16] = "";
	int failed = 0;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	snprintf(only, sizeof only, "%s", order ? order : ""); /* setenv ends what getenv gave */
	for (int i = 0; i < NORDERS; i++) {
		if (*only && strcmp(only, thread_orders[i]) != 0)
			continue;
		setenv("DIFFTP_EMU_ORDER", thread_orders[i], 1);
		failed += cmocka_run_group_tests_name(thread_orders[i], tests, NULL, NULL);
	}
	return failed != 0;
}
