/* SPDX-License-Identifier: Apache-2.0 */
/* What picture.c and the decoder of each format share. */
#ifndef DTP_IMAGE_INTERNAL_H
#define DTP_IMAGE_INTERNAL_H

#include "picture.h"

struct dtp_image_file {
	const char *name;     /* for messages */
	const uint8_t *bytes;
	size_t n;
	dtp_picture_check check;
	int exif, xmp;        /* out: orientation of each, 1 to 8; 0: it says none */
	struct dtp_picture picture; /* out: as stored, not yet turned */
};

/* Each fills picture, whose memory is the caller's also on failure, and the orientations. */
enum dtp_code dtp_png_decode(struct dtp_image_file *f, struct dtp_err *err);
enum dtp_code dtp_jpeg_decode(struct dtp_image_file *f, struct dtp_err *err);
enum dtp_code dtp_webp_decode(struct dtp_image_file *f, struct dtp_err *err);

/* For the decoders: checks the size against the limit and the caller's, and takes memory for the picture. */
enum dtp_code dtp_image_begin(struct dtp_image_file *f, int64_t height, int64_t width, struct dtp_err *err);
/* Notes the orientation that metadata hold: a TIFF structure (a leading "Exif\0\0" is skipped), an XMP text. */
void dtp_image_exif(struct dtp_image_file *f, const void *data, size_t n);
void dtp_image_xmp(struct dtp_image_file *f, const void *data, size_t n);
#endif
