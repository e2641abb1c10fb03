/* SPDX-License-Identifier: Apache-2.0 */
/* PNG files through libpng: written, and the texts in them read; picture.h reads their pixels. */
#ifndef DTP_IMAGE_H
#define DTP_IMAGE_H

#include "file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A text of a PNG file: its keyword (1 to 79 Latin-1 characters) and its value, UTF-8. */
struct dtp_png_text {
	const char *key, *value;
	bool plain; /* a value of ASCII alone is stored as tEXt, which all programs read; else, and otherwise, as iTXt */
};

/* rgb: [height, width, 3] u8.  The texts stand in front of the pixels.  Written through core/file.h (keep is its). */
enum dtp_code dtp_png_write(const char *path, struct dtp_outkeep *keep, const uint8_t *rgb, int64_t height, int64_t width,
			    const struct dtp_png_text *text, int ntext, struct dtp_err *err);

/* The bytes with which every PNG file begins. */
#define DTP_PNG_MAGIC "\x89PNG\r\n\x1a\n"
#define DTP_PNG_MAX_TEXT ((size_t)4 << 20) /* of one value, unpacked; a longer one counts as none */

/* The value of the first text with this keyword, wherever in the file it stands, malloc'd; NULL: there is none.  name: for
 * messages.  DTP_REFUSED: no PNG, truncated, damaged. */
enum dtp_code dtp_png_find_text(const char *name, const void *bytes, size_t n, const char *key, char **value, struct dtp_err *err);
/* The same of a file. */
enum dtp_code dtp_png_read_text(const char *path, const char *key, char **value, struct dtp_err *err);
#endif
