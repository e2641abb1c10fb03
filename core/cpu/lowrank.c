/* SPDX-License-Identifier: Apache-2.0 */
/* A few rows times a few columns of a low-rank product at a time, in registers: the rank is the short side, so that a general
 * product would spend its time on packing.  The panel is read and written once, in its own dtype. */
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "cpu.h"
#include "vec.h"

/* Vectors have no fmaf: this lets the compiler join the products and sums below where the CPU does both at once. */
#pragma GCC optimize("fp-contract=fast")

#define ROWS 4
#define LANES 16
#define VECTORS 4 /* of a block: 64 columns */
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t halves __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(2), may_alias));

/* Elements [j, j + LANES) of a row of t: t is known where this is called, so that no branch is left. */
INLINE void load(lanes *x, const void *row, enum dtp_dtype t, int64_t j)
{
	if (t == DTP_F32)
		*x = *(const lanes *)((const float *)row + j);
	else
		*x = (lanes)(__builtin_convertvector(*(const halves *)((const uint16_t *)row + j), bits) << 16);
}

/* BF16: to the nearest, ties to even; NaNs stay such. */
INLINE void store(void *row, enum dtp_dtype t, int64_t j, const lanes *x)
{
	if (t == DTP_F32) {
		*(lanes *)((float *)row + j) = *x;
		return;
	}
	bits u = (bits)*x, nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = (bits)(*x != *x);
	*(halves *)((uint16_t *)row + j) = __builtin_convertvector((nearest & ~nan) | ((u >> 16 | 0x40) & nan), halves);
}

/* ROWS x 64 of dst from column j on. */
INLINE void add_block(char *dst, enum dtp_dtype t, const float *b, const float *a, int64_t r, int64_t k, int64_t j)
{
	int64_t stride = k * (t == DTP_F32 ? 4 : 2);
	lanes s[ROWS][VECTORS];

#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			load(&s[i][v], dst + i * stride, t, j + v * LANES);
	for (int64_t l = 0; l < r; l++)
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				s[i][v] += b[i * r + l] * *(const lanes *)(a + l * k + j + v * LANES);
#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			store(dst + i * stride, t, j + v * LANES, &s[i][v]);
}

/* All whole blocks. */
INLINE void add_blocks(char *dst, enum dtp_dtype t, const float *b, const float *a, int64_t rows, int64_t r, int64_t k, int64_t cols)
{
	for (int64_t j = 0; j < cols; j += LANES * VECTORS)
		for (int64_t i = 0; i < rows; i += ROWS)
			add_block(dst + i * k * (t == DTP_F32 ? 4 : 2), t, b + i * r, a, r, k, j);
}

DTP_CLONES static void add_to_floats(char *dst, const float *b, const float *a, int64_t rows, int64_t r, int64_t k, int64_t cols)
{
	add_blocks(dst, DTP_F32, b, a, rows, r, k, cols);
}

DTP_CLONES static void add_to_halves(char *dst, const float *b, const float *a, int64_t rows, int64_t r, int64_t k, int64_t cols)
{
	add_blocks(dst, DTP_BF16, b, a, rows, r, k, cols);
}

#if defined(__x86_64__)
/* Factors that are bf16 by their values, as those of most files: the CPU's instruction multiplies pairs of them, exactly, and sums in
 * f32, at twice the speed. */
#define MOST_PAIRS 128 /* of a rank: a block's columns of a stay in the first-level cache */
#define PAIRED __attribute__((target("avx512f,avx512bw,avx512bf16")))

static bool are_halves(const float *x, int64_t n)
{
	uint32_t low = 0;

	for (int64_t i = 0; i < n; i++) {
		uint32_t u;
		memcpy(&u, x + i, sizeof u);
		low |= u;
	}
	return !(low & 0xffff);
}

/* Two floats that are bf16; the second one of an odd rank's last pair is 0. */
static inline uint32_t pair(const float *first, const float *second)
{
	uint32_t low, high = 0;

	memcpy(&low, first, sizeof low);
	if (second)
		memcpy(&high, second, sizeof high);
	return low >> 16 | high;
}

