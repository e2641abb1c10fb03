/* SPDX-License-Identifier: Apache-2.0 */
/* What a PNG says of how it was drawn. */
#include "inspect.h"

#include "image.h"
#include "recall.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool dtp_is_png(const char *path)
{
	char head[sizeof DTP_PNG_MAGIC - 1];
	FILE *f = fopen(path, "rbe");
	bool is = f && fread(head, sizeof head, 1, f) == 1 && !memcmp(head, DTP_PNG_MAGIC, sizeof head);

	if (f)
		fclose(f);
	return is;
}

/* A line for each value; those of lists and objects one after the other, named by the keys that lead to them. */
static void print_value(const char *key, const cJSON *v)
{
	char name[256], text[40];
	const cJSON *item;

	if (cJSON_IsObject(v) || cJSON_IsArray(v)) {
		cJSON_ArrayForEach(item, v) {
			snprintf(name, sizeof name, "%.120s%s%.120s", key, item->string ? "." : "", item->string ? item->string : "");
			print_value(name, item);
		}
		return;
	}
	snprintf(text, sizeof text, "%.17g", cJSON_IsNumber(v) ? v->valuedouble : 0);
	printf("  %s = ", dtp_clean(name, sizeof name, key));
	dtp_write_text(stdout, cJSON_IsString(v) ? v->valuestring : cJSON_IsNumber(v) ? text : cJSON_IsTrue(v) ? "true"
		       : cJSON_IsFalse(v) ? "false" : "null");
	putchar('\n');
}

enum dtp_code dtp_inspect_png(const char *path, bool json, struct dtp_err *err)
{
	struct dtp_json doc;
	const cJSON *v;

	if (dtp_recipe_read(path, &doc, err))
		return err->code;
	if (json) {
		cJSON *o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "path", path);
		cJSON_AddItemToObject(o, "record", cJSON_Duplicate(doc.root, true));
		dtp_json_free(&doc);
		return dtp_write_json(stdout, o, err);
	}
	dtp_write_text(stdout, path);
	puts(": what it was drawn of");
	cJSON_ArrayForEach(v, doc.root)
		print_value(v->string, v);
	dtp_json_free(&doc);
	return DTP_OK;
}
