/* SPDX-License-Identifier: Apache-2.0 */
/* Reading PNG through libpng. */
#include "image_internal.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <png.h>

#include "png_bytes.h"
#include "png_error.h"

#define MAX_CHUNK_BYTES (1 << 20) /* of metadata, unpacked */
#define XMP "XML:com.adobe.xmp"

struct source {
	struct dtp_image_file *f;
	struct dtp_png_bytes file;
	int frames;          /* of an animation; 0: none is announced */
	png_bytep grey;      /* [height, width] 16 bits, big-endian; only where the file has such */
	char why[DTP_PNG_WHY];
	struct dtp_err *err; /* filled by what is called between setjmp and longjmp */
};

/* The chunk that makes a PNG an animation: its number of frames. */
static int on_chunk(png_structp png, png_unknown_chunkp chunk)
{
	struct source *s = png_get_user_chunk_ptr(png);

	if (!memcmp(chunk->name, "acTL", 5) && chunk->size >= 4)
		s->frames = chunk->data[0] | chunk->data[1] | chunk->data[2] ? 256 : chunk->data[3];
	return 1;
}

/* Pillow keeps 16-bit grey as it is and cuts it off at 255 when it becomes RGB. */
static void grey_to_rgb(struct source *s)
{
	const struct dtp_picture *p = &s->f->picture;

	for (int64_t i = 0; i < p->height * p->width; i++)
		memset(p->rgb + 3 * i, s->grey[2 * i] ? 255 : s->grey[2 * i + 1], 3);
}

static void take_metadata(png_structp png, png_infop info, struct source *s)
{
	png_textp text;
	png_bytep exif;
	png_uint_32 n;
	int ntext = 0;

	if (png_get_eXIf_1(png, info, &n, &exif))
		dtp_image_exif(s->f, exif, n);
	png_get_text(png, info, &text, &ntext);
	for (int i = 0; i < ntext; i++)
		if (!strcmp(text[i].key, XMP))
			dtp_image_xmp(s->f, text[i].text, text[i].text_length ? text[i].text_length : text[i].itxt_length);
}

static void set_transforms(png_structp png, bool deep_grey)
{
	if (deep_grey)
		return;
	png_set_strip_16(png);
	png_set_palette_to_rgb(png);
	png_set_expand_gray_1_2_4_to_8(png);
	png_set_gray_to_rgb(png);
	png_set_strip_alpha(png);
}

/* A row is found by its number: a header of a few bytes may announce more rows than there is memory for pointers to them. */
static bool take_rows(png_structp png, struct source *s, int passes, bool deep_grey)
{
	struct dtp_picture *p = &s->f->picture;
	size_t row = (size_t)p->width * (deep_grey ? 2 : 3);

	if (deep_grey && !(s->grey = malloc((size_t)p->height * row)))
		return dtp_fail(s->err, DTP_FAILED, "out of memory for '%s'", s->f->name), false;
	for (int i = 0; i < passes; i++)
		for (int64_t y = 0; y < p->height; y++)
			png_read_row(png, (deep_grey ? s->grey : p->rgb) + (size_t)y * row, NULL);
	return true;
}

/* Alone in its function: what it changes after setjmp is not looked at after longjmp. */
static bool read_png(png_structp png, png_infop info, struct source *s)
{
	if (setjmp(png_jmpbuf(png)))
		return false;
	dtp_png_bytes_begin(png, &s->file, MAX_CHUNK_BYTES);
	png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
	png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
	png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_IF_SAFE, (png_const_bytep)"acTL", 1);
	png_set_read_user_chunk_fn(png, s, on_chunk);
	png_read_info(png, info);
	bool deep_grey = png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16;
	if (s->frames > 1)
		return dtp_fail(s->err, DTP_REFUSED, "'%s' is animated; one picture is needed", s->f->name), false;
	if (dtp_image_begin(s->f, png_get_image_height(png, info), png_get_image_width(png, info), s->err))
		return false;
	set_transforms(png, deep_grey);
	int passes = png_set_interlace_handling(png);
	png_read_update_info(png, info);
	if (!take_rows(png, s, passes, deep_grey))
		return false;
	png_read_end(png, info);
	take_metadata(png, info, s);
	if (deep_grey)
		grey_to_rgb(s);
	return true;
}

enum dtp_code dtp_png_decode(struct dtp_image_file *f, struct dtp_err *err)
{
	struct dtp_err own = DTP_ERR_INIT;
	struct source s = {.f = f, .file = dtp_png_bytes_of(f->bytes, f->n, (const char *const[]){XMP, NULL}), .err = &own};
	png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, s.why, dtp_png_on_error, dtp_png_on_warning);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	bool ok = info && read_png(png, info, &s);

	png_destroy_read_struct(&png, &info, NULL);
	free(s.grey);
	if (ok)
		return DTP_OK;
	if (own.code)
		return dtp_fail(err, own.code, "%s", own.message);
	return dtp_fail(err, s.why[0] ? DTP_REFUSED : DTP_FAILED, "'%s' is a damaged PNG file: %s", f->name, s.why[0] ? s.why : "out of memory");
}
