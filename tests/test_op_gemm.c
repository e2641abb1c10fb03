/* SPDX-License-Identifier: Apache-2.0 */
/* linear, its weights, and where they come from. */
#include "cpu/dnnl.h"
#include "op.h"

#include <malloc.h>

static void reference(float *out, const float *x, const float *w, const float *bias, int64_t m, int64_t n, int64_t k)
{
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double s = bias ? (double)bias[j] : 0;
			for (int64_t l = 0; l < k; l++)
				s += (double)x[i * k + l] * w[j * k + l];
			out[i * n + j] = (float)s;
		}
}

struct sizes {
	int64_t m, n, k;
};

static void check_linear(struct dtp_backend *be, const char *name, struct sizes s, bool bias, int64_t gap, enum dtp_dtype out_type,
			 enum dtp_dtype src)
{
	enum dtp_dtype t = be->compute, common = src == DTP_F32 ? t : src; /* a value that both can hold */
	float *xv = random_values(t, s.m * s.k), *wv = random_values(common, s.n * s.k), *bv = random_values(t, s.n);
	float *ref = malloc((size_t)(s.m * s.n + 1) * sizeof *ref);
	char what[160];

	for (int64_t i = 0; i < s.n * s.k; i++)
		wv[i] = dtp_round_to(src, wv[i]);
	struct dtp_tensor x = make2(t, s.m, s.k, gap, xv), out = make2(out_type, s.m, s.n, gap, NULL);
	struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){s.n, s.k}, wv, src), *b = NULL;
	if (bias)
		b = make_weight(be, DTP_WEIGHT_VECTOR, 1, &s.n, bv, DTP_F32);
	for (int64_t i = 0; i < s.n * s.k; i++)
		wv[i] = dtp_round_to(t, wv[i]);
	reference(ref, xv, wv, bias ? bv : NULL, s.m, s.n, s.k);
	MUST(be->ops->linear(be, out, x, w, b, err));
	snprintf(what, sizeof what, "%s, [%d,%d] x [%d,%d], gap %d, bias %d, %s from %s", name, (int)s.m, (int)s.k, (int)s.n,
		 (int)s.k, (int)gap, bias, dtp_dtype_name(out_type), dtp_dtype_name(src));
	check_values(what, out, ref, s.k + 1);
	be->ops->weight_free(be, w);
	be->ops->weight_free(be, b);
	free(x.data), free(out.data), free(xv), free(wv), free(bv), free(ref);
}

static void gemm_linear_shapes(void **state)
{
	static const struct sizes sizes[] = {{1, 1, 1},	    {3, 5, 7},	    {64, 64, 64},  {1, 300, 96}, {65, 130, 33},
					     {257, 65, 31}, {513, 320, 48}, {70, 129, 200}, {2, 64, 1}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (int v = 0; v < 4; v++)
				check_linear(be, c->name, sizes[i], v & 1, v & 2 ? 3 : 0, v & 1 ? DTP_F32 : c->t, DTP_BF16);
}

/* Sums so long that they are taken piece by piece on some CPUs; pieces of the same and of other lengths, rows with gaps. */
static void gemm_linear_long_sums(void **state)
{
	static const struct sizes sizes[] = {{3, 70, 4097}, {260, 65, 6144}, {5, 130, 9217}, {2, 64, 12300}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			check_linear(be, c->name, sizes[i], i & 1, i & 2 ? 5 : 0, c->t, DTP_BF16);
}

static void gemm_linear_source_dtypes(void **state)
{
	static const enum dtp_dtype src[] = {DTP_F32, DTP_F16, DTP_BF16};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < 3; i++)
			check_linear(be, c->name, (struct sizes){17, 150, 77}, true, 0, c->t, src[i]);
}

/* No rows, no columns: nothing; no inputs: zeros or the bias. */
static void gemm_linear_empty(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		check_linear(be, c->name, (struct sizes){0, 70, 30}, true, 0, c->t, DTP_F32);
		check_linear(be, c->name, (struct sizes){5, 0, 30}, false, 0, c->t, DTP_F32);
		check_linear(be, c->name, (struct sizes){5, 70, 0}, false, 2, c->t, DTP_F32);
		check_linear(be, c->name, (struct sizes){5, 70, 0}, true, 2, DTP_F32, DTP_F32);
	}
}

