/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table, its life, and the GPUs that there are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda.h"
#include "dnn.h"
#include "lt.h"

#define LEAST_MAJOR 8 /* compute capability: the first with bf16 in its matrix units */

static void destroy(struct dtp_backend *be)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);

	if (!be)
		return;
	if (cu->stream)
		cudaStreamSynchronize(cu->stream);
	dtp_dnn_close(cu->dnn);
	dtp_lt_close(cu->lt);
	cudaFree(cu->panel);
	cudaFree(cu->scratch);
	if (cu->read)
		cudaEventDestroy(cu->read);
	if (cu->stream)
		cudaStreamDestroy(cu->stream);
	pthread_mutex_destroy(&cu->writing);
	free(cu->cache);
	free(cu);
}

static int set_threads(struct dtp_backend *be, int n)
{
	(void)be, (void)n;
	return 0;
}

#define PEAK_SIDE 8192
#define PEAK_TIMES 8

static enum dtp_code time_products(struct dtp_cuda *cu, void *p, cudaEvent_t begin, cudaEvent_t end, double *flops, struct dtp_err *err)
{
	const int64_t n = PEAK_SIDE, shape[] = {n, n};
	uint64_t size = (uint64_t)(n * n) * dtp_dtype_size(cu->base.compute);
	struct dtp_tensor x = dtp_tensor_make(p, cu->base.compute, 2, shape), w = x, out = x;
	enum dtp_code rc = DTP_CUDA(cudaMemsetAsync(p, 0, 2 * size, cu->stream), err);
	float ms = 0;

	w.data = (char *)p + size;
	out.data = (char *)p + 2 * size;
	for (int i = 0; i <= PEAK_TIMES && !rc; i++) { /* the first only warms up */
		if (i == 1)
			rc = DTP_CUDA(cudaEventRecord(begin, cu->stream), err);
		if (!rc)
			rc = dtp_lt_product(cu->lt, cu->stream, out, x, w, NULL, err);
	}
	if (!rc)
		rc = DTP_CUDA(cudaEventRecord(end, cu->stream), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventSynchronize(end), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventElapsedTime(&ms, begin, end), err);
	*flops = ms > 0 ? PEAK_TIMES * 2.0 * (double)n * (double)n * (double)n / (ms / 1000.0) : 0;
	return rc;
}

static enum dtp_code measure_peak(struct dtp_backend *be, double *flops, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	cudaEvent_t begin = NULL, end = NULL;
	void *p = NULL;
	enum dtp_code rc = dtp_cuda_take(3 * (uint64_t)PEAK_SIDE * PEAK_SIDE * dtp_dtype_size(be->compute), &p, err);

	if (!rc)
		rc = DTP_CUDA(cudaEventCreate(&begin), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventCreate(&end), err);
	if (!rc)
		rc = time_products(cu, p, begin, end, flops, err);
	if (end)
		cudaEventDestroy(end);
	if (begin)
		cudaEventDestroy(begin);
	cudaFree(p);
	return rc;
}

static const struct dtp_backend_ops cuda_ops = {
	.name = "cuda",
	.destroy = destroy,
	.alloc = dtp_cuda_alloc,
	.free = dtp_cuda_free,
	.upload = dtp_cuda_upload,
	.download = dtp_cuda_download,
	.sync = dtp_cuda_sync,
	.weight_new = dtp_cuda_weight_new,
	.weight_write = dtp_cuda_weight_write,
	.low_rank_add = dtp_cpu_low_rank_add, /* to a panel in host memory */
	.weight_free = dtp_cuda_weight_free,
	.weight_bytes = dtp_cuda_weight_bytes,
	.linear = dtp_cuda_linear,
	.embedding = dtp_cuda_embedding,
	.modulated_norm = dtp_cuda_modulated_norm,
	.rms_norm = dtp_cuda_rms_norm,
	.qk_norm_rope = dtp_cuda_qk_norm_rope,
	.attention = dtp_cuda_attention,
	.swiglu = dtp_cuda_swiglu,
	.gated_residual = dtp_cuda_gated_residual,
	.add_bias = dtp_cuda_add_bias,
	.silu = dtp_cuda_silu,
	.add = dtp_cuda_add,
	.copy = dtp_cuda_copy,
	.euler_step = dtp_cuda_euler_step,
	.conv2d = dtp_cuda_conv2d,
	.group_norm = dtp_cuda_group_norm,
	.group_maps = dtp_cuda_group_maps,
	.window = dtp_cuda_window,
	.upsample2x = dtp_cuda_upsample2x,
	.unpatchify = dtp_cuda_unpatchify,
	.patchify = dtp_cuda_patchify,
	.quantise = dtp_cuda_quantise,
	.set_threads = set_threads,
	.measure_peak = measure_peak,
};

/* ---- the GPUs */

