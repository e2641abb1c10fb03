/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on pictures: convolutions by cuDNN, the rest by own kernels. */
#include "cuda.h"
#include "dnn.h"
#include "kernels.h"

enum dtp_code dtp_cuda_conv2d(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			      const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	const struct dtp_dnn_conv shape = {
		.dtype = be->compute, .h = x.shape[0], .w = x.shape[1], .c = x.shape[2], .n = w->shape[0], .kh = w->shape[2],
		.kw = w->shape[3], .stride = stride, .pad_top_left = pad_top_left, .pad_bottom_right = pad_bottom_right, .bias = bias != NULL,
	};
	struct dtp_err missing = DTP_ERR_INIT;
	struct dtp_dnn *dnn = dtp_cuda_dnn(cu, &missing);
	const struct dtp_dnn_plan *plan;
	const char *why;
	void *p;

	if (!dtp_numel(&out))
		return DTP_OK;
	if (!dnn)
		return dtp_fail(err, missing.code, "convolutions need cuDNN: %s", missing.message);
	enum dtp_code rc = dtp_dnn_plan_conv(dnn, &shape, &plan, &why, err);
	if (!rc && !plan)
		rc = dtp_fail(err, DTP_FAILED, "cuDNN %s has no convolution of [%lld, %lld, %lld] by %lld filters of %lldx%lld: %s",
			      dtp_dnn_version(dnn), (long long)shape.h, (long long)shape.w, (long long)shape.c, (long long)shape.n,
			      (long long)shape.kh, (long long)shape.kw, why);
	if (!rc)
		rc = dtp_cuda_scratch(cu, dtp_dnn_workspace(plan), &p, err);
	if (!rc)
		rc = dtp_dnn_run_conv(dnn, plan, cu->stream, out.data, x.data, dtp_cuda_weight_of(w)->data,
				      dtp_cuda_vector_as(bias, be->compute), p, err);
	return rc;
}

/* maps [2,C], then what making them takes: one piece of scratch. */
static enum dtp_code make_maps(struct dtp_cuda *cu, float **maps, struct dtp_tensor x, const struct dtp_weight *w,
			       const struct dtp_weight *b, int groups, float eps, struct dtp_err *err)
{
	struct dtp_cuda_norm_scratch n = dtp_cuda_norm_scratch(x, !*maps);
	void *p;
	enum dtp_code rc = dtp_cuda_scratch(cu, n.maps + n.sums, &p, err);

	if (rc)
		return rc;
	if (n.maps)
		*maps = p;
	return DTP_CUDA(dtp_k_group_maps(cu->stream, *maps, (char *)p + n.maps, x, dtp_cuda_vector(w), dtp_cuda_vector(b), groups, eps), err);
}

enum dtp_code dtp_cuda_group_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
				  const struct dtp_weight *b, int groups, float eps, bool silu, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	float *maps = NULL;
	enum dtp_code rc = make_maps(cu, &maps, x, w, b, groups, eps, err);

	return rc ? rc : DTP_CUDA(dtp_k_group_apply(cu->stream, out, x, maps, silu), err);
}

enum dtp_code dtp_cuda_group_maps(struct dtp_backend *be, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				  const struct dtp_weight *b, int groups, float eps, struct dtp_err *err)
{
	float *p = maps.data;

	return make_maps(dtp_cuda_of(be), &p, x, w, b, groups, eps, err);
}

enum dtp_code dtp_cuda_window(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first,
			      struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_window(dtp_cuda_of(be)->stream, out, x, maps.data, first), err);
}

enum dtp_code dtp_cuda_upsample2x(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_upsample2x(dtp_cuda_of(be)->stream, out, x, first), err);
}

enum dtp_code dtp_cuda_unpatchify(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor tokens, const struct dtp_weight *mean,
				  const struct dtp_weight *var, float eps, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_unpatchify(dtp_cuda_of(be)->stream, out, tokens, dtp_cuda_vector(mean), dtp_cuda_vector(var), eps), err);
}

enum dtp_code dtp_cuda_patchify(struct dtp_backend *be, struct dtp_tensor tokens, struct dtp_tensor x, const struct dtp_weight *mean,
				const struct dtp_weight *var, float eps, struct dtp_err *err)
{
	return DTP_CUDA(dtp_k_patchify(dtp_cuda_of(be)->stream, tokens, x, dtp_cuda_vector(mean), dtp_cuda_vector(var), eps), err);
}

enum dtp_code dtp_cuda_quantise(struct dtp_backend *be, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	uint64_t n = (uint64_t)dtp_numel(&x);
	void *p;
	enum dtp_code rc = dtp_cuda_scratch(cu, n, &p, err);

	if (!rc)
		rc = DTP_CUDA(dtp_k_quantise(cu->stream, p, x), err);
	if (!rc) /* a copy to pageable memory waits by itself, and looks for no other rank's end */
		rc = dtp_cuda_wait(cu, err);
	if (!rc)
		rc = DTP_CUDA(cudaMemcpyAsync(rgb, p, n, cudaMemcpyDeviceToHost, cu->stream), err);
	return rc ? rc : dtp_cuda_sync(be, err);
}
