/* SPDX-License-Identifier: Apache-2.0 */
#include "embeds.h"

#include <string.h>

static const char *const names[] = {"prompt_embeds", "negative_prompt_embeds"};

static enum dtp_code check(const struct dtp_st *st, const struct dtp_st_entry *e, int64_t width, int64_t max_length,
			   struct dtp_err *err)
{
	const char *path = st->files[0].path;
	char shape[192];

	if (e->dtype != DTP_BF16 && e->dtype != DTP_F16 && e->dtype != DTP_F32)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the dtype %s; supported are BF16, F16 and F32", path, e->name,
				e->dtype_name);
	dtp_shape_text(shape, sizeof shape, e->ndim, e->shape);
	if (e->ndim != 3 || e->shape[0] != 1 || e->shape[1] < 1)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the shape %s, expected [1, tokens, %lld]", path, e->name, shape,
				(long long)width);
	if (e->shape[2] != width)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the width %lld, the transformer takes %lld: it was encoded for "
				"another model", path, e->name, (long long)e->shape[2], (long long)width);
	if (e->shape[1] > max_length)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has %lld tokens, at most %lld are taken", path, e->name,
				(long long)e->shape[1], (long long)max_length);
	return DTP_OK;
}

static enum dtp_code find(struct dtp_embeds *e, int64_t width, int64_t max_length, struct dtp_err *err)
{
	const char *path = e->st.files[0].path;

	for (int i = 0; i < 2; i++) {
		e->pass[i] = dtp_st_find(&e->st, names[i]);
		if (e->pass[i] && check(&e->st, e->pass[i], width, max_length, err))
			return err->code;
	}
	if (!e->pass[0])
		return dtp_fail(err, DTP_REFUSED, "'%s' lacks tensor '%s' of shape [1, tokens, %lld]", path, names[0], (long long)width);
	e->length = e->pass[0]->shape[1];
	if (e->pass[1] && e->pass[1]->shape[1] != e->length)
		return dtp_fail(err, DTP_REFUSED, "'%s': '%s' has %lld tokens, '%s' %lld: they must have as many", path, names[0],
				(long long)e->length, names[1], (long long)e->pass[1]->shape[1]);
	return DTP_OK;
}

enum dtp_code dtp_embeds_open(const char *path, int64_t width, int64_t max_length, struct dtp_embeds *e, struct dtp_err *err)
{
	*e = (struct dtp_embeds){0};
	if (dtp_st_open_file(path, &e->st, err))
		return err->code;
	enum dtp_code rc = find(e, width, max_length, err);
	if (rc)
		dtp_embeds_close(e);
	return rc;
}

void dtp_embeds_close(struct dtp_embeds *e)
{
	dtp_st_close(&e->st);
	*e = (struct dtp_embeds){0};
}

enum dtp_code dtp_embeds_write(const char *path, struct dtp_outkeep *keep, const char *class_name, const void *values,
			       enum dtp_dtype type, int npasses, int64_t length, int64_t width, struct dtp_err *err)
{
	const char *const metadata[][2] = {{"format", "pt"}, {"class", class_name}};
	int64_t shape[] = {npasses, length, width};
	struct dtp_tensor all = dtp_tensor_make((void *)(uintptr_t)values, type, 3, shape);
	struct dtp_st_out out[2];

	for (int i = 0; i < npasses; i++)
		out[i] = (struct dtp_st_out){names[i], dtp_narrow(all, 0, i, 1)};
	return dtp_st_write(path, keep, out, npasses, metadata, sizeof metadata / sizeof metadata[0], err);
}
