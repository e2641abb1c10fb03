/* SPDX-License-Identifier: Apache-2.0 */
/* A few rows times a few columns of a low-rank product at a time, in registers: the rank is the short side, so that a general
 * product would spend its time on packing. */
#include <string.h>

#include "cpu.h"
#include "vec.h"

#define ROWS 4
#define LANES 16
#define VECTORS 4 /* of a block: 64 columns */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* ROWS x 64 of dst. */
DTP_CLONES static void add_block(float *dst, const float *b, const float *a, int64_t r, int64_t k)
{
	lanes s[ROWS][VECTORS];

#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			s[i][v] = *(const lanes *)(dst + i * k + v * LANES);
	for (int64_t l = 0; l < r; l++, a += k)
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				s[i][v] += b[i * r + l] * *(const lanes *)(a + v * LANES);
#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			*(lanes *)(dst + i * k + v * LANES) = s[i][v];
}

/* What is left at the edges; the same sums in the same order. */
static void add_rest(float *dst, const float *b, const float *a, int64_t n, int64_t r, int64_t k, int64_t cols)
{
	for (int64_t i = 0; i < n; i++)
		for (int64_t l = 0; l < r; l++)
			for (int64_t j = 0; j < cols; j++)
				dst[i * k + j] += b[i * r + l] * a[l * k + j];
}

void dtp_cpu_low_rank_add(struct dtp_backend *be, float *dst, const float *b, const float *a, int64_t n, int64_t r, int64_t k)
{
	int64_t width = LANES * VECTORS, whole = k / width * width, rows = n / ROWS * ROWS;

	(void)be;
	for (int64_t j = 0; j < whole; j += width)
		for (int64_t i = 0; i < rows; i += ROWS)
			add_block(dst + i * k + j, b + i * r, a + j, r, k);
	add_rest(dst + whole, b, a + whole, rows, r, k, k - whole);
	add_rest(dst + rows * k, b + rows * r, a, n - rows, r, k, k);
}
