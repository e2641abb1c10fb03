/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on single elements, rows and pictures, and moving tensors in and out. */
#include "op.h"

#include "cpu/vec.h"

/* Longer than the pieces that rows are cut into. */
static const int64_t sizes[][3] = {{1, 1, 0}, {3, 70, 5}, {2, 3000, 8}, {5, 1024, 0}, {0, 8, 0}, {4, 0, 0}};
#define NSIZES (sizeof sizes / sizeof sizes[0])

static double silu(double x)
{
	return x / (1 + exp(-x));
}

static void pointwise_swiglu_shapes(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < NSIZES; s++) {
			int64_t m = sizes[s][0], k = sizes[s][1], gap = sizes[s][2];
			float *g = random_values(c->t, m * k), *u = random_values(c->t, m * k), *ref = malloc((size_t)(m * k + 1) * 4);
			for (int64_t i = 0; i < m * k; i++)
				ref[i] = (float)(silu(g[i]) * u[i]);
			struct dtp_tensor tg = make2(c->t, m, k, gap, g), tu = make2(c->t, m, k, gap, u), out = make2(c->t, m, k, gap, NULL);
			MUST(be->ops->swiglu(be, out, tg, tu, err));
			check_values(c->name, out, ref, 4);
			/* In place of the gate. */
			MUST(be->ops->swiglu(be, tg, tg, tu, err));
			check_values(c->name, tg, ref, 4);
			free(tg.data), free(tu.data), free(out.data), free(g), free(u), free(ref);
		}
}

static void pointwise_gated_residual_kinds(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < 4 * NSIZES; s++) {
			int64_t m = sizes[s / 4][0], k = sizes[s / 4][1], gap = sizes[s / 4][2];
			enum dtp_dtype yt = s & 1 ? DTP_F32 : c->t;
			float *xv = random_values(c->t, m * k), *yv = random_values(yt, m * k), *gv = random_values(c->t, k);
			float *ref = malloc((size_t)(m * k + 1) * sizeof *ref);
			for (int64_t i = 0; i < m * k; i++)
				ref[i] = (float)(xv[i] + (double)(s & 2 ? gv[i % k] : 1) * yv[i]);
			struct dtp_tensor x = make2(c->t, m, k, gap, xv), y = make2(yt, m, k, 0, yv), none = {0};
			struct dtp_tensor gate = make_tensor(c->t, 1, &k, 0, gv);
			MUST(be->ops->gated_residual(be, x, s & 2 ? gate : none, y, err));
			check_values(c->name, x, ref, 2);
			free(x.data), free(y.data), free(gate.data), free(xv), free(yv), free(gv), free(ref);
		}
}

static void pointwise_add_bias_both_dtypes(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < 2 * NSIZES; s++) {
			int64_t m = sizes[s / 2][0], k = sizes[s / 2][1];
			enum dtp_dtype xt = s & 1 ? DTP_F32 : c->t;
			float *xv = random_values(xt, m * k), *bv = random_values(c->t, k), *ref = malloc((size_t)(m * k + 1) * 4);
			for (int64_t i = 0; i < m * k; i++)
				ref[i] = xv[i] + bv[i % k];
			struct dtp_tensor x = make2(xt, m, k, 0, xv);
			struct dtp_weight *b = make_weight(be, DTP_WEIGHT_VECTOR, 1, &k, bv, DTP_F32);
			MUST(be->ops->add_bias(be, x, b, err));
			check_values(c->name, x, ref, 1);
			be->ops->weight_free(be, b);
			free(x.data), free(xv), free(bv), free(ref);
		}
}