/* a [r, 64 columns of k] as pairs along r. */
static void pair_columns(uint32_t (*out)[LANES * VECTORS], const float *a, int64_t r, int64_t k)
{
	for (int64_t l = 0; l < r; l += 2)
		for (int64_t j = 0; j < LANES * VECTORS; j++)
			out[l / 2][j] = pair(a + l * k + j, l + 1 < r ? a + (l + 1) * k + j : NULL);
}

static void pair_rows(uint32_t *out, const float *b, int64_t rows, int64_t r)
{
	for (int64_t i = 0; i < rows; i++)
		for (int64_t l = 0; l < r; l += 2)
			*out++ = pair(b + i * r + l, l + 1 < r ? b + i * r + l + 1 : NULL);
}

PAIRED static void add_pairs(char *dst, const uint32_t *b, uint32_t (*a)[LANES * VECTORS], int64_t rows, int64_t pairs, int64_t k,
			     int64_t j)
{
	for (int64_t row = 0; row < rows; row += ROWS, dst += ROWS * k * 2, b += ROWS * pairs) {
		lanes s[ROWS][VECTORS];
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				load(&s[i][v], dst + i * k * 2, DTP_BF16, j + v * LANES);
		for (int64_t l = 0; l < pairs; l++)
#pragma GCC unroll 4
			for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
				for (int v = 0; v < VECTORS; v++)
					s[i][v] = (lanes)_mm512_dpbf16_ps((__m512)s[i][v], (__m512bh)_mm512_set1_epi32((int)b[i * pairs + l]),
									  (__m512bh)_mm512_loadu_si512(&a[l][v * LANES]));
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				_mm256_storeu_si256((__m256i *)(dst + (i * k + j + v * LANES) * 2), (__m256i)_mm512_cvtneps_pbh((__m512)s[i][v]));
	}
}

/* False: not by these instructions. */
static bool add_by_pairs(char *dst, const float *b, const float *a, int64_t rows, int64_t r, int64_t k, int64_t cols)
{
	int64_t pairs = (r + 1) / 2;
	uint32_t columns[MOST_PAIRS][LANES * VECTORS], *paired;

	if (pairs > MOST_PAIRS || !__builtin_cpu_supports("avx512bf16") || !are_halves(a, r * k) || !are_halves(b, rows * r))
		return false;
	paired = malloc((size_t)(rows * pairs) * sizeof *paired + 1);
	if (!paired)
		return false;
	pair_rows(paired, b, rows, r);
	for (int64_t j = 0; j < cols; j += LANES * VECTORS) {
		pair_columns(columns, a + j, r, k);
		add_pairs(dst, paired, columns, rows, pairs, k, j);
	}
	free(paired);
	return true;
}
#else
static bool add_by_pairs(char *dst, const float *b, const float *a, int64_t rows, int64_t r, int64_t k, int64_t cols)
{
	(void)dst, (void)b, (void)a, (void)rows, (void)r, (void)k, (void)cols;
	return false;
}
#endif

/* What is left at the edges, [row0, n) x [col0, k): the same sums in the same order, products rounded. */
static void add_rest(char *dst, enum dtp_dtype t, const float *b, const float *a, int64_t row0, int64_t n, int64_t r, int64_t col0,
		     int64_t k)
{
	for (int64_t i = row0; i < n; i++)
		for (int64_t j = col0; j < k; j++) {
			void *at = dst + (i * k + j) * (int64_t)dtp_dtype_size(t);
			float sum;
			dtp_vec_load(&sum, at, t, 1);
			for (int64_t l = 0; l < r; l++)
				sum += b[i * r + l] * a[l * k + j];
			dtp_vec_store(at, t, &sum, 1);
		}
}

void dtp_cpu_low_rank_add(struct dtp_backend *be, void *dst, enum dtp_dtype t, const float *b, const float *a, int64_t n, int64_t r,
			  int64_t k)
{
	int64_t width = LANES * VECTORS, cols = k / width * width, rows = n / ROWS * ROWS;

	(void)be;
	if (t == DTP_F32)
		add_to_floats(dst, b, a, rows, r, k, cols);
	else if (!add_by_pairs(dst, b, a, rows, r, k, cols))
		add_to_halves(dst, b, a, rows, r, k, cols);
	add_rest(dst, t, b, a, 0, rows, r, cols, k);
	add_rest(dst, t, b, a, rows, n, r, 0, k);
}
