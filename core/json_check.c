/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of JSON, strictly, before cJSON builds a tree.  cJSON is lenient (control characters, numbers such as 01,
 * "\u0000", invalid UTF-8) and vague about where an error is; what passes here is what it understands the same way. */
#include "json.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_NUMBER 60 /* cJSON cuts a number after 63 characters */

struct scan {
	const char *p, *end;  /* p stays at the offence; *end is '\0' */
	const char *what;
	bool expected;        /* `what` is what should stand at p */
	int values;
};

static bool wrong_here(struct scan *s, const char *what)
{
	s->what = what;
	return false;
}

static bool expected_here(struct scan *s, const char *what)
{
	s->what = what;
	s->expected = true;
	return false;
}

static void skip_space(struct scan *s)
{
	while (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')
		s->p++;
}

/* The 4 digits of \uXXXX, or -1. */
static int hex4(const char *p)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		int c = p[i];
		if (c >= '0' && c <= '9')
			v = v << 4 | (c - '0');
		else if ((c | 32) >= 'a' && (c | 32) <= 'f')
			v = v << 4 | ((c | 32) - 'a' + 10);
		else
			return -1; /* the end of the text too */
	}
	return v;
}

static bool scan_escape(struct scan *s)
{
	if (s->p[1] != 'u') {
		if (!s->p[1] || !strchr("\"\\/bfnrt", s->p[1]))
			return wrong_here(s, "unknown escape in a string");
		s->p += 2;
		return true;
	}
	int u = hex4(s->p + 2);
	if (u < 0)
		return wrong_here(s, "\\u without four hexadecimal digits");
	if (u == 0)
		return wrong_here(s, "\\u0000 in a string is not supported");
	if (u >= 0xd800 && u <= 0xdfff) {
		int low = s->p[6] == '\\' && s->p[7] == 'u' ? hex4(s->p + 8) : -1;
		if (u >= 0xdc00 || low < 0xdc00 || low > 0xdfff)
			return wrong_here(s, "half of a surrogate pair");
		s->p += 6;
	}
	s->p += 6;
	return true;
}

static bool scan_string(struct scan *s)
{
	const char *open = s->p++;
	for (;;) {
		unsigned char c = (unsigned char)*s->p;
		if (c == '"') {
			s->p++;
			return true;
		}
		if (c == '\\') {
			if (!scan_escape(s))
				return false;
		} else if (c >= 0x80) {
			utf8proc_int32_t cp;
			utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s->p, s->end - s->p, &cp);
			if (n < 1)
				return wrong_here(s, "invalid UTF-8");
			s->p += n;
		} else if (c >= 0x20) {
			s->p++;
		} else if (s->p == s->end) {
			s->p = open;
			return wrong_here(s, "a string that is not closed");
		} else {
			return wrong_here(s, c == '\n' ? "a line break in a string" : "a control character in a string");
		}
	}
}

static bool scan_digits(struct scan *s)
{
	if (*s->p < '0' || *s->p > '9')
		return expected_here(s, "a digit");
	while (*s->p >= '0' && *s->p <= '9')
		s->p++;
	return true;
}

static bool scan_number(struct scan *s)
{
	const char *start = s->p;
	if (*s->p == '-')
		s->p++;
	if (*s->p == '0' && s->p[1] >= '0' && s->p[1] <= '9')
		return wrong_here(s, "a number with a leading zero");
	if (!scan_digits(s))
		return false;
	if (*s->p == '.') {
		s->p++;
		if (!scan_digits(s))
			return false;
	}
	if (*s->p == 'e' || *s->p == 'E') {
		s->p++;
		if (*s->p == '+' || *s->p == '-')
			s->p++;
		if (!scan_digits(s))
			return false;
	}
	if (s->p - start > MAX_NUMBER) {
		s->p = start;
		return wrong_here(s, "a number of more than 60 characters");
	}
	return true;
}

static bool scan_value(struct scan *s, int depth);

/* Of an object or an array, at its opening bracket. */
static bool scan_members(struct scan *s, bool object, int depth)
{
	char close = object ? '}' : ']';
	s->p++;
	skip_space(s);
	if (*s->p == close) {
		s->p++;
		return true;
	}
	for (;;) {
		skip_space(s);
		if (object) {
			if (*s->p != '"')
				return expected_here(s, "a key in double quotes");
			if (!scan_string(s))
				return false;
			skip_space(s);
			if (*s->p != ':')
				return expected_here(s, "':'");
			s->p++;
			skip_space(s);
		}
		if (!scan_value(s, depth))
			return false;
		skip_space(s);
		if (*s->p == close) {
			s->p++;
			return true;
		}
		if (*s->p != ',')
			return expected_here(s, object ? "',' or '}'" : "',' or ']'");
		s->p++;
	}
}

static bool scan_value(struct scan *s, int depth)
{
	static const char *const words[] = {"true", "false", "null"};

	if (++s->values > DTP_JSON_MAX_VALUES)
		return wrong_here(s, "too many values");
	if (*s->p == '{' || *s->p == '[') {
		if (depth == CJSON_NESTING_LIMIT)
			return wrong_here(s, "nested too deeply");
		return scan_members(s, *s->p == '{', depth + 1);
	}
	if (*s->p == '"')
		return scan_string(s);
	if (*s->p == '-' || (*s->p >= '0' && *s->p <= '9'))
		return scan_number(s);
	for (int i = 0; i < 3; i++) {
		size_t n = strlen(words[i]);
		if (!strncmp(s->p, words[i], n)) {
			s->p += n;
			return true;
		}
	}
	return expected_here(s, "a value");
}

static bool scan_document(struct scan *s)
{
	skip_space(s);
	if (*s->p != '{')
		return expected_here(s, "an object in braces");
	if (!scan_value(s, 0))
		return false;
	skip_space(s);
	if (s->p != s->end)
		return expected_here(s, "the end");
	return true;
}

/* "path:line:column: what"; columns count characters. */
static enum dtp_code malformed(const char *path, const char *text, const struct scan *s, struct dtp_err *err)
{
	long line = 1, column = 1;
	char found[32] = "the end of the text";

	for (const char *p = text; p < s->p; p++) {
		if (*p == '\n') {
			line++;
			column = 1;
		} else if (((unsigned char)*p & 0xc0) != 0x80) {
			column++;
		}
	}
	if (!s->expected)
		return dtp_fail(err, DTP_REFUSED, "%s:%ld:%ld: malformed JSON: %s", path, line, column, s->what);
	unsigned char c = (unsigned char)*s->p;
	if (c > 0x20 && c < 0x7f)
		snprintf(found, sizeof found, "'%c'", c);
	else if (s->p != s->end)
		snprintf(found, sizeof found, "the byte 0x%02x", c);
	return dtp_fail(err, DTP_REFUSED, "%s:%ld:%ld: malformed JSON: expected %s, found %s", path, line, column, s->what,
			found);
}

enum dtp_code dtp_json_check(const char *path, const char *text, size_t len, struct dtp_err *err)
{
	struct scan s = {.p = text, .end = text + len};

	if (scan_document(&s))
		return DTP_OK;
	if (s.values > DTP_JSON_MAX_VALUES)
		return dtp_fail(err, DTP_REFUSED, "%s: JSON of more than %d values: that is none that is read here", path, DTP_JSON_MAX_VALUES);
	return malformed(path, text, &s, err);
}
