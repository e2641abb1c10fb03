/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the CUDA backend, where the program is built without it. */
#include "backend.h"
#include "comm.h"

struct dtp_cuda_built dtp_cuda_built(void)
{
	return (struct dtp_cuda_built){0};
}

enum dtp_code dtp_cuda_gpus(struct dtp_gpu *gpus, int max, int *n, struct dtp_err *err)
{
	(void)gpus, (void)max;
	*n = 0;
	return dtp_fail(err, DTP_REFUSED, "this difftp was built without CUDA: no nvcc was found (make NVCC=PATH, see docs/running.md)");
}

enum dtp_code dtp_cuda_libraries(const struct dtp_cuda_needs *needs, struct dtp_err *err)
{
	int n;

	(void)needs;
	return dtp_cuda_gpus(NULL, 0, &n, err);
}

enum dtp_code dtp_backend_cuda(enum dtp_dtype compute, const struct dtp_cuda_options *options, struct dtp_backend **out,
			       struct dtp_err *err)
{
	int n;

	(void)compute, (void)options;
	*out = NULL;
	return dtp_cuda_gpus(NULL, 0, &n, err);
}

enum dtp_code dtp_comm_cuda(struct dtp_comm *control, struct dtp_backend *backend, bool shared, bool in_step, double timeout_s,
			    struct dtp_comm **out, struct dtp_err *err)
{
	int n;

	(void)control, (void)backend, (void)shared, (void)in_step, (void)timeout_s;
	*out = NULL;
	return dtp_cuda_gpus(NULL, 0, &n, err);
}
