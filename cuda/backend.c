/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's table, its life, and the GPUs that there are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda.h"
#include "dnn.h"
#include "lt.h"

#define WRITERS 3 /* with several copies waiting the device never does */

static void destroy(struct dtp_backend *be)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);

	if (!be)
		return;
	if (cu->stream)
		cudaStreamSynchronize(cu->stream);
	dtp_dnn_close(cu->dnn);
	dtp_lt_close(cu->lt);
	dtp_cuda_give(cu, cu->workspace, DTP_CUDA_PRODUCT_WORKSPACE);
	dtp_cuda_give(cu, cu->panel, DTP_CUDA_PANEL);
	dtp_cuda_give(cu, cu->scratch, cu->scratch_size);
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

/* ---- the peak of a matrix product */

#define PEAK_SIDE 8192      /* at most; smaller where one product takes PEAK_PRODUCT_MS */
#define PEAK_LEAST_SIDE 256
#define PEAK_PRODUCT_MS 1
#define PEAK_TIMES 8        /* products that are timed together */
#define PEAK_MS 300         /* so long, until clocks have risen; the best time counts */

struct peak {
	struct dtp_tensor out, x, w; /* [side, side], one behind the other */
	cudaEvent_t begin, end;
};

/* Random values: on zeros a GPU draws less power, and runs faster than it ever will. */
static enum dtp_code fill_random(struct dtp_backend *be, struct dtp_tensor x, struct dtp_err *err)
{
	int64_t n = x.shape[1], rows = PEAK_LEAST_SIDE;
	float *v = malloc((size_t)(rows * n) * sizeof *v);
	uint32_t s = 12345;
	enum dtp_code rc = DTP_OK;

	if (!v)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %lld bytes for random numbers", (long long)(rows * n) * 4);
	for (int64_t i = 0; i < rows * n; i++) {
		s = s * 1664525u + 1013904223u;
		v[i] = (float)(s >> 8) * 0x1p-23f - 1;
	}
	for (int64_t r = 0; r < x.shape[0] && !rc; r += rows)
		rc = dtp_cuda_upload(be, dtp_narrow(x, 0, r, rows), v, DTP_F32, err);
	free(v);
	return rc;
}

/* Milliseconds of a product, in the mean of n. */
static enum dtp_code time_products(struct dtp_cuda *cu, const struct peak *p, int n, double *ms, struct dtp_err *err)
{
	enum dtp_code rc = DTP_CUDA(cudaEventRecord(p->begin, cu->stream), err);
	float all = 0;

	for (int i = 0; i < n && !rc; i++)
		rc = dtp_lt_product(cu->lt, cu->stream, p->out, p->x, p->w, NULL, err);
	if (!rc)
		rc = DTP_CUDA(cudaEventRecord(p->end, cu->stream), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventSynchronize(p->end), err);
	if (!rc)
		rc = DTP_CUDA(cudaEventElapsedTime(&all, p->begin, p->end), err);
	*ms = (double)all / n;
	return rc;
}

/* The best of PEAK_MS; *ms is the time of a product. */
static enum dtp_code time_side(struct dtp_cuda *cu, struct peak *p, int64_t side, double *ms, struct dtp_err *err)
{
	const int64_t shape[] = {side, side};
	uint64_t size = (uint64_t)(side * side) * dtp_dtype_size(cu->base.compute);
	void *memory = NULL;
	double now = 0, spent = 0;
	enum dtp_code rc = dtp_cuda_take(cu, 3 * size, &memory, err);

	p->out = dtp_tensor_make(memory, cu->base.compute, 2, shape);
	p->x = dtp_tensor_make((char *)memory + size, cu->base.compute, 2, shape);
	p->w = dtp_tensor_make((char *)memory + 2 * size, cu->base.compute, 2, shape);
	if (!rc)
		rc = fill_random(&cu->base, p->x, err);
	if (!rc)
		rc = fill_random(&cu->base, p->w, err);
	if (!rc)
		rc = time_products(cu, p, 1, ms, err); /* warms up: the way to multiply is looked for */
	if (!rc)
		rc = time_products(cu, p, 1, ms, err);
	if (side < PEAK_SIDE && *ms < PEAK_PRODUCT_MS)
		spent = PEAK_MS; /* a larger one says more */
	for (; !rc && spent < PEAK_MS; spent += now * PEAK_TIMES) {
		rc = time_products(cu, p, PEAK_TIMES, &now, err);
		*ms = now < *ms ? now : *ms;
	}
	dtp_cuda_give(cu, memory, 3 * size);
	return rc;
}

