/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a matrix product's second operand: [N/64][K'][64] in F32, [N/64][K'/2][64][2] in BF16, K' = K rounded up to
 * a multiple of 16 (BF16: 32); what is past N or K is zero.  It is what oneDNN's blocked kernels ask for on every CPU with
 * AVX-512 (its names: BA16a64b, BA16a64b2a), and each 64 columns by themselves are a plain [K', 64] matrix, which any other
 * kernel takes.  A pair of BF16 rows widens to two F32 rows without moving a value across lanes. */
#ifndef DTP_CPU_PACK_H
#define DTP_CPU_PACK_H

#include "tensor.h"

#define DTP_NB 64 /* columns of a block */

static inline int64_t dtp_pack_depth(enum dtp_dtype t, int64_t k)
{
	return dtp_round_up(k, t == DTP_BF16 ? 32 : 16);
}

static inline int64_t dtp_pack_blocks(int64_t n)
{
	return (n + DTP_NB - 1) / DTP_NB;
}

/* Elements of one packed block, and of all. */
static inline int64_t dtp_pack_block_size(enum dtp_dtype t, int64_t k)
{
	return dtp_pack_depth(t, k) * DTP_NB;
}

static inline int64_t dtp_pack_size(enum dtp_dtype t, int64_t n, int64_t k)
{
	return dtp_pack_blocks(n) * dtp_pack_block_size(t, k);
}

/* Columns of a weight that one product takes on CPUs with AMX: oneDNN's kernels there lose half of their speed with long
 * sums (2.6.3: 800 GFLOP/s up to 4096 terms, 600 at 6144, 430 at 12288).  A longer weight [N, K] is packed as several, each of
 * this many columns, the last of what is left, one after the other; their products are added. */
static inline int64_t dtp_pack_piece(int64_t k)
{
	int64_t pieces = k <= 4096 ? 1 : (k + 3071) / 3072;
	return pieces == 1 ? k : dtp_round_up((k + pieces - 1) / pieces, 32);
}

/* One block: rows (at most 64) of src [rows, k] of src_type, ld elements apart, become the columns of dst (64-byte aligned),
 * in t.  stream: write past the caches, for what is not read soon. */
void dtp_pack_rows(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t ld, int64_t rows,
		   int64_t k, bool stream);
/* One block in t: src [k, cols <= 64] are its columns already.  t is F32, or src_type. */
void dtp_pack_columns(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t ld, int64_t k,
		      int64_t cols);
/* One BF16 block as an F32 block; its depth stays that of BF16. */
void dtp_pack_widen(float *dst, const void *src, int64_t k);
#endif
