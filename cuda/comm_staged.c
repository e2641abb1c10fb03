/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of device memory through pinned host memory and a communicator of host memory, a piece at a time.  For two ranks on one
 * GPU it need not be fast; it must be right, and sum in the same order as ranks on CPUs do. */
#include "comm_cuda.h"

#include <stdlib.h>

#define BUFFER_BYTES ((size_t)16 << 20) /* a multiple of every element's size */

struct staged_comm {
	struct dtp_comm base;
	struct dtp_comm *control;
	bool owns_control;
	struct dtp_cuda *cuda;
	char *in, *out; /* pinned, of BUFFER_BYTES each; out belongs to in */
};

static const struct dtp_comm_ops staged_ops;

static struct staged_comm *self(struct dtp_comm *c)
{
	return (struct staged_comm *)c;
}

static enum dtp_code take(struct staged_comm *c, void *host, const char *device, size_t n, struct dtp_err *err)
{
	return DTP_CUDA(cudaMemcpyAsync(host, device, n, cudaMemcpyDeviceToHost, c->cuda->stream), err);
}

static enum dtp_code give(struct staged_comm *c, char *device, const void *host, size_t n, struct dtp_err *err)
{
	return DTP_CUDA(cudaMemcpyAsync(device, host, n, cudaMemcpyHostToDevice, c->cuda->stream), err);
}

/* Bytes that each of `parts` may have in a buffer at once: whole elements. */
static size_t piece_of(size_t left, int parts)
{
	size_t room = BUFFER_BYTES / (size_t)parts / sizeof(int64_t) * sizeof(int64_t);

	return left < room ? left : room;
}

/* A buffer is used again when the stream is done with it: each piece waits for its copies out of the device, which come after the
 * last piece's copies into it. */
static enum dtp_code staged_all_reduce(struct dtp_comm *base, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	size_t all = (size_t)count * dtp_dtype_size(t);

	for (size_t at = 0, n; at < all; at += n) {
		n = piece_of(all - at, 1);
		if (take(c, c->in, (char *)buf + at, n, err) || dtp_cuda_wait(c->cuda, err) ||
		    dtp_all_reduce(c->control, c->in, (int64_t)(n / dtp_dtype_size(t)), t, err) || give(c, (char *)buf + at, c->in, n, err))
			return DTP_FAILED;
	}
	return dtp_cuda_wait(c->cuda, err);
}

static enum dtp_code staged_all_gather(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	size_t all = (size_t)count * dtp_dtype_size(t);

	for (size_t at = 0, n; at < all; at += n) {
		n = piece_of(all - at, base->size);
		if (take(c, c->in, (const char *)src + at, n, err) || dtp_cuda_wait(c->cuda, err) ||
		    dtp_all_gather(c->control, c->out, c->in, (int64_t)n, DTP_U8, err))
			return DTP_FAILED;
		for (int r = 0; r < base->size; r++)
			if (give(c, (char *)dst + (size_t)r * all + at, c->out + (size_t)r * n, n, err))
				return DTP_FAILED;
	}
	return dtp_cuda_wait(c->cuda, err);
}

static enum dtp_code staged_all_to_all(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	size_t all = (size_t)count * dtp_dtype_size(t);

	for (size_t at = 0, n; at < all; at += n) {
		n = piece_of(all - at, base->size);
		for (int r = 0; r < base->size; r++)
			if (take(c, c->in + (size_t)r * n, (const char *)src + (size_t)r * all + at, n, err))
				return DTP_FAILED;
		if (dtp_cuda_wait(c->cuda, err) ||
		    c->control->ops->all_to_all(c->control, c->out, c->in, (int64_t)n, DTP_U8, err))
			return DTP_FAILED;
		for (int r = 0; r < base->size; r++)
			if (give(c, (char *)dst + (size_t)r * all + at, c->out + (size_t)r * n, n, err))
				return DTP_FAILED;
	}
	return dtp_cuda_wait(c->cuda, err);
}

