/* SPDX-License-Identifier: Apache-2.0 */
/* Finished plans in a folder, one file each.  Files appear whole or not at all; one that is damaged, or of something else,
 * counts as not there and is written anew.  They may be deleted at any time, and several processes may share a folder. */
#ifndef DTP_CUDA_DNN_CACHE_H
#define DTP_CUDA_DNN_CACHE_H

#include <stddef.h>

#include "err.h"
#include "hash.h"

struct dtp_dnn_cache {
	char *dir;                   /* NULL: nothing is found, nothing is kept */
	struct dtp_digest made_for;  /* of all that a plan depends on but its shape */
};

/* name: the shape in words, one line.  NULL: no such plan; else malloc'd, with a '\0' behind it. */
char *dtp_dnn_cache_read(const struct dtp_dnn_cache *c, const char *name, size_t *len);
/* DTP_FAILED: it could not be written; no harm but that the next run plans again. */
enum dtp_code dtp_dnn_cache_write(const struct dtp_dnn_cache *c, const char *name, const char *text, size_t len, struct dtp_err *err);
#endif
