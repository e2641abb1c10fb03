/* SPDX-License-Identifier: Apache-2.0 */
/* How a picture is to be turned.  One number of one tag is all that is wanted of the metadata, so it is looked up here, with
 * every offset checked; a library would unpack the rest too. */
#include "image_internal.h"

#include <string.h>

#define ORIENTATION 0x0112
#define ENTRY_BYTES 12

enum { BYTE = 1, SHORT = 3, LONG = 4 }; /* types of a TIFF value */

struct tiff {
	const uint8_t *p;
	size_t n;
	bool big; /* most significant byte first */
};

/* n bytes at an offset that the caller has checked. */
static uint32_t number(const struct tiff *t, size_t at, int n)
{
	uint32_t v = 0;

	for (int i = 0; i < n; i++)
		v |= (uint32_t)t->p[at + (size_t)i] << 8 * (t->big ? n - 1 - i : i);
	return v;
}

/* The value of the entry at an offset, 0 if it is no orientation. */
static uint32_t value(const struct tiff *t, size_t at)
{
	uint32_t type = number(t, at + 2, 2);
	int size = type == BYTE ? 1 : type == SHORT ? 2 : type == LONG ? 4 : 0;

	return number(t, at, 2) == ORIENTATION && size && number(t, at + 4, 4) == 1 ? number(t, at + 8, size) : 0;
}

static int in_range(uint32_t v)
{
	return v <= 8 ? (int)v : 1;
}

void dtp_image_exif(struct dtp_image_file *f, const void *data, size_t n)
{
	struct tiff t = {data, n, false};

	if (t.n >= 6 && !memcmp(t.p, "Exif\0\0", 6)) {
		t.p += 6;
		t.n -= 6;
	}
	if (f->exif || t.n < 8 || (memcmp(t.p, "II*\0", 4) && memcmp(t.p, "MM\0*", 4)))
		return;
	t.big = t.p[0] == 'M';
	size_t at = number(&t, 4, 4);
	if (at > t.n - 2)
		return;
	uint32_t entries = number(&t, at, 2);
	at += 2;
	for (; entries && !f->exif && t.n - at >= ENTRY_BYTES; entries--, at += ENTRY_BYTES)
		f->exif = in_range(value(&t, at));
}

/* tiff:Orientation="6" or <tiff:Orientation>6<; the text need not end in a '\0'. */
void dtp_image_xmp(struct dtp_image_file *f, const void *data, size_t n)
{
	static const char *const forms[] = {"tiff:Orientation=\"", "tiff:Orientation>"};

	for (int i = 0; i < 2 && !f->xmp; i++) {
		size_t len = strlen(forms[i]);
		const uint8_t *p = memmem(data, n, forms[i], len);
		if (p && (size_t)(p - (const uint8_t *)data) + len < n && p[len] >= '1' && p[len] <= '9')
			f->xmp = in_range((uint32_t)(p[len] - '0'));
	}
}
