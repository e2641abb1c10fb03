/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "naming.h"
#include "recipe.h"
#include "request.h"
#include "safetensors.h"
#include "worker.h"

#include <inttypes.h>
#include <stdlib.h>

static enum dtp_code write_png(const struct dtp_drawn *d, const char *path, struct dtp_outkeep *keep, const struct dtp_image *image, struct dtp_err *err)
{
	struct dtp_recipe_texts texts;

	if (dtp_recipe_texts_make(d->rank, d->args, d->request, image->seed, 0, &texts, err))
		return err->code;
	enum dtp_code code = dtp_png_write(path, keep, image->rgb, image->height, image->width, texts.text, texts.n, err);
	dtp_recipe_texts_free(&texts);
	return code;
}

static enum dtp_code write_latents(const char *path, struct dtp_outkeep *keep, const struct dtp_rank *r, const struct dtp_image *image,
				   struct dtp_err *err)
{
	char height[24], width[24], seed[24];
	/* The seed is last: noise that was given has none. */
	const char *const metadata[][2] = {{"format", "pt"}, {"class", dtp_pipeline_class(r->pipeline)},
		{"height", height}, {"width", width}, {"seed", seed}};
	int nmeta = (int)(sizeof metadata / sizeof metadata[0]) - (r->request.noise != NULL);
	struct dtp_st_out out = {"latents", dtp_tensor_make((void *)(uintptr_t)image->latents, image->latents_dtype,
							    image->latents_ndim, image->latents_shape)};

	snprintf(height, sizeof height, "%" PRId64, image->height);
	snprintf(width, sizeof width, "%" PRId64, image->width);
	snprintf(seed, sizeof seed, "%" PRIu64, image->seed);
	return dtp_st_write(path, keep, &out, 1, metadata, nmeta, err);
}

enum dtp_code dtp_output_write_as(const struct dtp_drawn *d, const char *path, struct dtp_outkeep *keep, const struct dtp_image *image,
				  struct dtp_err *err)
{
	const struct dtp_rank *r = d->rank;
	char text[4352], seed[32];
	enum dtp_code code = image->rgb ? write_png(d, path, keep, image, err) : write_latents(path, keep, r, image, err);
	if (code == DTP_OK) {
		const char *name = dtp_outkeep_name(keep, path);
		snprintf(seed, sizeof seed, "seed %" PRIu64, image->seed);
		snprintf(text, sizeof text, "wrote %s (%" PRId64 "x%" PRId64 "%s, %s)", name, image->width, image->height,
			 image->rgb ? "" : " latents", r->request.noise ? "given noise" : seed);
		dtp_worker_image(r->worker, name, image->width, image->height,
				 r->request.noise ? NULL : &image->seed);
		r->mon->note(r->mon->arg, text);
	}
	return code;
}

static enum dtp_code write_and_tell(const struct dtp_drawn *d, const char *path, const struct dtp_image *image, struct dtp_err *err)
{
	struct dtp_outkeep keep, *k = dtp_output_keep(d->args, path, d->rank->output_number, &keep);
	enum dtp_code code = dtp_output_write_as(d, path, k, image, err);

	if (d->args->output) /* of a default name, nothing else was asked for */
		dtp_outkeep_tell(k, path, d->rank->mon);
	dtp_outkeep_free(&keep);
	return code;
}

enum dtp_code dtp_output_write(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	struct dtp_rank *r = arg;
	const struct dtp_drawn d = {r, r->args, &r->request};
	char *path = dtp_output_name(r->args, r->request.seed, image->index, r->request.num_images, r->output_number);
	enum dtp_code code = path && dtp_name_is_pattern(dtp_output_path(r->args)) ? dtp_make_folders(path, 0, DTP_FAILED, err) : DTP_OK;

	if (code) {
		free(path);
		return code;
	}
	code = path ? write_and_tell(&d, path, image, err) : dtp_fail(err, DTP_FAILED, "out of memory");
	free(path);
	return code;
}

enum dtp_code dtp_output_discard(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	(void)arg, (void)image, (void)err;
	return DTP_OK;
}
