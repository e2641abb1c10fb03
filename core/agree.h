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

/* What is compared, part by part: tells a model with its plan from another. */
#define DTP_NPARTS 7
struct dtp_part {
	const char *key;              /* "plan", "configuration", "prompt_embeds", "lora", "text_encoder", "transformer", "vae" */
	bool present;                 /* the pipeline has one */
	char sha256[DTP_DIGEST_TEXT];
};
enum dtp_code dtp_pipeline_parts(const struct dtp_pipeline *p, struct dtp_part out[DTP_NPARTS], struct dtp_err *err);
#endif
