/* SPDX-License-Identifier: Apache-2.0 */
/* A few rows times a few columns of low-rank products at a time, in registers: the rank is the short side, so that a general
 * product would spend its time on packing.  The panel is read and written once, in its own dtype; what a stretch of its columns needs of
 * the factors is put together first, in a buffer that stays in the first-level cache. */
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
#define VECTORS 4 /* of a block */
#define WIDTH (LANES * VECTORS)
#define CACHED 6144 /* floats of a stretch: 24 KB */
#define MOST_COLUMNS 512
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

/* One part of what is added to a panel: as floats, or as pairs of bf16 along the rank, the last of an odd one with 0. */
struct staged {
	bool paired;
	int64_t r; /* floats or pairs of a row of b */
	float scale;
	void *b; /* [n, r] */
	void *a; /* [r, columns of the stretch] */
};

/* A stretch of the panel's columns, all whole blocks of rows. */
struct stretch {
	char *dst;
	int64_t rows, cols, k;
	const struct staged *part;
	int nparts;
};

INLINE void multiply(lanes s[ROWS][VECTORS], const struct staged *g, int64_t row, int64_t col, int64_t cols)
{
	const float *b = (const float *)g->b + row * g->r, *a = (const float *)g->a + col;

	for (int64_t l = 0; l < g->r; l++)
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				s[i][v] += b[i * g->r + l] * *(const lanes *)(a + l * cols + v * LANES);
}

/* s = scale * s; or s += scale * x. */
INLINE void scale_block(lanes s[ROWS][VECTORS], float scale)
{
#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			s[i][v] *= scale;
}

INLINE void add_scaled(lanes s[ROWS][VECTORS], lanes x[ROWS][VECTORS], float scale)
{
#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
		for (int v = 0; v < VECTORS; v++)
			s[i][v] += scale * x[i][v];
}

/* The first part is not like the others so that with one alone, as mostly, its sums never leave the registers. */
INLINE void add_stretch(const struct stretch *z, enum dtp_dtype t)
{
	int64_t size = t == DTP_F32 ? 4 : 2, stride = z->k * size;

	for (int64_t i = 0; i < z->rows; i += ROWS)
		for (int64_t j = 0; j < z->cols; j += WIDTH) {
			char *dst = z->dst + i * stride + j * size;
			lanes s[ROWS][VECTORS] = {0};
			multiply(s, &z->part[0], i, j, z->cols);
			scale_block(s, z->part[0].scale);
			for (int p = 1; p < z->nparts; p++) {
				lanes x[ROWS][VECTORS] = {0};
				multiply(x, &z->part[p], i, j, z->cols);
				add_scaled(s, x, z->part[p].scale);
			}
#pragma GCC unroll 4
			for (int l = 0; l < ROWS; l++)
#pragma GCC unroll 4
				for (int v = 0; v < VECTORS; v++) {
					lanes x;
					load(&x, dst + l * stride, t, v * LANES);
					s[l][v] += x;
					store(dst + l * stride, t, v * LANES, &s[l][v]);
				}
		}
}

DTP_CLONES static void add_to_floats(const struct stretch *z)
{
	add_stretch(z, DTP_F32);
}

DTP_CLONES static void add_to_halves(const struct stretch *z)
{
	add_stretch(z, DTP_BF16);
}

#if defined(__x86_64__)
/* The CPU's own instruction multiplies pairs of bf16, exactly, and sums in f32, at twice the speed. */
#define PAIRED __attribute__((target("avx512f,avx512bw,avx512bf16")))

static bool can_pair(void)
{
	return __builtin_cpu_supports("avx512bf16");
}

