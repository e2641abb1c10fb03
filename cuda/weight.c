/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in device memory.  A panel goes straight to its place where it is there as it is in the file; else it is turned on the
 * device. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "kernels.h"

const void *dtp_cuda_vector_as(const struct dtp_weight *w, enum dtp_dtype t)
{
	if (!w || t == DTP_F32)
		return dtp_cuda_vector(w);
	return (const char *)dtp_cuda_weight_of(w)->data + dtp_cuda_weight_of(w)->at.typed;
}

uint64_t dtp_cuda_weight_bytes(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	return dtp_cuda_layout(be->compute, kind, ndim, shape).nbytes;
}

enum dtp_code dtp_cuda_weight_new(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
				  struct dtp_weight **out, struct dtp_err *err)
{
	struct dtp_cuda_weight *w = calloc(1, sizeof *w);

	*out = NULL;
	if (!w)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for a weight's description", sizeof *w);
	w->at = dtp_cuda_layout(be->compute, kind, ndim, shape);
	w->base = (struct dtp_weight){.kind = kind, .ndim = ndim, .row_align = 1, .nbytes = w->at.nbytes};
	memcpy(w->base.shape, shape, (size_t)ndim * sizeof *shape);
	enum dtp_code rc = dtp_cuda_take(dtp_cuda_of(be), w->base.nbytes, &w->data, err);
	if (rc) {
		free(w);
		return rc;
	}
	*out = &w->base;
	return DTP_OK;
}

void dtp_cuda_weight_free(struct dtp_backend *be, struct dtp_weight *weight)
{
	struct dtp_cuda_weight *w = (struct dtp_cuda_weight *)weight;

	if (!w)
		return;
	dtp_cuda_give(dtp_cuda_of(be), w->data, w->base.nbytes);
	free(w);
}

void *dtp_cuda_weight_memory(struct dtp_weight *w)
{
	return ((struct dtp_cuda_weight *)w)->data;
}

/* The weight's rows [row0, row0 + nrows), of T. */
static struct dtp_tensor rows_of(const struct dtp_cuda_weight *w, enum dtp_dtype t, int64_t row0, int64_t nrows)
{
	int64_t shape[] = {nrows, w->at.k};
	struct dtp_tensor x = dtp_tensor_make((char *)w->data + row0 * w->at.pitch * (int64_t)dtp_dtype_size(t), t, 2, shape);

	x.stride[0] = w->at.pitch;
	return x;
}

static enum dtp_code write_straight(struct dtp_cuda *cu, struct dtp_tensor dst, const void *src, struct dtp_err *err)
{
	size_t size = dtp_dtype_size(dst.dtype), row = (size_t)dst.shape[1] * size;

	return DTP_CUDA(cudaMemcpy2DAsync(dst.data, (size_t)dst.stride[0] * size, src, row, row, (size_t)dst.shape[0],
					  cudaMemcpyHostToDevice, cu->stream), err);
}

static enum dtp_code turn(struct dtp_cuda *cu, const struct dtp_cuda_weight *w, int64_t row0, int64_t nrows, void *src,
			  enum dtp_dtype src_type, struct dtp_err *err)
{
	enum dtp_dtype t = cu->base.compute;
	int64_t shape[DTP_MAX_DIMS] = {nrows};

	memcpy(shape + 1, w->base.shape + 1, (size_t)(w->base.ndim - 1) * sizeof *shape);
	struct dtp_tensor x = dtp_tensor_make(src, src_type, w->base.ndim, shape);
	if (w->base.kind == DTP_WEIGHT_VECTOR) {
		float *v = (float *)w->data + row0;
		enum dtp_code rc = DTP_CUDA(dtp_k_vector(cu->stream, v, t, x), err);
		if (rc || t == DTP_F32)
			return rc;
		char *typed = (char *)(uintptr_t)dtp_cuda_vector_as(&w->base, t) + row0 * (int64_t)dtp_dtype_size(t);
		return DTP_CUDA(dtp_k_copy(cu->stream, dtp_tensor_make(typed, t, 1, shape), dtp_tensor_make(v, DTP_F32, 1, shape)), err);
	}
	struct dtp_tensor dst = rows_of(w, t, row0, nrows);
	if (w->base.kind != DTP_WEIGHT_CONV)
		return DTP_CUDA(dtp_k_copy(cu->stream, dst, x), err);
	const int64_t *s = w->base.shape;
	struct dtp_tensor filters = dtp_tensor_make(dst.data, t, 4, (int64_t[]){nrows, s[2], s[3], s[1]});
	return DTP_CUDA(dtp_k_filters(cu->stream, filters, x), err);
}

static enum dtp_code panel_rows(uint64_t row_bytes, int64_t *rows, struct dtp_err *err)
{
	*rows = (int64_t)(DTP_CUDA_PANEL / row_bytes);
	if (*rows)
		return DTP_OK;
	return dtp_fail(err, DTP_FAILED, "a row of %" PRIu64 " bytes is more than the %" PRIu64 " that a weight is turned by", row_bytes,
			DTP_CUDA_PANEL);
}

