/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's libraries are opened while running, so that a program that computes on a CPU starts at once and needs none of them.
 * This is the one place that does; the emulator has its own instead of it. */
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>

#define TEXT(x) #x
#define NUMBER(x) TEXT(x)
/* cuBLAS has the toolkit's major version; its binary interface changes with it. */
#if CUDART_VERSION >= 14000
#error "name cuBLAS's library of this toolkit"
#elif CUDART_VERSION >= 13000
#define CUBLAS_MAJOR 13
#else
#define CUBLAS_MAJOR 12
#endif

void *dtp_cuda_symbol(enum dtp_cuda_library lib, const char *name, char *why, size_t size)
{
	static const char *const files[DTP_NLIBS] = {
		[DTP_LIB_CUBLASLT] = "libcublasLt.so." NUMBER(CUBLAS_MAJOR),
		[DTP_LIB_CUDNN] = "libcudnn.so.9",
		[DTP_LIB_NCCL] = "libnccl.so.2",
	};
	/* A library that is open is only counted; it stays open until the process ends. */
	void *handle = dlopen(files[lib], RTLD_NOW | RTLD_LOCAL);
	void *p = handle ? dlsym(handle, name) : NULL;

	if (!p)
		snprintf(why, size, "%s", dlerror());
	return p;
}