/* Why there is none, as far as the driver's version says. */
static enum dtp_code no_driver(cudaError_t e, struct dtp_err *err)
{
	int driver = 0, runtime = 0;

	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	cudaGetLastError();
	if (e == cudaErrorInsufficientDriver && driver && driver < runtime)
		return dtp_fail(err, DTP_REFUSED, "the NVIDIA driver runs programs of CUDA %d.%d, this one was built with CUDA %d.%d: update the "
				"driver", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
	if (e == cudaErrorInsufficientDriver || e == cudaErrorStubLibrary)
		return dtp_fail(err, DTP_REFUSED, "no NVIDIA driver is installed here (libcuda.so.1): %s (%d)", cudaGetErrorString(e), (int)e);
	if (e == cudaErrorNoDevice)
		return dtp_fail(err, DTP_REFUSED, "no GPU is visible: %s (%d); nvidia-smi lists what there is, CUDA_VISIBLE_DEVICES hides",
				cudaGetErrorString(e), (int)e);
	return dtp_fail(err, DTP_REFUSED, "the GPUs cannot be used: cudaGetDeviceCount: %s (%d); difftp doctor says more",
			cudaGetErrorString(e), (int)e);
}

static enum dtp_code look_at(int device, struct dtp_gpu *out, struct dtp_err *err)
{
	struct cudaDeviceProp prop;
	enum dtp_code rc = DTP_CUDA(cudaGetDeviceProperties(&prop, device), err);

	if (rc)
		return rc;
	*out = (struct dtp_gpu){.major = prop.major, .minor = prop.minor, .bytes = prop.totalGlobalMem};
	snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, prop.name);
	memcpy(out->id, prop.uuid.bytes, sizeof out->id);
	return DTP_OK;
}

enum dtp_code dtp_cuda_gpus(struct dtp_gpu *gpus, int max, int *n, struct dtp_err *err)
{
	cudaError_t e = cudaGetDeviceCount(n);
	enum dtp_code rc = DTP_OK;

	if (e || !*n) {
		*n = 0;
		return no_driver(e ? e : cudaErrorNoDevice, err);
	}
	for (int i = 0; i < *n && i < max && !rc; i++)
		rc = look_at(i, &gpus[i], err);
	return rc;
}

static enum dtp_code take_device(int device, struct dtp_err *err)
{
	struct dtp_gpu gpu;
	int n;
	enum dtp_code rc = dtp_cuda_gpus(NULL, 0, &n, err);

	if (!rc && (device < 0 || device >= n))
		return dtp_fail(err, DTP_REFUSED, "there is no GPU %d: %d %s visible, numbered from 0", device, n, n == 1 ? "is" : "are");
	if (!rc)
		rc = look_at(device, &gpu, err);
	if (!rc && gpu.major < LEAST_MAJOR)
		return dtp_fail(err, DTP_REFUSED, "GPU %d (%s) has compute capability %d.%d, at least %d.0 (Ampere) is needed", device, gpu.name,
				gpu.major, gpu.minor, LEAST_MAJOR);
	return rc ? rc : DTP_CUDA(cudaSetDevice(device), err);
}

/* ---- its life */

struct dtp_dnn *dtp_cuda_dnn(struct dtp_cuda *cu, struct dtp_err *why)
{
	if (!cu->dnn && !cu->no_dnn.code)
		dtp_dnn_open(NULL, cu->options.cache, cu->options.mon, &cu->dnn, &cu->no_dnn);
	*why = cu->no_dnn;
	return cu->dnn;
}

static enum dtp_code begin(struct dtp_cuda *cu, struct dtp_err *err)
{
	enum dtp_code rc = take_device(cu->options.device, err);

	if (!rc)
		rc = DTP_CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), err); /* who waits does not keep a processor busy */
	if (!rc)
		rc = DTP_CUDA(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventCreateWithFlags(&cu->read, cudaEventDisableTiming | cudaEventBlockingSync), err);
	return rc ? rc : dtp_lt_open(&cu->lt, err);
}

enum dtp_code dtp_backend_cuda(enum dtp_dtype compute, const struct dtp_cuda_options *options, struct dtp_backend **out,
			       struct dtp_err *err)
{
	struct dtp_cuda *cu;

	*out = NULL;
	if (compute != DTP_F32 && compute != DTP_BF16)
		return dtp_fail(err, DTP_REFUSED, "a GPU computes in F32 or BF16, not in '%s'", dtp_dtype_name(compute));
	cu = calloc(1, sizeof *cu);
	if (!cu)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for the CUDA backend", sizeof *cu);
	cu->base.ops = &cuda_ops;
	cu->base.compute = compute;
	cu->options = *options;
	cu->no_dnn = (struct dtp_err)DTP_ERR_INIT;
	pthread_mutex_init(&cu->writing, NULL);
	if (options->cache && !(cu->cache = strdup(options->cache))) {
		destroy(&cu->base);
		return dtp_fail(err, DTP_FAILED, "out of memory for the name of a folder");
	}
	cu->options.cache = cu->cache;
	enum dtp_code rc = begin(cu, err);
	if (rc) {
		destroy(&cu->base);
		return rc;
	}
	*out = &cu->base;
	return DTP_OK;
}
