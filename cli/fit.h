/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a job fits into this machine's memory, said before anything is loaded. */
#ifndef DTP_FIT_H
#define DTP_FIT_H

#include "host.h"
#include "pipeline.h"

/* What one rank takes besides what the pipeline predicts: the program, its libraries, compiled kernels. */
#define DTP_RANK_BASE_BYTES (UINT64_C(64) << 20)

struct dtp_fit {
	uint64_t total;                /* of all ranks, each at its own peak */
	uint64_t largest;              /* of the rank that needs most */
	struct dtp_phase_memory phase; /* that rank's phase at its peak */
};

/* Predicts from the checkpoint's headers; reads no weights. */
enum dtp_code dtp_fit_predict(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			      struct dtp_fit *fit, struct dtp_err *err);
/* DTP_REFUSED with all the numbers, and with what would fit instead, when memory->available is less than is needed. */
enum dtp_code dtp_fit_check(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			    const struct dtp_host_memory *memory, struct dtp_err *err);
#endif
