/* SPDX-License-Identifier: Apache-2.0 */
/* Latents in files: what a run has written, or another program. */
#ifndef DTP_LATENTS_H
#define DTP_LATENTS_H

#include "err.h"
#include "tensor.h"

struct dtp_latents {
	char *path;
	enum dtp_dtype dtype;   /* in the file */
	int ndim;               /* 3 or 4; shape[0] is 1 */
	int64_t shape[DTP_MAX_DIMS];
	int64_t height, width;  /* pixels, of the file's metadata; 0: they say none */
	float *values;          /* dense */
};

/* The tensor 'latents' of a safetensors file, or its only one.  DTP_REFUSED for another dtype or shape and for values that are
 * not finite. */
enum dtp_code dtp_latents_read(const char *path, struct dtp_latents *l, struct dtp_err *err);
void dtp_latents_free(struct dtp_latents *l);
#endif
