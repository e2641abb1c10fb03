/* SPDX-License-Identifier: Apache-2.0 */
/* A few rows times a few columns of a low-rank product at a time, in registers: the rank is the short side, so that a general
 * product would spend its time on packing.  The panel is read and written once, in its own dtype. */
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
	(t == DTP_F32 ? add_to_floats : add_to_halves)(dst, b, a, rows, r, k, cols);
	add_rest(dst, t, b, a, 0, rows, r, cols, k);
	add_rest(dst, t, b, a, rows, n, r, 0, k);
}
