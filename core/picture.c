/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"
#include "image.h"
#include "image_internal.h"
#include "infile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES ((size_t)1 << 30)

void dtp_picture_free(struct dtp_picture *p)
{
	free(p->rgb);
	*p = (struct dtp_picture){0};
}

enum dtp_code dtp_image_begin(struct dtp_image_file *f, int64_t height, int64_t width, struct dtp_err *err)
{
	if (height < 1 || width < 1 || height > DTP_PICTURE_MAX_PIXELS / width)
		return dtp_fail(err, DTP_REFUSED, "'%s' has %lldx%lld pixels; a picture of 1 to %lld pixels is read", f->name,
				(long long)width, (long long)height, (long long)DTP_PICTURE_MAX_PIXELS);
	if (f->check && f->check(f->name, height, width, err))
		return DTP_REFUSED;
	f->picture = (struct dtp_picture){height, width, malloc((size_t)(3 * height * width))};
	return f->picture.rgb ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for '%s' with %lldx%lld pixels", f->name,
						  (long long)width, (long long)height);
}

/* ---- orientation */

/* Where pixel (y, x) of a picture of h x w goes: the numbers of EXIF, which say on which sides the first row and column lie. */
static void turned(int orientation, int64_t h, int64_t w, int64_t y, int64_t x, int64_t *ty, int64_t *tx)
{
	bool swap = orientation >= 5;
	int64_t last_y = h - 1, last_x = w - 1;

	if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8)
		x = last_x - x;
	if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7)
		y = last_y - y;
	*ty = swap ? x : y;
	*tx = swap ? y : x;
}

static enum dtp_code turn(struct dtp_image_file *f, int orientation, struct dtp_err *err)
{
	struct dtp_picture stored = f->picture;
	bool swap = orientation >= 5;
	int64_t h = swap ? stored.width : stored.height, w = swap ? stored.height : stored.width, ty, tx;

	if (orientation < 2)
		return DTP_OK;
	if (dtp_image_begin(f, h, w, err)) {
		f->picture = stored;
		return err ? err->code : DTP_FAILED;
	}
	for (int64_t y = 0; y < stored.height; y++)
		for (int64_t x = 0; x < stored.width; x++) {
			turned(orientation, stored.height, stored.width, y, x, &ty, &tx);
			memcpy(f->picture.rgb + (ty * w + tx) * 3, stored.rgb + (y * stored.width + x) * 3, 3);
		}
	dtp_picture_free(&stored);
	return DTP_OK;
}

/* ---- formats */

struct format {
	const char *name;
	int at;
	const char *magic;
	size_t len;
	enum dtp_code (*decode)(struct dtp_image_file *, struct dtp_err *); /* NULL: known by name only */
};
#define MAGIC(at, s) at, s, sizeof s - 1
static const struct format formats[] = {
	{"PNG", MAGIC(0, DTP_PNG_MAGIC), dtp_png_decode},
	{"JPEG", MAGIC(0, "\xff\xd8\xff"), dtp_jpeg_decode},
	{"WebP", MAGIC(8, "WEBP"), dtp_webp_decode},
	{"GIF", MAGIC(0, "GIF8"), NULL},
	{"BMP", MAGIC(0, "BM"), NULL},
	{"TIFF", MAGIC(0, "II*\0"), NULL},
	{"TIFF", MAGIC(0, "MM\0*"), NULL},
	{"AVIF", MAGIC(4, "ftypavif"), NULL},
	{"HEIC", MAGIC(4, "ftyphei"), NULL},
	{"HEIF", MAGIC(4, "ftypmif1"), NULL},
	{"JPEG XL", MAGIC(0, "\xff\x0a"), NULL},
	{"JPEG XL", MAGIC(4, "JXL \r\n\x87\n"), NULL},
	{"JPEG 2000", MAGIC(4, "jP  \r\n\x87\n"), NULL},
	{"PDF", MAGIC(0, "%PDF"), NULL},
	{"SVG", MAGIC(0, "<svg"), NULL},
	{"PPM", MAGIC(0, "P6"), NULL},
	{"PSD", MAGIC(0, "8BPS"), NULL},
};

static const struct format *format_of(const void *bytes, size_t n)
{
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		const struct format *f = &formats[i];
		if (n >= (size_t)f->at + f->len && !memcmp((const char *)bytes + f->at, f->magic, f->len))
			return f;
	}
	return NULL;
}

enum dtp_code dtp_picture_decode(const char *name, const void *bytes, size_t n, dtp_picture_check check, struct dtp_picture *p,
				 struct dtp_err *err)
{
	struct dtp_image_file f = {.name = name, .bytes = bytes, .n = n, .check = check};
	const struct format *format = format_of(bytes, n);

	*p = (struct dtp_picture){0};
	if (!n)
		return dtp_fail(err, DTP_REFUSED, "'%s' is empty; a PNG, JPEG or WebP file is needed", name);
	if (!format || !format->decode)
		return dtp_fail(err, DTP_REFUSED, "'%s' is %s%s; PNG, JPEG and WebP files are read", name,
				format ? "a file of the format " : "no image file of a known format", format ? format->name : "");
	enum dtp_code rc = format->decode(&f, err);
	if (!rc)
		rc = turn(&f, f.exif ? f.exif : f.xmp, err);
	if (rc)
		dtp_picture_free(&f.picture);
	*p = f.picture;
	return rc;
}

enum dtp_code dtp_picture_read(const char *path, dtp_picture_check check, struct dtp_picture *p, struct dtp_err *err)
{
	char *bytes;
	size_t n;

	*p = (struct dtp_picture){0};
	/* Each rank that needs the picture reads it, and the first process before them: a pipe gives its bytes once. */
	if (dtp_path_reads_once(path))
		return dtp_fail(err, DTP_REFUSED, "'%s' is no regular file; an image is read more than once, so put it into a file", path);
	enum dtp_code rc = dtp_infile_read(path, "an image file", MAX_FILE_BYTES, &bytes, &n, err);
	if (rc)
		return rc;
	rc = dtp_picture_decode(path, bytes, n, check, p, err);
	free(bytes);
	return rc;
}
