/* SPDX-License-Identifier: Apache-2.0 */
/* Reference images: what a picture becomes before the VAE encodes it.  Formulas: diffusers' Flux2ImageProcessor. */
#ifndef DTP_REFERENCE_H
#define DTP_REFERENCE_H

#include "picture.h"

#define DTP_MAX_REFERENCES 10
#define DTP_REFERENCE_PIXELS INT64_C(1048576) /* what is larger is reduced to this, its shape kept */

/* Reads the file and reduces a picture of more than DTP_REFERENCE_PIXELS.  DTP_REFUSED also for a side below 64 pixels and for one
 * side more than 8 times the other. */
enum dtp_code dtp_reference_read(const char *path, struct dtp_picture *p, struct dtp_err *err);
/* The size that is encoded: the middle of the picture, cut to multiples of `unit`.  Nothing is stretched. */
void dtp_reference_size(const struct dtp_picture *p, int64_t unit, int64_t *height, int64_t *width);
/* That part as floats in -1..1; out: [height, width, 3]. */
void dtp_reference_values(const struct dtp_picture *p, int64_t unit, float *out);
#endif
