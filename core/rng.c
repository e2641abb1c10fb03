/* SPDX-License-Identifier: Apache-2.0 */
#include "rng.h"

#include <math.h>

#define N 624
#define M 397
#define TWO_PI 6.283185307179586476925286766559

void dtp_rng_seed(struct dtp_rng *g, uint64_t seed)
{
	uint32_t x = (uint32_t)seed;
	for (uint32_t i = 0; i < N; i++) {
		g->state[i] = x;
		x = 1812433253u * (x ^ x >> 30) + i + 1;
	}
	g->left = 0;
	g->have_next = false;
	g->next = 0;
}

static uint32_t twist(uint32_t upper, uint32_t lower, uint32_t far)
{
	uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
	return far ^ y >> 1 ^ (lower & 1 ? 0x9908b0dfu : 0);
}

uint32_t dtp_rng_next(struct dtp_rng *g)
{
	uint32_t *s = g->state;
	if (g->left == 0) {
		for (int i = 0; i < N; i++)
			s[i] = twist(s[i], s[(i + 1) % N], s[(i + M) % N]);
		g->left = N;
	}
	uint32_t y = s[N - g->left--];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

static float uniform24(struct dtp_rng *g)
{
	return (float)(dtp_rng_next(g) & 0xffffff) * 0x1p-24f;
}

/* Logarithm and sine with cosine in single precision: the polynomials of S. Moshier's Cephes library, evaluated with fused
 * multiply-adds.  torch's x86 builds draw with them, and they differ from a correctly rounded function in the last bit; with
 * the same operations in the same order the noise is that of torch to the bit.  No product and sum stand in one
 * expression, so that no compiler fuses what is not fused here. */
static float log_cephes(float x)
{
	static const float p[] = {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
				  -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
	int e;
	float m = frexpf(x, &e);
	if (m < 0.70710678f) {
		m += m;
		e--;
	}
	float f = m - 1, ff = f * f, y = p[0], k = (float)e;
	for (int i = 1; i < 9; i++)
		y = fmaf(y, f, p[i]);
	float ln2_low = k * -2.12194440e-4f; /* ln 2 in two parts */
	y *= f;
	y = fmaf(y, ff, ln2_low);
	y = fmaf(-0.5f, ff, y);
	y += f;
	return fmaf(k, 0.693359375f, y);
}

/* 0 <= x < 8192 */
static void sincos_cephes(float x, float *sine, float *cosine)
{
	int octant = (int)(x * 1.27323954473516f), quarter = (octant + 1) / 2;
	float n = (float)(2 * quarter);
	/* x - n pi/4, with pi/4 in three parts */
	x = fmaf(n, -0.78515625f, x);
	x = fmaf(n, -2.4187564849853515625e-4f, x);
	x = fmaf(n, -3.77489497744594108e-8f, x);
	float xx = x * x, half = xx * 0.5f;
	float c = fmaf(2.443315711809948e-5f, xx, -1.388731625493765e-3f);
	c = fmaf(c, xx, 4.166664568298827e-2f);
	c *= xx;
	c = fmaf(c, xx, -half);
	c += 1;
	float s = fmaf(-1.9515295891e-4f, xx, 8.3321608736e-3f);
	s = fmaf(s, xx, -1.6666654611e-1f);
	s *= xx;
	s = fmaf(s, x, x);
	*sine = quarter & 1 ? c : s;
	*cosine = quarter & 1 ? s : c;
	if (quarter & 2)
		*sine = -*sine;
	if ((quarter + 1) & 2)
		*cosine = -*cosine;
}

/* 16 uniform values become 16 normal ones in place: j and j + 8 are one pair of Box and Muller. */
static void normal16(float *x)
{
	for (int j = 0; j < 8; j++) {
		float r = sqrtf(-2 * log_cephes(1 - x[j])), s, c;
		sincos_cephes((float)TWO_PI * x[j + 8], &s, &c);
		x[j] = r * c;
		x[j + 8] = r * s;
	}
}

static void draw16(struct dtp_rng *g, float *x)
{
	for (int j = 0; j < 16; j++)
		x[j] = uniform24(g);
	normal16(x);
}

/* At least 16 values.  When n is no multiple of 16, the last 16 are drawn anew.  float32 draws the uniform values of all n
 * first, the leftover ones too; the 16-bit types draw whole blocks only. */
static void fill_blocks(struct dtp_rng *g, bool leftover, int64_t n, float *out)
{
	int64_t blocks = n / 16;
	for (int64_t b = 0; b < blocks; b++)
		draw16(g, out + 16 * b);
	if (n % 16 == 0)
		return;
	for (int64_t i = 16 * blocks; leftover && i < n; i++)
		dtp_rng_next(g);
	draw16(g, out + n - 16);
}

static double uniform53(struct dtp_rng *g)
{
	uint64_t hi = dtp_rng_next(g), lo = dtp_rng_next(g);
	return (double)((hi << 32 | lo) & 0x1fffffffffffffu) * 0x1p-53;
}

/* Fewer than 16 values: pairs in double, of which the second is kept for the next call. */
static double normal(struct dtp_rng *g)
{
	if (g->have_next) {
		g->have_next = false;
		return g->next;
	}
	double u1 = uniform53(g), u2 = uniform53(g), r = sqrt(-2 * log1p(-u2)), a = TWO_PI * u1;
	g->next = r * sin(a);
	g->have_next = true;
	return r * cos(a);
}

void dtp_randn(struct dtp_rng *g, enum dtp_dtype t, int64_t n, float *out)
{
	if (n >= 16)
		fill_blocks(g, t == DTP_F32, n, out);
	else
		for (int64_t i = 0; i < n; i++)
			out[i] = (float)normal(g);
	for (int64_t i = 0; t != DTP_F32 && i < n; i++)
		out[i] = dtp_round_to(t, out[i]);
}
