/* SPDX-License-Identifier: Apache-2.0 */
/* Latents to a picture with nothing of a pipeline but its VAE: on one rank, of the code that a run decodes by. */
#ifndef DTP_DECODE_H
#define DTP_DECODE_H

#include "backend.h"
#include "latents.h"
#include "monitor.h"

struct dtp_decoder;

/* Opens model/vae and checks it with the latents, which stay the caller's and must outlive the decoder: [1, C, rows, columns] as
 * Flux2KleinPipeline returns them, or the packed [1, tokens, 4C] of Flux2Pipeline, whose size is not in their shape.  height, width:
 * pixels, 0: the shape's or the metadata's.  device: whose memory is predicted.  No weight is read. */
enum dtp_code dtp_decoder_open(const char *model, enum dtp_dtype compute, enum dtp_device device, const struct dtp_latents *l, int64_t height, int64_t width,
			       const struct dtp_monitor *mon, struct dtp_decoder **d, struct dtp_err *err);
void dtp_decoder_close(struct dtp_decoder *d); /* NULL is allowed */
void dtp_decoder_size(const struct dtp_decoder *d, int64_t *height, int64_t *width); /* of the picture, in pixels */
uint64_t dtp_decoder_memory(const struct dtp_decoder *d); /* bytes that dtp_decoder_run takes of the device */
/* rgb: [height, width, 3]. */
enum dtp_code dtp_decoder_run(struct dtp_decoder *d, struct dtp_backend *be, const struct dtp_monitor *mon, uint8_t *rgb,
			      struct dtp_err *err);
#endif
