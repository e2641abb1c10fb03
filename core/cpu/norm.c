/* SPDX-License-Identifier: Apache-2.0 */
/* Norms.  A row is widened once and stays in the cache for its statistics and its result. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "cpu.h"
#include "vec.h"

enum dtp_code dtp_cpu_modulated_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				     struct dtp_tensor shift, struct dtp_tensor scale, float eps, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t k = x.shape[1];
	uint64_t row_bytes = (uint64_t)dtp_round_up(k, 16) * sizeof(float);
	enum dtp_code rc = dtp_cpu_scratch(cpu, 2 * row_bytes, row_bytes, err);

	if (rc || k == 0)
		return rc;
	float *sc = cpu->shared, *sh = sc + dtp_round_up(k, 16);
	dtp_vec_load(sc, scale.data, scale.dtype, k);
	dtp_vec_load(sh, shift.data, shift.dtype, k);
#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t i = 0; i < x.shape[0]; i++) {
		float *row = dtp_cpu_local(cpu, omp_get_thread_num());
		dtp_vec_load(row, dtp_row(&x, i), x.dtype, k);
		float mean = dtp_vec_sum(row, k) / (float)k;
		float var = dtp_vec_sum_squares(row, mean, k) / (float)k;
		dtp_vec_modulate(row, mean, 1.0f / sqrtf(var + eps), sc, sh, k);
		dtp_vec_store(dtp_row(&out, i), out.dtype, row, k);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_rms_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
			       const struct dtp_weight *w, float eps, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t k = x.shape[1];
	enum dtp_code rc = dtp_cpu_scratch(cpu, 0, (uint64_t)k * sizeof(float), err);

	if (rc || k == 0)
		return rc;
#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t i = 0; i < x.shape[0]; i++) {
		float *row = dtp_cpu_local(cpu, omp_get_thread_num());
		dtp_vec_load(row, dtp_row(&x, i), x.dtype, k);
		/* Rounded where the reference rounds: what is normalised, before the weight. */
		dtp_vec_scale(row, 1.0f / sqrtf(dtp_vec_sum_squares(row, 0, k) / (float)k + eps), k);
		dtp_vec_round(row, be->compute, k);
		dtp_vec_mul(row, dtp_cpu_vector(w), k);
		dtp_vec_store(dtp_row(&out, i), out.dtype, row, k);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_qk_norm_rope(struct dtp_backend *be, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				   const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				   struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t d = q.shape[2];
	bool interleaved = kind == DTP_ROPE_INTERLEAVED;
	enum dtp_code rc = dtp_cpu_scratch(cpu, 0, (uint64_t)d * sizeof(float), err);

	if (rc || d == 0)
		return rc;
#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t i = 0; i < q.shape[0]; i++) {
		float *row = dtp_cpu_local(cpu, omp_get_thread_num());
		const float *c = cos.data ? dtp_row(&cos, i) : NULL, *sn = cos.data ? dtp_row(&sin, i) : NULL;
		for (int64_t h = 0; h < q.shape[1]; h++)
			dtp_vec_norm_rotate(dtp_at(&q, i, h), q.dtype, dtp_cpu_vector(wq), eps, interleaved, c, sn, row, d);
		for (int64_t h = 0; h < k.shape[1]; h++)
			dtp_vec_norm_rotate(dtp_at(&k, i, h), k.dtype, dtp_cpu_vector(wk), eps, interleaved, c, sn, row, d);
	}
	return DTP_OK;
}

/* ---- group norm: sums per channel over slices of the picture, in double; then an affine map per channel */
#define SLICES 64 /* a number that does not depend on the threads, so that the sums do not either */

struct moments {
	double *sum, *squares; /* [slices][C] */
	int64_t slices;
};

/* scale and bias of every channel: (x - mean) / std * w + b. */
static void group_affine(const struct moments *m, int64_t channels, int groups, double pixels, float eps, const float *w,
			 const float *b, float *scale, float *bias)
{
	int64_t per = channels / groups;
	double n = pixels * (double)per;

	for (int64_t g = 0; g < groups; g++) {
		double sum = 0, squares = 0;
		for (int64_t s = 0; s < m->slices; s++)
			for (int64_t c = g * per; c < (g + 1) * per; c++) {
				sum += m->sum[s * channels + c];
				squares += m->squares[s * channels + c];
			}
		double mean = sum / n, var = squares / n - mean * mean, rstd = 1 / sqrt((var < 0 ? 0 : var) + (double)eps);
		for (int64_t c = g * per; c < (g + 1) * per; c++) {
			scale[c] = (float)(rstd * (double)w[c]);
			bias[c] = (float)((double)b[c] - mean * rstd * (double)w[c]);
		}
	}
}

