/* SPDX-License-Identifier: Apache-2.0 */
#include <png.h>
#include "png_bytes.h"

#include <string.h>

#define SIGNATURE 8
#define HEADER 8       /* of a chunk: length, name */
#define AROUND_DATA 12 /* header, and the checksum behind the data */

struct dtp_png_bytes dtp_png_bytes_of(const void *bytes, size_t n)
{
	const uint8_t *p = bytes;
	size_t whole = n < SIGNATURE ? n : SIGNATURE;

	while (n - whole >= AROUND_DATA && n - whole - AROUND_DATA >= png_get_uint_32(p + whole))
		whole += AROUND_DATA + png_get_uint_32(p + whole);
	if (n - whole >= HEADER && !memcmp(p + whole + 4, "IDAT", 4))
		whole = n;
	return (struct dtp_png_bytes){.bytes = p, .n = whole};
}

void dtp_png_bytes_read(png_structp png, png_bytep data, size_t n)
{
	struct dtp_png_bytes *b = png_get_io_ptr(png);

	if (n > b->n - b->at)
		png_error(png, "the file is truncated");
	memcpy(data, b->bytes + b->at, n);
	b->at += n;
}
