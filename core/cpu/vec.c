/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.h"

#include "fill.h"

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

/* One element of type t, which is known where this is called, so that no branch is left. */
INLINE float get(const void *p, enum dtp_dtype t, int64_t i)
{
	return t == DTP_BF16 ? dtp_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void put(void *p, enum dtp_dtype t, int64_t i, float f)
{
	if (t == DTP_BF16)
		((uint16_t *)p)[i] = dtp_f32_to_bf16(f);
	else
		((float *)p)[i] = f;
}

INLINE float round_one(enum dtp_dtype t, float f)
{
	return t == DTP_BF16 ? dtp_bf16_to_f32(dtp_f32_to_bf16(f)) : f;
}

/* (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2, with the least maximum error. */
INLINE float exp_tail(float r)
{
	float p = fmaf(0x1.6a2256p-10f, r, 0x1.123b02p-7f);
	p = fmaf(p, r, 0x1.5558f8p-5f);
	p = fmaf(p, r, 0x1.55549p-3f);
	return fmaf(p, r, 0x1.fffffcp-2f);
}

#define NEAREST 0x1.8p23f /* adding it leaves the nearest integer in the low bits of a float ... */
#define NEAREST_BITS 0x4b400000u /* ... above these */

/* e^x: x = n ln 2 + r, and 2^n in two factors so that the result may be subnormal.  The bounds are past those of float, and
 * a NaN passes them. */
INLINE float exp_one(float x)
{
	x = x < -104.0f ? -104.0f : x;
	x = x > 89.0f ? 89.0f : x;
	float t = fmaf(x, 0x1.715476p0f, NEAREST), n = t - NEAREST;
	int32_t i = (int32_t)(as_bits(t) - NEAREST_BITS), half = i >> 1;
	float r = fmaf(n, -0x1.62e4p-1f, x);
	r = fmaf(n, -0x1.7f7d1cp-20f, r);
	float p = fmaf(exp_tail(r) * r, r, r) + 1.0f;
	return p * as_float((uint32_t)(half + 127) << 23) * as_float((uint32_t)(i - half + 127) << 23);
}

/* 2^x for x <= 0; 0 or nearly so below -126. */
INLINE float exp2_one(float x)
{
	x = x < -127.0f ? -127.0f : x;
	float t = x + NEAREST, r = (x - (t - NEAREST)) * 0x1.62e43p-1f;
	float p = fmaf(exp_tail(r) * r, r, r) + 1.0f;
	return p * as_float((as_bits(t) - NEAREST_BITS + 127) << 23);
}

INLINE float silu_one(float x)
{
	return x / (1.0f + exp_one(-x));
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
		dst[i] = dtp_bf16_to_f32(s[i]);
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
		d[i] = dtp_f32_to_bf16(src[i]);
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
		d[i] = dtp_f32_to_bf16(x[i] + y[i]);
}

DTP_CLONES void dtp_vec_round(float *x, enum dtp_dtype t, int64_t n)
{
	if (t == DTP_F32)
		return;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = dtp_bf16_to_f32(dtp_f32_to_bf16(x[i]));
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

DTP_CLONES void dtp_vec_exp(float *x, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = exp_one(x[i]);
}

DTP_CLONES float dtp_vec_softmax(float *x, float scale, float max, int64_t n)
{
	/* Two loops: gcc does not vectorise them as one for every instruction set. */
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = exp2_one(scale * (x[i] - max));
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

DTP_CLONES void dtp_vec_fill(float *x, uint32_t key, int64_t first, float mean, float scale, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = dtp_fill_value(key, (uint32_t)first + (uint32_t)i, mean, scale);
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
		x[i] = silu_one(x[i]);
}

DTP_CLONES void dtp_vec_modulate(float *restrict x, float mean, float rstd, const float *restrict scale,
			     const float *restrict shift, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = (x[i] - mean) * rstd * (1.0f + scale[i]) + shift[i];
}

INLINE void swiglu(void *out, const void *gate, const void *up, enum dtp_dtype t, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		put(out, t, i, silu_one(get(gate, t, i)) * get(up, t, i));
}

DTP_CLONES void dtp_vec_swiglu(void *out, const void *gate, const void *up, enum dtp_dtype t, int64_t n)
{
	if (t == DTP_BF16)
		swiglu(out, gate, up, DTP_BF16, n);
	else
		swiglu(out, gate, up, DTP_F32, n);
}

INLINE void affine(void *out, const void *x, enum dtp_dtype t, const float *scale, const float *bias, bool silu, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float y = fmaf(get(x, t, i), scale[i], bias[i]);
		put(out, t, i, silu ? silu_one(y) : y);
	}
}

DTP_CLONES void dtp_vec_affine(void *out, const void *x, enum dtp_dtype t, const float *scale, const float *bias, bool silu,
			       int64_t n)
{
	if (t == DTP_BF16 && silu)
		affine(out, x, DTP_BF16, scale, bias, true, n);
	else if (t == DTP_BF16)
		affine(out, x, DTP_BF16, scale, bias, false, n);
	else if (silu)
		affine(out, x, DTP_F32, scale, bias, true, n);
	else
		affine(out, x, DTP_F32, scale, bias, false, n);
}

INLINE void rotate(void *restrict x, enum dtp_dtype t, bool interleaved, const float *restrict cos, const float *restrict sin,
		   const float *restrict row, int64_t n)
{
	if (interleaved) {
#pragma omp simd
		for (int64_t j = 0; j < n / 2; j++) {
			float a = row[2 * j], b = row[2 * j + 1];
			put(x, t, 2 * j, a * cos[j] - b * sin[j]);
			put(x, t, 2 * j + 1, b * cos[j] + a * sin[j]);
		}
	} else {
#pragma omp simd
		for (int64_t j = 0; j < n / 2; j++) {
			float a = row[j], b = row[j + n / 2];
			put(x, t, j, a * cos[j] - b * sin[j]);
			put(x, t, j + n / 2, b * cos[j] + a * sin[j]);
		}
	}
}

INLINE void norm_rotate(void *restrict x, enum dtp_dtype t, const float *restrict w, float eps, bool interleaved,
			const float *cos, const float *sin, float *restrict row, int64_t n)
{
	float s = 0;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		row[i] = get(x, t, i);
	if (w) {
#pragma omp simd reduction(+ : s)
		for (int64_t i = 0; i < n; i++)
			s += row[i] * row[i];
		s = 1.0f / sqrtf(s / (float)n + eps);
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			row[i] = round_one(t, round_one(t, row[i] * s) * w[i]);
	}
	if (cos) {
		rotate(x, t, interleaved, cos, sin, row, n);
		return;
	}
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		put(x, t, i, row[i]);
}

DTP_CLONES void dtp_vec_norm_rotate(void *x, enum dtp_dtype t, const float *w, float eps, bool interleaved, const float *cos,
				    const float *sin, float *row, int64_t n)
{
	if (t == DTP_BF16)
		norm_rotate(x, DTP_BF16, w, eps, interleaved, cos, sin, row, n);
	else
		norm_rotate(x, DTP_F32, w, eps, interleaved, cos, sin, row, n);
}

/* Four rows at a time: the sums are in memory, and a row is short. */
INLINE void moments(double *restrict sum, double *restrict squares, const void *restrict x, enum dtp_dtype t, int64_t rows,
		    int64_t n)
{
	int64_t r = 0;

	for (; r + 4 <= rows; r += 4) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++) {
			double a = get(x, t, r * n + i), b = get(x, t, (r + 1) * n + i);
			double c = get(x, t, (r + 2) * n + i), d = get(x, t, (r + 3) * n + i);
			sum[i] += (a + b) + (c + d);
			squares[i] += (a * a + b * b) + (c * c + d * d);
		}
	}
	for (; r < rows; r++) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++) {
			double a = get(x, t, r * n + i);
			sum[i] += a;
			squares[i] += a * a;
		}
	}
}

DTP_CLONES void dtp_vec_moments(double *sum, double *squares, const void *x, enum dtp_dtype t, int64_t rows, int64_t n)
{
	if (t == DTP_BF16)
		moments(sum, squares, x, DTP_BF16, rows, n);
	else
		moments(sum, squares, x, DTP_F32, rows, n);
}
