/* SPDX-License-Identifier: Apache-2.0 */
/* Vector loops over rows of floats.  Each is compiled for several instruction sets and chosen when the program starts; what
 * is stored as bf16 is widened a row or a piece at a time, so that no operation is written twice. */
#ifndef DTP_CPU_VEC_H
#define DTP_CPU_VEC_H

#include "tensor.h"

/* Before a function: one body, one machine code per instruction set; the loader picks.  Sanitizers start too late for it. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(DTP_SANITIZE)
#define DTP_CLONED 1
#define DTP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DTP_CLONED 0
#define DTP_CLONES
#endif

/* How many floats a caller widens at once: three such pieces stay in the first-level cache. */
#define DTP_PIECE 1024

/* dst = src (F32 or BF16) as floats, and back with one rounding. */
void dtp_vec_load(float *dst, const void *src, enum dtp_dtype t, int64_t n);
void dtp_vec_store(void *dst, enum dtp_dtype t, const float *src, int64_t n);
/* dst = x + y, rounded once. */
void dtp_vec_store_sum(void *dst, enum dtp_dtype t, const float *x, const float *y, int64_t n);
/* x rounded to t's precision. */
void dtp_vec_round(float *x, enum dtp_dtype t, int64_t n);
float dtp_vec_sum(const float *x, int64_t n);
float dtp_vec_sum_squares(const float *x, float minus, int64_t n); /* of x - minus */
float dtp_vec_max(const float *x, int64_t n);                       /* -inf for n = 0; NaNs are skipped */
/* x = e^x in place, within 2 ulp. */
void dtp_vec_exp(float *x, int64_t n);
/* x = 2^(scale * (x - max)) in place, for max >= x; returns the sum.  What is below 2^-126 may become 0. */
float dtp_vec_softmax(float *x, float scale, float max, int64_t n);

/* x[i] = the value of column first + i (fill.h). */
void dtp_vec_fill(float *x, uint32_t key, int64_t first, float mean, float scale, int64_t n);
void dtp_vec_scale(float *x, float a, int64_t n);              /* x *= a */
void dtp_vec_mul(float *x, const float *y, int64_t n);         /* x *= y */
void dtp_vec_add_scaled(float *x, const float *y, float a, int64_t n);         /* x += a*y */
void dtp_vec_add_product(float *x, const float *y, const float *z, int64_t n); /* x += y*z */
void dtp_vec_silu(float *x, int64_t n);                        /* x /= 1 + e^-x */
/* x = (x - mean) * rstd * (1 + scale) + shift */
void dtp_vec_modulate(float *x, float mean, float rstd, const float *scale, const float *shift, int64_t n);

/* ---- in one go from t to t: memory may be read here once only, or the row is short */
/* out = silu(gate) * up */
void dtp_vec_swiglu(void *out, const void *gate, const void *up, enum dtp_dtype t, int64_t n);
/* out = x * scale + bias, then silu if so; scale and bias are rows. */
void dtp_vec_affine(void *out, const void *x, enum dtp_dtype t, const float *scale, const float *bias, bool silu, int64_t n);
/* One head of n elements in place: x / rms(x), rounded, times w, rounded (w NULL: neither), then rotated by n/2 angles
 * (cos NULL: not); row is room for n floats. */
void dtp_vec_norm_rotate(void *x, enum dtp_dtype t, const float *w, float eps, bool interleaved, const float *cos,
			 const float *sin, float *row, int64_t n);
/* sum[i] += x[i], squares[i] += x[i]^2 over rows of n, in double. */
void dtp_vec_moments(double *sum, double *squares, const void *x, enum dtp_dtype t, int64_t rows, int64_t n);
#endif
