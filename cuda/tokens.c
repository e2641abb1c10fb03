/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on tokens: products by cuBLASLt, the rest by own kernels. */
#include "cuda.h"
#include "kernels.h"
#include "lt.h"

/* x's shape with rows that fit, at p. */
static struct dtp_tensor fitting(struct dtp_tensor x, void *p)
{
	int64_t unit = DTP_CUDA_ALIGN / (int64_t)dtp_dtype_size(x.dtype);
	struct dtp_tensor y = dtp_tensor_make(p, x.dtype, 2, x.shape);

	y.stride[0] = dtp_round_up(x.shape[1], unit);
	return y;
}

/* A sum over nothing. */
static enum dtp_code zeros(struct dtp_cuda *cu, struct dtp_tensor out, const struct dtp_weight *bias, struct dtp_err *err)
{
	size_t size = dtp_dtype_size(out.dtype);
	enum dtp_code rc = DTP_CUDA(cudaMemset2DAsync(out.data, (size_t)out.stride[0] * size, 0, (size_t)out.shape[1] * size,
						      (size_t)out.shape[0], cu->stream), err);

	return rc || !bias ? rc : DTP_CUDA(dtp_k_add_bias(cu->stream, out, dtp_cuda_vector(bias)), err);
}

/* Operands whose rows do not fit (a width that the ranks share unevenly) are copied to where they do. */
enum dtp_code dtp_cuda_linear(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *weight,
			      const struct dtp_weight *bias, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(weight);
	struct dtp_tensor m = dtp_tensor_make(w->data, be->compute, 2, (int64_t[]){w->at.n, w->at.k}), y = out;
	uint64_t first = dtp_cuda_fitting_bytes(x), second = dtp_cuda_fitting_bytes(out);
	enum dtp_code rc = DTP_OK;
	void *p = NULL;

	if (!out.shape[0] || !out.shape[1])
		return DTP_OK;
	if (!w->at.k)
		return zeros(cu, out, bias, err);
	m.stride[0] = w->at.pitch;
	if (first + second)
		rc = dtp_cuda_scratch(cu, first + second, &p, err);
	if (!rc && first) {
		struct dtp_tensor copy = fitting(x, p);
		rc = DTP_CUDA(dtp_k_copy(cu->stream, copy, x), err);
		x = copy;
	}
	if (second)
		y = fitting(out, (char *)p + first);
	if (!rc)
		rc = dtp_lt_product(cu->lt, cu->stream, y, x, m, dtp_cuda_vector_as(bias, out.dtype), err);
	if (!rc && second)
		rc = DTP_CUDA(dtp_k_copy(cu->stream, out, y), err);
	return rc;
}

enum dtp_code dtp_cuda_embedding(struct dtp_backend *be, struct dtp_tensor out, const int32_t *ids, const struct dtp_weight *table,
				 int64_t first_row, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(table);
	size_t bytes = (size_t)out.shape[0] * sizeof *ids;
	void *p;

	if (!bytes)
		return DTP_OK;
	enum dtp_code rc = dtp_cuda_not_recorded(cu, "an embedding of ids", err);
	if (!rc)
		rc = dtp_cuda_scratch(cu, bytes, &p, err);
	if (!rc)
		rc = DTP_CUDA(cudaMemcpyAsync(p, ids, bytes, cudaMemcpyHostToDevice, cu->stream), err);
	if (!rc)
		rc = DTP_CUDA(dtp_k_embedding(cu->stream, out, p, dtp_tensor_make(w->data, be->compute, 2, (int64_t[]){w->at.n, w->at.k}),
					      first_row), err);
	return rc;
}

enum dtp_code dtp_cuda_modulated_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor shift,
				      struct dtp_tensor scale, float eps, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_modulated_norm(dtp_cuda_of(be)->stream, out, x, shift, scale, eps), err);
}

enum dtp_code dtp_cuda_rms_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w, float eps,
				struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_rms_norm(dtp_cuda_of(be)->stream, out, x, dtp_cuda_vector(w), eps), err);
}

enum dtp_code dtp_cuda_qk_norm_rope(struct dtp_backend *be, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				    const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				    struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_qk_norm_rope(dtp_cuda_of(be)->stream, q, k, dtp_cuda_vector(wq), dtp_cuda_vector(wk), eps, kind, cos, sin), err);
}

enum dtp_code dtp_cuda_swiglu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up,
			      struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_swiglu(dtp_cuda_of(be)->stream, out, gate, up), err);
}

enum dtp_code dtp_cuda_gated_residual(struct dtp_backend *be, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y,
				      struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_gated_residual(dtp_cuda_of(be)->stream, x, gate, y), err);
}

enum dtp_code dtp_cuda_add_bias(struct dtp_backend *be, struct dtp_tensor x, const struct dtp_weight *bias, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_add_bias(dtp_cuda_of(be)->stream, x, dtp_cuda_vector(bias)), err);
}

enum dtp_code dtp_cuda_silu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_silu(dtp_cuda_of(be)->stream, out, x), err);
}

enum dtp_code dtp_cuda_add(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_add(dtp_cuda_of(be)->stream, out, a, b), err);
}

enum dtp_code dtp_cuda_copy(struct dtp_backend *be, struct dtp_tensor dst, struct dtp_tensor src, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_copy(dtp_cuda_of(be)->stream, dst, src), err);
}

enum dtp_code dtp_cuda_euler_step(struct dtp_backend *be, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt,
				   struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_euler_step(dtp_cuda_of(be)->stream, latents, noise, dt.data), err);
}
