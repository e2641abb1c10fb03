/* SPDX-License-Identifier: Apache-2.0 */
#include "utf8.h"

#include "nfc_unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Length of the valid sequence at p, or minus the number of bytes that one replacement character stands for: as many as
 * could begin a valid sequence, at least one. */
static int sequence(const unsigned char *p, size_t len)
{
	if (p[0] < 0x80)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return -1;
	int n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	/* The second byte's range keeps out overlong forms, surrogates and values above U+10FFFF. */
	unsigned char lo = 0x80, hi = 0xbf;
	if (p[0] == 0xe0)
		lo = 0xa0;
	else if (p[0] == 0xed)
		hi = 0x9f;
	else if (p[0] == 0xf0)
		lo = 0x90;
	else if (p[0] == 0xf4)
		hi = 0x8f;
	for (int i = 1; i < n; i++) {
		if ((size_t)i >= len || p[i] < lo || p[i] > hi)
			return -i;
		lo = 0x80;
		hi = 0xbf;
	}
	return n;
}

size_t dtp_utf8_valid(const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *)text;
	for (size_t i = 0; i < len;) {
		int n = sequence(p + i, len - i);
		if (n < 0)
			return i;
		i += (size_t)n;
	}
	return len;
}

size_t dtp_utf8_fit(const char *text, size_t max)
{
	size_t n = strnlen(text, max + 1);

	if (n <= max)
		return n;
	for (n = max; n && ((unsigned char)text[n] & 0xc0) == 0x80; n--)
		;
	return n;
}

uint32_t dtp_utf8_next(const char *text, size_t at, size_t *n)
{
	const unsigned char *p = (const unsigned char *)text + at;
	if (p[0] < 0x80) {
		*n = 1;
		return p[0];
	}
	*n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t cp = p[0] & (0x7fu >> *n);
	for (size_t i = 1; i < *n; i++)
		cp = cp << 6 | (p[i] & 0x3fu);
	return cp;
}

uint32_t dtp_utf8_prev(const char *text, size_t at, size_t *n)
{
	size_t begin = at - 1;
	while (begin && ((unsigned char)text[begin] & 0xc0) == 0x80)
		begin--;
	return dtp_utf8_next(text, begin, n);
}

