/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas that have the same weights on GPUs of one host: each reads a part of them, and sends it to the others. */
#ifndef DTP_COPIES_H
#define DTP_COPIES_H

#include "job.h"

/* Makes r->mesh.copies, and r->neighbours that it works by, where replicas surely load together and there is room for what NCCL takes
 * for it.  Elsewhere each reads for itself, and *copies stays NULL.  Collective over all ranks; both are freed by the caller. */
enum dtp_code dtp_copies_join(struct dtp_rank *r, double patience, struct dtp_err *err);
#endif
