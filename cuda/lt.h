/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt.  What a shape is computed by is asked once and kept, that of the last 512 shapes.  Used by one thread at a time. */
#ifndef DTP_CUDA_LT_H
#define DTP_CUDA_LT_H

#include <driver_types.h>

#include "err.h"
#include "tensor.h"

struct dtp_lt;

/* Whether the library can be opened, without a look at a GPU: DTP_REFUSED if not. */
enum dtp_code dtp_lt_library(struct dtp_err *err);

/* For the calling thread's CUDA device.  workspace: DTP_CUDA_PRODUCT_WORKSPACE bytes of its memory, which outlive lt.  DTP_REFUSED: the
 * library is missing; DTP_FAILED: it does not start. */
enum dtp_code dtp_lt_open(void *workspace, struct dtp_lt **out, struct dtp_err *err);
void dtp_lt_close(struct dtp_lt *lt); /* NULL: nothing.  The stream must be done with the products. */

/* Enqueues out [M,N] = x [M,K] w^T (+ bias [N]) on stream; none of M, N, K is 0.  x and w [N,K] have one dtype, F32 or BF16; out
 * that one or F32; all may have rows with gaps; addresses and rows are multiples of
 * DTP_CUDA_ALIGN bytes.  bias: of out's dtype, or NULL.  Products are summed in F32, those of F32 operands without
 * TF32. */
enum dtp_code dtp_lt_product(struct dtp_lt *lt, cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor w,
			     const void *bias, struct dtp_err *err);
/* out [M,N] = x [M,K] w [K,N], otherwise the same: the rows of w, weighted by those of x. */
enum dtp_code dtp_lt_weighted(struct dtp_lt *lt, cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor w,
			      struct dtp_err *err);
#endif
