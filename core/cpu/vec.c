/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float as_float(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

INLINE uint32_t as_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

/* As dtp_f32_to_bf16, without a branch. */
INLINE uint16_t to_bf16(float f)
{
	uint32_t u = as_bits(f), nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, and 2^n in two factors so that the result may be
 * subnormal.  The bounds are past those of float, and a NaN passes them. */
INLINE float exp_one(float x)
{
	const float round = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	float t = x * 0x1.715476p0f + round, n = t - round;
	int32_t i = (int32_t)(as_bits(t) - 0x4b400000u);
	float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
	float p = 0x1.6a2256p-10f; /* (e^r - 1 - r) / r^2, least maximum error */
	p = p * r + 0x1.123b02p-7f;
	p = p * r + 0x1.5558f8p-5f;
	p = p * r + 0x1.55549p-3f;
	p = p * r + 0x1.fffffcp-2f;
	p = p * r * r + r;
	int32_t half = i >> 1;
	float a = as_float((uint32_t)(half + 127) << 23), b = as_float((uint32_t)(i - half + 127) << 23);
	return (p + 1.0f) * a * b;
}

DTP_CLONES void dtp_vec_load(float *dst, const void *src, enum dtp_dtype t, int64_t n)
{
	if (t == DTP_F32) {
		memcpy(dst, src, (size_t)n * sizeof *dst);
		return;
	}
	const uint16_t *s = src;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		dst[i] = as_float((uint32_t)s[i] << 16);
}

DTP_CLONES void dtp_vec_store(void *dst, enum dtp_dtype t, const float *src, int64_t n)
{
	if (t == DTP_F32) {
		memcpy(dst, src, (size_t)n * sizeof *src);
		return;
	}
	uint16_t *d = dst;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		d[i] = to_bf16(src[i]);
}

DTP_CLONES void dtp_vec_store_sum(void *dst, enum dtp_dtype t, const float *x, const float *y, int64_t n)
{
	if (t == DTP_F32) {
		float *f = dst;
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			f[i] = x[i] + y[i];
		return;
	}
	uint16_t *d = dst;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		d[i] = to_bf16(x[i] + y[i]);
}

DTP_CLONES void dtp_vec_round(float *x, enum dtp_dtype t, int64_t n)
{
	if (t == DTP_F32)
		return;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = as_float((uint32_t)to_bf16(x[i]) << 16);
}

DTP_CLONES void dtp_vec_split_pairs(float *restrict lo, float *restrict hi, const uint32_t *restrict pairs, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		lo[i] = as_float(pairs[i] << 16);
		hi[i] = as_float(pairs[i] & 0xffff0000u);
	}
}

DTP_CLONES float dtp_vec_sum(const float *x, int64_t n)
{
	float s = 0;
#pragma omp simd reduction(+ : s)
	for (int64_t i = 0; i < n; i++)
		s += x[i];
	return s;
}

DTP_CLONES float dtp_vec_sum_squares(const float *x, float minus, int64_t n)
{
	float s = 0;
#pragma omp simd reduction(+ : s)
	for (int64_t i = 0; i < n; i++) {
		float d = x[i] - minus;
		s += d * d;
	}
	return s;
}

DTP_CLONES float dtp_vec_max(const float *x, int64_t n)
{
	float m = -INFINITY;
#pragma omp simd reduction(max : m)
	for (int64_t i = 0; i < n; i++)
		m = x[i] > m ? x[i] : m;
	return m;
}

DTP_CLONES float dtp_vec_exp(float *x, float minus, int64_t n)
{
	/* Two loops: gcc does not vectorise them as one. */
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = exp_one(x[i] - minus);
	float s = 0;
#pragma omp simd reduction(+ : s)
	for (int64_t i = 0; i < n; i++)
		s += x[i];
	return s;
}

DTP_CLONES void dtp_vec_scale(float *x, float a, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] *= a;
}

DTP_CLONES void dtp_vec_add(float *restrict x, const float *restrict y, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] += y[i];
}

DTP_CLONES void dtp_vec_mul(float *restrict x, const float *restrict y, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] *= y[i];
}

DTP_CLONES void dtp_vec_add_scaled(float *restrict x, const float *restrict y, float a, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] += a * y[i];
}

DTP_CLONES void dtp_vec_add_product(float *restrict x, const float *restrict y, const float *restrict z, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] += y[i] * z[i];
}

DTP_CLONES void dtp_vec_silu(float *x, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = x[i] / (1.0f + exp_one(-x[i]));
}

DTP_CLONES void dtp_vec_modulate(float *restrict x, float mean, float rstd, const float *restrict scale,
			     const float *restrict shift, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = (x[i] - mean) * rstd * (1.0f + scale[i]) + shift[i];
}

DTP_CLONES void dtp_vec_affine(float *restrict x, const float *restrict a, const float *restrict b, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = x[i] * a[i] + b[i];
}

DTP_CLONES void dtp_vec_rotate_interleaved(float *restrict x, const float *restrict cos, const float *restrict sin, int64_t n)
{
#pragma omp simd
	for (int64_t j = 0; j < n / 2; j++) {
		float a = x[2 * j], b = x[2 * j + 1];
		x[2 * j] = a * cos[j] - b * sin[j];
		x[2 * j + 1] = b * cos[j] + a * sin[j];
	}
}

DTP_CLONES void dtp_vec_rotate_half(float *restrict x, const float *restrict cos, const float *restrict sin, int64_t n)
{
	float *restrict y = x + n / 2;
#pragma omp simd
	for (int64_t j = 0; j < n / 2; j++) {
		float a = x[j], b = y[j];
		x[j] = a * cos[j] - b * sin[j];
		y[j] = b * cos[j] + a * sin[j];
	}
}

DTP_CLONES void dtp_vec_moments(double *restrict sum, double *restrict squares, const float *restrict x, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		double d = x[i];
		sum[i] += d;
		squares[i] += d * d;
	}
}
