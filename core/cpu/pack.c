/* SPDX-License-Identifier: Apache-2.0 */
#include "pack.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "vec.h"

/* The unit that moves has 32 bits: a float, or a pair of bf16. */
#define TILE 32 /* units of a row that are transposed at once: 64 rows of them are 8 KB */

typedef uint32_t v8 __attribute__((vector_size(32)));

/* Exchanges between two rows of units: those 1, 2 or 4 apart. */
#define EVEN1(x, y) __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14)
#define ODD1(x, y) __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15)
#define EVEN2(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define ODD2(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#define EVEN4(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define ODD4(x, y) __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)

/* 8x8 units.  Written out: gcc keeps an array of vectors in registers only where every index is a number. */
static inline __attribute__((always_inline)) void transpose8(uint32_t *dst, const char *src, int64_t stride)
{
	v8 a[8], b[8];

	memcpy(&a[0], src, 32), memcpy(&a[1], src + stride, 32);
	memcpy(&a[2], src + 2 * stride, 32), memcpy(&a[3], src + 3 * stride, 32);
	memcpy(&a[4], src + 4 * stride, 32), memcpy(&a[5], src + 5 * stride, 32);
	memcpy(&a[6], src + 6 * stride, 32), memcpy(&a[7], src + 7 * stride, 32);

	b[0] = EVEN1(a[0], a[1]), b[1] = ODD1(a[0], a[1]), b[2] = EVEN1(a[2], a[3]), b[3] = ODD1(a[2], a[3]);
	b[4] = EVEN1(a[4], a[5]), b[5] = ODD1(a[4], a[5]), b[6] = EVEN1(a[6], a[7]), b[7] = ODD1(a[6], a[7]);

	a[0] = EVEN2(b[0], b[2]), a[1] = EVEN2(b[1], b[3]), a[2] = ODD2(b[0], b[2]), a[3] = ODD2(b[1], b[3]);
	a[4] = EVEN2(b[4], b[6]), a[5] = EVEN2(b[5], b[7]), a[6] = ODD2(b[4], b[6]), a[7] = ODD2(b[5], b[7]);

	b[0] = EVEN4(a[0], a[4]), b[1] = EVEN4(a[1], a[5]), b[2] = EVEN4(a[2], a[6]), b[3] = EVEN4(a[3], a[7]);
	b[4] = ODD4(a[0], a[4]), b[5] = ODD4(a[1], a[5]), b[6] = ODD4(a[2], a[6]), b[7] = ODD4(a[3], a[7]);

	memcpy(dst, &b[0], 32), memcpy(dst + DTP_NB, &b[1], 32);
	memcpy(dst + 2 * DTP_NB, &b[2], 32), memcpy(dst + 3 * DTP_NB, &b[3], 32);
	memcpy(dst + 4 * DTP_NB, &b[4], 32), memcpy(dst + 5 * DTP_NB, &b[5], 32);
	memcpy(dst + 6 * DTP_NB, &b[6], 32), memcpy(dst + 7 * DTP_NB, &b[7], 32);
}

/* dst [units][64] = src [64][units], rows stride bytes apart; units is a multiple of 8. */
DTP_CLONES static void transpose_tile(uint32_t *dst, const char *src, int64_t stride, int64_t units)
{
	for (int64_t u = 0; u < units; u += 8)
		for (int64_t n = 0; n < DTP_NB; n += 8)
			transpose8(dst + u * DTP_NB + n, src + n * stride + u * 4, stride);
}

#ifdef __x86_64__
/* The same for CPUs with AVX-512, where a row of 16 units is a line of the cache, written whole and past the caches: weights
 * are not read soon, and half of the traffic would be reading what is overwritten.  It is faster in memory that is new, too, though
 * that was cleared a moment ago (docs/performance.md). */
