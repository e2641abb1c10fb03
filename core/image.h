/* SPDX-License-Identifier: Apache-2.0 */
/* PNG files through libpng. */
#ifndef DTP_IMAGE_H
#define DTP_IMAGE_H

#include "err.h"

#include <stdint.h>

/* rgb: [height, width, 3] u8.  text: nmeta pairs (keyword, UTF-8 value) stored as iTXt.  Written through core/file.h. */
enum dtp_code dtp_png_write(const char *path, const uint8_t *rgb, int64_t height, int64_t width,
			    const char *const (*text)[2], int ntext, struct dtp_err *err);
#endif
