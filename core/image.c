/* SPDX-License-Identifier: Apache-2.0 */
#include "image.h"
#include "file.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <png.h>

/* What libpng's callbacks get: the stream, and where the reason of a failure goes. */
struct target {
	FILE *f;
	char why[128];
};

static void on_error(png_structp png, png_const_charp message)
{
	struct target *t = png_get_error_ptr(png);
	if (!t->why[0])
		snprintf(t->why, sizeof t->why, "%s", message);
	png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
	(void)png, (void)message;
}

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

static void set_text(png_structp png, png_infop info, const char *const (*text)[2], int ntext)
{
	for (int i = 0; i < ntext; i++) {
		char empty[] = "";
		png_text t = {
			.compression = PNG_ITXT_COMPRESSION_NONE,
			.key = (png_charp)text[i][0], /* libpng copies both and lacks the const */
			.text = (png_charp)text[i][1],
			.itxt_length = strlen(text[i][1]),
			.lang = empty,
			.lang_key = empty,
		};
		png_set_text(png, info, &t, 1);
	}
}

/* Alone in its function: what it changes after setjmp is not looked at after longjmp. */
static bool write_png(png_structp png, png_infop info, struct target *t, const uint8_t *rgb, int64_t height, int64_t width,
		      const char *const (*text)[2], int ntext)
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

enum dtp_code dtp_png_write(const char *path, const uint8_t *rgb, int64_t height, int64_t width,
			    const char *const (*text)[2], int ntext, struct dtp_err *err)
{
	struct dtp_outfile out;
	int64_t row;

	if (height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX || __builtin_mul_overflow(width, 3, &row))
		return dtp_fail(err, DTP_FAILED, "cannot write '%s': a PNG has no size of %lld x %lld", path, (long long)width,
				(long long)height);
	enum dtp_code rc = dtp_outfile_open(path, &out, err);
	if (rc)
		return rc;
	struct target t = {.f = out.f};
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &t, on_error, on_warning);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	bool ok = info && write_png(png, info, &t, rgb, height, width, text, ntext);
	png_destroy_write_struct(&png, &info);
	if (ok)
		return dtp_outfile_commit(&out, err);
	dtp_outfile_abandon(&out);
	return dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", path, t.why[0] ? t.why : "out of memory");
}
