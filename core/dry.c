/* SPDX-License-Identifier: Apache-2.0 */
/* The backend that computes nothing: forward passes run on it to learn what they take.  Memory is a number that grows, and
 * never touched; what the host asks to see is zeros. */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "cpu/cpu.h"
#include "footprint.h"

struct dry {
	struct dtp_backend base;
	enum dtp_device device;
	uint64_t next; /* the address that alloc gives next */
	uint64_t operations; /* dtp_memory_use */
	int threads;
};

/* An operation takes so many bytes of a GPU. */
static void takes(struct dtp_backend *be, uint64_t nbytes)
{
	struct dry *d = (struct dry *)be;

	if (d->device == DTP_DEVICE_CUDA && nbytes > d->operations)
		d->operations = nbytes;
}

static void destroy(struct dtp_backend *be)
{
	free(be);
}

static enum dtp_code dry_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	struct dry *d = (struct dry *)be;

	*p = NULL;
	if (nbytes > (uint64_t)INT64_MAX - 64 - d->next)
		return dtp_fail(err, DTP_FAILED, "out of memory: %llu bytes are needed, %llu are available",
				(unsigned long long)nbytes, (unsigned long long)((uint64_t)INT64_MAX - 64 - d->next));
	*p = (void *)(uintptr_t)d->next;
	d->next += (nbytes / 64 + 1) * 64;
	return DTP_OK;
}

static void dry_free(struct dtp_backend *be, void *p, uint64_t nbytes)
{
	(void)be, (void)p, (void)nbytes;
}

/* Between the host's dtype t and x. */
static void moves(struct dtp_backend *be, struct dtp_tensor x, enum dtp_dtype t)
{
	uint64_t n = (uint64_t)dtp_numel(&x) * dtp_dtype_size(t);

	if (x.dtype != t)
		takes(be, n < DTP_CUDA_PIECE ? n : DTP_CUDA_PIECE);
}

static enum dtp_code upload(struct dtp_backend *be, struct dtp_tensor dst, const void *src, enum dtp_dtype t,
			    struct dtp_err *err)
{
	(void)src, (void)err;
	moves(be, dst, t);
	return DTP_OK;
}

static enum dtp_code download(struct dtp_backend *be, void *dst, enum dtp_dtype t, struct dtp_tensor src, struct dtp_err *err)
{
	(void)err;
	moves(be, src, t);
	memset(dst, 0, (size_t)dtp_numel(&src) * dtp_dtype_size(t));
	return DTP_OK;
}

static enum dtp_code sync(struct dtp_backend *be, struct dtp_err *err)
{
	(void)be, (void)err;
	return DTP_OK;
}

static enum dtp_code reserve(struct dtp_backend *be, uint64_t nbytes, struct dtp_err *err)
{
	(void)be, (void)nbytes, (void)err;
	return DTP_OK;
}

static void memory(struct dtp_backend *be, struct dtp_memory_use *out)
{
	struct dry *d = (struct dry *)be;
	uint64_t fixed = d->device == DTP_DEVICE_CUDA ? DTP_CUDA_FIXED : 0;

	*out = (struct dtp_memory_use){.in_use = fixed, .peak = fixed, .operations = d->operations};
	d->operations = 0;
}

static uint64_t weight_bytes(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	if (((struct dry *)be)->device == DTP_DEVICE_CUDA)
		return dtp_cuda_layout(be->compute, kind, ndim, shape).nbytes;
	return dtp_cpu_weight_bytes(be->compute, kind, ndim, shape);
}

static enum dtp_code weight_new(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
				struct dtp_weight **out, struct dtp_err *err)
{
	*out = calloc(1, sizeof **out);
	if (!*out)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for a weight's description", sizeof **out);
	dtp_cpu_describe(*out, be->compute, kind, ndim, shape);
	(*out)->nbytes = weight_bytes(be, kind, ndim, shape);
	return DTP_OK;
}

static enum dtp_code weight_write(struct dtp_backend *be, struct dtp_weight *w, int64_t row0, int64_t nrows, const void *src,
				  enum dtp_dtype t, struct dtp_err *err)
{
	(void)be, (void)w, (void)row0, (void)nrows, (void)src, (void)t, (void)err;
	return DTP_OK;
}

static void weight_free(struct dtp_backend *be, struct dtp_weight *w)
{
	(void)be;
	free(w);
}

static enum dtp_code linear(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			    const struct dtp_weight *bias, struct dtp_err *err)
{
	(void)w, (void)bias, (void)err;
	takes(be, dtp_cuda_fitting_bytes(x) + dtp_cuda_fitting_bytes(out));
	return DTP_OK;
}

static enum dtp_code embedding(struct dtp_backend *be, struct dtp_tensor out, const int32_t *ids,
			       const struct dtp_weight *table, int64_t first_row, struct dtp_err *err)
{
	(void)table, (void)first_row, (void)err;
	takes(be, (uint64_t)out.shape[0] * sizeof *ids);
	return DTP_OK;
}

static enum dtp_code modulated_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				    struct dtp_tensor shift, struct dtp_tensor scale, float eps, struct dtp_err *err)
{
	(void)be, (void)out, (void)x, (void)shift, (void)scale, (void)eps, (void)err;
	return DTP_OK;
}

static enum dtp_code rms_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			      float eps, struct dtp_err *err)
{
	(void)be, (void)out, (void)x, (void)w, (void)eps, (void)err;
	return DTP_OK;
}

static enum dtp_code qk_norm_rope(struct dtp_backend *be, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				  const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				  struct dtp_err *err)
{
	(void)be, (void)q, (void)k, (void)wq, (void)wk, (void)eps, (void)kind, (void)cos, (void)sin, (void)err;
	return DTP_OK;
}

