/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures as they come from files, before any model sees them. */
#ifndef DTP_PICTURE_H
#define DTP_PICTURE_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

struct dtp_picture {
	int64_t height, width;
	uint8_t *rgb; /* [height, width, 3], malloc'd; NULL: only the size is known */
};
void dtp_picture_free(struct dtp_picture *p);

/* The pixels that a picture may have, as Pillow's limit against files that unpack to more than a machine has. */
#define DTP_PICTURE_MAX_PIXELS INT64_C(178956970)

/* Refuses sizes that the caller does not take, whichever side is which, by DTP_REFUSED.  It is asked before memory is taken for the
 * pixels. */
typedef enum dtp_code (*dtp_picture_check)(const char *name, int64_t height, int64_t width, struct dtp_err *err);

/* Reads a PNG, JPEG or WebP file as diffusers' load_image does: turned as its EXIF or XMP orientation says, then converted to RGB by
 * Pillow's rules (alpha is dropped, 16-bit grey is cut off at 255, 16-bit colours keep their upper 8 bits; colour profiles and
 * gamma have no effect).  DTP_REFUSED with the file's name for whatever else: another format, truncated, damaged, animated, CMYK,
 * more pixels than the limit, a size that check (NULL: none) refuses. */
enum dtp_code dtp_picture_read(const char *path, dtp_picture_check check, struct dtp_picture *p, struct dtp_err *err);
/* The same, of a file's bytes; name is for messages. */
enum dtp_code dtp_picture_decode(const char *name, const void *bytes, size_t n, dtp_picture_check check, struct dtp_picture *p,
				 struct dtp_err *err);

/* src -> a new picture of the given size by Pillow's LANCZOS filter, bit for bit.  dst->rgb is malloc'd. */
enum dtp_code dtp_picture_resize(const struct dtp_picture *src, int64_t height, int64_t width, struct dtp_picture *dst,
				 struct dtp_err *err);
#endif
