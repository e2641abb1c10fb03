/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a PNG file in memory, as libpng reads them.  <png.h> comes before it: its files alone include that. */
#ifndef DTP_PNG_BYTES_H
#define DTP_PNG_BYTES_H

#include <stdint.h>

struct dtp_png_bytes {
	const uint8_t *bytes;
	size_t n, at;
	const char *const *keys; /* NULL-terminated: of texts, libpng is handed the first of each of these keywords alone */
	size_t next;             /* where the next chunk begins */
	unsigned seen;           /* keys, by bits */
};

/* Only the chunks that lie in the bytes whole are handed to libpng, which takes memory for the length that a chunk announces before
 * it reads one byte of it: what is left of a file that was cut, or lies, is as truncated without it.  Pixels are read in pieces: of
 * them also those of a chunk that was cut.  Texts unpack to a thousand times their length: so few are handed over. */
struct dtp_png_bytes dtp_png_bytes_of(const void *bytes, size_t n, const char *const *keys);

/* Has libpng read b, which stays the caller's, and keep a hundred pieces of metadata at most, each unpacked to at most so many bytes. */
void dtp_png_bytes_begin(png_structp png, struct dtp_png_bytes *b, size_t max_unpacked);
#endif
