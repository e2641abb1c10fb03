/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to know of the GPU that a program would use first, as JSON: tool_gpu [MB]
 * Names, sizes and versions; its properties as cuDNN describes devices, with which plans can be made where there is no GPU
 * (properties.c); and how fast it copies MB (1024) within its memory, and a quarter of that to and from the host's. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cuda/cuda.h"
#include "../../cuda/dnn.h"
#include "json.h"

#define ROUNDS 5 /* of which the best counts */
#define COPIES 4 /* in each */

#define OK(call) ok(call, #call)
static void ok(cudaError_t e, const char *call)
{
	if (e) {
		fprintf(stderr, "tool_gpu: %s: %s\n", call, cudaGetErrorString(e));
		exit(1);
	}
}

static void die(const struct dtp_err *err)
{
	fprintf(stderr, "tool_gpu: %s\n", err->message);
	exit(1);
}

static void number(cJSON *o, const char *name, double value)
{
	cJSON_AddNumberToObject(o, name, value);
}

static void add_device(cJSON *o)
{
	struct cudaDeviceProp p;
	int count, driver, runtime;

	OK(cudaGetDeviceCount(&count));
	OK(cudaGetDeviceProperties(&p, 0));
	OK(cudaDriverGetVersion(&driver));
	OK(cudaRuntimeGetVersion(&runtime));
	cJSON_AddStringToObject(o, "name", p.name);
	number(o, "gpus", count);
	number(o, "compute_capability", p.major * 10 + p.minor);
	number(o, "memory_bytes", (double)p.totalGlobalMem);
	number(o, "multiprocessors", p.multiProcessorCount);
	number(o, "l2_bytes", p.l2CacheSize);
	number(o, "memory_bus_bits", p.memoryBusWidth);
	number(o, "shared_bytes_per_multiprocessor", (double)p.sharedMemPerMultiprocessor);
	number(o, "shared_bytes_per_block_optin", (double)p.sharedMemPerBlockOptin);
	number(o, "registers_per_multiprocessor", p.regsPerMultiprocessor);
	number(o, "threads_per_multiprocessor", p.maxThreadsPerMultiProcessor);
	cJSON_AddBoolToObject(o, "ecc", p.ECCEnabled);
	number(o, "driver_cuda", driver);
	number(o, "runtime_cuda", runtime);
}

/* The version by a library's own function; null where the library is not here. */
static void *version_function(enum dtp_cuda_library lib, const char *name, cJSON *o, const char *key)
{
	char why[512];
	void *f = dtp_cuda_symbol(lib, name, why, sizeof why);

	if (!f)
		cJSON_AddNullToObject(o, key);
	return f;
}

static void add_libraries(cJSON *o)
{
	size_t (*cublaslt)(void);
	int (*nccl)(int *);
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_dnn *dnn;
	int version = 0;

	cublaslt = (size_t (*)(void))version_function(DTP_LIB_CUBLASLT, "cublasLtGetVersion", o, "cublaslt");
	if (cublaslt)
		number(o, "cublaslt", (double)cublaslt());
	nccl = (int (*)(int *))version_function(DTP_LIB_NCCL, "ncclGetVersion", o, "nccl");
	if (nccl && !nccl(&version))
		number(o, "nccl", version);
	if (dtp_dnn_open(NULL, NULL, &dtp_monitor_none, &dnn, &err))
		die(&err);
	cJSON_AddStringToObject(o, "cudnn", dtp_dnn_version(dnn));
	cJSON *properties = cJSON_CreateRaw(dtp_dnn_properties(dnn));
	cJSON_AddItemToObject(o, "cudnn_properties", properties);
	dtp_dnn_close(dnn);
}

/* Bytes a second of copies of size bytes, each byte counted as often as `moves` says. */
static double rate(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, int moves)
{
	cudaEvent_t begin, end;
	float best = 0, ms;

	OK(cudaEventCreate(&begin));
	OK(cudaEventCreate(&end));
	OK(cudaMemcpyAsync(dst, src, size, kind, NULL));
	for (int r = 0; r < ROUNDS; r++) {
		OK(cudaEventRecord(begin, NULL));
		for (int i = 0; i < COPIES; i++)
			OK(cudaMemcpyAsync(dst, src, size, kind, NULL));
		OK(cudaEventRecord(end, NULL));
		OK(cudaEventSynchronize(end));
		OK(cudaEventElapsedTime(&ms, begin, end));
		best = !r || ms < best ? ms : best;
	}
	OK(cudaEventDestroy(begin));
	OK(cudaEventDestroy(end));
	return best > 0 ? (double)moves * COPIES * (double)size / ((double)best / 1000) : 0;
}

static void add_rates(cJSON *o, size_t size)
{
	void *a, *b, *host;

	OK(cudaMalloc(&a, size));
	OK(cudaMalloc(&b, size));
	OK(cudaHostAlloc(&host, size / 4, cudaHostAllocDefault));
	memset(host, 1, size / 4);
	OK(cudaMemset(a, 1, size));
	number(o, "copy_bytes_per_second", rate(b, a, size, cudaMemcpyDeviceToDevice, 2)); /* read, and written */
	number(o, "to_device_bytes_per_second", rate(a, host, size / 4, cudaMemcpyHostToDevice, 1));
	number(o, "to_host_bytes_per_second", rate(host, a, size / 4, cudaMemcpyDeviceToHost, 1));
	OK(cudaFreeHost(host));
	OK(cudaFree(a));
	OK(cudaFree(b));
}

int main(int argc, char **argv)
{
	size_t mb = argc > 1 ? strtoul(argv[1], NULL, 10) : 1024;
	cJSON *o = cJSON_CreateObject();
	char *text;

	if (!mb || mb > 1 << 20) {
		fprintf(stderr, "usage: tool_gpu [MB]\n");
		return 2;
	}
	add_device(o);
	add_libraries(o);
	add_rates(o, mb << 20);
	text = cJSON_Print(o);
	puts(text);
	cJSON_free(text);
	cJSON_Delete(o);
	return 0;
}