/* The first operand is copied a strip at a time when it is long: all strips must arrive. */
static void gemm_linear_strips(void **state)
{
	enum { K = 9000, N = 3 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		int64_t m = dtp_cpu_strip_rows(dtp_cpu_of(be), K) + 5, row = K + 1;
		size_t size = dtp_dtype_size(c->t);
		float *wv = random_values(c->t, N * K), *xv = random_values(c->t, K);
		struct dtp_tensor x = dtp_tensor_make(malloc((size_t)(m * row) * size), c->t, 2, (int64_t[]){m, K});
		struct dtp_tensor out = make2(DTP_F32, m, N, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){N, K}, wv, DTP_F32);
		float ref[N];

		x.stride[0] = row;
		for (int64_t i = 0; i < m; i++)
			dtp_from_f32((char *)x.data + (size_t)(i * row) * size, c->t, xv, K);
		reference(ref, xv, wv, NULL, 1, N, K);
		MUST(be->ops->linear(be, out, x, w, NULL, err));
		for (int64_t i = 0; i < m; i++)
			check_values(c->name, dtp_narrow(out, 0, i, 1), ref, K);
		be->ops->weight_free(be, w);
		free(x.data), free(out.data), free(wv), free(xv);
	}
}

/* The same bits whatever the number of threads. */
static void gemm_linear_threads_same_bits(void **state)
{
	enum { M = 300, N = 200, K = 500 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *xv = random_values(c->t, M * K), *wv = random_values(c->t, N * K), *first = NULL;
		struct dtp_tensor x = make2(c->t, M, K, 0, xv), out = make2(DTP_F32, M, N, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){N, K}, wv, DTP_F32);
		for (int threads = 1; threads <= 7; threads += 2) {
			be->ops->set_threads(be, threads);
			MUST(be->ops->linear(be, out, x, w, NULL, err));
			float *v = values_of(out);
			if (first)
				assert_memory_equal(v, first, sizeof(float) * M * N);
			else
				first = v;
			if (v != first)
				free(v);
		}
		be->ops->weight_free(be, w);
		free(x.data), free(out.data), free(xv), free(wv), free(first);
	}
}

/* One NaN or infinity reaches its own row (or column) and nothing else; large and tiny values survive. */
static void gemm_linear_extremes(void **state)
{
	enum { M = 70, N = 70, K = 35 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *xv = random_values(c->t, M * K), *wv = random_values(c->t, N * K);
		xv[3 * K + 2] = NAN;
		xv[5 * K + K - 1] = INFINITY;
		wv[69 * K + K - 1] = NAN;
		for (int k = 0; k < K; k++) {
			xv[7 * K + k] = k ? 0 : 0x1p100f;
			xv[8 * K + k] = k ? 0 : 0x1p-100f;
		}
		struct dtp_tensor x = make2(c->t, M, K, 0, xv), out = make2(c->t, M, N, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){N, K}, wv, DTP_F32);
		MUST(be->ops->linear(be, out, x, w, NULL, err));
		float *v = values_of(out);
		for (int i = 0; i < M; i++)
			for (int j = 0; j < N; j++) {
				float got = v[i * N + j];
				if (i == 3 || j == 69)
					assert_true(isnan(got));
				else if (i == 5)
					assert_true(isinf(got) && (got > 0) == (wv[j * K + K - 1] > 0));
				else if (i == 7 || i == 8)
					assert_true(got == dtp_round_to(c->t, xv[i * K] * wv[j * K]));
				else
					assert_true(isfinite(got));
			}
		be->ops->weight_free(be, w);
		free(x.data), free(out.data), free(xv), free(wv), free(v);
	}
}

