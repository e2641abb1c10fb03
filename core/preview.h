/* SPDX-License-Identifier: Apache-2.0 */
/* A cheap picture of latents: each latent pixel's colour as a linear function of its channels.  The function is fitted by least
 * squares to what the VAE's own encoder makes of pictures of coloured rectangles, so it serves any VAE of the class, as far as a
 * linear function can.  It knows nothing of neighbours: shapes and colours, no detail. */
#ifndef DTP_PREVIEW_H
#define DTP_PREVIEW_H

#include "backend.h"
#include "err.h"
#include "monitor.h"

#include <stdint.h>

struct dtp_preview;

/* Loads the encoder of model/vae (variant: of the weight files, or NULL), encodes eight pictures of 96x96, and frees all of it
 * again: less memory than decoding takes.  device: be's.  DTP_REFUSED: the folder has no encoder, as some that only draw. */
enum dtp_code dtp_preview_open(const char *model, const char *variant, struct dtp_backend *be, enum dtp_device device,
			       const struct dtp_monitor *mon, struct dtp_preview **p, struct dtp_err *err);
void dtp_preview_close(struct dtp_preview *p); /* NULL is allowed */
/* The root mean square of what the function is off on the pictures that it was fitted to, in steps of 255. */
double dtp_preview_error(const struct dtp_preview *p);
/* Normalised, packed tokens [h, w, channels] -> rgb [2h, 2w, 3]. */
void dtp_preview_draw(const struct dtp_preview *p, const float *tokens, int64_t h, int64_t w, uint8_t *rgb);
/* channels of a token: those of the VAE's latents four times. */
int64_t dtp_preview_channels(const struct dtp_preview *p);
#endif
