/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a stream that may wait for other ranks. */
#include "comm_cuda.h"

#include <time.h>

#define TURNS 200  /* without sleep: a query takes about a microsecond */
#define NAP_US 50

void dtp_cuda_nap(unsigned turn)
{
	const struct timespec nap = {0, NAP_US * 1000L};

	if (turn >= TURNS)
		nanosleep(&nap, NULL);
}

enum dtp_code dtp_cuda_check(const struct dtp_cuda *cuda, struct dtp_err *err)
{
	enum dtp_code code = DTP_OK;

	for (const struct dtp_cuda_watch *w = cuda->watch; w && !code; w = w->next)
		code = w->check(w->arg, err);
	for (const struct dtp_cuda_watch *w = cuda->watch; w && code; w = w->next)
		if (w->end)
			w->end(w->arg);
	return code;
}

static enum dtp_code watched(struct dtp_cuda *cuda, struct dtp_err *err)
{
	for (unsigned turn = 0;; turn++) {
		cudaError_t e = cudaStreamQuery(cuda->stream);
		enum dtp_code code = dtp_cuda_check(cuda, err); /* first: what NCCL says is nearer to the cause */
		if (code)
			return code;
		if (e != cudaErrorNotReady)
			return dtp_cuda_status(e, "cudaStreamQuery", __FILE__, __LINE__, err);
		dtp_cuda_nap(turn);
	}
}

enum dtp_code dtp_cuda_wait(struct dtp_cuda *cuda, struct dtp_err *err)
{
	const struct dtp_cuda_watch *w = cuda->watch;
	enum dtp_code code = dtp_cuda_not_recorded(cuda, "a wait for the GPU", err);

	if (code)
		return code;
	if (!w)
		return DTP_CUDA(cudaStreamSynchronize(cuda->stream), err);
	w->mon->waiting(w->mon->arg, true);
	code = watched(cuda, err);
	w->mon->waiting(w->mon->arg, false);
	return code;
}
