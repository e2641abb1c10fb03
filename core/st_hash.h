/* SPDX-License-Identifier: Apache-2.0 */
/* What tells one checkpoint from another in milliseconds. */
#ifndef DTP_ST_HASH_H
#define DTP_ST_HASH_H

#include "hash.h"
#include "safetensors.h"

/* Of each tensor so much is hashed: a fine-tune changes nearly all values of the tensors that it touches. */
#define DTP_ST_SAMPLE_BYTES 4096u

/* Adds the files' sizes and headers, and a sample of every tensor's data. */
enum dtp_code dtp_st_hash(const struct dtp_st *st, struct dtp_hash *h, struct dtp_err *err);
#endif
