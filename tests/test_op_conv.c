/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d against the plain sum in f64. */
#include "op.h"

#include "cpu/conv.h"

/* By how much Winograd's transforms raise the variance of rounding errors: for the worst of the 4x4 results, the sum over the 6
 * points of each axis of |row of B^T|^2 |row of G|^2 (element of A^T)^2, 94.5, squared for two axes, where a plain sum has 9. */
#define WINOGRAD_VARIANCE 992

struct picture {
	int64_t h, w, c, n, k;
	int stride, tl, br;
};

static int64_t out_size(int64_t in, const struct picture *s)
{
	return (in + s->tl + s->br - s->k) / s->stride + 1;
}

static void reference(float *out, const float *x, const float *w, const float *bias, const struct picture *s)
{
	int64_t oh = out_size(s->h, s), ow = out_size(s->w, s);

	for (int64_t p = 0; p < oh * ow; p++)
		for (int64_t n = 0; n < s->n; n++) {
			double sum = bias ? (double)bias[n] : 0;
			for (int64_t t = 0; t < s->k * s->k; t++) {
				int64_t y = p / ow * s->stride - s->tl + t / s->k, i = p % ow * s->stride - s->tl + t % s->k;
				if (y < 0 || y >= s->h || i < 0 || i >= s->w)
					continue;
				for (int64_t c = 0; c < s->c; c++)
					sum += (double)x[(y * s->w + i) * s->c + c] * w[(n * s->c + c) * s->k * s->k + t];
			}
			out[p * s->n + n] = (float)sum;
		}
}

static void check_conv(struct dtp_backend *be, const char *name, struct picture s, bool bias)
{
	enum dtp_dtype t = be->compute;
	int64_t oh = out_size(s.h, &s), ow = out_size(s.w, &s), k2 = s.k * s.k;
	float *xv = random_values(t, s.h * s.w * s.c), *wv = random_values(t, s.n * s.c * k2), *bv = random_values(t, s.n);
	float *ref = malloc((size_t)(oh * ow * s.n + 1) * sizeof *ref);
	struct dtp_tensor x = make3(t, s.h, s.w, s.c, 0, xv), out = make3(t, oh, ow, s.n, 0, NULL);
	struct dtp_weight *w = make_weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){s.n, s.c, s.k, s.k}, wv, DTP_F32), *b = NULL;
	char what[160];

	if (bias)
		b = make_weight(be, DTP_WEIGHT_VECTOR, 1, &s.n, bv, DTP_F32);
	reference(ref, xv, wv, bias ? bv : NULL, &s);
	MUST(be->ops->conv2d(be, out, x, w, b, s.stride, s.tl, s.br, err));
	snprintf(what, sizeof what, "%s, [%d,%d,%d] to %d, kernel %d, stride %d, pad %d %d, bias %d", name, (int)s.h, (int)s.w,
		 (int)s.c, (int)s.n, (int)s.k, s.stride, s.tl, s.br, bias);
	check_values(what, out, ref, (s.c * k2 + 1) * (dtp_winograd_fits(dtp_cpu_of(be), dtp_cpu_weight_of(w), s.stride) ?
		     WINOGRAD_VARIANCE : 1));
	be->ops->weight_free(be, w);
	be->ops->weight_free(be, b);
	free(x.data), free(out.data), free(xv), free(wv), free(bv), free(ref);
}

static void conv_2d_shapes(void **state)
{
	static const struct picture sizes[] = {
		{5, 7, 3, 4, 3, 1, 1, 1},    {1, 1, 1, 1, 3, 1, 1, 1},	 {2, 3, 16, 70, 3, 1, 1, 1}, {33, 20, 16, 16, 3, 1, 1, 1},
		{8, 8, 20, 3, 3, 1, 1, 1},   {16, 16, 16, 32, 3, 2, 0, 1}, {7, 9, 5, 6, 3, 2, 0, 1},   {6, 5, 40, 65, 1, 1, 0, 0},
		{9, 6, 8, 5, 5, 1, 2, 2},    {9, 6, 8, 5, 2, 2, 0, 0},	 {12, 11, 33, 17, 3, 1, 1, 1}, {4, 4, 3, 5, 1, 2, 0, 0},
		{9, 9, 16, 16, 3, 1, 0, 0},  {9, 8, 16, 16, 3, 1, 2, 2},	 {8, 9, 17, 16, 3, 1, 0, 2},
		{4, 4, 16, 300, 3, 1, 1, 1}, {24, 24, 70, 150, 3, 1, 1, 1}, {100, 61, 16, 20, 3, 1, 1, 1},
	};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (int bias = 0; bias < 2; bias++)
				check_conv(be, c->name, sizes[i], bias);
}

