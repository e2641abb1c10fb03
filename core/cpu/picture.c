/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures, channels-last: resampling, patches, bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "vec.h"

enum dtp_code dtp_cpu_upsample2x(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *err)
{
	int64_t h = x.shape[0], w = x.shape[1];
	size_t pixel = (size_t)x.shape[2] * dtp_dtype_size(x.dtype), line = (2 * (size_t)w + 2) * pixel;

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t y = 0; y < out.shape[0]; y++) {
		int64_t row = first + y;
		char *d = (char *)out.data + (size_t)y * line;
		if (row < 0 || row >= 2 * h) {
			memset(d, 0, line);
			continue;
		}
		memset(d, 0, pixel);
		for (int64_t i = 0; i < 2 * w; i++)
			memcpy(d + (size_t)(i + 1) * pixel, (const char *)x.data + (size_t)(row / 2 * w + i / 2) * pixel, pixel);
		memset(d + line - pixel, 0, pixel);
	}
	return DTP_OK;
}

/* The standard deviation of each packed channel, in the shared scratch. */
static enum dtp_code deviations(struct dtp_cpu *cpu, const struct dtp_weight *var, float eps, int64_t n, float **std,
				struct dtp_err *err)
{
	enum dtp_code rc = dtp_cpu_scratch(cpu, (uint64_t)n * sizeof(float), 0, err);

	if (rc)
		return rc;
	*std = cpu->shared;
	for (int64_t i = 0; i < n; i++)
		(*std)[i] = sqrtf(dtp_cpu_vector(var)[i] + eps);
	return DTP_OK;
}

/* Where packed channel (c, dy, dx) of token (y, x) lies in a picture [2h, 2w, C]. */
static int64_t patch_offset(int64_t y, int64_t x, int64_t channel, int64_t width, int64_t channels)
{
	int64_t c = channel / 4, dy = channel / 2 % 2, dx = channel % 2;
	return ((2 * y + dy) * width + 2 * x + dx) * channels + c;
}

static float get(const void *p, enum dtp_dtype t, int64_t i)
{
	float f;
	dtp_to_f32(&f, (const char *)p + i * (int64_t)dtp_dtype_size(t), t, 1);
	return f;
}

static void put(void *p, enum dtp_dtype t, int64_t i, float f)
{
	dtp_from_f32((char *)p + i * (int64_t)dtp_dtype_size(t), t, &f, 1);
}

enum dtp_code dtp_cpu_unpatchify(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor tokens,
				 const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *err)
{
	int64_t w = out.shape[1] / 2, c = out.shape[2], n = 4 * c;
	const float *m = dtp_cpu_vector(mean);
	float *std;

	if (deviations(dtp_cpu_of(be), var, eps, n, &std, err))
		return err ? err->code : DTP_FAILED;
	for (int64_t t = 0; t < tokens.shape[0]; t++)
		for (int64_t i = 0; i < n; i++)
			put(out.data, out.dtype, patch_offset(t / w, t % w, i, 2 * w, c),
			    get(tokens.data, tokens.dtype, t * n + i) * std[i] + m[i]);
	return DTP_OK;
}

enum dtp_code dtp_cpu_patchify(struct dtp_backend *be, struct dtp_tensor tokens, struct dtp_tensor x,
			       const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *err)
{
	int64_t w = x.shape[1] / 2, c = x.shape[2], n = 4 * c;
	const float *m = dtp_cpu_vector(mean);
	float *std;

	if (deviations(dtp_cpu_of(be), var, eps, n, &std, err))
		return err ? err->code : DTP_FAILED;
	for (int64_t t = 0; t < tokens.shape[0]; t++)
		for (int64_t i = 0; i < n; i++)
			put(tokens.data, tokens.dtype, t * n + i,
			    (get(x.data, x.dtype, patch_offset(t / w, t % w, i, 2 * w, c)) - m[i]) / std[i]);
	return DTP_OK;
}

enum dtp_code dtp_cpu_quantise(struct dtp_backend *be, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *err)
{
	int64_t n = dtp_numel(&x);

	(void)be, (void)err;
	for (int64_t i = 0; i < n; i++) {
		/* The reference halves and shifts in T, and scales in F32. */
		float v = dtp_round_to(x.dtype, dtp_round_to(x.dtype, get(x.data, x.dtype, i) / 2) + 0.5f);
		v = v > 0 ? v : 0; /* NaN: 0 */
		v = v < 1 ? v : 1;
		rgb[i] = (uint8_t)nearbyintf(v * 255.0f);
	}
	return DTP_OK;
}
