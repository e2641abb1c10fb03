/* SPDX-License-Identifier: Apache-2.0 */
#include "dump.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static struct dtp_dump_entry *slot(struct dtp_dump *d, const char *name)
{
	for (int i = 0; i < d->n; i++)
		if (!strcmp(d->entries[i].name, name)) {
			free(d->entries[i].tensor.data);
			return &d->entries[i];
		}
	if (d->n == d->cap) {
		int cap = d->cap ? 2 * d->cap : 64;
		struct dtp_dump_entry *e = realloc(d->entries, (size_t)cap * sizeof *e);
		if (!e)
			return NULL;
		d->entries = e;
		d->cap = cap;
	}
	struct dtp_dump_entry *e = &d->entries[d->n];
	e->name = strdup(name);
	if (!e->name)
		return NULL;
	d->n++;
	return e;
}

void *dtp_dump_add(struct dtp_dump *d, const char *name, uint64_t depth, enum dtp_dtype t, int ndim, const int64_t *shape)
{
	struct dtp_dump_entry *e = slot(d, name);
	if (!e)
		return NULL;
	e->tensor = dtp_tensor_make(NULL, t, ndim, shape);
	e->depth = depth;
	size_t bytes = (size_t)dtp_numel(&e->tensor) * dtp_dtype_size(t);
	return e->tensor.data = calloc(1, bytes ? bytes : 1);
}

void dtp_dump_free(struct dtp_dump *d)
{
	for (int i = 0; i < d->n; i++) {
		free(d->entries[i].name);
		free(d->entries[i].tensor.data);
	}
	free(d->entries);
	memset(d, 0, sizeof *d);
}

enum dtp_code dtp_dump_write(const struct dtp_dump *d, const char *path, struct dtp_outkeep *keep, const char *const (*metadata)[2],
			     int nmeta, struct dtp_err *err)
{
	struct dtp_st_out *out = calloc((size_t)d->n + 1, sizeof *out);
	if (!out)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d recorded stages", d->n);
	for (int i = 0; i < d->n; i++) {
		if (!d->entries[i].tensor.data) {
			free(out);
			return dtp_fail(err, DTP_FAILED, "out of memory for recorded stage '%s'", d->entries[i].name);
		}
		out[i] = (struct dtp_st_out){d->entries[i].name, d->entries[i].tensor};
	}
	enum dtp_code rc = dtp_st_write(path, keep, out, d->n, metadata, nmeta, err);
	free(out);
	return rc;
}