/* Larger than a strip: all of it must arrive, and no border show. */
static void conv_2d_strips(void **state)
{
	enum { W = 61, C = 70 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		int64_t h = dtp_cpu_strip_rows(dtp_cpu_of(be), 9 * C) / W + 3;
		float *wv = random_values(c->t, 2 * C * 9);
		struct dtp_tensor x = make3(c->t, h, W, C, 0, NULL), out = make3(c->t, h, W, 2, 0, NULL);
		struct dtp_tensor part = make3(c->t, h, W, 2, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){2, C, 3, 3}, wv, DTP_F32);
		float *line = random_values(c->t, W * C);
		for (int64_t y = 0; y < h; y++) /* every row is the first, turned */
			for (int64_t i = 0; i < W * C; i++) {
				float f = line[(i + y * 37) % (W * C)];
				dtp_from_f32((char *)x.data + (size_t)(y * W * C + i) * dtp_dtype_size(c->t), c->t, &f, 1);
			}
		MUST(be->ops->conv2d(be, out, x, w, NULL, 1, 1, 1, err));
		/* Halves by themselves, each with a halo of one row, give the same bits. */
		int64_t half = h / 2;
		MUST(be->ops->conv2d(be, dtp_narrow(part, 0, 0, half + 1), dtp_narrow(x, 0, 0, half + 1), w, NULL, 1, 1, 1, err));
		assert_memory_equal(out.data, part.data, (size_t)(half * W * 2) * dtp_dtype_size(c->t));
		be->ops->weight_free(be, w);
		free(x.data), free(out.data), free(part.data), free(wv), free(line);
	}
}

/* The same bits whatever the number of threads: a change of it regroups what is computed together. */
static void conv_2d_threads_same_bits(void **state)
{
	enum { H = 45, W = 38, C = 20, N = 70 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *xv = random_values(c->t, H * W * C), *wv = random_values(c->t, N * C * 9);
		struct dtp_tensor x = make3(c->t, H, W, C, 0, xv), a = make3(c->t, H, W, N, 0, NULL), b = make3(c->t, H, W, N, 0, NULL);
		struct dtp_weight *w = make_weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){N, C, 3, 3}, wv, DTP_F32);
		be->ops->set_threads(be, 1);
		MUST(be->ops->conv2d(be, a, x, w, NULL, 1, 1, 1, err));
		for (int threads = 2; threads <= 8; threads += 3) {
			be->ops->set_threads(be, threads);
			MUST(be->ops->conv2d(be, b, x, w, NULL, 1, 1, 1, err));
			assert_memory_equal(a.data, b.data, H * W * N * dtp_dtype_size(c->t));
		}
		be->ops->weight_free(be, w);
		free(x.data), free(a.data), free(b.data), free(xv), free(wv);
	}
}

static void conv_2d_empty(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		check_conv(be, c->name, (struct picture){0, 4, 3, 5, 1, 1, 0, 0}, true);
		check_conv(be, c->name, (struct picture){4, 4, 0, 5, 3, 1, 1, 1}, true);
		check_conv(be, c->name, (struct picture){4, 4, 3, 0, 3, 1, 1, 1}, false);
	}
}

static void conv_all_without_avx512(void **state)
{
	(void)state;
	run_with_less();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(conv_2d_shapes),
		cmocka_unit_test(conv_2d_strips),
		cmocka_unit_test(conv_2d_threads_same_bits),
		cmocka_unit_test(conv_2d_empty),
		cmocka_unit_test(conv_all_without_avx512),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