/* As many rows at a time as the panel holds.  The stream keeps rows from being copied there before those before them are turned. */
static enum dtp_code write_turned(struct dtp_cuda *cu, const struct dtp_cuda_weight *w, int64_t row0, int64_t nrows, const void *src,
				  enum dtp_dtype src_type, cudaEvent_t read, struct dtp_err *err)
{
	uint64_t row = (uint64_t)w->at.k * dtp_dtype_size(src_type);
	int64_t most;
	enum dtp_code rc = panel_rows(row, &most, err);

	for (int64_t i = 0, n; i < nrows && !rc; i += n) {
		n = nrows - i < most ? nrows - i : most;
		rc = DTP_CUDA(cudaMemcpyAsync(cu->panel, (const char *)src + (uint64_t)i * row, (uint64_t)n * row, cudaMemcpyHostToDevice,
					      cu->stream), err);
		if (!rc)
			rc = DTP_CUDA(cudaEventRecord(read, cu->stream), err);
		if (!rc)
			rc = turn(cu, w, row0 + i, n, cu->panel, src_type, err);
	}
	return rc;
}

/* Onto the stream; `read` happens when src was read. */
static enum dtp_code enqueue(struct dtp_cuda *cu, const struct dtp_cuda_weight *w, int64_t row0, int64_t nrows, const void *src,
			     enum dtp_dtype src_type, cudaEvent_t read, struct dtp_err *err)
{
	enum dtp_dtype t = cu->base.compute;

	if (src_type != t || (w->base.kind != DTP_WEIGHT_MATRIX && w->base.kind != DTP_WEIGHT_TABLE))
		return write_turned(cu, w, row0, nrows, src, src_type, read, err);
	enum dtp_code rc = write_straight(cu, rows_of(w, t, row0, nrows), src, err);
	return rc ? rc : DTP_CUDA(cudaEventRecord(read, cu->stream), err);
}

/* The next panel is enqueued while this thread waits for its own to be read. */
enum dtp_code dtp_cuda_weight_write(struct dtp_backend *be, struct dtp_weight *weight, int64_t row0, int64_t nrows, const void *src,
				    enum dtp_dtype src_type, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(weight);
	cudaEvent_t read;

	if (!nrows || !w->at.k)
		return DTP_OK;
	if (DTP_CUDA(cudaSetDevice(cu->options.device), err) || /* of this thread */
	    DTP_CUDA(cudaEventCreateWithFlags(&read, cudaEventDisableTiming | cudaEventBlockingSync), err))
		return DTP_FAILED;
	pthread_mutex_lock(&cu->writing);
	enum dtp_code rc = enqueue(cu, w, row0, nrows, src, src_type, read, err);
	if (rc) /* src may be read by what came before the failure.  This thread must not look after NCCL, and nothing of NCCL's is there. */
		cudaStreamSynchronize(cu->stream);
	pthread_mutex_unlock(&cu->writing);
	if (!rc) /* the caller fills src anew */
		rc = DTP_CUDA(cudaEventSynchronize(read), err);
	cudaEventDestroy(read);
	return rc;
}

/* ---- values that are made here */

/* The weight's rows [row0, row0 + rows of dst): what f says of them, into dst [n,k]. */
static enum dtp_code fill(struct dtp_cuda *cu, struct dtp_tensor dst, const struct dtp_fill *f, int64_t row0, struct dtp_err *err)
{
	int64_t first = 0; /* of the run, in the weight */
	enum dtp_code rc = DTP_OK;

	for (int i = 0; !rc && i < f->nruns; first += f->run[i].end - f->run[i].begin, i++) {
		int64_t begin = f->run[i].begin, n = f->run[i].end - begin, from = 0, end = n;
		if (f->columns) {
			rc = DTP_CUDA(dtp_k_fill(cu->stream, dtp_narrow(dst, 1, first, n), f, row0, begin), err);
			continue;
		}
		if (first < row0)
			from = row0 - first;
		if (first + end > row0 + dst.shape[0])
			end = row0 + dst.shape[0] - first;
		if (from < end)
			rc = DTP_CUDA(dtp_k_fill(cu->stream, dtp_narrow(dst, 0, first + from - row0, end - from), f, begin + from, 0), err);
	}
	return rc;
}

/* As many rows at a time as the panel holds, as write_turned. */
static enum dtp_code fill_turned(struct dtp_cuda *cu, const struct dtp_cuda_weight *w, const struct dtp_fill *f, struct dtp_err *err)
{
	int64_t most;
	enum dtp_code rc = panel_rows((uint64_t)w->at.k * sizeof(float), &most, err);

	for (int64_t i = 0, n; i < w->at.n && !rc; i += n) {
		n = w->at.n - i < most ? w->at.n - i : most;
		rc = fill(cu, dtp_tensor_make(cu->panel, DTP_F32, 2, (int64_t[]){n, w->at.k}), f, i, err);
		if (!rc)
			rc = turn(cu, w, i, n, cu->panel, DTP_F32, err);
	}
	return rc;
}

enum dtp_code dtp_cuda_weight_fill(struct dtp_backend *be, struct dtp_weight *weight, const struct dtp_fill *f, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(weight);
	bool straight = w->base.kind == DTP_WEIGHT_MATRIX || w->base.kind == DTP_WEIGHT_TABLE;

	if (!w->at.n || !w->at.k)
		return DTP_OK;
	return straight ? fill(cu, rows_of(w, be->compute, 0, w->at.n), f, 0, err) : fill_turned(cu, w, f, err);
}
