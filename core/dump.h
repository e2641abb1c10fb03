/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded stages: named tensors in host memory, written as one safetensors file at the end. */
#ifndef DTP_DUMP_H
#define DTP_DUMP_H

#include "err.h"
#include "file.h"
#include "tensor.h"

struct dtp_dump {
	struct dtp_dump_entry {
		char *name;
		struct dtp_tensor tensor; /* owns its data */
		uint64_t depth;           /* products and convolutions that were computed before it, in all */
	} *entries;
	int n, cap;
};

/* A dense tensor of the given shape and dtype under `name`, at a depth; the caller fills the returned data.  A second entry of a
 * name replaces the first.  NULL when out of memory. */
void *dtp_dump_add(struct dtp_dump *d, const char *name, uint64_t depth, enum dtp_dtype t, int ndim, const int64_t *shape);
void dtp_dump_free(struct dtp_dump *d);
enum dtp_code dtp_dump_write(const struct dtp_dump *d, const char *path, struct dtp_outkeep *keep, const char *const (*metadata)[2],
			     int nmeta, struct dtp_err *err);
#endif
