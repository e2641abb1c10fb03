/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what the pipeline has drawn. */
#ifndef DTP_OUTPUT_H
#define DTP_OUTPUT_H

#include "file.h"
#include "job.h"

/* The form of dtp_image_fn; arg is the struct dtp_rank.  Writes the PNG or the latents of one image under its name and
 * says so in a note. */
enum dtp_code dtp_output_write(void *arg, const struct dtp_image *image, struct dtp_err *err);
/* The same under a name of the caller's, of an image that was asked for by these args and this request. */
struct dtp_drawn {
	struct dtp_rank *rank;
	const struct dtp_args *args;
	const struct dtp_request *request;
};
enum dtp_code dtp_output_write_as(const struct dtp_drawn *d, const char *path, struct dtp_outkeep *keep, const struct dtp_image *image,
				  struct dtp_err *err);
/* Accepts the image and writes nothing. */
enum dtp_code dtp_output_discard(void *arg, const struct dtp_image *image, struct dtp_err *err);
#endif