PAIRED INLINE void multiply_pairs(lanes s[ROWS][VECTORS], const struct staged *g, int64_t row, int64_t col, int64_t cols)
{
	const uint32_t *b = (const uint32_t *)g->b + row * g->r, *a = (const uint32_t *)g->a + col;

	for (int64_t l = 0; l < g->r; l++)
#pragma GCC unroll 4
		for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
			for (int v = 0; v < VECTORS; v++)
				s[i][v] = (lanes)_mm512_dpbf16_ps((__m512)s[i][v], (__m512bh)_mm512_set1_epi32((int)b[i * g->r + l]),
								  (__m512bh)_mm512_loadu_si512(a + l * cols + v * LANES));
}

PAIRED INLINE void multiply_either(lanes s[ROWS][VECTORS], const struct staged *g, int64_t row, int64_t col, int64_t cols)
{
	if (g->paired)
		multiply_pairs(s, g, row, col, cols);
	else
		multiply(s, g, row, col, cols);
}

PAIRED INLINE void add_to_line(char *dst, const lanes *s)
{
	__m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)dst)), 16));

	_mm256_storeu_si256((__m256i *)dst, (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(x, (__m512)*s)));
}

/* The panel comes from another core's cache; these reads hide behind the products of the block before. */
INLINE void prefetch_block(const char *dst, int64_t stride)
{
#pragma GCC unroll 4
	for (int i = 0; i < ROWS; i++) {
		__builtin_prefetch(dst + i * stride, 1);
		__builtin_prefetch(dst + i * stride + 64, 1);
	}
}

/* As add_stretch. */
PAIRED static void add_pairs(const struct stretch *z)
{
	int64_t stride = z->k * 2;

	for (int64_t i = 0; i < z->rows; i += ROWS)
		for (int64_t j = 0; j < z->cols; j += WIDTH) {
			char *dst = z->dst + i * stride + j * 2;
			lanes s[ROWS][VECTORS] = {0};
			prefetch_block(dst + ROWS * stride, stride);
			multiply_either(s, &z->part[0], i, j, z->cols);
			scale_block(s, z->part[0].scale);
			for (int p = 1; p < z->nparts; p++) {
				lanes x[ROWS][VECTORS] = {0};
				multiply_either(x, &z->part[p], i, j, z->cols);
				add_scaled(s, x, z->part[p].scale);
			}
#pragma GCC unroll 4
			for (int l = 0; l < ROWS; l++)
#pragma GCC unroll 4
				for (int v = 0; v < VECTORS; v++)
					add_to_line(dst + l * stride + v * LANES * 2, &s[l][v]);
		}
}
#else
static bool can_pair(void)
{
	return false;
}

static void add_pairs(const struct stretch *z)
{
	(void)z; /* nothing is paired */
}
#endif

/* n pairs of two rows of bf16; odd NULL: zeros. */
DTP_CLONES static void pair_rows(uint32_t *out, const uint16_t *even, const uint16_t *odd, int64_t n)
{
	for (int64_t j = 0; j < n && odd; j++)
		out[j] = even[j] | (uint32_t)odd[j] << 16;
	for (int64_t j = 0; j < n && !odd; j++)
		out[j] = even[j];
}

/* Columns [col, col + cols) of a. */
static void stage_columns(struct staged *s, const struct dtp_low_rank *p, int64_t k, int64_t col, int64_t cols)
{
	for (int64_t l = 0; l < s->r; l++) {
		int64_t at = (s->paired ? 2 * l : l) * k + col;
		const uint16_t *even = (const uint16_t *)p->a + at;
		if (s->paired)
			pair_rows((uint32_t *)s->a + l * cols, even, 2 * l + 1 < p->r ? even + k : NULL, cols);
		else
			dtp_vec_load((float *)s->a + l * cols, (const char *)p->a + at * (int64_t)dtp_dtype_size(p->type), p->type, cols);
	}
}

static void stage_rows(struct staged *s, const struct dtp_low_rank *p, int64_t rows)
{
	if (!s->paired) {
		dtp_vec_load(s->b, p->b, p->type, rows * p->r);
		return;
	}
	uint32_t *b = s->b;
	memset(b, 0, (size_t)(rows * s->r) * sizeof *b);
	for (int64_t i = 0; i < rows; i++)
		memcpy(b + i * s->r, (const uint16_t *)p->b + i * p->r, (size_t)p->r * sizeof(uint16_t));
}

