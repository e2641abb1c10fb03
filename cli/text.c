/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

const char *dtp_clean(char *buf, size_t size, const char *name)
{
	size_t n = (size_t)snprintf(buf, size, "%s", name);

	for (size_t i = 0; i < n && i + 1 < size; i++)
		if ((unsigned char)buf[i] < 0x20 || buf[i] == 0x7f)
			buf[i] = '?';
	return buf;
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