static void pointwise_silu_add_euler(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < NSIZES; s++) {
			int64_t m = sizes[s][0], k = sizes[s][1], n = m * k;
			float *a = random_values(c->t, n), *b = random_values(c->t, n), *ref = malloc((size_t)(n + 1) * 4), dt = -0.2421f;
			struct dtp_tensor x = make3(c->t, m, 1, k, 0, a), y = make3(c->t, m, 1, k, 0, b), out = make3(c->t, m, 1, k, 0, NULL);
			for (int64_t i = 0; i < n; i++)
				ref[i] = (float)silu(a[i]);
			MUST(be->ops->silu(be, out, x, err));
			check_values("silu", out, ref, 4);
			for (int64_t i = 0; i < n; i++)
				ref[i] = a[i] + b[i];
			MUST(be->ops->add(be, out, x, y, err));
			check_values("add", out, ref, 1);
			for (int64_t i = 0; i < n; i++)
				ref[i] = (float)(a[i] + (double)dt * b[i]);
			MUST(be->ops->euler_step(be, x, y, dtp_tensor_make(&dt, DTP_F32, 1, (int64_t[]){1}), err));
			check_values("euler", x, ref, 2);
			free(x.data), free(y.data), free(out.data), free(a), free(b), free(ref);
		}
}

/* Far out silu is 0 or x; what is no number stays none. */
static void pointwise_silu_extremes(void **state)
{
	static const float in[8] = {0, -0.0f, 200, -200, 0x1p127f, -0x1p127f, INFINITY, NAN};
	int64_t n = 8;
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		struct dtp_tensor x = make_tensor(c->t, 1, &n, 0, in), out = make_tensor(c->t, 1, &n, 0, NULL);
		MUST(be->ops->silu(be, out, x, err));
		float *v = values_of(out);
		assert_true(v[0] == 0 && v[1] == 0 && v[2] == 200 && v[3] == 0 && v[4] == 0x1p127f && v[5] == 0);
		assert_true(isinf(v[6]) && isnan(v[7]));
		free(x.data), free(out.data), free(v);
	}
}

static void pointwise_exp_ulp(void **state)
{
	double worst = 0;
	(void)state;
	for (int i = 0; i < 200000; i++) {
		float x = i < 100000 ? test_uniform(-103, 88.7f) : test_uniform(-2, 2), y = x;
		dtp_vec_exp(&y, 1);
		double ref = exp((double)x), ulp = (double)(nextafterf((float)ref, INFINITY) - (float)ref);
		worst = fmax(worst, fabs(y - ref) / ulp);
	}
	assert_true(worst <= 2);
	float edge[6] = {-INFINITY, INFINITY, NAN, 89, -200, 0};
	dtp_vec_exp(edge, 6);
	assert_true(edge[0] == 0 && isinf(edge[1]) && isnan(edge[2]) && isinf(edge[3]) && edge[4] == 0 && edge[5] == 1);
}

static void pointwise_embedding_rows(void **state)
{
	enum { ROWS = 5, K = 70 };
	static const int32_t ids[] = {10, 14, 9, 15, 12, -1, 12, INT32_MAX, INT32_MIN};
	enum { M = sizeof ids / sizeof ids[0] };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *tv = random_values(c->t, ROWS * K), ref[M * K];
		struct dtp_weight *table = make_weight(be, DTP_WEIGHT_TABLE, 2, (int64_t[]){ROWS, K}, tv, DTP_F32);
		struct dtp_tensor out = make2(c->t, M, K, 0, NULL);
		for (int i = 0; i < M * K; i++)
			ref[i] = ids[i / K] >= 10 && ids[i / K] < 15 ? tv[(ids[i / K] - 10) * K + i % K] : 0;
		MUST(be->ops->embedding(be, out, ids, table, 10, err));
		float *v = values_of(out);
		assert_memory_equal(v, ref, sizeof ref);
		be->ops->weight_free(be, table);
		free(out.data), free(tv), free(v);
	}
}

