/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, and moving tensors in and out of it. */
#include <inttypes.h>

#include "cuda.h"
#include "dnn.h"
#include "kernels.h"

#define PIECE (UINT64_C(16) << 20) /* of a conversion on the way: bounds the scratch that it takes */

enum dtp_code dtp_cuda_take(uint64_t nbytes, void **p, struct dtp_err *err)
{
	size_t left = 0, all = 0;

	*p = NULL;
	if (!nbytes)
		return DTP_OK;
	cudaError_t e = cudaMalloc(p, nbytes);
	if (e != cudaErrorMemoryAllocation)
		return dtp_cuda_status(e, "cudaMalloc", __FILE__, __LINE__, err);
	cudaGetLastError(); /* it is told here: a later call must not return it again */
	if (cudaMemGetInfo(&left, &all))
		cudaGetLastError();
	return dtp_fail(err, DTP_FAILED, "out of GPU memory: %" PRIu64 " bytes are needed, %zu of %zu are free\n"
			"difftp plan --devices says what fits; more ranks, a smaller picture or --dtype bf16 take less", nbytes, left, all);
}

void dtp_cuda_give_back(struct dtp_cuda *cu, void *p)
{
	if (p && cu->watch)
		dtp_cuda_wait(cu, NULL); /* a communicator whose peer is gone ends its kernels */
	cudaFree(p);
}

enum dtp_code dtp_cuda_scratch(struct dtp_cuda *cu, uint64_t nbytes, void **p, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;

	if (nbytes > cu->scratch_size) {
		rc = dtp_cuda_wait(cu, err);
		cudaFree(cu->scratch);
		cu->scratch = NULL;
		cu->scratch_size = 0;
		if (!rc)
			rc = dtp_cuda_take(nbytes, &cu->scratch, err);
		if (!rc)
			cu->scratch_size = nbytes;
	}
	*p = cu->scratch;
	return rc;
}

enum dtp_code dtp_cuda_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	(void)be;
	return dtp_cuda_take(nbytes ? nbytes : 1, p, err);
}

/* Sizes of pictures come and go with the memory that they are drawn in, and the plans of their shapes would only come. */
static void trim_plans(struct dtp_cuda *cu)
{
	if (cu->dnn && dtp_dnn_plans(cu->dnn) > DTP_DNN_PLANS && !cudaStreamQuery(cu->stream))
		dtp_dnn_trim(cu->dnn, DTP_DNN_PLANS / 2);
}

void dtp_cuda_free(struct dtp_backend *be, void *p, uint64_t nbytes)
{
	(void)nbytes;
	dtp_cuda_give_back(dtp_cuda_of(be), p);
	trim_plans(dtp_cuda_of(be));
}

/* n elements of t at p. */
static struct dtp_tensor flat(void *p, enum dtp_dtype t, int64_t n)
{
	return dtp_tensor_make(p, t, 1, &n);
}

/* Elements of a piece: a multiple of 16 bytes whatever the type. */
static int64_t piece(enum dtp_dtype t, int64_t left)
{
	int64_t n = (int64_t)(PIECE / dtp_dtype_size(t));

	return left < n ? left : n;
}

/* A GPU that reads pageable memory by itself (ATS, HMM) may do so after the call of the copy: the source is the caller's again only when
 * the stream has come past it. */
enum dtp_code dtp_cuda_upload(struct dtp_backend *be, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	int64_t n = dtp_numel(&dst), size = (int64_t)dtp_dtype_size(src_type), to = (int64_t)dtp_dtype_size(dst.dtype);
	enum dtp_code rc = DTP_OK;
	void *raw;

	if (n && dst.dtype == src_type)
		rc = DTP_CUDA(cudaMemcpyAsync(dst.data, src, (size_t)(n * size), cudaMemcpyHostToDevice, cu->stream), err);
	for (int64_t i = 0, m; i < n && !rc && dst.dtype != src_type; i += m) {
		m = piece(src_type, n - i);
		rc = dtp_cuda_scratch(cu, (uint64_t)(m * size), &raw, err);
		if (!rc)
			rc = DTP_CUDA(cudaMemcpyAsync(raw, (const char *)src + i * size, (size_t)(m * size), cudaMemcpyHostToDevice,
						      cu->stream), err);
		if (!rc)
			rc = DTP_CUDA(dtp_k_copy(cu->stream, flat((char *)dst.data + i * to, dst.dtype, m), flat(raw, src_type, m)), err);
	}
	return rc ? rc : dtp_cuda_wait(cu, err);
}

enum dtp_code dtp_cuda_download(struct dtp_backend *be, void *dst, enum dtp_dtype dst_type, struct dtp_tensor src, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	int64_t n = dtp_numel(&src), size = (int64_t)dtp_dtype_size(dst_type), from = (int64_t)dtp_dtype_size(src.dtype);
	/* A copy to pageable memory waits by itself, and looks for no other rank's end. */
	enum dtp_code rc = dtp_cuda_wait(cu, err);
	void *raw;

	if (n && !rc && src.dtype == dst_type)
		rc = DTP_CUDA(cudaMemcpyAsync(dst, src.data, (size_t)(n * size), cudaMemcpyDeviceToHost, cu->stream), err);
	for (int64_t i = 0, m; i < n && !rc && src.dtype != dst_type; i += m) {
		m = piece(dst_type, n - i);
		rc = dtp_cuda_scratch(cu, (uint64_t)(m * size), &raw, err);
		if (!rc)
			rc = DTP_CUDA(dtp_k_copy(cu->stream, flat(raw, dst_type, m), flat((char *)src.data + i * from, src.dtype, m)), err);
		if (!rc)
			rc = DTP_CUDA(cudaMemcpyAsync((char *)dst + i * size, raw, (size_t)(m * size), cudaMemcpyDeviceToHost, cu->stream),
				      err);
	}
	return rc ? rc : dtp_cuda_sync(be, err);
}

enum dtp_code dtp_cuda_sync(struct dtp_backend *be, struct dtp_err *err)
{
	return dtp_cuda_wait(dtp_cuda_of(be), err);
}

/* Pinned: the device's copies from it run while the host reads files and other threads write panels. */
enum dtp_code dtp_cuda_host_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	(void)be;
	*p = NULL;
	cudaError_t e = cudaHostAlloc(p, nbytes, cudaHostAllocDefault);
	if (e != cudaErrorMemoryAllocation)
		return dtp_cuda_status(e, "cudaHostAlloc", __FILE__, __LINE__, err);
	cudaGetLastError(); /* it is told here: a later call must not return it again */
	return dtp_fail(err, DTP_FAILED, "cudaHostAlloc: the host has no %" PRIu64 " bytes that a GPU may read by itself (pinned memory: "
			"ulimit -l and the limits of a container count)", nbytes);
}

/* Nothing reads it any more: whoever had it read has waited for that. */
void dtp_cuda_host_free(struct dtp_backend *be, void *p)
{
	(void)be;
	cudaFreeHost(p);
}
