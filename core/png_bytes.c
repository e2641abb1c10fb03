/* SPDX-License-Identifier: Apache-2.0 */
#include <png.h>
#include "png_bytes.h"

#include <stdbool.h>
#include <string.h>

#define SIGNATURE 8
#define HEADER 8       /* of a chunk: length, name */
#define AROUND_DATA 12 /* header, and the checksum behind the data */
#define MAX_CHUNKS 100

struct dtp_png_bytes dtp_png_bytes_of(const void *bytes, size_t n, const char *const *keys)
{
	const uint8_t *p = bytes;
	size_t whole = n < SIGNATURE ? n : SIGNATURE;

	while (n - whole >= AROUND_DATA && n - whole - AROUND_DATA >= png_get_uint_32(p + whole))
		whole += AROUND_DATA + png_get_uint_32(p + whole);
	if (n - whole >= HEADER && !memcmp(p + whole + 4, "IDAT", 4))
		whole = n;
	return (struct dtp_png_bytes){.bytes = p, .n = whole, .keys = keys, .next = SIGNATURE};
}

/* Of the chunk at b->at, which is whole. */
static bool is_unwanted(struct dtp_png_bytes *b)
{
	const uint8_t *chunk = b->bytes + b->at, *data = chunk + HEADER;
	size_t len = png_get_uint_32(chunk);

	if (memcmp(chunk + 4, "tEXt", 4) && memcmp(chunk + 4, "zTXt", 4) && memcmp(chunk + 4, "iTXt", 4))
		return false;
	for (unsigned i = 0; b->keys[i]; i++) {
		size_t n = strlen(b->keys[i]) + 1;
		if (len < n || memcmp(data, b->keys[i], n) || b->seen >> i & 1)
			continue;
		b->seen |= 1u << i;
		return false;
	}
	return true;
}

/* libpng reads a chunk's header, its data and its checksum one after the other. */
static void pass_unwanted(struct dtp_png_bytes *b)
{
	bool unwanted = true;

	while (unwanted && b->at == b->next && b->n - b->at >= AROUND_DATA) {
		size_t whole = AROUND_DATA + (size_t)png_get_uint_32(b->bytes + b->at);
		unwanted = whole <= b->n - b->at && is_unwanted(b);
		b->next += whole;
		if (unwanted)
			b->at = b->next;
	}
}

static void read_data(png_structp png, png_bytep data, size_t n)
{
	struct dtp_png_bytes *b = png_get_io_ptr(png);

	pass_unwanted(b);
	if (n > b->n - b->at)
		png_error(png, "the file is truncated");
	memcpy(data, b->bytes + b->at, n);
	b->at += n;
}

void dtp_png_bytes_begin(png_structp png, struct dtp_png_bytes *b, size_t max_unpacked)
{
	png_set_read_fn(png, b, read_data);
	png_set_chunk_malloc_max(png, max_unpacked);
	png_set_chunk_cache_max(png, MAX_CHUNKS);
}