static void pointwise_copy_strided(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (int kind = 0; kind < 8; kind++) {
			enum dtp_dtype st = kind & 1 ? DTP_F32 : c->t, dt = kind & 2 ? DTP_F32 : c->t;
			int64_t shape[4] = {3, 2, 5, 9}, n = 3 * 2 * 5 * 9;
			float *v = random_values(st, n), *got = malloc((size_t)n * sizeof *got);
			struct dtp_tensor src = make_tensor(st, 4, shape, 0, v), wide = make_tensor(dt, 4, (int64_t[]){3, 2, 5, 20}, 0, NULL);
			struct dtp_tensor dst = dtp_narrow(wide, 3, 4, 9);
			if (kind & 4) { /* swapped dimensions */
				int64_t t = src.stride[0];
				src.stride[0] = 90, src.shape[0] = 3;
				src.stride[1] = 9, src.shape[1] = 5;
				src.stride[2] = 45, src.shape[2] = 2;
				assert_int_equal(t, 90);
				dst = make_tensor(dt, 4, (int64_t[]){3, 5, 2, 9}, 0, NULL);
			}
			MUST(be->ops->copy(be, dst, src, err));
			for (int64_t i = 0; i < n; i++) {
				int64_t w = i % 9, z = i / 9 % dst.shape[2], y = i / 9 / dst.shape[2] % dst.shape[1], x = i / 90;
				int64_t at = x * dst.stride[0] + y * dst.stride[1] + z * dst.stride[2] + w;
				int64_t from = kind & 4 ? x * 90 + z * 45 + y * 9 + w : i;
				dtp_to_f32(got + i, (char *)dst.data + at * (int64_t)dtp_dtype_size(dt), dt, 1);
				assert_true(got[i] == dtp_round_to(dt, v[from]));
			}
			if (kind & 4)
				free(dst.data);
			free(src.data), free(wide.data), free(v), free(got);
		}
}

static void pointwise_upload_download(void **state)
{
	static const enum dtp_dtype types[] = {DTP_F32, DTP_BF16, DTP_F16};
	int64_t n = 2500;
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < 9; i++) {
			enum dtp_dtype host = types[i / 3], dev = types[i % 3];
			float *v = random_values(host, n), *back = malloc((size_t)n * sizeof *back);
			void *raw = malloc((size_t)n * dtp_dtype_size(host));
			struct dtp_tensor t = make_tensor(dev, 1, &n, 0, NULL);
			dtp_from_f32(raw, host, v, (size_t)n);
			MUST(be->ops->upload(be, t, raw, host, err));
			MUST(be->ops->download(be, back, DTP_F32, t, err));
			MUST(be->ops->sync(be, err));
			for (int64_t j = 0; j < n; j++)
				assert_true(back[j] == dtp_round_to(dev, v[j]));
			free(v), free(back), free(raw), free(t.data);
		}
}

static void picture_upsample_nearest(void **state)
{
	enum { H = 3, W = 5, C = 7 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *v = random_values(c->t, H * W * C);
		struct dtp_tensor x = make3(c->t, H, W, C, 0, v);
		for (int first = -2; first < 2 * H + 1; first++) { /* three rows: zeros beyond the edges, and a column on each side */
			struct dtp_tensor out = make3(c->t, 3, 2 * W + 2, C, 0, NULL);
			MUST(be->ops->upsample2x(be, out, x, first, err));
			float *got = values_of(out);
			for (int i = 0; i < 3 * (2 * W + 2) * C; i++) {
				int row = first + i / C / (2 * W + 2), col = i / C % (2 * W + 2) - 1;
				bool inside = row >= 0 && row < 2 * H && col >= 0 && col < 2 * W;
				assert_true(got[i] == (inside ? v[(row / 2 * W + col / 2) * C + i % C] : 0));
			}
			free(out.data), free(got);
		}
		free(x.data), free(v);
	}
}