static enum dtp_code attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
			       struct dtp_tensor v, const struct dtp_attention *a, struct dtp_err *err)
{
	int64_t end = a->key_end < k.shape[0] ? a->key_end : k.shape[0], keys = end > a->key_begin ? end - a->key_begin : 0;

	(void)out, (void)v, (void)err;
	if (a->causal || q.shape[2] <= DTP_CUDA_DNN_HEAD)
		takes(be, DTP_CUDA_DNN_WORKSPACE);
	else
		takes(be, dtp_cuda_scores(q.dtype, q.shape[0], keys, DTP_CUDA_SCORES_ROOM).nbytes);
	return DTP_OK;
}

/* Whatever takes three tensors; and two. */
static enum dtp_code three(struct dtp_backend *be, struct dtp_tensor a, struct dtp_tensor b, struct dtp_tensor c,
			   struct dtp_err *err)
{
	(void)be, (void)a, (void)b, (void)c, (void)err;
	return DTP_OK;
}

static enum dtp_code two(struct dtp_backend *be, struct dtp_tensor a, struct dtp_tensor b, struct dtp_err *err)
{
	(void)be, (void)a, (void)b, (void)err;
	return DTP_OK;
}

static enum dtp_code add_bias(struct dtp_backend *be, struct dtp_tensor x, const struct dtp_weight *bias, struct dtp_err *err)
{
	(void)be, (void)x, (void)bias, (void)err;
	return DTP_OK;
}

static enum dtp_code conv2d(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			    const struct dtp_weight *bias, int stride, int pad_tl, int pad_br, struct dtp_err *err)
{
	(void)out, (void)x, (void)w, (void)bias, (void)stride, (void)pad_tl, (void)pad_br, (void)err;
	takes(be, DTP_CUDA_DNN_WORKSPACE);
	return DTP_OK;
}

static enum dtp_code group_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				const struct dtp_weight *w, const struct dtp_weight *b, int groups, float eps, bool silu,
				struct dtp_err *err)
{
	struct dtp_cuda_norm_scratch n = dtp_cuda_norm_scratch(x, true);

	(void)out, (void)w, (void)b, (void)groups, (void)eps, (void)silu, (void)err;
	takes(be, n.maps + n.sums);
	return DTP_OK;
}

static enum dtp_code group_maps(struct dtp_backend *be, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				const struct dtp_weight *b, int groups, float eps, struct dtp_err *err)
{
	(void)maps, (void)w, (void)b, (void)groups, (void)eps, (void)err;
	takes(be, dtp_cuda_norm_scratch(x, false).sums);
	return DTP_OK;
}

static enum dtp_code window(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first,
			    struct dtp_err *err)
{
	(void)be, (void)out, (void)x, (void)maps, (void)first, (void)err;
	return DTP_OK;
}

static enum dtp_code upsample2x(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *err)
{
	(void)be, (void)out, (void)x, (void)first, (void)err;
	return DTP_OK;
}

static enum dtp_code patches(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *mean,
			     const struct dtp_weight *var, float eps, struct dtp_err *err)
{
	(void)be, (void)out, (void)x, (void)mean, (void)var, (void)eps, (void)err;
	return DTP_OK;
}

static enum dtp_code quantise(struct dtp_backend *be, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *err)
{
	(void)err;
	takes(be, (uint64_t)dtp_numel(&x));
	if (rgb) /* a dry run has no picture */
		memset(rgb, 0, (size_t)dtp_numel(&x));
	return DTP_OK;
}

static int set_threads(struct dtp_backend *be, int n)
{
	struct dry *d = (struct dry *)be;
	int former = d->threads;

	if (n > 0)
		d->threads = n;
	return former;
}

static enum dtp_code measure_peak(struct dtp_backend *be, double *flops, struct dtp_err *err)
{
	(void)be, (void)err;
	*flops = 0;
	return DTP_OK;
}

static const struct dtp_backend_ops dry_ops = {
	.name = "dry",
	.destroy = destroy,
	.alloc = dry_alloc,
	.free = dry_free,
	.upload = upload,
	.download = download,
	.sync = sync,
	.reserve = reserve,
	.memory = memory,
	.weight_new = weight_new,
	.weight_write = weight_write,
	.weight_free = weight_free,
	.weight_bytes = weight_bytes,
	.linear = linear,
	.embedding = embedding,
	.modulated_norm = modulated_norm,
	.rms_norm = rms_norm,
	.qk_norm_rope = qk_norm_rope,
	.attention = attention,
	.swiglu = three,
	.gated_residual = three,
	.add_bias = add_bias,
	.silu = two,
	.add = three,
	.copy = two,
	.euler_step = three,
	.conv2d = conv2d,
	.group_norm = group_norm,
	.group_maps = group_maps,
	.window = window,
	.upsample2x = upsample2x,
	.unpatchify = patches,
	.patchify = patches,
	.quantise = quantise,
	.set_threads = set_threads,
	.measure_peak = measure_peak,
};

enum dtp_code dtp_backend_dry(enum dtp_dtype compute, enum dtp_device device, struct dtp_backend **out, struct dtp_err *err)
{
	struct dry *d = calloc(1, sizeof *d);

	*out = NULL;
	if (!d)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for the dry backend", sizeof *d);
	d->base.ops = &dry_ops;
	d->base.compute = compute;
	d->base.dry = true;
	d->device = device;
	d->next = 64;
	d->threads = 1;
	*out = &d->base;
	return DTP_OK;
}