/* After the first call nothing more is taken from the heap. */
static void gemm_linear_no_growth(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *xv = random_values(c->t, 90 * 100), *wv = random_values(c->t, 150 * 100);
		struct dtp_tensor x = make2(c->t, 90, 100, 4, xv), out = make2(c->t, 90, 150, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){150, 100}, wv, DTP_F32);
		for (int i = 0; i < 8; i++) /* each thread takes part at least once */
			MUST(be->ops->linear(be, out, x, w, NULL, err));
		size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
		for (int i = 0; i < 8; i++)
			MUST(be->ops->linear(be, out, x, w, NULL, err));
		size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
		/* Which thread runs what is not fixed: one may meet a shape late, once. */
		if (c->threads == 1)
			assert_int_equal(before, after);
		be->ops->weight_free(be, w);
		free(x.data), free(out.data), free(xv), free(wv);
	}
}

/* More shapes than are kept: the oldest go, results stay right. */
static void gemm_linear_many_shapes(void **state)
{
	struct config c = configs[0];
	struct dtp_backend *be = open_backend(&c);
	(void)state;
	for (int64_t m = 1; m <= 540; m++)
		if (m % 90 == 0)
			check_linear(be, c.name, (struct sizes){m % 256, 3, 4}, true, 0, DTP_F32, DTP_F32);
		else {
			float *xv = random_values(DTP_F32, m);
			struct dtp_tensor x = make2(DTP_F32, 1, m, 0, xv), out = make2(DTP_F32, 1, 1, 0, NULL);
			struct dtp_weight *w = make_weight(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){1, m}, xv, DTP_F32);
			float ref;
			reference(&ref, xv, xv, NULL, 1, 1, m);
			MUST(be->ops->linear(be, out, x, w, NULL, err));
			check_values("many", out, &ref, m);
			be->ops->weight_free(be, w);
			free(xv), free(x.data), free(out.data);
		}
	be->ops->destroy(be);
}

/* One operation may have more shapes than are kept, such as a causal attention of 32768 tokens, and the next layer has them again. */
static void gemm_shapes_of_a_layer_stay(void **state)
{
	struct config c = configs[0];
	struct dtp_backend *be = open_backend(&c);
	struct dtp_dnnl *d = dtp_cpu_of(be)->dnnl;
	struct dtp_err err;
	struct dtp_mm *mm;

	(void)state;
	for (int layer = 0; layer < 7; layer++) {
		dtp_dnnl_begin(d);
		for (int64_t k = 1; k <= 600; k++)
			assert_int_equal(dtp_mm_get(d, &(struct dtp_mm_shape){1, 1, k, DTP_F32, DTP_MM_ROWS, false}, &mm, &err), DTP_OK);
		for (int op = 0; op < 20; op++) {
			dtp_dnnl_begin(d);
			assert_int_equal(dtp_dnnl_count(d), 600);
		}
	}
	for (int op = 0; op < 130; op++) /* another model */
		dtp_dnnl_begin(d);
	assert_int_equal(dtp_dnnl_count(d), 0);
	be->ops->destroy(be);
}

/* Memory of a large weight serves the next one. */
static void gemm_weight_in_reused_memory(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (int i = 0; i < 3; i++) {
			struct dtp_weight *w;
			int64_t shape[2] = {700, 1001 - i};
			if (!i) {
				MUST(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, shape, &w, err));
				be->ops->weight_free(be, w);
			}
			assert_int_equal(dtp_cpu_of(be)->pool.total > 0, i == 0); /* an operation lets go of it */
			MUST(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, shape, &w, err));
			assert_int_equal(dtp_cpu_of(be)->pool.total, 0);
			be->ops->weight_free(be, w);
			check_linear(be, c->name, (struct sizes){3, shape[0], shape[1]}, true, 0, c->t, DTP_BF16);
			assert_int_equal(dtp_cpu_of(be)->pool.total > 0, true); /* the weight that was just freed */
			float *xv = random_values(c->t, 1);
			struct dtp_tensor x = make2(c->t, 1, 1, 0, xv);
			struct dtp_weight *one = make_weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){1}, xv, DTP_F32);
			MUST(be->ops->rms_norm(be, x, x, one, 1e-6f, err));
			assert_int_equal(dtp_cpu_of(be)->pool.total, 0);
			be->ops->weight_free(be, one);
			free(x.data), free(xv);
		}
}

