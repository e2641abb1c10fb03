/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"
#include "file.h"
#include "infile.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <png.h>

#include "png_bytes.h"
#include "png_error.h"

/* What libpng's callbacks get: the stream, and where the reason of a failure goes. */
struct target {
	FILE *f;
	char why[DTP_PNG_WHY];
};

static void write_data(png_structp png, png_bytep data, size_t n)
{
	struct target *t = png_get_io_ptr(png);
	if (n && fwrite(data, n, 1, t->f) != 1) {
		snprintf(t->why, sizeof t->why, "%s", strerror(errno));
		png_error(png, "write error");
	}
}

static void flush_data(png_structp png)
{
	(void)png; /* dtp_outfile_commit flushes */
}

static bool is_ascii(const char *s)
{
	while (*s && !(*s & 0x80))
		s++;
	return !*s;
}

static void set_text(png_structp png, png_infop info, const struct dtp_png_text *text, int ntext)
{
	for (int i = 0; i < ntext; i++) {
		bool plain = text[i].plain && is_ascii(text[i].value);
		size_t n = strlen(text[i].value);
		char empty[] = "";
		png_text t = {
			.compression = plain ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE,
			.key = (png_charp)(uintptr_t)text[i].key, /* libpng copies both and lacks the const */
			.text = (png_charp)(uintptr_t)text[i].value,
			.text_length = plain ? n : 0,
			.itxt_length = plain ? 0 : n,
			.lang = empty,
			.lang_key = empty,
		};
		png_set_text(png, info, &t, 1);
	}
}

/* Alone in its function: what it changes after setjmp is not looked at after longjmp. */
static bool write_png(png_structp png, png_infop info, struct target *t, const uint8_t *rgb, int64_t height, int64_t width,
		      const struct dtp_png_text *text, int ntext)
{
	if (setjmp(png_jmpbuf(png)))
		return false;
	png_set_write_fn(png, t, write_data, flush_data);
	png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
	png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
		     PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	set_text(png, info, text, ntext);
	png_write_info(png, info);
	for (int64_t y = 0; y < height; y++)
		png_write_row(png, rgb + y * width * 3);
	png_write_end(png, info);
	return true;
}

enum dtp_code dtp_png_write(const char *path, struct dtp_outkeep *keep, const uint8_t *rgb, int64_t height, int64_t width,
			    const struct dtp_png_text *text, int ntext, struct dtp_err *err)
{
	struct dtp_outfile out;
	int64_t row;

	if (height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX || __builtin_mul_overflow(width, 3, &row))
		return dtp_fail(err, DTP_FAILED, "cannot write '%s': a PNG has no size of %lld x %lld", path, (long long)width,
				(long long)height);
	enum dtp_code rc = dtp_outfile_open(path, keep, &out, err);
	if (rc)
		return rc;
	struct target t = {.f = out.f};
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, t.why, dtp_png_on_error, dtp_png_on_warning);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	bool ok = info && write_png(png, info, &t, rgb, height, width, text, ntext);
	png_destroy_write_struct(&png, &info);
	if (ok)
		return dtp_outfile_commit(&out, err);
	dtp_outfile_abandon(&out);
	return dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", path, t.why[0] ? t.why : "out of memory");
}

/* ---- reading texts */

#define MAX_FILE_BYTES ((size_t)1 << 31)
#define MAX_SIDE 16384 /* that difftp writes; of a picture whose texts are read: its rows pass through memory one by one */

struct source {
	struct dtp_png_bytes file;
	const char *key;
	char *value; /* out */
	char why[DTP_PNG_WHY];
};

/* A text of our keyword that is in info.  libpng limits what it unpacks, not what lies in the file as it is. */
static bool take_text(png_structp png, png_infop info, struct source *s)
{
	png_textp text;
	int n = 0;

	png_get_text(png, info, &text, &n);
	for (int i = 0; i < n && !s->value; i++)
		if (!strcmp(text[i].key, s->key) && text[i].text && strlen(text[i].text) <= DTP_PNG_MAX_TEXT && !(s->value = strdup(text[i].text)))
			png_error(png, "out of memory");
	return s->value != NULL;
}

/* What stands behind the pixels is found by reading these, row by row. */
static void skip_pixels(png_structp png, png_infop info)
{
	int passes = png_set_interlace_handling(png);
	png_uint_32 height = png_get_image_height(png, info);

	png_start_read_image(png);
	for (int p = 0; p < passes; p++)
		for (png_uint_32 y = 0; y < height; y++)
			png_read_row(png, NULL, NULL);
}

/* Alone in its function: what it changes after setjmp is not looked at after longjmp. */
static bool read_text(png_structp png, png_infop info, struct source *s)
{
	if (setjmp(png_jmpbuf(png)))
		return false;
	dtp_png_bytes_begin(png, &s->file, DTP_PNG_MAX_TEXT);
	png_set_user_limits(png, MAX_SIDE, MAX_SIDE);
	png_read_info(png, info);
	if (take_text(png, info, s))
		return true;
	skip_pixels(png, info);
	png_read_end(png, info);
	take_text(png, info, s);
	return true;
}

enum dtp_code dtp_png_find_text(const char *name, const void *bytes, size_t n, const char *key, char **value, struct dtp_err *err)
{
	struct source s = {.file = dtp_png_bytes_of(bytes, n, (const char *const[]){key, NULL}), .key = key};

	*value = NULL;
	if (n < sizeof DTP_PNG_MAGIC - 1 || memcmp(bytes, DTP_PNG_MAGIC, sizeof DTP_PNG_MAGIC - 1))
		return dtp_fail(err, DTP_REFUSED, "'%s' is no PNG file", name);
	png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, s.why, dtp_png_on_error, dtp_png_on_warning);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	bool ok = info && read_text(png, info, &s);
	png_destroy_read_struct(&png, &info, NULL);
	*value = s.value;
	if (ok)
		return DTP_OK;
	free(s.value);
	*value = NULL;
	return dtp_fail(err, s.why[0] ? DTP_REFUSED : DTP_FAILED, "'%s' is a damaged PNG file: %s", name, s.why[0] ? s.why : "out of memory");
}

enum dtp_code dtp_png_read_text(const char *path, const char *key, char **value, struct dtp_err *err)
{
	char *bytes;
	size_t n;

	*value = NULL;
	if (dtp_infile_read(path, "a PNG file", MAX_FILE_BYTES, &bytes, &n, err))
		return err->code;
	enum dtp_code rc = dtp_png_find_text(path, bytes, n, key, value, err);
	free(bytes);
	return rc;
}
