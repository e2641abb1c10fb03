/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"
#include "utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Bytes of the character at s, and what of it is shown: itself or '?', n bytes.  Beside those of ASCII, U+0080 to U+009F are control
 * characters. */
static size_t next_shown(const char *s, const char **shown, size_t *n)
{
	size_t len = 1;
	uint32_t c = dtp_utf8_valid(s, strnlen(s, 4)) ? dtp_utf8_next(s, 0, &len) : 0;
	bool harmless = c >= 0x20 && (c < 0x7f || c >= 0xa0);

	*shown = harmless ? s : "?";
	*n = harmless ? len : 1;
	return len;
}

const char *dtp_clean(char *buf, size_t size, const char *name)
{
	size_t at = 0, n, len;
	const char *c;

	for (; *name; name += len, at += n) {
		len = next_shown(name, &c, &n);
		if (at + n >= size)
			break;
		memcpy(buf + at, c, n);
	}
	buf[at] = '\0';
	return buf;
}

void dtp_write_text(FILE *f, const char *s)
{
	size_t n, len;
	const char *c;

	for (; *s; s += len) {
		len = next_shown(s, &c, &n);
		fwrite(*s == '\n' || *s == '\t' ? s : c, n, 1, f);
	}
}

cJSON *dtp_json_numbers(int n, const int64_t *v)
{
	cJSON *a = cJSON_CreateArray();

	for (int i = 0; i < n; i++)
		cJSON_AddItemToArray(a, cJSON_CreateNumber((double)v[i]));
	return a;
}

enum dtp_code dtp_flush(FILE *f, struct dtp_err *err)
{
	if (fflush(f) || ferror(f))
		return dtp_fail(err, DTP_FAILED, "cannot write to standard output: %s", strerror(errno));
	return DTP_OK;
}

enum dtp_code dtp_write_json(FILE *f, cJSON *value, struct dtp_err *err)
{
	char *text = cJSON_Print(value);

	cJSON_Delete(value);
	if (!text)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	fputs(text, f);
	fputc('\n', f);
	cJSON_free(text);
	return DTP_OK;
}
