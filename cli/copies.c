/* SPDX-License-Identifier: Apache-2.0 */
#include "copies.h"

#include "fit.h"
#include "worker.h"

#include <stdio.h>

/* The lines of a batch come to each replica in its own time, if any do; and verify runs as it likes. */
static bool load_together(const struct dtp_rank *r)
{
	const struct dtp_args *args = r->args;

	return r->options.device == DTP_DEVICE_CUDA && !r->seated.shared && r->mesh.dim[DTP_MESH_DP]->size > 1 && !args->prompts &&
	       !args->synthetic && args->command != DTP_CMD_VERIFY && r->spare >= DTP_NCCL_BYTES;
}

/* The first replica on this rank's host; one that draws nothing loads nothing, and is by itself. */
static int first_here(const struct dtp_rank *r)
{
	const struct dtp_comm *dp = r->mesh.dim[DTP_MESH_DP];
	int tp = r->mesh.dim[DTP_MESH_TP]->size, first = 0;

	if (dp->rank >= r->request.num_images)
		return dp->rank;
	while (!dtp_worker_shares_host(r->worker, r->rank + (first - dp->rank) * tp))
		first++;
	return first;
}

/* Replicas of one rank do without NCCL otherwise: where it is missing they read for themselves. */
static enum dtp_code have_library(const struct dtp_rank *r, bool *all, struct dtp_err *err)
{
	const struct dtp_cuda_needs needs = {.sums = true};
	struct dtp_err why = DTP_ERR_INIT;
	int32_t lacking = dtp_cuda_libraries(&needs, &why) != DTP_OK;
	char text[sizeof why.message + 80];

	if (lacking && r->neighbours->rank == 0) {
		snprintf(text, sizeof text, "each replica reads all of its weights by itself: %s", why.message);
		r->mon->note(r->mon->arg, text);
	}
	enum dtp_code code = dtp_all_reduce(r->neighbours, &lacking, 1, DTP_I32, err);
	*all = !lacking;
	return code;
}

enum dtp_code dtp_copies_join(struct dtp_rank *r, double patience, struct dtp_err *err)
{
	struct dtp_comm *dp = r->mesh.dim[DTP_MESH_DP];
	bool all;

	if (!load_together(r))
		return DTP_OK;
	if (dp->ops->split(dp, first_here(r), dp->rank, &r->neighbours, err))
		return err->code;
	if (r->neighbours->size == 1)
		return DTP_OK;
	if (have_library(r, &all, err))
		return err->code;
	return all ? dtp_comm_cuda(r->neighbours, r->backend, false, false, patience, &r->mesh.copies, err) : DTP_OK;
}
