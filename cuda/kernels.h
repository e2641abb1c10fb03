/* SPDX-License-Identifier: Apache-2.0 */
/* The own kernels: whatever core/backend.h asks for that is neither a matrix product nor a convolution, with the meaning, the shapes
 * and the roundings that are written there.  One launcher per operation; a kernel's file is cuda/k_OPERATION.cu.
 *
 * A launcher puts its work on the stream and returns.  cudaErrorInvalidValue: a dtype that the operation does not take, or a pointer
 * that is no multiple of its element's size; other errors are cudaLaunchKernelExC's.  A dimension of 0 launches nothing, where the
 * result is empty.  Shapes that belong together have been compared by the caller, as core/ops.c does; T is F32 or BF16.
 *
 * A tensor is a view of device memory, strides in elements, the last dimension contiguous.  Rows of any length at any address are taken;
 * they move 16 bytes at a time where all addresses and strides are multiples of 16 bytes.  Vectors (norms, biases) are F32,
 * dense.  Arithmetic is F32, results are rounded once unless said otherwise.  No kernel uses atomics: the same input gives the same bits,
 * and a row's result does not depend on the rows beside it.  out may be x where shapes and types agree, but for window, upsample2x,
 * patchify, unpatchify, attention and the weights. */
#ifndef DTP_CUDA_KERNELS_H
#define DTP_CUDA_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "backend.h"

/* ---- tokens */
/* out [M,K] T = LayerNorm(x [M,K] T) * (1 + scale [K] T) + shift [K] T.  (out, x strided) */
cudaError_t dtp_k_modulated_norm(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor shift,
				 struct dtp_tensor scale, float eps);
/* out [M,K] T = round(x [M,K] T / rms(x)) * w [K].  (out, x strided) */
cudaError_t dtp_k_rms_norm(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, const float *w, float eps);
/* In place, x = q [S,H,D] with w = wq [D], and k [S,Hkv,D] with wk, T (strided rows and heads): round(round(x / rms(x)) * w), both w NULL:
 * no norm; then rotation by cos, sin [S,D/2] F32 dense, cos.data NULL: none.  D is even; cudaErrorInvalidValue else. */
cudaError_t dtp_k_qk_norm_rope(cudaStream_t, struct dtp_tensor q, struct dtp_tensor k, const float *wq, const float *wk, float eps,
			       enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin);
/* out [M,K] T = silu(gate [M,K] T) * up [M,K] T.  (all strided) */
cudaError_t dtp_k_swiglu(cudaStream_t, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up);
/* x [M,K] T += gate [K] T * y [M,K] (T or F32).  gate.data NULL: 1.  (x, y strided) */
cudaError_t dtp_k_gated_residual(cudaStream_t, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y);
/* x [M,K] T += bias [K].  (x strided) */
cudaError_t dtp_k_add_bias(cudaStream_t, struct dtp_tensor x, const float *bias);
/* Dense, any shape, T: out = silu(x); out = a + b; latents += dt * noise, dt in device memory. */
cudaError_t dtp_k_silu(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x);
cudaError_t dtp_k_add(cudaStream_t, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b);
cudaError_t dtp_k_euler_step(cudaStream_t, struct dtp_tensor latents, struct dtp_tensor noise, const float *dt);
/* dst = src among F32, BF16, F16; same shape, up to 4 dimensions.  (both strided) */
cudaError_t dtp_k_copy(cudaStream_t, struct dtp_tensor dst, struct dtp_tensor src);
/* out [M,K] T: row ids[i] - first_row of table [rows,K] T, zeros where there is none; ids [M] in device memory.  (out strided) */
cudaError_t dtp_k_embedding(cudaStream_t, struct dtp_tensor out, const int32_t *ids, struct dtp_tensor table, int64_t first_row);
/* out [Sq,H,D] T, q [Sq,H,D] T, k and v [Sk,Hkv,D] T, D <= DTP_K_HEAD_DIM (all strided rows and heads).  Weights stay F32.  lse unless NULL: [H,Sq]
 * F32, dense, the natural logarithm of the sum of e^score; -inf for a row that may attend to nothing.  D beyond that is
 * cudaErrorInvalidValue. */
enum { DTP_K_HEAD_DIM = 512 };
cudaError_t dtp_k_attention(cudaStream_t, struct dtp_tensor out, float *lse, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
			    const struct dtp_attention *a);
/* out [M,K] T = softmax of each row of scale * x [M,K] F32; scale > 0.  A NaN in a row makes all of it NaN.  (out, x strided) */
cudaError_t dtp_k_softmax(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, float scale);

/* ---- pictures, channels-last, dense */
/* maps [2,C] F32: what group norm does to each channel of x [h,w,C] T: scale, then shift.  scratch: device memory of
 * dtp_cuda_norm_scratch's sums, 8-byte aligned, in use until the work is done. */
cudaError_t dtp_k_group_maps(cudaStream_t, float *maps, void *scratch, struct dtp_tensor x, const float *w, const float *b, int groups,
			     float eps);
/* out = x * scale + shift, then SiLU if silu; x, out [h,w,C] T, maps as made by group_maps. */
cudaError_t dtp_k_group_apply(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, const float *maps, bool silu);
/* out [r,w+2,C] T = silu(x * scale + shift) of the rows [first, first + r) of x [h,w,C]; zeros outside of the picture. */
cudaError_t dtp_k_window(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, const float *maps, int64_t first);
cudaError_t dtp_k_upsample2x(cudaStream_t, struct dtp_tensor out, struct dtp_tensor x, int64_t first);
/* tokens [h*w,4C] T -> out [2h,2w,C] T, and back; mean, var [4C]. */
cudaError_t dtp_k_unpatchify(cudaStream_t, struct dtp_tensor out, struct dtp_tensor tokens, const float *mean, const float *var, float eps);
cudaError_t dtp_k_patchify(cudaStream_t, struct dtp_tensor tokens, struct dtp_tensor x, const float *mean, const float *var, float eps);
/* rgb U8, in device memory, as many as x T has elements; halved and shifted in T. */
cudaError_t dtp_k_quantise(cudaStream_t, uint8_t *rgb, struct dtp_tensor x);

/* ---- weights: panels that have come to device memory as they are in the file (F32, BF16 or F16, dense), or were made there.  A matrix or a
 * table needs only dtp_k_copy. */
/* dst [n] F32 = src [n], rounded to t. */
cudaError_t dtp_k_vector(cudaStream_t, float *dst, enum dtp_dtype t, struct dtp_tensor src);
/* dst [n,k] T (strided): element (i, j) is that of row first_row + i and column first_col + j (fill.h). */
cudaError_t dtp_k_fill(cudaStream_t, struct dtp_tensor dst, const struct dtp_fill *f, int64_t first_row, int64_t first_col);
/* Filters as channels-last convolutions read them: dst [N,kh,kw,C] T (dense) from src [N,C,kh,kw].  kh * kw beyond DTP_K_TAPS is
 * cudaErrorInvalidValue. */
enum { DTP_K_TAPS = 1024 };
cudaError_t dtp_k_filters(cudaStream_t, struct dtp_tensor dst, struct dtp_tensor src);

#ifdef __cplusplus
}
#endif
#endif
