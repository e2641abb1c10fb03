/* SPDX-License-Identifier: Apache-2.0 */
/* cJSON behind typed getters whose errors name the file and the key.  All JSON of the project goes through here. */
#ifndef DTP_JSON_H
#define DTP_JSON_H

#include "err.h"

#include <stdint.h>
#include <cjson/cJSON.h>

/* 2^53: from here on a number, which is a double, may be another than what was written. */
#define DTP_JSON_EXACT 9007199254740992.0

struct dtp_json {
	char *path;  /* for messages */
	cJSON *root;
};

/* Limits of files: configurations, plans and the like take some kilobytes, tokenizers and the indices of checkpoints megabytes. */
#define DTP_JSON_SMALL ((size_t)4 << 20)
#define DTP_JSON_LARGE ((size_t)64 << 20)
/* Of any text: cJSON takes some 100 bytes for each value, so that 60 MB of "0,0,0" would take 2.5 GB.  A tokenizer has up to a million. */
#define DTP_JSON_MAX_VALUES 2000000

/* Reads a whole file (at most max_bytes; 0 means DTP_JSON_SMALL) or a buffer.  Malformed input is DTP_REFUSED with
 * "path:line:column: what".  A missing file, a folder, a file that is not UTF-8 JSON are errors by name.
 * The root must be an object.  Duplicate keys of one object are an error (which of two counts is undefined
 * otherwise).  Nesting is limited by cJSON's own limit. */
enum dtp_code dtp_json_load(const char *path, size_t max_bytes, struct dtp_json *doc, struct dtp_err *err);
enum dtp_code dtp_json_parse(const char *path, const char *text, size_t len, struct dtp_json *doc, struct dtp_err *err);
void dtp_json_free(struct dtp_json *doc);
/* dir/config.json of a model.  Quantised weights (`quantization_config`) are DTP_REFUSED by name. */
enum dtp_code dtp_json_load_config(const char *dir, struct dtp_json *doc, struct dtp_err *err);

/* The grammar and the number of values, which load and parse begin with: text[len] must be '\0'. */
enum dtp_code dtp_json_check(const char *path, const char *text, size_t len, struct dtp_err *err);

/* Getters of one key of `obj` (NULL: the root).  Integers must be whole and within [min, max]; a number that is
 * not finite, of the wrong type, or out of range is DTP_REFUSED: "path: 'key' is X, expected Y".  The _or forms
 * leave *out at its present value when the key is absent or null. */
enum dtp_code dtp_json_int(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			   int64_t *out, struct dtp_err *err);
enum dtp_code dtp_json_int_or(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			      int64_t *out, struct dtp_err *err);
enum dtp_code dtp_json_double(const struct dtp_json *doc, const cJSON *obj, const char *key, double min, double max,
			      double *out, struct dtp_err *err);
enum dtp_code dtp_json_double_or(const struct dtp_json *doc, const cJSON *obj, const char *key, double min, double max,
				 double *out, struct dtp_err *err);
enum dtp_code dtp_json_bool_or(const struct dtp_json *doc, const cJSON *obj, const char *key, bool *out,
			       struct dtp_err *err);
/* *out points into doc. */
enum dtp_code dtp_json_string(const struct dtp_json *doc, const cJSON *obj, const char *key, const char **out,
			      struct dtp_err *err);
/* An array of 1..cap integers; *n gets the count. */
enum dtp_code dtp_json_ints(const struct dtp_json *doc, const cJSON *obj, const char *key, int64_t min, int64_t max,
			    int64_t *out, int cap, int *n, struct dtp_err *err);
#endif