static float factor(const void *x, enum dtp_dtype t, int64_t i)
{
	return t == DTP_F32 ? ((const float *)x)[i] : dtp_bf16_to_f32(((const uint16_t *)x)[i]);
}

/* What is left at the edges, [row0, n) x [col0, k): the same sums in the same order, products rounded. */
static void add_rest(char *dst, enum dtp_dtype t, const struct dtp_low_rank *parts, int nparts, int64_t row0, int64_t n, int64_t col0,
		     int64_t k)
{
	for (int64_t i = row0; i < n; i++)
		for (int64_t j = col0; j < k; j++) {
			void *at = dst + (i * k + j) * (int64_t)dtp_dtype_size(t);
			float sum;
			dtp_vec_load(&sum, at, t, 1);
			for (const struct dtp_low_rank *p = parts; p < parts + nparts; p++) {
				float x = 0;
				for (int64_t l = 0; l < p->r; l++)
					x += factor(p->b, p->type, i * p->r + l) * factor(p->a, p->type, l * k + j);
				sum += p->scale * x;
			}
			dtp_vec_store(at, t, &sum, 1);
		}
}

/* Everything but the edges: rows and cols are whole blocks. */
static enum dtp_code add_blocks(char *dst, enum dtp_dtype t, const struct dtp_low_rank *parts, int nparts, int64_t rows, int64_t cols,
				int64_t k, struct dtp_err *err)
{
	int64_t r = 1, size = (int64_t)dtp_dtype_size(t);
	bool pairs = t == DTP_BF16 && can_pair();

	for (int p = 0; p < nparts; p++)
		r += parts[p].r;
	int64_t width = CACHED / r / WIDTH * WIDTH;
	width = width < WIDTH ? WIDTH : width < MOST_COLUMNS ? width : MOST_COLUMNS;
	struct staged *s = malloc((size_t)nparts * sizeof *s + 1);
	float *all = malloc((size_t)(r * (rows + width)) * sizeof *all), *next = all;
	for (int p = 0; s && all && p < nparts; p++) {
		bool paired = pairs && parts[p].type == DTP_BF16;
		s[p] = (struct staged){paired, paired ? (parts[p].r + 1) / 2 : parts[p].r, parts[p].scale, next, next + rows * parts[p].r};
		next += (rows + width) * parts[p].r;
		stage_rows(&s[p], &parts[p], rows);
	}
	for (int64_t col = 0; s && all && col < cols; col += width) {
		struct stretch z = {dst + col * size, rows, cols - col < width ? cols - col : width, k, s, nparts};
		for (int p = 0; p < nparts; p++)
			stage_columns(&s[p], &parts[p], k, col, z.cols);
		if (pairs)
			add_pairs(&z);
		else if (t == DTP_BF16)
			add_to_halves(&z);
		else
			add_to_floats(&z);
	}
	enum dtp_code rc = s && all ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for factors of rank %lld", (long long)r - 1);
	free(all);
	free(s);
	return rc;
}

enum dtp_code dtp_cpu_low_rank_add(struct dtp_backend *be, void *dst, enum dtp_dtype t, const struct dtp_low_rank *parts, int nparts,
				   int64_t n, int64_t k, struct dtp_err *err)
{
	int64_t cols = k / WIDTH * WIDTH, rows = n / ROWS * ROWS;
	enum dtp_code rc = add_blocks(dst, t, parts, nparts, rows, cols, k, err);

	(void)be;
	if (rc)
		return rc;
	add_rest(dst, t, parts, nparts, 0, rows, cols, k);
	add_rest(dst, t, parts, nparts, rows, n, 0, k);
	return DTP_OK;
}
