/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a job fits into the memory that it may take, said before anything is loaded. */
#ifndef DTP_FIT_H
#define DTP_FIT_H

#include "host.h"
#include "sizes.h"
#include "pipeline.h"

#define DTP_NCCL_BYTES (UINT64_C(256) << 20) /* of a GPU, for the buffers of a communicator */
/* What one of `ranks` that sum with each other takes besides what the pipeline predicts: the program, its libraries, compiled kernels; on a
 * GPU the driver's context with the libraries' kernels, and NCCL's buffers.  Allowances: nothing says them beforehand. */
static inline uint64_t dtp_rank_base_bytes(enum dtp_device device, int ranks)
{
	if (device == DTP_DEVICE_CPU)
		return UINT64_C(64) << 20;
	return (UINT64_C(640) << 20) + (ranks > 1 ? DTP_NCCL_BYTES : 0);
}

#define DTP_MAX_DEGREE_TRIED 64 /* where a search for a degree that fits ends */

struct dtp_fit {
	uint64_t total;                /* of all ranks of a replica, each at its own peak */
	uint64_t largest;              /* of the rank that needs most */
	struct dtp_phase_memory phase; /* that rank's phase at its peak */
	uint64_t rank[DTP_MAX_RANKS];  /* peak of each */
	int degree;                    /* how many of them */
};

/* What a job may take.  Members that are NULL bound nothing. */
struct dtp_bound {
	int replicas;                        /* that the job has of all its ranks; 0: 1 */
	const struct dtp_host_memory *host;  /* all ranks of this host together: */
	const int *here;                     /* which these are, of all replicas; NULL: all */
	int nhere;
	const struct dtp_limits *device, *limit; /* each rank: --devices, --max-memory */
};
uint64_t dtp_bound_rank(const struct dtp_bound *b, int rank); /* UINT64_MAX: none; of all ranks of all replicas */

uint64_t dtp_phase_bytes(const struct dtp_phase_memory *m); /* without dtp_rank_base_bytes */

/* Predicts from the checkpoint's headers; reads no weights. */
enum dtp_code dtp_fit_predict(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			      struct dtp_fit *fit, struct dtp_err *err);
bool dtp_fits(const struct dtp_fit *fit, int degree, const struct dtp_bound *b);
/* The first of n bounds that is broken; NULL: none is. */
const struct dtp_bound *dtp_fit_over(const struct dtp_fit *fit, const struct dtp_bound *bounds, int n);
/* What is needed and what may be had where n bounds leave least; have UINT64_MAX: nothing bounds. */
struct dtp_room {
	uint64_t need, have;
};
struct dtp_room dtp_fit_room(const struct dtp_fit *fit, const struct dtp_bound *bounds, int n);
/* Of two passes a step (dtp_pipeline_passes): both at once where that fits n bounds, else one after the other.  Sets
 * r->passes_in_turn. */
enum dtp_code dtp_fit_passes(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_request *r,
			     const struct dtp_bound *bounds, int n, struct dtp_err *err);
/* The smallest degree from `least` to `most` at which the job fits; 0: none.  fit: of that degree.  The pipeline gets its
 * degree, o->tp_degree, back. */
int dtp_fit_smallest(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
		     const struct dtp_bound *b, int least, int most, struct dtp_fit *fit);

/* Whether the whole model that verify computes beside ranks on GPUs fits into the memory of rank 0's host. */
enum dtp_code dtp_fit_check_whole(struct dtp_pipeline *p, const struct dtp_request *r, const struct dtp_host_memory *host,
				  struct dtp_err *err);
/* The job was out of memory where it ran, so that the bound is what it could have had: appends to the message what would fit, unless the
 * prediction says that the job does. */
void dtp_fit_advise(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r, const struct dtp_bound *b,
		    struct dtp_err *err);
/* DTP_REFUSED with all the numbers, and with what would fit instead, when a bound is broken. */
enum dtp_code dtp_fit_check(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			    const struct dtp_bound *b, struct dtp_err *err);
#endif
