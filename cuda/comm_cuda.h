/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of ranks that compute on GPUs (comm.h of core/ has the interface).  What they move lies in the memory of this rank's
 * CUDA backend, and they move it on its stream: a call returns when the stream has been given its work, and what was moved is there
 * when dtp_cuda_wait has returned.
 *
 * control: the same ranks' communicator of host memory, by which they meet and which their barriers use; it stays the caller's and
 * must outlive *out.  Collective. */
#ifndef DTP_COMM_CUDA_H
#define DTP_COMM_CUDA_H

#include "comm.h"
#include "cuda.h"

/* Whether NCCL can be opened, without a look at a GPU: DTP_REFUSED if not. */
enum dtp_code dtp_nccl_library(struct dtp_err *err);
/* NCCL, for ranks of which each has a GPU of its own.  Everything that waits gives up when NCCL reports an error, when mon->stopped
 * turns true, after abort, and, while meeting, after timeout_s.  Other than through host memory, the order in which an element is
 * summed is NCCL's choice: the same on all ranks and in every run on the same machine, another for another one.  in_step: as
 * dtp_comm_cuda. */
enum dtp_code dtp_comm_nccl(struct dtp_comm *control, struct dtp_cuda *cuda, bool in_step, double timeout_s, struct dtp_comm **out,
			    struct dtp_err *err);
/* Through the host's memory and control, for ranks that share a GPU, which NCCL refuses.  Every call waits. */
enum dtp_code dtp_comm_staged(struct dtp_comm *control, struct dtp_cuda *cuda, struct dtp_comm **out, struct dtp_err *err);

/* What is asked while a stream is waited for: why it will never come to its end, or its results are not to be used. */
struct dtp_cuda_watch {
	void *arg;
	enum dtp_code (*check)(void *arg, struct dtp_err *err);
	void (*end)(void *arg); /* breaks off what is under way: another's check has failed */
	/* Whether all ranks say *yes; collective.  NCCL wants an operation to be recorded by all ranks or by none.  NULL: these ranks record
	 * nothing together. */
	enum dtp_code (*agree)(void *arg, bool *yes, struct dtp_err *err);
	const struct dtp_monitor *mon; /* `waiting` is called around every wait; the same in all of a list */
	struct dtp_cuda_watch *next;
};
/* Of all that watch: where one fails, all end, since the stream may wait for any of them. */
enum dtp_code dtp_cuda_check(const struct dtp_cuda *cuda, struct dtp_err *err);

/* Sleeps a little, more after the first of several calls: what is waited for is often a matter of microseconds. */
void dtp_cuda_nap(unsigned turn);
#endif
