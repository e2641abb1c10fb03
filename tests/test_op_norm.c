/* SPDX-License-Identifier: Apache-2.0 */
/* Norms against f64. */
#include "op.h"

static void norm_modulated_shapes(void **state)
{
	static const int64_t sizes[][3] = {{1, 1, 0}, {3, 7, 0}, {70, 48, 5}, {4, 3072, 64}, {0, 16, 0}, {5, 0, 0}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
			int64_t m = sizes[s][0], k = sizes[s][1];
			float *xv = random_values(c->t, m * k), *sc = random_values(c->t, k), *sh = random_values(c->t, k);
			float *ref = malloc((size_t)(m * k + 1) * sizeof *ref);
			struct dtp_tensor scale = make_tensor(c->t, 1, &k, 0, sc), shift = make_tensor(c->t, 1, &k, 0, sh);
			for (int64_t i = 0; i < m; i++) {
				double mean = 0, var = 0;
				for (int64_t j = 0; j < k; j++)
					mean += xv[i * k + j] / (double)k;
				for (int64_t j = 0; j < k; j++)
					var += (xv[i * k + j] - mean) * (xv[i * k + j] - mean) / (double)k;
				for (int64_t j = 0; j < k; j++)
					ref[i * k + j] = (float)((xv[i * k + j] - mean) / sqrt(var + 1e-6) * (1 + (double)sc[j]) + (double)sh[j]);
			}
			struct dtp_tensor x = make2(c->t, m, k, sizes[s][2], xv), out = make2(c->t, m, k, 0, NULL);
			MUST(be->ops->modulated_norm(be, out, x, shift, scale, 1e-6f, err));
			check_values(c->name, out, ref, k);
			free(x.data), free(out.data), free(scale.data), free(shift.data), free(xv), free(sc), free(sh), free(ref);
		}
}

/* A constant far from 0 has no variance: what is left is the shift. */
static void norm_modulated_constant(void **state)
{
	enum { K = 100 };
	int64_t k = K;
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float xv[K], *sh = random_values(c->t, K), *sc = random_values(c->t, K);
		for (int i = 0; i < K; i++)
			xv[i] = 1024;
		struct dtp_tensor x = make2(c->t, 1, K, 0, xv), out = make2(c->t, 1, K, 0, NULL);
		struct dtp_tensor shift = make_tensor(c->t, 1, &k, 0, sh), scale = make_tensor(c->t, 1, &k, 0, sc);
		MUST(be->ops->modulated_norm(be, out, x, shift, scale, 1e-6f, err));
		check_values(c->name, out, sh, 1);
		free(x.data), free(out.data), free(shift.data), free(scale.data), free(sh), free(sc);
	}
}

/* x / rms(x), rounded to t, times w. */
static void rms_reference(float *out, const float *x, const float *w, int64_t n, double eps, enum dtp_dtype t)
{
	double ss = 0;
	for (int64_t i = 0; i < n; i++)
		ss += (double)x[i] * x[i] / (double)n;
	for (int64_t i = 0; i < n; i++)
		out[i] = dtp_round_to(t, (float)(x[i] / sqrt(ss + eps))) * w[i];
}

static void norm_rms_shapes(void **state)
{
	static const int64_t sizes[][3] = {{1, 1, 0}, {3, 7, 0}, {70, 40, 5}, {4, 2560, 64}, {0, 16, 0}, {5, 0, 0}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
			int64_t m = sizes[s][0], k = sizes[s][1];
			float *xv = random_values(c->t, m * k), *wv = random_values(c->t, k), *ref = malloc((size_t)(m * k + 1) * sizeof *ref);
			struct dtp_weight *w = make_weight(be, DTP_WEIGHT_VECTOR, 1, &k, wv, DTP_F32);
			struct dtp_tensor x = make2(c->t, m, k, sizes[s][2], xv), out = make2(c->t, m, k, 0, NULL);
			for (int64_t i = 0; i < m; i++)
				rms_reference(ref + i * k, xv + i * k, wv, k, 1e-6f, c->t);
			MUST(be->ops->rms_norm(be, out, x, w, 1e-6f, err));
			check_rounded(c->name, out, ref, k, 2);
			be->ops->weight_free(be, w);
			free(x.data), free(out.data), free(xv), free(wv), free(ref);
		}
}

