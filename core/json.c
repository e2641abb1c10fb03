/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"
#include "infile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum dtp_code check_keys(const char *path, const cJSON *object, struct dtp_err *err)
{
	const cJSON *c;
	const char *twice = NULL;
	size_t n = 0, i = 0;

	cJSON_ArrayForEach(c, object)
		n++;
	if (n < 2)
		return DTP_OK;
	const char **keys = malloc(n * sizeof *keys);
	if (!keys)
		return dtp_fail(err, DTP_FAILED, "%s: out of memory", path);
	cJSON_ArrayForEach(c, object)
		keys[i++] = c->string;
	qsort(keys, n, sizeof *keys, compare_strings);
	for (i = 1; i < n && !twice; i++)
		if (!strcmp(keys[i - 1], keys[i]))
			twice = keys[i];
	free(keys);
	if (twice)
		return dtp_fail(err, DTP_REFUSED, "%s: the key '%.200s' occurs twice in one object", path, twice);
	return DTP_OK;
}

static enum dtp_code check_duplicates(const char *path, const cJSON *node, struct dtp_err *err)
{
	const cJSON *c;
	if (cJSON_IsObject(node)) {
		enum dtp_code rc = check_keys(path, node, err);
		if (rc)
			return rc;
	}
	cJSON_ArrayForEach(c, node) {
		if (!c->child)
			continue;
		enum dtp_code rc = check_duplicates(path, c, err);
		if (rc)
			return rc;
	}
	return DTP_OK;
}

/* text[len] is '\0'. */
static enum dtp_code parse_terminated(const char *path, const char *text, size_t len, struct dtp_json *doc,
				      struct dtp_err *err)
{
	size_t bom = len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;

	*doc = (struct dtp_json){0};
	enum dtp_code rc = dtp_json_check(path, text + bom, len - bom, err);
	if (rc)
		return rc;
	doc->path = strdup(path);
	/* The '\0' is handed over as part of the text: cJSON before 1.7.18 may look one byte too far. */
	doc->root = cJSON_ParseWithLength(text + bom, len - bom + 1);
	if (!doc->path || !doc->root) {
		dtp_json_free(doc);
		return dtp_fail(err, DTP_FAILED, "%s: out of memory", path);
	}
	rc = check_duplicates(path, doc->root, err);
	if (rc)
		dtp_json_free(doc);
	return rc;
}

enum dtp_code dtp_json_parse(const char *path, const char *text, size_t len, struct dtp_json *doc, struct dtp_err *err)
{
	*doc = (struct dtp_json){0};
	char *copy = malloc(len + 1);
	if (!copy)
		return dtp_fail(err, DTP_FAILED, "%s: out of memory", path);
	memcpy(copy, text, len);
	copy[len] = '\0';
	enum dtp_code rc = parse_terminated(path, copy, len, doc, err);
	free(copy);
	return rc;
}

enum dtp_code dtp_json_load(const char *path, size_t max_bytes, struct dtp_json *doc, struct dtp_err *err)
{
	char *text;
	size_t len;

	*doc = (struct dtp_json){0};
	if (dtp_infile_read(path, "a JSON file", max_bytes ? max_bytes : DTP_JSON_SMALL, &text, &len, err))
		return err ? err->code : DTP_FAILED;
	enum dtp_code rc = parse_terminated(path, text, len, doc, err);
	free(text);
	return rc;
}

void dtp_json_free(struct dtp_json *doc)
{
	cJSON_Delete(doc->root);
	free(doc->path);
	*doc = (struct dtp_json){0};
}

/* ---- getters */

static const cJSON *find(const struct dtp_json *doc, const cJSON *obj, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(obj ? obj : doc->root, key);
}

static void describe_string(const char *s, char *buf, size_t size)
{
	size_t n = strlen(s);
	bool cut = n > 60;
	if (cut)
		for (n = 60; n && ((unsigned char)s[n] & 0xc0) == 0x80;)
			n--; /* not in the middle of a character */
	snprintf(buf, size, "\"%.*s%s\"", (int)n, s, cut ? "..." : "");
}

/* How a value is shown in a message: short, and never a whole vocabulary. */
static void describe(const cJSON *v, char *buf, size_t size)
{
	if (!v)
		snprintf(buf, size, "missing");
	else if (cJSON_IsObject(v))
		snprintf(buf, size, "an object");
	else if (cJSON_IsArray(v))
		snprintf(buf, size, "an array of %d", cJSON_GetArraySize(v));
	else if (cJSON_IsNumber(v) && !isfinite(v->valuedouble))
		snprintf(buf, size, "a number beyond every limit");
	else if (cJSON_IsNumber(v))
		snprintf(buf, size, "%.15g", v->valuedouble);
	else if (cJSON_IsString(v))
		describe_string(v->valuestring, buf, size);
	else
		snprintf(buf, size, "%s", cJSON_IsNull(v) ? "null" : cJSON_IsTrue(v) ? "true" : "false");
}

