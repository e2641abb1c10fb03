/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

static void hash_image(const struct dtp_picture *p, char out[DTP_DIGEST_TEXT])
{
	int64_t size[] = {p->height, p->width};
	struct dtp_digest d;
	struct dtp_hash h;

	dtp_hash_begin(&h);
	dtp_hash_add(&h, size, sizeof size);
	dtp_hash_add(&h, p->rgb, (size_t)(3 * size[0] * size[1]));
	dtp_hash_end(&h, &d);
	dtp_digest_text(&d, out);
}

static void hash_latents(const struct dtp_latents *l, char out[DTP_DIGEST_TEXT])
{
	size_t n = sizeof *l->values;
	struct dtp_digest d;
	struct dtp_hash h;

	dtp_hash_begin(&h);
	dtp_hash_add(&h, l->shape, (size_t)l->ndim * sizeof *l->shape);
	for (int i = 0; i < l->ndim; i++)
		n *= (size_t)l->shape[i];
	dtp_hash_add(&h, l->values, n);
	dtp_hash_end(&h, &d);
	dtp_digest_text(&d, out);
}

enum dtp_code dtp_sources_find(const struct dtp_pipeline *p, const struct dtp_request *request, struct dtp_sources *out,
			       struct dtp_err *err)
{
	*out = (struct dtp_sources){.nimages = request->nimages};
	if (dtp_pipeline_parts(p, out->part, err))
		return err->code;
	for (int i = 0; i < out->nimages; i++)
		hash_image(&request->images[i], out->image[i]);
	if (request->noise)
		hash_latents(request->noise, out->latents);
	return DTP_OK;
}

cJSON *dtp_sources_json(const struct dtp_sources *s)
{
	cJSON *o = cJSON_CreateObject(), *images;

	for (int i = 0; i < DTP_NPARTS; i++)
		if (s->part[i].present)
			cJSON_AddStringToObject(o, s->part[i].key, s->part[i].sha256);
	images = s->nimages ? cJSON_AddArrayToObject(o, "image") : NULL;
	for (int i = 0; i < s->nimages; i++)
		cJSON_AddItemToArray(images, cJSON_CreateString(s->image[i]));
	if (s->latents[0])
		cJSON_AddStringToObject(o, "latents", s->latents);
	return o;
}
