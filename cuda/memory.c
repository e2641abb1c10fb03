/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, and moving tensors in and out of it. */
#include <inttypes.h>

#include "cuda.h"
#include "dnn.h"
#include "kernels.h"

static enum dtp_code no_memory(const struct dtp_cuda *cu, uint64_t nbytes, int line, struct dtp_err *err)
{
	size_t left = 0, all = 0;

	if (cudaMemGetInfo(&left, &all))
		cudaGetLastError();
	if (err)
		err->no_room = true;
	return dtp_fail(err, DTP_FAILED, "out of GPU memory: %" PRIu64 " bytes are needed, %zu of %zu are free, %" PRIu64 " are held by this "
			"rank: cudaMalloc, %s:%d\ndifftp plan --device cuda says what fits; more ranks, a smaller picture or --dtype bf16 take less, nvidia-smi "
			"lists who else uses the GPU", nbytes, left, all, cu->in_use, __FILE__, line);
}

void dtp_cuda_count(struct dtp_cuda *cu, uint64_t taken, uint64_t given)
{
	cu->in_use += taken - given;
	cu->peak = cu->in_use > cu->peak ? cu->in_use : cu->peak;
}

enum dtp_code dtp_cuda_take(struct dtp_cuda *cu, uint64_t nbytes, void **p, struct dtp_err *err)
{
	*p = NULL;
	if (!nbytes)
		return DTP_OK;
	cudaError_t e = cudaMalloc(p, nbytes);
	if (e == cudaErrorMemoryAllocation) {
		cudaGetLastError(); /* it is told here: a later call must not return it again */
		return no_memory(cu, nbytes, __LINE__, err);
	}
	if (e)
		return dtp_cuda_status(e, "cudaMalloc", __FILE__, __LINE__, err);
	dtp_cuda_count(cu, nbytes, 0);
	return DTP_OK;
}

void dtp_cuda_give(struct dtp_cuda *cu, void *p, uint64_t nbytes)
{
	if (!p)
		return;
	if (cu->watch)
		dtp_cuda_wait(cu, NULL); /* a communicator whose peer is gone ends its kernels */
	cudaFree(p);
	dtp_cuda_count(cu, 0, nbytes);
}

static enum dtp_code resize_scratch(struct dtp_cuda *cu, uint64_t nbytes, struct dtp_err *err)
{
	enum dtp_code rc = dtp_cuda_not_recorded(cu, "another amount of scratch memory", err);

	if (!rc)
		rc = dtp_cuda_wait(cu, err);
	if (rc)
		return rc;
	dtp_cuda_drop_graphs(cu);
	dtp_cuda_give(cu, cu->scratch, cu->scratch_size);
	cu->scratch = NULL;
	cu->scratch_size = 0;
	rc = dtp_cuda_take(cu, nbytes, &cu->scratch, err);
	if (!rc)
		cu->scratch_size = nbytes;
	return rc;
}

enum dtp_code dtp_cuda_scratch(struct dtp_cuda *cu, uint64_t nbytes, void **p, struct dtp_err *err)
{
	enum dtp_code rc = nbytes > cu->scratch_size ? resize_scratch(cu, nbytes, err) : DTP_OK;

	cu->operations = nbytes > cu->operations ? nbytes : cu->operations;
	*p = cu->scratch;
	return rc;
}

enum dtp_code dtp_cuda_reserve(struct dtp_backend *be, uint64_t nbytes, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);

	return nbytes == cu->scratch_size ? DTP_OK : resize_scratch(cu, nbytes, err);
}

void dtp_cuda_memory(struct dtp_backend *be, struct dtp_memory_use *out)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	size_t left = 0, all = 0;

	if (cudaMemGetInfo(&left, &all))
		cudaGetLastError();
	*out = (struct dtp_memory_use){.in_use = cu->in_use, .peak = cu->peak, .operations = cu->operations, .device = all - left,
				       .device_of = all};
	cu->peak = cu->in_use;
	cu->operations = 0;
}

enum dtp_code dtp_cuda_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	return dtp_cuda_take(dtp_cuda_of(be), nbytes ? nbytes : 1, p, err);
}

/* Sizes of pictures come and go with the memory that they are drawn in, and the plans of their shapes would only come. */
static void trim_plans(struct dtp_cuda *cu)
{
	if (cu->dnn && dtp_dnn_plans(cu->dnn) > DTP_DNN_PLANS && !cudaStreamQuery(cu->stream))
		dtp_dnn_trim(cu->dnn, DTP_DNN_PLANS / 2);
}

void dtp_cuda_free(struct dtp_backend *be, void *p, uint64_t nbytes)
{
	dtp_cuda_give(dtp_cuda_of(be), p, nbytes ? nbytes : 1);
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
	int64_t n = (int64_t)(DTP_CUDA_PIECE / dtp_dtype_size(t));

	return left < n ? left : n;
}

/* Waits, after a failure too, until the host's memory of a transfer is the caller's again.  A wait that was broken off has ended the
 * communicators: then nothing on the stream waits for other ranks. */
static enum dtp_code transferred(struct dtp_cuda *cu, enum dtp_code rc, struct dtp_err *err)
{
	if (cu->recording) /* nothing was begun */
		return rc;
	enum dtp_code waited = dtp_cuda_wait(cu, rc ? NULL : err);
	if (waited)
		cudaStreamSynchronize(cu->stream);
	return rc ? rc : waited;
}

/* A GPU that reads pageable memory by itself (ATS, HMM) may do so after the call of the copy: the source is the caller's again only when
 * the stream has come past it. */
enum dtp_code dtp_cuda_upload(struct dtp_backend *be, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	int64_t n = dtp_numel(&dst), size = (int64_t)dtp_dtype_size(src_type), to = (int64_t)dtp_dtype_size(dst.dtype);
	enum dtp_code rc = dtp_cuda_not_recorded(cu, "an upload", err);
	void *raw;

	if (n && !rc && dst.dtype == src_type)
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
	return transferred(cu, rc, err);
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
	return transferred(cu, rc, err);
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
			"ulimit -l and the limits of a container count), %s:%d", nbytes, __FILE__, __LINE__);
}

/* Nothing reads it any more: whoever had it read has waited for that. */
void dtp_cuda_host_free(struct dtp_backend *be, void *p)
{
	(void)be;
	cudaFreeHost(p);
}
