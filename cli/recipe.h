/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe of an image: all that decides its bytes.  The options whose row has DTP_CMD_RECIPE, resolved, under their names with '_'
 * for '-'; checksums of what was read, as "sha256"; the program's version, as "difftp"; the pipeline's class.  A batch's record
 * holds it without names of files, so that it knows a model that has moved; a PNG holds all of it. */
#ifndef DTP_RECIPE_H
#define DTP_RECIPE_H

#include "image.h"
#include "job.h"

#define DTP_RECIPE_KEY "difftp" /* of the text in a PNG */

/* args, request: the image's own, request resolved.  num_images: 0, or how many images the file shows, the first with this seed.
 * malloc'd; NULL: out of memory. */
char *dtp_recipe_text(const struct dtp_rank *rank, const struct dtp_sources *sources, const struct dtp_args *args,
		      const struct dtp_request *request, uint64_t seed, int num_images, bool files);

/* The texts of a PNG: the recipe, the same as other programs read it ("parameters"), the program's name; none of them where
 * --no-metadata was given. */
#define DTP_RECIPE_TEXTS 3
struct dtp_recipe_texts {
	struct dtp_png_text text[DTP_RECIPE_TEXTS];
	int n;
	char *recipe, *parameters;
};
enum dtp_code dtp_recipe_texts_make(struct dtp_rank *rank, const struct dtp_args *args, const struct dtp_request *request,
				    uint64_t seed, int num_images, struct dtp_recipe_texts *out, struct dtp_err *err);
void dtp_recipe_texts_free(struct dtp_recipe_texts *t);
#endif