static enum dtp_code mismatch(const struct dtp_json *doc, const char *key, const cJSON *v, const char *expected,
			      struct dtp_err *err)
{
	char is[96];
	describe(v, is, sizeof is);
	return dtp_fail(err, DTP_REFUSED, "%s: '%s' is %s, expected %s", doc->path, key, is, expected);
}

static bool whole_within(const cJSON *v, int64_t min, int64_t max)
{
	if (!cJSON_IsNumber(v))
		return false;
	double d = v->valuedouble;
	if (!(fabs(d) < DTP_JSON_EXACT) || d != floor(d))
		return false;
	return (int64_t)d >= min && (int64_t)d <= max;
}

static void describe_range(char *buf, size_t size, int64_t min, int64_t max)
{
	if (max >= (int64_t)DTP_JSON_EXACT)
		snprintf(buf, size, "at least %lld", (long long)min);
	else
		snprintf(buf, size, "from %lld to %lld", (long long)min, (long long)max);
}

enum dtp_code dtp_json_int(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			   int64_t *out, struct dtp_err *err)
{
	const cJSON *v = find(doc, obj, key);
	if (!whole_within(v, min, max)) {
		char range[64], expected[96];
		describe_range(range, sizeof range, min, max);
		snprintf(expected, sizeof expected, "a whole number %s", range);
		return mismatch(doc, key, v, expected, err);
	}
	*out = (int64_t)v->valuedouble;
	return DTP_OK;
}

static bool absent(const struct dtp_json *doc, const cJSON *obj, const char *key)
{
	const cJSON *v = find(doc, obj, key);
	return !v || cJSON_IsNull(v);
}

enum dtp_code dtp_json_int_or(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			      int64_t *out, struct dtp_err *err)
{
	return absent(doc, obj, key) ? DTP_OK : dtp_json_int(doc, obj, key, min, max, out, err);
}

enum dtp_code dtp_json_double(const struct dtp_json *doc, const cJSON *obj, const char *key, double min, double max,
			      double *out, struct dtp_err *err)
{
	const cJSON *v = find(doc, obj, key);
	if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble) || v->valuedouble < min || v->valuedouble > max) {
		char expected[96];
		snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
		return mismatch(doc, key, v, expected, err);
	}
	*out = v->valuedouble;
	return DTP_OK;
}

enum dtp_code dtp_json_double_or(const struct dtp_json *doc, const cJSON *obj, const char *key, double min, double max,
				 double *out, struct dtp_err *err)
{
	return absent(doc, obj, key) ? DTP_OK : dtp_json_double(doc, obj, key, min, max, out, err);
}

enum dtp_code dtp_json_bool_or(const struct dtp_json *doc, const cJSON *obj, const char *key, bool *out,
			       struct dtp_err *err)
{
	const cJSON *v = find(doc, obj, key);
	if (absent(doc, obj, key))
		return DTP_OK;
	if (!cJSON_IsBool(v))
		return mismatch(doc, key, v, "true or false", err);
	*out = cJSON_IsTrue(v);
	return DTP_OK;
}

enum dtp_code dtp_json_string(const struct dtp_json *doc, const cJSON *obj, const char *key, const char **out,
			      struct dtp_err *err)
{
	const cJSON *v = find(doc, obj, key);
	if (!cJSON_IsString(v))
		return mismatch(doc, key, v, "a string", err);
	*out = v->valuestring;
	return DTP_OK;
}

enum dtp_code dtp_json_ints(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			    int64_t *out, int cap, int *n, struct dtp_err *err)
{
	const cJSON *v = find(doc, obj, key), *c;
	int count = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 0, i = 0;
	char range[64], expected[128];

	describe_range(range, sizeof range, min, max);
	if (count < 1 || count > cap) {
		snprintf(expected, sizeof expected, "an array of 1 to %d whole numbers %s", cap, range);
		return mismatch(doc, key, v, expected, err);
	}
	cJSON_ArrayForEach(c, v) {
		if (!whole_within(c, min, max)) {
			char is[96];
			describe(c, is, sizeof is);
			return dtp_fail(err, DTP_REFUSED, "%s: '%s[%d]' is %s, expected a whole number %s", doc->path, key,
					i, is, range);
		}
		out[i++] = (int64_t)c->valuedouble;
	}
	*n = count;
	return DTP_OK;
}

enum dtp_code dtp_json_load_config(const char *dir, struct dtp_json *doc, struct dtp_err *err)
{
	char path[4096];

	snprintf(path, sizeof path, "%s/config.json", dir);
	if (dtp_json_load(path, 0, doc, err))
		return err->code;
	if (!cJSON_GetObjectItemCaseSensitive(doc->root, "quantization_config"))
		return DTP_OK;
	dtp_json_free(doc);
	return dtp_fail(err, DTP_REFUSED,
			"%s: 'quantization_config': quantised weights are not supported; use BF16, F16 or F32 safetensors", path);
}
