/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that `difftp inspect` found: by inspect_find.c, told by inspect.c. */
#ifndef DTP_INSPECT_H
#define DTP_INSPECT_H

#include "safetensors.h"

/* One safetensors file, or the files of one index. */
struct dtp_checkpoint {
	char *path;           /* of the file, or of the index */
	struct dtp_st st;     /* open if err.code is DTP_OK */
	struct dtp_err err;   /* why it is not */
};
struct dtp_checkpoints {
	struct dtp_checkpoint *item;
	int n;
};

/* A file is one checkpoint; a folder is searched with the folders in it, names in order; shards belong to their index.  What
 * is damaged is in the list all the same.  DTP_REFUSED when there is no such path, or nothing to open. */
enum dtp_code dtp_checkpoints_find(const char *path, struct dtp_checkpoints *out, struct dtp_err *err);
void dtp_checkpoints_free(struct dtp_checkpoints *c);
#endif