static void rope_reference(float *x, const float *cos, const float *sin, int64_t d, enum dtp_rope kind)
{
	for (int64_t j = 0; j < d / 2; j++) {
		int64_t a = kind == DTP_ROPE_HALF ? j : 2 * j, b = kind == DTP_ROPE_HALF ? j + d / 2 : 2 * j + 1;
		double p = x[a], q = x[b];
		x[a] = (float)(p * cos[j] - q * sin[j]);
		x[b] = (float)(q * cos[j] + p * sin[j]);
	}
}

/* s tokens of h heads of d: x as the operation finds it, ref what it is to leave there. */
static struct dtp_tensor heads_case(enum dtp_dtype t, const int64_t z[4], const float *w, const float *cos, const float *sin, enum dtp_rope kind,
				    float **ref)
{
	int64_t s = z[0], h = z[1], d = z[2];
	float *v = random_values(t, s * h * d);
	struct dtp_tensor x = make3(t, s, h, d, z[3], v);

	*ref = malloc((size_t)(s * h * d + 1) * sizeof **ref);
	memcpy(*ref, v, (size_t)(s * h * d) * sizeof **ref);
	for (int64_t r = 0; r < s * h; r++) {
		float *head = *ref + r * d;
		if (w)
			rms_reference(head, v + r * d, w, d, 1e-6f, t);
		for (int64_t j = 0; j < d; j++)
			head[j] = dtp_round_to(t, head[j]);
		if (cos)
			rope_reference(head, cos + r / h * (d / 2), sin + r / h * (d / 2), d, kind);
	}
	free(v);
	return x;
}

/* Heads of q and of k: as many, fewer, none. */
static void norm_qk_rope_all_kinds(void **state)
{
	static const int64_t sizes[][5] = {{1, 1, 2, 0, 1}, {9, 3, 16, 0, 3}, {65, 2, 128, 7, 1}, {5, 4, 10, 16, 2}, {0, 2, 16, 0, 2}, {4, 0, 16, 0, 0},
					   {4, 3, 16, 0, 0}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < 8 * sizeof sizes / sizeof sizes[0]; i++) {
			const int64_t *z = sizes[i / 8], zk[] = {z[0], z[4], z[2], 3};
			int64_t s = z[0], d = z[2];
			bool normed = i & 1, turned = i & 2;
			enum dtp_rope kind = i & 4 ? DTP_ROPE_HALF : DTP_ROPE_INTERLEAVED;
			float *wv[] = {random_values(c->t, d), random_values(c->t, d)}, *cv = random_values(DTP_F32, s * d / 2), *ref[2];
			float *sv = random_values(DTP_F32, s * d / 2);
			struct dtp_tensor cos = make2(DTP_F32, s, d / 2, 0, cv), sin = make2(DTP_F32, s, d / 2, 0, sv), none = {0};
			struct dtp_tensor q = heads_case(c->t, z, normed ? wv[0] : NULL, turned ? cv : NULL, sv, kind, &ref[0]);
			struct dtp_tensor k = heads_case(c->t, zk, normed ? wv[1] : NULL, turned ? cv : NULL, sv, kind, &ref[1]);
			struct dtp_weight *wq = make_weight(be, DTP_WEIGHT_VECTOR, 1, &d, wv[0], DTP_F32);
			struct dtp_weight *wk = make_weight(be, DTP_WEIGHT_VECTOR, 1, &d, wv[1], DTP_F32);
			MUST(be->ops->qk_norm_rope(be, q, k, normed ? wq : NULL, normed ? wk : NULL, 1e-6f, kind, turned ? cos : none,
						   turned ? sin : none, err));
			check_rounded(c->name, q, ref[0], d, 3);
			check_rounded(c->name, k, ref[1], d, 3);
			be->ops->weight_free(be, wq);
			be->ops->weight_free(be, wk);
			free(q.data), free(k.data), free(cos.data), free(sin.data), free(cv), free(sv);
			free(wv[0]), free(wv[1]), free(ref[0]), free(ref[1]);
		}
}

