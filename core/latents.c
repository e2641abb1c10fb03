/* SPDX-License-Identifier: Apache-2.0 */
#include "latents.h"
#include "safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_code find(const struct dtp_st *st, const char *path, const struct dtp_st_entry **e, struct dtp_err *err)
{
	char shape[200];

	*e = dtp_st_find(st, "latents");
	if (!*e && st->nentries == 1)
		*e = &st->entries[0];
	if (!*e)
		return dtp_fail(err, DTP_REFUSED, "'%s' has %d tensors, none of them called 'latents'", path, st->nentries);
	if ((*e)->dtype != DTP_F32 && (*e)->dtype != DTP_BF16 && (*e)->dtype != DTP_F16)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' is %s, latents are F32, BF16 or F16", path, (*e)->name, (*e)->dtype_name);
	if ((*e)->ndim < 3 || (*e)->ndim > 4 || (*e)->shape[0] != 1 || !(*e)->nbytes)
		return dtp_fail(err, DTP_REFUSED,
				"'%s': tensor '%s' has the shape %s, expected the latents of one picture: [1, channels, rows, columns] "
				"or [1, tokens, channels]", path, (*e)->name, dtp_shape_text(shape, sizeof shape, (*e)->ndim, (*e)->shape));
	return DTP_OK;
}

/* A whole number of pixels, 0 if it is none. */
static int64_t pixels(const struct dtp_st *st, const char *key)
{
	char *text = dtp_st_metadata(st, key), *end;
	int64_t v = 0;

	if (text && *text && strspn(text, "0123456789") == strlen(text)) {
		errno = 0;
		v = strtoll(text, &end, 10);
		v = errno ? 0 : v;
	}
	free(text);
	return v;
}

static enum dtp_code read_values(const struct dtp_st *st, const struct dtp_st_entry *e, struct dtp_latents *l, struct dtp_err *err)
{
	size_t n = (size_t)(e->nbytes / dtp_dtype_size(e->dtype));
	void *raw = malloc(e->nbytes);

	l->values = malloc(n * sizeof *l->values);
	enum dtp_code rc = raw && l->values ? dtp_st_read(st, e, 0, e->nbytes, raw, err)
		: dtp_fail(err, DTP_FAILED, "out of memory for the %zu values of '%s'", n, l->path);
	if (!rc)
		dtp_to_f32(l->values, raw, e->dtype, n);
	for (size_t i = 0; i < n && !rc; i++)
		if (!isfinite(l->values[i]))
			rc = dtp_fail(err, DTP_REFUSED, "'%s': value %zu of tensor '%s' is not finite", l->path, i, e->name);
	free(raw);
	return rc;
}

enum dtp_code dtp_latents_read(const char *path, struct dtp_latents *l, struct dtp_err *err)
{
	const struct dtp_st_entry *e;
	struct dtp_st st;

	*l = (struct dtp_latents){0};
	enum dtp_code rc = dtp_st_open_file(path, &st, err);
	if (rc)
		return rc;
	rc = find(&st, path, &e, err);
	if (!rc && !(l->path = strdup(path)))
		rc = dtp_fail(err, DTP_FAILED, "out of memory");
	if (!rc) {
		l->dtype = e->dtype;
		l->ndim = e->ndim;
		memcpy(l->shape, e->shape, (size_t)e->ndim * sizeof *l->shape);
		l->height = pixels(&st, "height");
		l->width = pixels(&st, "width");
		rc = read_values(&st, e, l, err);
	}
	dtp_st_close(&st);
	if (rc)
		dtp_latents_free(l);
	return rc;
}

void dtp_latents_free(struct dtp_latents *l)
{
	free(l->path);
	free(l->values);
	*l = (struct dtp_latents){0};
}
