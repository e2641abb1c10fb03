/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a pipeline folder's weights once and for all, and putting them together again. */
#ifndef DTP_SHARD_H
#define DTP_SHARD_H

#include "pipeline.h"

/* Writes the folder `out` (shards.h) from a pipeline that is open with the plan and the degree wanted.  Each file of the checkpoint
 * is read once, from its beginning to its end, in bounded memory; progress is in bytes of them.  The folder appears complete or not at
 * all. */
enum dtp_code dtp_shard(struct dtp_pipeline *p, const char *out, const struct dtp_monitor *mon, struct dtp_err *err);

/* Writes the folder `out` with the files that p's folder was made from, byte for byte.  DTP_FAILED names the file whose SHA-256 is
 * not the manifest's, or the tensor whose parts overlap and differ. */
enum dtp_code dtp_unshard(struct dtp_pipeline *p, const char *out, const struct dtp_monitor *mon, struct dtp_err *err);
/* Chunks of fewer bytes are dealt with by one thread: waking others takes longer. */
#define DTP_SHARD_PARALLEL (1u << 20)

/* What both copy as it is: configurations, scheduler, tokenizer, VAE; and their bytes. */
enum dtp_code dtp_shards_copy_others(const struct dtp_pipeline *p, const char *dir, struct dtp_err *err);
uint64_t dtp_shards_others_bytes(const struct dtp_pipeline *p);
#endif
