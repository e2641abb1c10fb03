/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of JSON output: tool_json FILE [PATH]...
 * Checks the whole file strictly, then prints the value at each path ("ranks.0.peak") on a line of its own; "#" as the last
 * part is the number of elements; "name=step" is the first element of an array whose `name` is "step". */
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *path, const char *what)
{
	fprintf(stderr, "tool_json: %s: %s\n", path, what);
	exit(1);
}

static const cJSON *element(const cJSON *at, const char *key, size_t length, const char *value)
{
	const cJSON *item;

	cJSON_ArrayForEach(item, at) {
		const cJSON *member;
		cJSON_ArrayForEach(member, item)
			if (!strncmp(member->string, key, length) && !member->string[length] && cJSON_IsString(member) &&
			    !strcmp(member->valuestring, value))
				return item;
	}
	return NULL;
}

static const cJSON *step(const cJSON *at, const char *part)
{
	const char *equals = strchr(part, '=');

	if (cJSON_IsArray(at) && equals)
		return element(at, part, (size_t)(equals - part), equals + 1);
	return cJSON_IsArray(at) ? cJSON_GetArrayItem(at, (int)strtol(part, NULL, 10))
				 : cJSON_GetObjectItemCaseSensitive(at, part);
}

static void print(const cJSON *root, const char *path)
{
	char *copy = strdup(path), *rest = copy;
	const cJSON *at = root;

	for (char *part; at && (part = strsep(&rest, "."));) {
		if (!strcmp(part, "#")) {
			printf("%d\n", cJSON_GetArraySize(at));
			free(copy);
			return;
		}
		at = step(at, part);
	}
	free(copy);
	if (!at)
		die(path, "is not there");
	char *text = cJSON_PrintUnformatted(at);
	puts(cJSON_IsString(at) ? at->valuestring : text);
	cJSON_free(text);
}

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;

	if (argc < 2)
		die("usage", "tool_json FILE [PATH]...");
	if (dtp_json_load(argv[1], 0, &doc, &err))
		die(argv[1], err.message);
	for (int i = 2; i < argc; i++)
		print(doc.root, argv[i]);
	dtp_json_free(&doc);
	return 0;
}