static void picture_patchify_round_trip(void **state)
{
	enum { H = 3, W = 2, C = 5, N = 4 * C };
	int64_t n = N;
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *tv = random_values(c->t, H * W * N), *mv = random_values(c->t, N), *vv = random_values(c->t, N);
		float ref[H * W * N];
		for (int i = 0; i < N; i++)
			vv[i] = fabsf(vv[i]) + 0.5f;
		for (int i = 0; i < N; i++)
			vv[i] = dtp_round_to(c->t, vv[i]);
		struct dtp_weight *mean = make_weight(be, DTP_WEIGHT_VECTOR, 1, &n, mv, DTP_F32);
		struct dtp_weight *var = make_weight(be, DTP_WEIGHT_VECTOR, 1, &n, vv, DTP_F32);
		struct dtp_tensor tokens = make2(c->t, H * W, N, 0, tv), out = make3(c->t, 2 * H, 2 * W, C, 0, NULL);
		for (int t = 0; t < H * W; t++)
			for (int i = 0; i < N; i++) {
				int y = t / W * 2 + i / 2 % 2, x = t % W * 2 + i % 2;
				ref[(y * 2 * W + x) * C + i / 4] = (float)(tv[t * N + i] * sqrt((double)vv[i] + 1e-4) + mv[i]);
			}
		MUST(be->ops->unpatchify(be, out, tokens, mean, var, 1e-4f, err));
		check_values(c->name, out, ref, 4);
		MUST(be->ops->patchify(be, tokens, out, mean, var, 1e-4f, err));
		check_rounded(c->name, tokens, tv, 4, 4); /* mean and deviation move the first rounding */
		be->ops->weight_free(be, mean);
		be->ops->weight_free(be, var);
		free(tokens.data), free(out.data), free(tv), free(mv), free(vv);
	}
}

static void picture_quantise_half_even(void **state)
{
	/* x, and the byte where the sum is rounded to bf16 first (its spacing near 0.5 is 2^-8). */
	static const struct {
		float x;
		uint8_t f32, bf16;
	} cases[] = {{-1, 0, 0}, {1, 255, 255}, {-7, 0, 0}, {7, 255, 255}, {NAN, 0, 0}, {INFINITY, 255, 255}, {-INFINITY, 0, 0},
		     {0, 128, 128},	/* 127.5: half to even */
		     {0.5f, 191, 191},	/* 191.25 */
		     {-0.5f, 64, 64},	/* 63.75 */
		     {0x1.01p-8f, 128, 128}, {0.1328125f, 144, 144}};
	enum { N = sizeof cases / sizeof cases[0] };
	float v[N];
	uint8_t rgb[N];
	(void)state;
	for (int i = 0; i < N; i++)
		v[i] = cases[i].x;
	FOR_EACH_BACKEND(be, c) {
		struct dtp_tensor x = make3(c->t, 1, N / 3, 3, 0, v);
		MUST(be->ops->quantise(be, rgb, x, err));
		for (int i = 0; i < N; i++)
			if (rgb[i] != (c->t == DTP_BF16 ? cases[i].bf16 : cases[i].f32))
				fail_msg("%s: %g gives %d", c->name, (double)v[i], rgb[i]);
		free(x.data);
	}
}

static void threads_set_returns_former(void **state)
{
	struct dtp_backend *be;
	(void)state;
	MUST(dtp_backend_cpu(DTP_F32, 2, &be, err));
	assert_int_equal(be->ops->set_threads(be, 5), 2);
	assert_int_equal(be->ops->set_threads(be, 1), 5);
	assert_int_equal(be->ops->set_threads(be, 0), 1); /* asks only */
	assert_int_equal(be->ops->set_threads(be, 2), 1);
	be->ops->destroy(be);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pointwise_swiglu_shapes),
		cmocka_unit_test(pointwise_gated_residual_kinds),
		cmocka_unit_test(pointwise_add_bias_both_dtypes),
		cmocka_unit_test(pointwise_silu_add_euler),
		cmocka_unit_test(pointwise_silu_extremes),
		cmocka_unit_test(pointwise_exp_ulp),
		cmocka_unit_test(pointwise_embedding_rows),
		cmocka_unit_test(pointwise_copy_strided),
		cmocka_unit_test(pointwise_upload_download),
		cmocka_unit_test(picture_upsample_nearest),
		cmocka_unit_test(picture_patchify_round_trip),
		cmocka_unit_test(picture_quantise_half_even),
		cmocka_unit_test(threads_set_returns_former),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