__attribute__((target("avx512f"))) static inline void stream16(uint32_t *dst, const char *src, int64_t stride)
{
	__m512i a[16], b[16];

#pragma GCC unroll 16
	for (int i = 0; i < 16; i++)
		a[i] = _mm512_loadu_si512(src + i * stride);
#pragma GCC unroll 16
	for (int i = 0; i < 16; i += 2) {
		b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
		b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
	}
#pragma GCC unroll 16
	for (int i = 0; i < 16; i += 4) {
		a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
		a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
		a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
		a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
	}
	/* Within lanes of 4 units all is in place; now the lanes, 4 and 8 rows apart. */
#pragma GCC unroll 16
	for (int i = 0; i < 4; i++) {
		b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
		b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
		b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
		b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
	}
#pragma GCC unroll 16
	for (int i = 0; i < 8; i++) {
		_mm512_stream_si512((__m512i *)(dst + i * DTP_NB), _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
		_mm512_stream_si512((__m512i *)(dst + (i + 8) * DTP_NB), _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
	}
}

/* units is a multiple of 16 */
__attribute__((target("avx512f"))) static void stream_tile(uint32_t *dst, const char *src, int64_t stride, int64_t units)
{
	for (int64_t u = 0; u < units; u += 16)
		for (int64_t n = 0; n < DTP_NB; n += 16)
			stream16(dst + u * DTP_NB + n, src + n * stride + u * 4, stride);
}

static bool can_stream(void)
{
	return __builtin_cpu_supports("avx512f");
}

/* What was streamed is there before what is written next. */
static void finish_stream(void)
{
	_mm_sfence();
}
#else
static void stream_tile(uint32_t *dst, const char *src, int64_t stride, int64_t units)
{
	transpose_tile(dst, src, stride, units);
}

static bool can_stream(void)
{
	return false;
}

static void finish_stream(void)
{
}
#endif

/* Columns [begin, end) of the rows, converted, into a tile that is zero elsewhere. */
static void fill_tile(uint32_t tile[DTP_NB][TILE], enum dtp_dtype t, const char *src, enum dtp_dtype src_type, int64_t ld,
		      int64_t rows, int64_t begin, int64_t end)
{
	float row[2 * TILE];
	size_t size = dtp_dtype_size(src_type);

	memset(tile, 0, sizeof(uint32_t[DTP_NB][TILE]));
	for (int64_t r = 0; r < rows && begin < end; r++) {
		const char *s = src + (r * ld + begin) * (int64_t)size;
		if (t == src_type) {
			memcpy(tile[r], s, (size_t)(end - begin) * size);
			continue;
		}
		if (src_type == DTP_BF16)
			dtp_vec_load(row, s, src_type, end - begin);
		else
			dtp_to_f32(row, s, src_type, (size_t)(end - begin));
		dtp_vec_store(tile[r], t, row, end - begin);
	}
}

void dtp_pack_rows(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t ld, int64_t rows, int64_t k,
		   bool stream)
{
	void (*transpose)(uint32_t *, const char *, int64_t, int64_t) = stream && can_stream() ? stream_tile : transpose_tile;
	uint32_t tile[DTP_NB][TILE];
	int64_t per_unit = t == DTP_BF16 ? 2 : 1, units = dtp_pack_depth(t, k) / per_unit, row_bytes = ld * 4 / per_unit;

	for (int64_t u = 0; u < units; u += TILE) {
		int64_t nu = units - u < TILE ? units - u : TILE, begin = u * per_unit, end = begin + nu * per_unit;
		uint32_t *d = (uint32_t *)dst + u * DTP_NB;
		if (rows == DTP_NB && t == src_type && end <= k) {
			transpose(d, (const char *)src + u * 4, row_bytes, nu);
			continue;
		}
		fill_tile(tile, t, src, src_type, ld, rows, begin, end < k ? end : k);
		transpose(d, (const char *)tile, sizeof tile[0], nu);
	}
	if (transpose == stream_tile)
		finish_stream();
}

static void float_columns(float *dst, const char *src, enum dtp_dtype src_type, int64_t row_bytes, int64_t k, int64_t cols)
{
	for (int64_t i = 0; i < k; i++, dst += DTP_NB) {
		dtp_vec_load(dst, src + i * row_bytes, src_type, cols);
		memset(dst + cols, 0, (size_t)(DTP_NB - cols) * sizeof *dst);
	}
}

/* Two rows, the second of which may be missing, as pairs. */
DTP_CLONES static void pair_rows(uint32_t *restrict dst, const uint16_t *restrict low, const uint16_t *restrict high,
				 int64_t cols)
{
#pragma omp simd
	for (int64_t j = 0; j < cols; j++)
		dst[j] = low[j] | (uint32_t)high[j] << 16;
}

static void pair_columns(uint32_t *dst, const char *src, int64_t row_bytes, int64_t k, int64_t cols)
{
	static const uint16_t zeros[DTP_NB];

	for (int64_t i = 0; i < k; i += 2, dst += DTP_NB) {
		const void *low = src + i * row_bytes, *high = i + 1 < k ? src + (i + 1) * row_bytes : (const char *)zeros;
		pair_rows(dst, low, high, cols);
		memset(dst + cols, 0, (size_t)(DTP_NB - cols) * sizeof *dst);
	}
}

void dtp_pack_columns(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t ld, int64_t k, int64_t cols)
{
	int64_t row_bytes = ld * (int64_t)dtp_dtype_size(src_type), per_unit = t == DTP_BF16 ? 2 : 1;
	int64_t units = (k + per_unit - 1) / per_unit, depth = dtp_pack_depth(t, k) / per_unit;

	if (t == DTP_BF16)
		pair_columns(dst, src, row_bytes, k, cols);
	else
		float_columns(dst, src, src_type, row_bytes, k, cols);
	memset((uint32_t *)dst + units * DTP_NB, 0, (size_t)((depth - units) * DTP_NB) * sizeof(uint32_t));
}

DTP_CLONES void dtp_pack_widen(float *restrict dst, const void *restrict src, int64_t k)
{
	const uint32_t *restrict pairs = src;

	for (int64_t i = 0; i < k; i += 2, dst += 2 * DTP_NB, pairs += DTP_NB) {
#pragma omp simd
		for (int j = 0; j < DTP_NB; j++) {
			uint32_t low = pairs[j] << 16, high = pairs[j] & 0xffff0000u;
			memcpy(dst + j, &low, sizeof low);
			memcpy(dst + DTP_NB + j, &high, sizeof high);
		}
	}
}
