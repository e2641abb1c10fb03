/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of cuDNN that are used, and its errors. */
#ifndef DTP_CUDA_DNN_API_H
#define DTP_CUDA_DNN_API_H

#include <cudnn.h>

#include "cuda.h"

#define DTP_CUDNN_FUNCTIONS(X) \
	X(cudnnGetVersion) X(cudnnGetErrorString) X(cudnnGetLastErrorString) X(cudnnCreate) X(cudnnDestroy) X(cudnnSetStream) \
	X(cudnnBackendCreateDescriptor) X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) \
	X(cudnnBackendFinalize) X(cudnnBackendExecute)

/* Each pointer has its function's name: api->cudnnCreate(&handle). */
struct dtp_cudnn {
#define POINTER(name) __typeof__(name) *name;
	DTP_CUDNN_FUNCTIONS(POINTER)
#undef POINTER
};

/* Opens the library.  DTP_REFUSED: it is missing or older than what is needed. */
enum dtp_code dtp_cudnn_load(struct dtp_cudnn *api, struct dtp_err *err);

/* "call: what cuDNN says (NAME, number), file:line" in buf, which is returned; of call what stands before its arguments. */
const char *dtp_cudnn_text(const struct dtp_cudnn *api, cudnnStatus_t s, const char *call, const char *file, int line, char *buf, size_t size);
/* DTP_OK for success, else DTP_FAILED with that text. */
#define DTP_CUDNN(api, call, err) dtp_cudnn_status(api, (api)->call, #call, __FILE__, __LINE__, err)
enum dtp_code dtp_cudnn_status(const struct dtp_cudnn *api, cudnnStatus_t s, const char *call, const char *file, int line, struct dtp_err *err);

/* ---- descriptors.  A build makes them, sets them and ends them all together.  After the first call that fails the others do
 * nothing, so that only the end needs a look at it. */
struct dtp_dnn_build {
	const struct dtp_cudnn *api;
	cudnnBackendDescriptor_t made[160];
	int n;
	cudnnStatus_t status; /* of the first call that failed */
	char said[600];       /* its text */
};

void dtp_dnn_begin(struct dtp_dnn_build *b, const struct dtp_cudnn *api);
/* NULL after a failure. */
cudnnBackendDescriptor_t dtp_dnn_make(struct dtp_dnn_build *b, cudnnBackendDescriptorType_t type);
void dtp_dnn_set(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		 cudnnBackendAttributeType_t type, int64_t n, const void *values);
void dtp_dnn_set_part(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		      cudnnBackendDescriptor_t part);
/* At most n values; returns how many there are, 0 after a failure.  Descriptors to be filled in must have been made. */
int64_t dtp_dnn_get(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		    cudnnBackendAttributeType_t type, int64_t n, void *values);
void dtp_dnn_finish(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d);
/* Text of any length, malloc'd, with a '\0' behind it; NULL after a failure. */
char *dtp_dnn_get_text(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, size_t *len);
/* d is the caller's from now on. */
void dtp_dnn_keep(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d);
/* Destroys what was made and not kept. */
void dtp_dnn_end(struct dtp_dnn_build *b);
#endif