static uint64_t moments_bytes(int64_t pixels, int64_t channels)
{
	return 2 * (uint64_t)((pixels < SLICES ? pixels : SLICES) * channels) * sizeof(double);
}

/* The map of every channel of x, made in the first moments_bytes of the shared scratch. */
static void channel_maps(struct dtp_cpu *cpu, struct dtp_tensor x, const struct dtp_weight *w, const struct dtp_weight *b, int groups,
			 float eps, float *scale, float *bias)
{
	int64_t c = x.shape[2], pixels = x.shape[0] * x.shape[1], size = (int64_t)dtp_dtype_size(x.dtype);
	struct moments m = {.slices = pixels < SLICES ? pixels : SLICES};

	m.sum = cpu->shared;
	m.squares = m.sum + m.slices * c;
	memset(m.sum, 0, moments_bytes(pixels, c));
#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t s = 0; s < m.slices; s++) {
		int64_t begin = pixels * s / m.slices, end = pixels * (s + 1) / m.slices;
		dtp_vec_moments(m.sum + s * c, m.squares + s * c, (const char *)x.data + begin * c * size, x.dtype, end - begin, c);
	}
	group_affine(&m, c, groups, (double)pixels, eps, dtp_cpu_vector(w), dtp_cpu_vector(b), scale, bias);
}

enum dtp_code dtp_cpu_group_maps(struct dtp_backend *be, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				 const struct dtp_weight *b, int groups, float eps, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t c = x.shape[2], pixels = x.shape[0] * x.shape[1];
	enum dtp_code rc = dtp_cpu_scratch(cpu, moments_bytes(pixels, c), 0, err);

	if (!rc && pixels && c)
		channel_maps(cpu, x, w, b, groups, eps, dtp_row(&maps, 0), dtp_row(&maps, 1));
	return rc;
}

enum dtp_code dtp_cpu_window(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first,
			     struct dtp_err *err)
{
	int64_t h = x.shape[0], w = x.shape[1], c = x.shape[2], pixel = c * (int64_t)dtp_dtype_size(x.dtype);
	const float *scale = dtp_row(&maps, 0), *bias = dtp_row(&maps, 1);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < out.shape[0]; i++) {
		char *d = (char *)out.data + i * (w + 2) * pixel;
		const char *s = (const char *)x.data + (first + i) * w * pixel;
		if (first + i < 0 || first + i >= h) {
			memset(d, 0, (size_t)((w + 2) * pixel));
			continue;
		}
		memset(d, 0, (size_t)pixel);
		for (int64_t p = 0; p < w; p++)
			dtp_vec_affine(d + (p + 1) * pixel, s + p * pixel, x.dtype, scale, bias, true, c);
		memset(d + (w + 1) * pixel, 0, (size_t)pixel);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_group_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				 const struct dtp_weight *w, const struct dtp_weight *b, int groups, float eps, bool silu,
				 struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int64_t c = x.shape[2], pixels = x.shape[0] * x.shape[1], cp = dtp_round_up(c, 16), size = (int64_t)dtp_dtype_size(x.dtype);

	if (pixels == 0 || c == 0)
		return DTP_OK;
	enum dtp_code rc = dtp_cpu_scratch(cpu, moments_bytes(pixels, c) + 2 * (uint64_t)cp * sizeof(float), 0, err);
	if (rc)
		return rc;
	float *scale = (float *)((char *)cpu->shared + moments_bytes(pixels, c)), *bias = scale + cp;
	channel_maps(cpu, x, w, b, groups, eps, scale, bias);
#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t p = 0; p < pixels; p++)
		dtp_vec_affine((char *)out.data + p * c * size, (const char *)x.data + p * c * size, x.dtype, scale, bias, silu, c);
	return DTP_OK;
}
