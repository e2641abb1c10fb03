/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share.  One process uses one GPU, through one backend and one stream: whatever the backend and
 * the communicator of its ranks do to device memory, they do on that stream, in the order of the calls. */
#ifndef DTP_CUDA_H
#define DTP_CUDA_H

#include <cuda_runtime_api.h>

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dtp_cuda_watch;

struct dtp_cuda {
	struct dtp_backend base;
	int device;               /* as CUDA numbers those that CUDA_VISIBLE_DEVICES leaves */
	cudaStream_t stream;
	struct dtp_lt *lt;        /* lt.h: matrix products */
	const struct dtp_cuda_watch *watch; /* comm_cuda.h: of a communicator whose work is on the stream; else NULL */
};

static inline struct dtp_cuda *dtp_cuda_of(struct dtp_backend *be)
{
	return (struct dtp_cuda *)be;
}

/* Waits for the backend's stream, and for other ranks with it.  Instead of cudaStreamSynchronize: that would wait for ever for a rank
 * that is gone. */
enum dtp_code dtp_cuda_wait(struct dtp_cuda *cuda, struct dtp_err *err);

/* ---- errors.  DTP_OK for cudaSuccess; else DTP_FAILED with "CALL: text (number), FILE:LINE" and what to do about it. */
#define DTP_CUDA(call, err) dtp_cuda_status(call, #call, __FILE__, __LINE__, err)
enum dtp_code dtp_cuda_status(cudaError_t e, const char *call, const char *file, int line, struct dtp_err *err);

/* ---- NVIDIA's libraries, opened when a function of theirs is first asked for, and kept.  They may be called by one thread at a time. */
enum dtp_cuda_library { DTP_LIB_CUBLASLT, DTP_LIB_CUDNN, DTP_LIB_NCCL, DTP_NLIBS };

/* NULL with why, which names the library. */
void *dtp_cuda_symbol(enum dtp_cuda_library lib, const char *name, char *why, size_t size);

struct dtp_symbol {
	const char *name;
	size_t offset; /* of the pointer to the function in the table */
};
/* Fills a table of pointers to functions; DTP_FAILED with what is missing and where it comes from. */
enum dtp_code dtp_cuda_table(enum dtp_cuda_library lib, const struct dtp_symbol *symbols, size_t n, void *table,
			     struct dtp_err *err);

#ifdef __cplusplus
}
#endif
#endif
