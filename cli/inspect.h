/* SPDX-License-Identifier: Apache-2.0 */
/* What `difftp inspect` looks at: checkpoints, found by inspect_find.c and told by inspect.c; pictures, by inspect_png.c. */
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

bool dtp_is_png(const char *path); /* by its first bytes */
/* Prints the record in a PNG, as text or as one JSON object.  DTP_REFUSED: it has none. */
enum dtp_code dtp_inspect_png(const char *path, bool json, struct dtp_err *err);
#endif