static void check_group_norm(struct dtp_backend *be, const char *name, const int64_t z[4], bool silu, float offset)
{
	enum dtp_dtype t = be->compute;
	int64_t h = z[0], w = z[1], c = z[2], groups = z[3], per = c / groups, pixels = h * w;
	float *xv = random_values(t, pixels * c), *wv = random_values(t, c), *bv = random_values(t, c);
	float *ref = malloc((size_t)(pixels * c + 1) * sizeof *ref);

	for (int64_t i = 0; i < pixels * c; i++)
		xv[i] = dtp_round_to(t, xv[i] + offset);
	for (int64_t g = 0; g < groups; g++) {
		double mean = 0, var = 0, n = (double)(pixels * per);
		for (int64_t i = 0; i < pixels * per; i++)
			mean += xv[i / per * c + g * per + i % per] / n;
		for (int64_t i = 0; i < pixels * per; i++) {
			double d = xv[i / per * c + g * per + i % per] - mean;
			var += d * d / n;
		}
		for (int64_t i = 0; i < pixels * per; i++) {
			int64_t ch = g * per + i % per, at = i / per * c + ch;
			double y = (xv[at] - mean) / sqrt(var + 1e-6) * wv[ch] + bv[ch];
			ref[at] = (float)(silu ? y / (1 + exp(-y)) : y);
		}
	}
	struct dtp_tensor x = make3(t, h, w, c, 0, xv), out = make3(t, h, w, c, 0, NULL);
	struct dtp_weight *wt = make_weight(be, DTP_WEIGHT_VECTOR, 1, &c, wv, DTP_F32);
	struct dtp_weight *bt = make_weight(be, DTP_WEIGHT_VECTOR, 1, &c, bv, DTP_F32);
	MUST(be->ops->group_norm(be, out, x, wt, bt, (int)groups, 1e-6f, silu, err));
	/* x * scale + bias: an offset is cancelled by the bias, both rounded. */
	check_values(name, out, ref, 4 + (int64_t)(offset * offset));
	MUST(be->ops->group_norm(be, x, x, wt, bt, (int)groups, 1e-6f, silu, err)); /* in place */
	assert_memory_equal(x.data, out.data, (size_t)(pixels * c) * dtp_dtype_size(t));
	be->ops->weight_free(be, wt);
	be->ops->weight_free(be, bt);
	free(x.data), free(out.data), free(xv), free(wv), free(bv), free(ref);
}

static void norm_group_shapes(void **state)
{
	static const int64_t sizes[][4] = {{1, 1, 32, 2}, {3, 5, 16, 8}, {20, 31, 32, 8}, {2, 2, 6, 1}, {9, 1, 48, 48}, {0, 3, 8, 2}, {11, 13, 24, 3}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (int silu = 0; silu < 2; silu++)
				check_group_norm(be, c->name, sizes[i], silu, 0);
}

/* A mean that is large against the deviation must not eat the variance. */
static void norm_group_offset(void **state)
{
	static const int64_t size[4] = {17, 19, 32, 4};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		check_group_norm(be, c->name, size, false, 100);
}

static void norm_group_threads_same_bits(void **state)
{
	enum { H = 30, W = 20, C = 16 };
	int64_t n = C;
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *xv = random_values(c->t, H * W * C), *v = random_values(c->t, C);
		struct dtp_tensor x = make3(c->t, H, W, C, 0, xv), a = make3(c->t, H, W, C, 0, NULL), b = make3(c->t, H, W, C, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_VECTOR, 1, &n, v, DTP_F32);
		be->ops->set_threads(be, 1);
		MUST(be->ops->group_norm(be, a, x, w, w, 4, 1e-6f, true, err));
		be->ops->set_threads(be, 5);
		MUST(be->ops->group_norm(be, b, x, w, w, 4, 1e-6f, true, err));
		assert_memory_equal(a.data, b.data, H * W * C * dtp_dtype_size(c->t));
		be->ops->weight_free(be, w);
		free(x.data), free(a.data), free(b.data), free(xv), free(v);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(norm_modulated_shapes),  cmocka_unit_test(norm_modulated_constant),
		cmocka_unit_test(norm_rms_shapes),	  cmocka_unit_test(norm_qk_rope_all_kinds),
		cmocka_unit_test(norm_group_shapes),	  cmocka_unit_test(norm_group_offset),
		cmocka_unit_test(norm_group_threads_same_bits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
