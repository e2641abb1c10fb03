/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA backend takes of a GPU beside weights and tensors.  It allocates by what stands here, and predictions without it count by
 * the same. */
#ifndef DTP_FOOTPRINT_H
#define DTP_FOOTPRINT_H

#include "tensor.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- from the backend's first moment to its last */
#define DTP_CUDA_PRODUCT_WORKSPACE (UINT64_C(32) << 20) /* of matrix products: what NVIDIA advises for Hopper; fewer bytes exclude algorithms */
/* Rows of a weight as they are in the file, to be turned on the device; weights are read in panels of as much, which fit at once.  What a
 * copy costs beside its bytes (some 20 us: the call, the event, a thread that wakes) is little against the 80 us that it takes at 50 GB/s. */
#define DTP_CUDA_PANEL (UINT64_C(4) << 20)
#define DTP_CUDA_FIXED (DTP_CUDA_PRODUCT_WORKSPACE + DTP_CUDA_PANEL)

/* ---- while an operation runs, beside its operands.  One operation at a time: the largest counts. */
/* Of cuDNN, at most: plans that want more are not taken, since they copy whole pictures to another layout and back. */
#define DTP_CUDA_DNN_WORKSPACE (UINT64_C(64) << 20)
/* The largest head that cuDNN's documentation promises.  It makes plans beyond that too, even for heads of 8192, by a kernel with fewer
 * registers than the sums of such a head: nothing says that they are right, so they are refused. */
#define DTP_CUDA_DNN_HEAD 256
#define DTP_CUDA_PIECE (UINT64_C(16) << 20) /* a tensor changes its type on its way from or to the host in pieces of this */

#define DTP_CUDA_ALIGN 16 /* bytes, of addresses and rows that cuBLASLt takes */
bool dtp_cuda_fits(struct dtp_tensor x); /* [M,K], as it lies */
/* A copy of x whose rows fit; 0: x fits. */
uint64_t dtp_cuda_fitting_bytes(struct dtp_tensor x);

int64_t dtp_cuda_norm_slices(int64_t pixels); /* that group norm sums one by one */
/* For the norm of x [h,w,C]: [2,C] F32 unless the caller has room for it, then sums F64 [2, slices, C]. */
struct dtp_cuda_norm_scratch {
	uint64_t maps, sums;
};
struct dtp_cuda_norm_scratch dtp_cuda_norm_scratch(struct dtp_tensor x, bool own_maps);

/* What attention by matrix products (cuda/attention_products.c) takes beside its operands: of `rows` queries at a time their scores F32 and,
 * `weights` bytes later, what T has of them, in rows of `pitch` elements.  As many rows as `room` bytes hold, one at least. */
#define DTP_CUDA_SCORES_ROOM (UINT64_C(256) << 20)
struct dtp_cuda_scores {
	int64_t rows, pitch;
	uint64_t weights, nbytes;
};
struct dtp_cuda_scores dtp_cuda_scores(enum dtp_dtype t, int64_t queries, int64_t keys, uint64_t room);

#ifdef __cplusplus
}
#endif
#endif