size_t dtp_utf8_put(char *out, uint32_t cp)
{
	return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

char *dtp_utf8_repair(const char *text, size_t len)
{
	const unsigned char *p = (const unsigned char *)text;
	size_t size;
	if (__builtin_mul_overflow(len, 3, &size) || __builtin_add_overflow(size, 1, &size))
		return NULL;
	char *out = malloc(size); /* at worst each byte becomes U+FFFD, three bytes */
	if (!out)
		return NULL;
	size_t n = 0;
	for (size_t i = 0; i < len;) {
		int k = sequence(p + i, len - i);
		if (k > 0) {
			memcpy(out + n, p + i, (size_t)k);
			n += (size_t)k;
			i += (size_t)k;
		} else {
			n += dtp_utf8_put(out + n, 0xfffd);
			i += (size_t)-k;
		}
	}
	out[n] = '\0';
	return out;
}

static int combining_class(uint32_t cp)
{
	return utf8proc_get_property((utf8proc_int32_t)cp)->combining_class;
}

/* Stable sort of marks by combining class; tmp has room for n. */
static void sort_marks(utf8proc_int32_t *cp, size_t n, utf8proc_int32_t *tmp)
{
	size_t start[256] = {0};
	for (size_t i = 0; i < n; i++)
		start[combining_class((uint32_t)cp[i])]++;
	size_t sum = 0;
	for (int c = 0; c < 256; c++) {
		size_t count = start[c];
		start[c] = sum;
		sum += count;
	}
	for (size_t i = 0; i < n; i++)
		tmp[start[combining_class((uint32_t)cp[i])]++] = cp[i];
	memcpy(cp, tmp, n * sizeof *cp);
}

/* Canonical ordering.  utf8proc's own takes quadratic time for a long run of marks. */
static void order_marks(utf8proc_int32_t *cp, size_t n, utf8proc_int32_t *tmp)
{
	for (size_t i = 0; i < n;) {
		size_t begin = i;
		int last = 0;
		bool sorted = true;
		for (int c; i < n && (c = combining_class((uint32_t)cp[i])); i++) {
			sorted &= c >= last;
			last = c;
		}
		if (!sorted)
			sort_marks(cp + begin, i - begin, tmp);
		if (i == begin)
			i++;
	}
}

/* Whether the reference's tables know the character as one that never changes. */
static bool is_inert(uint32_t cp)
{
	size_t lo = 0, hi = sizeof dtp_after_unicode_9 / sizeof *dtp_after_unicode_9;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (cp > dtp_after_unicode_9[mid].last)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < sizeof dtp_after_unicode_9 / sizeof *dtp_after_unicode_9 && cp >= dtp_after_unicode_9[lo].first;
}

/* Canonical decomposition; cp has room for 4 code points per character, which is the longest one of Unicode. */
static size_t decompose(const char *text, size_t len, utf8proc_int32_t *cp, size_t room)
{
	size_t n = 0;
	for (size_t i = 0, k; i < len; i += k) {
		uint32_t c = dtp_utf8_next(text, i, &k);
		int boundclass = 0;
		utf8proc_ssize_t r = 1;
		if (is_inert(c))
			cp[n] = (utf8proc_int32_t)c;
		else
			r = utf8proc_decompose_char((utf8proc_int32_t)c, cp + n, (utf8proc_ssize_t)(room - n),
						    UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundclass);
		if (r < 0 || (size_t)r > room - n)
			return SIZE_MAX;
		n += (size_t)r;
	}
	return n;
}

/* Orders and composes what lies between inert characters, in place; returns the new length, SIZE_MAX on failure. */
static size_t compose(utf8proc_int32_t *cp, size_t n, utf8proc_int32_t *tmp)
{
	size_t out = 0;
	for (size_t i = 0; i < n;) {
		size_t begin = i;
		while (i < n && !is_inert((uint32_t)cp[i]))
			i++;
		order_marks(cp + begin, i - begin, tmp);
		utf8proc_ssize_t r = utf8proc_normalize_utf32(cp + begin, (utf8proc_ssize_t)(i - begin),
							      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
		if (r < 0)
			return SIZE_MAX;
		memmove(cp + out, cp + begin, (size_t)r * sizeof *cp);
		out += (size_t)r;
		if (i < n)
			cp[out++] = cp[i++];
	}
	return out;
}

enum dtp_code dtp_utf8_nfc(const char *text, size_t len, char **out, size_t *out_len, struct dtp_err *err)
{
	*out = NULL;
	size_t chars = 0;
	bool plain = true;
	for (size_t i = 0; i < len; i++) {
		unsigned char b = (unsigned char)text[i];
		chars += (b & 0xc0) != 0x80;
		plain &= b < 0xcc; /* everything below U+0300 stays as it is */
	}
	if (plain)
		return DTP_OK;

	size_t room, bytes;
	if (__builtin_mul_overflow(chars, 4, &room) || __builtin_mul_overflow(room, sizeof(utf8proc_int32_t), &bytes))
		return dtp_fail(err, DTP_REFUSED, "a text of %zu bytes is too long to normalise", len);
	utf8proc_int32_t *cp = malloc(bytes), *tmp = malloc(bytes);
	if (!cp || !tmp) {
		free(cp);
		free(tmp);
		return dtp_fail(err, DTP_FAILED, "out of memory: normalising a text of %zu bytes", len);
	}
	size_t n = decompose(text, len, cp, room);
	if (n != SIZE_MAX)
		n = compose(cp, n, tmp);
	free(tmp);
	if (n == SIZE_MAX) {
		free(cp);
		return dtp_fail(err, DTP_FAILED, "a text of %zu bytes cannot be normalised", len);
	}
	char *buf = (char *)cp; /* encoded in place: a code point never gets longer than its 4 bytes */
	size_t m = 0;
	for (size_t i = 0; i < n; i++)
		m += dtp_utf8_put(buf + m, (uint32_t)cp[i]);
	*out = buf;
	*out_len = m;
	return DTP_OK;
}

bool dtp_is_space(uint32_t cp)
{
	return (cp >= 0x9 && cp <= 0xd) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
	       (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool dtp_is_word(uint32_t cp)
{
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	case UTF8PROC_CATEGORY_SO: /* the symbols that are Other_Alphabetic: letters in circles and squares */
		return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
		       (cp >= 0x1f170 && cp <= 0x1f189);
	default:
		return cp == 0x200c || cp == 0x200d;
	}
}
