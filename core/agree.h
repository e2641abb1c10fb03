/* SPDX-License-Identifier: Apache-2.0 */
/* Whether all ranks have the same model before them. */
#ifndef DTP_AGREE_H
#define DTP_AGREE_H

#include "comm.h"
#include "hash.h"
#include "pipeline.h"

/* Collective over `world`, before any weight is loaded: compares plans, configurations and, per component, the headers of the
 * checkpoint's files and a sample of the data of every tensor.  DTP_FAILED on all ranks if any rank differs: on those that
 * differ from most (from rank 0 where neither are most) with a message that names what, its file and both checksums; on the
 * others with err->secondary set. */
enum dtp_code dtp_pipeline_agree(const struct dtp_pipeline *p, struct dtp_comm *world, struct dtp_err *err);
/* One checksum of all that is compared: tells a model with its plan from another. */
enum dtp_code dtp_pipeline_digest(const struct dtp_pipeline *p, struct dtp_digest *out, struct dtp_err *err);
#endif
