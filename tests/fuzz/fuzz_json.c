/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: they are refused, or give a tree that cJSON prints and that is accepted again. */
#include "json.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_getters(const struct dtp_json *doc)
{
	static const char *const keys[] = {"a", "b", "shape", ""};
	struct dtp_err err;
	int64_t i = 0, many[4];
	double d = 0;
	bool b = false;
	const char *s;
	int n;

	for (int k = 0; k < 4; k++) {
		if (!dtp_json_int(doc, NULL, keys[k], -5, 5, &i, &err) && (i < -5 || i > 5))
			abort();
		if (!dtp_json_double(doc, NULL, keys[k], -1e300, 1e300, &d, &err) && !isfinite(d))
			abort();
		if (!dtp_json_ints(doc, NULL, keys[k], 0, 9, many, 4, &n, &err) && (n < 1 || n > 4))
			abort();
		dtp_json_int_or(doc, NULL, keys[k], INT64_MIN, INT64_MAX, &i, &err);
		dtp_json_double_or(doc, NULL, keys[k], 0, 1, &d, &err);
		dtp_json_bool_or(doc, NULL, keys[k], &b, &err);
		dtp_json_string(doc, NULL, keys[k], &s, &err);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_json doc, again;
	struct dtp_err err;

	if (dtp_json_parse("fuzz", (const char *)data, size, &doc, &err))
		return 0;
	use_getters(&doc);
	char *text = cJSON_PrintUnformatted(doc.root);
	if (!text)
		abort();
	if (dtp_json_parse("again", text, strlen(text), &again, &err))
		abort();
	dtp_json_free(&again);
	free(text);
	dtp_json_free(&doc);
	return 0;
}
