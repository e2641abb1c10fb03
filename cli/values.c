/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct nth {
	int left;
	char word[64];
};

static bool take_nth(void *arg, const char *word, size_t len)
{
	struct nth *n = arg;

	snprintf(n->word, sizeof n->word, "%.*s", (int)strcspn(word, "= "), word);
	(void)len;
	return n->left--;
}

static char *join(const struct dtp_list *list)
{
	char *buf = NULL;
	size_t len;
	FILE *f = open_memstream(&buf, &len);

	if (!f)
		return NULL;
	for (int i = 0; i < list->n; i++)
		fprintf(f, "%s%s", i ? ", " : "", list->item[i]);
	if (!fclose(f))
		return buf;
	free(buf);
	return NULL;
}

char *dtp_value_text(const struct dtp_option *o, const struct dtp_args *args)
{
	const void *at = (const char *)args + o->offset;
	char text[64] = "";
	struct nth choice;

	switch (o->kind) {
	case DTP_OPT_SWITCH:
		return strdup(*(const bool *)at ? "yes" : "no");
	case DTP_OPT_INT:
		snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)at);
		break;
	case DTP_OPT_SEED:
		snprintf(text, sizeof text, "%" PRIu64, *(const uint64_t *)at);
		break;
	case DTP_OPT_FLOAT:
		snprintf(text, sizeof text, "%.17g", *(const double *)at);
		break;
	case DTP_OPT_CHOICE:
		choice = (struct nth){.left = *(const int *)at};
		dtp_each_word(o->choices, take_nth, &choice);
		return strdup(choice.word);
	case DTP_OPT_LIST:
		return join(at);
	case DTP_OPT_STRING:
	case DTP_OPT_PATH:
		return strdup(*(const char *const *)at ? *(const char *const *)at : "");
	}
	return strdup(text);
}

/* ---- JSON */

static cJSON *list_json(const struct dtp_list *list)
{
	cJSON *a = list->n ? cJSON_CreateArray() : NULL;

	for (int i = 0; i < list->n; i++)
		cJSON_AddItemToArray(a, cJSON_CreateString(list->item[i]));
	return a;
}

static cJSON *text_json(const struct dtp_option *o, const struct dtp_args *args)
{
	char *text = dtp_value_text(o, args);
	cJSON *v = text ? cJSON_CreateString(text) : NULL;

	free(text);
	return v;
}

cJSON *dtp_value_json(const struct dtp_option *o, const struct dtp_args *args)
{
	const void *at = (const char *)args + o->offset;

	switch (o->kind) {
	case DTP_OPT_SWITCH:
		return cJSON_CreateBool(*(const bool *)at);
	case DTP_OPT_INT:
		return *(const int64_t *)at ? cJSON_CreateNumber((double)*(const int64_t *)at) : NULL;
	case DTP_OPT_FLOAT:
		return *(const double *)at >= 0 ? cJSON_CreateNumber(*(const double *)at) : NULL;
	case DTP_OPT_STRING:
	case DTP_OPT_PATH:
		return *(const char *const *)at ? cJSON_CreateString(*(const char *const *)at) : NULL;
	case DTP_OPT_LIST:
		return list_json(at);
	case DTP_OPT_SEED:
	case DTP_OPT_CHOICE:
		break;
	}
	return text_json(o, args);
}

static enum dtp_code wrong_type(const cJSON *v, const char *expected, struct dtp_err *err)
{
	const char *is = cJSON_IsString(v) ? "a string" : cJSON_IsNumber(v) ? "a number" : cJSON_IsBool(v) ? "true or false"
		: cJSON_IsNull(v) ? "null" : cJSON_IsArray(v) ? "an array" : "an object";

	return dtp_fail(err, DTP_REFUSED, "'%.64s' is %s, expected %s", v->string, is, expected);
}

static enum dtp_code take_number(const struct dtp_option *o, const cJSON *v, struct dtp_args *args, struct dtp_err *err)
{
	char text[32];

	if (o->kind != DTP_OPT_FLOAT && fabs(v->valuedouble) >= DTP_JSON_EXACT)
		return dtp_fail(err, DTP_REFUSED, "'%.64s' is too large for a JSON number to be exact: write it as a string", v->string);
	snprintf(text, sizeof text, "%.17g", v->valuedouble);
	return dtp_args_set(args, o, text, err);
}

static enum dtp_code take_list(const struct dtp_option *o, const cJSON *v, struct dtp_args *args, struct dtp_err *err)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, v) {
		if (!cJSON_IsString(item))
			return dtp_fail(err, DTP_REFUSED, "'%.64s' holds something else than strings", v->string);
		if (dtp_args_set(args, o, item->valuestring, err))
			return err->code;
	}
	return DTP_OK;
}

enum dtp_code dtp_value_take(const struct dtp_option *o, const cJSON *v, struct dtp_args *args, struct dtp_err *err)
{
	bool number = o->kind == DTP_OPT_INT || o->kind == DTP_OPT_FLOAT || o->kind == DTP_OPT_SEED;

	if (o->kind == DTP_OPT_SWITCH) {
		if (!cJSON_IsBool(v))
			return wrong_type(v, "true or false", err);
		return dtp_args_set(args, o, cJSON_IsTrue(v) ? "yes" : "no", err);
	}
	if (o->kind == DTP_OPT_LIST)
		return cJSON_IsArray(v) ? take_list(o, v, args, err) : wrong_type(v, "an array of strings", err);
	if (number && cJSON_IsNumber(v))
		return take_number(o, v, args, err);
	if (cJSON_IsString(v) && (!number || o->kind == DTP_OPT_SEED))
		return dtp_args_set(args, o, v->valuestring, err);
	return wrong_type(v, o->kind == DTP_OPT_SEED ? "a number or a string of digits" : number ? "a number" : "a string", err);
}