static enum dtp_code staged_ring_shift(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	size_t all = (size_t)count * dtp_dtype_size(t);

	for (size_t at = 0, n; at < all; at += n) {
		n = piece_of(all - at, 1);
		if (take(c, c->in, (const char *)src + at, n, err) || dtp_cuda_wait(c->cuda, err) ||
		    c->control->ops->ring_shift(c->control, c->out, c->in, (int64_t)n, DTP_U8, err) ||
		    give(c, (char *)dst + at, c->out, n, err))
			return DTP_FAILED;
	}
	return dtp_cuda_wait(c->cuda, err);
}

static enum dtp_code staged_broadcast(struct dtp_comm *base, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	bool mine = base->rank == root;

	for (size_t at = 0, n; at < (size_t)nbytes; at += n) {
		char *p = (char *)buf + at;
		n = piece_of((size_t)nbytes - at, 1);
		if ((mine && take(c, c->in, p, n, err)) || dtp_cuda_wait(c->cuda, err) ||
		    dtp_broadcast(c->control, c->in, (int64_t)n, root, err) || (!mine && give(c, p, c->in, n, err)))
			return DTP_FAILED;
	}
	return dtp_cuda_wait(c->cuda, err);
}

static enum dtp_code staged_barrier(struct dtp_comm *base, struct dtp_err *err)
{
	struct staged_comm *c = self(base);

	return dtp_cuda_wait(c->cuda, err) ? DTP_FAILED : dtp_barrier(c->control, err);
}

static void staged_abort(struct dtp_comm *base)
{
	self(base)->control->ops->abort(self(base)->control);
}

static void staged_destroy(struct dtp_comm *base)
{
	struct staged_comm *c = self(base);

	cudaFreeHost(c->in);
	if (c->owns_control)
		dtp_comm_destroy(c->control);
	free(c);
}

static enum dtp_code make(struct dtp_comm *control, bool owned, struct dtp_cuda *cuda, struct dtp_comm **out, struct dtp_err *err)
{
	struct staged_comm *c = malloc(sizeof *c);
	void *pinned;

	if (!c)
		return dtp_fail(err, DTP_FAILED, "out of memory for a communicator of %d ranks", control->size);
	if (DTP_CUDA(cudaMallocHost(&pinned, 2 * BUFFER_BYTES), err)) {
		free(c);
		return DTP_FAILED;
	}
	*c = (struct staged_comm){.base = {control->rank, control->size, &staged_ops, control->mon}, .control = control,
				  .owns_control = owned, .cuda = cuda, .in = pinned, .out = (char *)pinned + BUFFER_BYTES};
	cuda->unrecordable = "ranks that share a GPU sum through the host's memory, which waits";
	*out = &c->base;
	return DTP_OK;
}

static enum dtp_code staged_split(struct dtp_comm *base, int color, int key, struct dtp_comm **out, struct dtp_err *err)
{
	struct staged_comm *c = self(base);
	struct dtp_comm *part;
	enum dtp_code code = c->control->ops->split(c->control, color, key, &part, err);

	if (code)
		return code;
	code = make(part, true, c->cuda, out, err);
	if (code)
		dtp_comm_destroy(part);
	return code;
}

static const struct dtp_comm_ops staged_ops = {
	.name = "staged",
	.all_reduce = staged_all_reduce,
	.all_gather = staged_all_gather,
	.all_to_all = staged_all_to_all,
	.ring_shift = staged_ring_shift,
	.broadcast = staged_broadcast,
	.barrier = staged_barrier,
	.split = staged_split,
	.abort = staged_abort,
	.destroy = staged_destroy,
};

enum dtp_code dtp_comm_staged(struct dtp_comm *control, struct dtp_cuda *cuda, struct dtp_comm **out, struct dtp_err *err)
{
	return make(control, false, cuda, out, err);
}
