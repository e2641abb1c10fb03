/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"

#include <stdlib.h>
#include <string.h>

/* The request points at what is read, or is going to be. */
static void point(const struct dtp_args *args, struct dtp_inputs *in, struct dtp_request *request)
{
	request->images = in->picture;
	request->nimages = args->images.n;
	request->noise = args->latents ? &in->noise : NULL;
}

enum dtp_code dtp_inputs_read(const struct dtp_args *args, struct dtp_inputs *in, struct dtp_request *request, struct dtp_err *err)
{
	point(args, in, request);
	for (int i = 0; i < args->images.n; i++)
		if (dtp_reference_read(args->images.item[i], &in->picture[i], err))
			return err->code;
	return args->latents ? dtp_latents_read(args->latents, &in->noise, err) : DTP_OK;
}

/* Memory for n bytes in *p on the ranks that have none, then rank 0's bytes. */
static enum dtp_code share(struct dtp_comm *world, void **p, int64_t n, struct dtp_err *err)
{
	if (!*p && !(*p = malloc((size_t)n)))
		return dtp_fail(err, DTP_FAILED, "out of memory for %lld bytes of an input file", (long long)n);
	return dtp_broadcast(world, *p, n, 0, err);
}

static enum dtp_code share_picture(struct dtp_comm *world, struct dtp_picture *p, struct dtp_err *err)
{
	int64_t size[2] = {p->height, p->width};
	void *rgb = p->rgb;

	if (dtp_broadcast(world, size, sizeof size, 0, err))
		return err->code;
	p->height = size[0];
	p->width = size[1];
	enum dtp_code rc = share(world, &rgb, 3 * size[0] * size[1], err);
	p->rgb = rgb;
	return rc;
}

static enum dtp_code share_noise(struct dtp_comm *world, const char *path, struct dtp_latents *l, struct dtp_err *err)
{
	void *values = l->values;
	int64_t n, head[DTP_MAX_DIMS + 2] = {l->dtype, l->ndim};

	memcpy(head + 2, l->shape, sizeof l->shape);
	if (dtp_broadcast(world, head, sizeof head, 0, err))
		return err->code;
	l->dtype = (enum dtp_dtype)head[0];
	l->ndim = (int)head[1];
	memcpy(l->shape, head + 2, sizeof l->shape);
	n = sizeof *l->values;
	for (int i = 0; i < l->ndim; i++)
		n *= l->shape[i];
	enum dtp_code rc = share(world, &values, n, err);
	l->values = values;
	if (!rc && !l->path && !(l->path = strdup(path)))
		rc = dtp_fail(err, DTP_FAILED, "out of memory");
	return rc;
}

enum dtp_code dtp_inputs_share(const struct dtp_args *args, struct dtp_comm *world, bool encodes, struct dtp_inputs *in,
			       struct dtp_request *request, struct dtp_err *err)
{
	point(args, in, request);
	if (world->rank == 0 && dtp_inputs_read(args, in, request, err))
		return err->code;
	for (int i = 0; i < args->images.n; i++) {
		if (share_picture(world, &in->picture[i], err))
			return err->code;
		if (!encodes) {
			free(in->picture[i].rgb);
			in->picture[i].rgb = NULL;
		}
	}
	return args->latents ? share_noise(world, args->latents, &in->noise, err) : DTP_OK;
}

void dtp_inputs_free(struct dtp_inputs *in)
{
	for (int i = 0; i < DTP_MAX_REFERENCES; i++)
		dtp_picture_free(&in->picture[i]);
	dtp_latents_free(&in->noise);
}