static enum dtp_code measure_peak(struct dtp_backend *be, double *flops, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	struct peak p = {.begin = NULL};
	int64_t side = PEAK_LEAST_SIDE;
	double ms = 0;
	enum dtp_code rc = DTP_CUDA(cudaEventCreate(&p.begin), err);

	if (!rc)
		rc = DTP_CUDA(cudaEventCreate(&p.end), err);
	if (!rc)
		rc = time_side(cu, &p, side, &ms, err);
	while (!rc && side < PEAK_SIDE && ms < PEAK_PRODUCT_MS) {
		side *= 2;
		rc = time_side(cu, &p, side, &ms, err);
	}
	*flops = ms > 0 ? 2.0 * (double)(side * side * side) / (ms / 1000.0) : 0;
	if (p.end)
		cudaEventDestroy(p.end);
	if (p.begin)
		cudaEventDestroy(p.begin);
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
	.host_alloc = dtp_cuda_host_alloc,
	.host_free = dtp_cuda_host_free,
	.reserve = dtp_cuda_reserve,
	.memory = dtp_cuda_memory,
	.weight_new = dtp_cuda_weight_new,
	.weight_write = dtp_cuda_weight_write,
	.weight_fill = dtp_cuda_weight_fill,
	.low_rank_add = dtp_cpu_low_rank_add, /* to a panel in host memory */
	.weight_free = dtp_cuda_weight_free,
	.weight_memory = dtp_cuda_weight_memory,
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
	.replay = dtp_cuda_replay,
	.replay_refused = dtp_cuda_replay_refused,
	.replay_free = dtp_cuda_replay_free,
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
	return dtp_fail(err, DTP_REFUSED, "the GPUs cannot be used: cudaGetDeviceCount: %s (%d), %s:%d; difftp doctor says more",
			cudaGetErrorString(e), (int)e, __FILE__, __LINE__);
}

/* DTP_REFUSED: it is too old. */
static enum dtp_code look_at(int device, struct dtp_gpu *out, struct dtp_err *err)
{
	struct cudaDeviceProp prop;
	enum dtp_code rc = DTP_CUDA(cudaGetDeviceProperties(&prop, device), err);

	if (rc)
		return rc;
	*out = (struct dtp_gpu){.number = device, .major = prop.major, .minor = prop.minor, .bytes = prop.totalGlobalMem};
	snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, prop.name);
	memcpy(out->id, prop.uuid.bytes, sizeof out->id);
	if (out->major >= DTP_GPU_LEAST_MAJOR)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "GPU %d (%s) has compute capability %d.%d, at least %d.0 (Ampere) is needed", device, out->name, out->major,
			out->minor, DTP_GPU_LEAST_MAJOR);
}

static enum dtp_code count(int *n, struct dtp_err *err)
{
	cudaError_t e = cudaGetDeviceCount(n);

	return e || !*n ? no_driver(e ? e : cudaErrorNoDevice, err) : DTP_OK;
}

enum dtp_code dtp_cuda_gpus(struct dtp_gpu *gpus, int max, int *n, struct dtp_err *err)
{
	struct dtp_err why = DTP_ERR_INIT; /* it may be left out */
	int visible;
	enum dtp_code rc = count(&visible, err);

	*n = 0;
	if (rc)
		return rc;
	for (int i = 0; i < visible && rc != DTP_FAILED; i++) {
		struct dtp_gpu gpu;
		rc = look_at(i, &gpu, &why);
		if (!rc && *n < max)
			gpus[*n] = gpu;
		*n += !rc;
	}
	if (*n && rc != DTP_FAILED)
		return DTP_OK;
	return dtp_fail(err, rc, "no GPU can be used: %s", why.message);
}

static enum dtp_code take_device(int device, struct dtp_err *err)
{
	struct dtp_gpu gpu;
	int n;
	enum dtp_code rc = count(&n, err);

	if (!rc && (device < 0 || device >= n))
		return dtp_fail(err, DTP_REFUSED, "there is no GPU %d: %d %s visible, numbered from 0", device, n, n == 1 ? "is" : "are");
	if (!rc)
		rc = look_at(device, &gpu, err);
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
		rc = dtp_cuda_take(cu, DTP_CUDA_PRODUCT_WORKSPACE, &cu->workspace, err);
	if (!rc)
		rc = dtp_cuda_take(cu, DTP_CUDA_PANEL, &cu->panel, err);
	return rc ? rc : dtp_lt_open(cu->workspace, &cu->lt, err);
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
	cu->base.panel_bytes = DTP_CUDA_PANEL;
	cu->base.writers = WRITERS;
	cu->base.async = true;
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