static void gemm_weight_bytes_dry(void **state)
{
	static const int64_t shapes[][4] = {{100, 77, 3, 3}, {64, 64, 1, 1}, {1, 1, 1, 1}, {0, 5, 3, 3}};
	struct dtp_backend *cpu, *dry;
	(void)state;
	for (int t = 0; t < 2; t++) {
		MUST(dtp_backend_cpu(t ? DTP_BF16 : DTP_F32, 1, &cpu, err));
		MUST(dtp_backend_dry(t ? DTP_BF16 : DTP_F32, DTP_DEVICE_CPU, &dry, err));
		for (size_t i = 0; i < 4; i++)
			for (int kind = DTP_WEIGHT_MATRIX; kind <= DTP_WEIGHT_VECTOR; kind++) {
				int ndim = kind == DTP_WEIGHT_CONV ? 4 : kind == DTP_WEIGHT_VECTOR ? 1 : 2;
				assert_int_equal(cpu->ops->weight_bytes(cpu, kind, ndim, shapes[i]),
						 dry->ops->weight_bytes(dry, kind, ndim, shapes[i]));
			}
		int64_t big[2] = {3072, 3072};
		assert_int_equal(dry->ops->weight_bytes(dry, DTP_WEIGHT_MATRIX, 2, big), 3072 * 3072 * (t ? 2 : 4));
		dry->ops->destroy(dry);
		cpu->ops->destroy(cpu);
	}
}

static void gemm_alloc_too_large(void **state)
{
	struct dtp_err e = DTP_ERR_INIT;
	struct dtp_backend *be;
	void *p;
	(void)state;
	MUST(dtp_backend_cpu(DTP_F32, 1, &be, err));
	assert_int_equal(be->ops->alloc(be, 1ull << 60, &p, &e), DTP_FAILED);
	assert_message(&e, DTP_FAILED, "1152921504606846976 bytes", "available", NULL);
	assert_null(p);
	struct dtp_weight *w;
	assert_int_equal(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){1 << 20, 1 << 30}, &w, &e), DTP_FAILED);
	assert_null(w);
	MUST(be->ops->alloc(be, 0, &p, err));
	assert_non_null(p);
	be->ops->free(be, p, 0);
	be->ops->destroy(be);
	assert_int_equal(dtp_backend_cpu(DTP_F16, 1, &be, &e), DTP_REFUSED);
	assert_message(&e, DTP_REFUSED, "F16", NULL);
	assert_int_equal(dtp_backend_cpu(DTP_F32, 0, &be, &e), DTP_REFUSED);
}

static void gemm_peak_positive(void **state)
{
	struct dtp_backend *be;
	double flops;
	(void)state;
	if (getenv("DTP_TEST_CHILD")) /* once is enough for what takes long */
		return;
	MUST(dtp_backend_cpu(DTP_BF16, 1, &be, err));
	MUST(be->ops->measure_peak(be, &flops, err));
	assert_true(flops > 1e8 && flops < 1e15);
	be->ops->destroy(be);
}

static void gemm_all_without_avx512(void **state)
{
	(void)state;
	run_with_less();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gemm_linear_shapes),
		cmocka_unit_test(gemm_linear_long_sums),
		cmocka_unit_test(gemm_linear_source_dtypes),
		cmocka_unit_test(gemm_linear_empty),
		cmocka_unit_test(gemm_linear_strips),
		cmocka_unit_test(gemm_linear_threads_same_bits),
		cmocka_unit_test(gemm_linear_extremes),
		cmocka_unit_test(gemm_linear_no_growth),
		cmocka_unit_test(gemm_linear_many_shapes),
		cmocka_unit_test(gemm_shapes_of_a_layer_stay),
		cmocka_unit_test(gemm_weight_in_reused_memory),
		cmocka_unit_test(gemm_weight_bytes_dry),
		cmocka_unit_test(gemm_alloc_too_large),
		cmocka_unit_test(gemm_peak_positive),
		cmocka_unit_test(gemm_all_without_avx512),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
