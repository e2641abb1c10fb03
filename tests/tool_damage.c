/* SPDX-License-Identifier: Apache-2.0 */
/* Breaks copies of the fixtures in one place each, for tests/cli:
 *   tool_damage json FILE KEY VALUE          sets a key of a JSON object (VALUE is JSON; "-" removes the key)
 *   tool_damage tensor FILE NAME KEY VALUE   the same in one tensor's entry of a safetensors header
 *   tool_damage rename FILE NAME NEW         gives a tensor another name
 *   tool_damage length FILE NUMBER           overwrites a safetensors file's header length
 *   tool_damage flip FILE OFFSET             inverts one byte
 * The data behind a header stays as it is. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *path;

static void die(const char *what)
{
	fprintf(stderr, "tool_damage: %s: %s\n", path, what);
	exit(1);
}

static unsigned char *slurp(size_t *n)
{
	FILE *f = fopen(path, "rb");

	if (!f || fseek(f, 0, SEEK_END))
		die("cannot be read");
	*n = (size_t)ftell(f);
	rewind(f);
	unsigned char *p = malloc(*n + 1);
	if (!p || fread(p, 1, *n, f) != *n)
		die("cannot be read");
	p[*n] = '\0';
	fclose(f);
	return p;
}

static void spill(const void *a, size_t n, const void *b, size_t m, const void *c, size_t k)
{
	FILE *f = fopen(path, "wb");

	if (!f || fwrite(a, 1, n, f) != n || fwrite(b, 1, m, f) != m || fwrite(c, 1, k, f) != k || fclose(f))
		die("cannot be written");
}

static void set(cJSON *object, const char *key, const char *value)
{
	cJSON *old = cJSON_GetObjectItemCaseSensitive(object, key);

	if (!strcmp(value, "-")) {
		if (!old)
			die("has no such key");
		cJSON_DeleteItemFromObjectCaseSensitive(object, key);
		return;
	}
	cJSON *new = cJSON_CreateRaw(value); /* as it stands: numbers too large for a double, too */
	if (old)
		cJSON_ReplaceItemInObjectCaseSensitive(object, key, new);
	else
		cJSON_AddItemToObject(object, key, new);
}

static void edit_json(const char *key, const char *value)
{
	size_t n;
	unsigned char *text = slurp(&n);
	cJSON *root = cJSON_Parse((char *)text);

	if (!root)
		die("is no JSON");
	set(root, key, value);
	char *out = cJSON_Print(root);
	spill(out, strlen(out), "\n", 1, "", 0);
	free(out);
	cJSON_Delete(root);
	free(text);
}

/* Names a tensor (new_name) or sets a key of its entry. */
static void edit_tensor(const char *name, const char *key, const char *value, const char *new_name)
{
	size_t n;
	unsigned char *file = slurp(&n), length[8];
	uint64_t len = 0;

	for (int i = 7; i >= 0; i--)
		len = len << 8 | file[i];
	if (n < 8 || len > n - 8)
		die("has no header");
	cJSON *root = cJSON_ParseWithLength((char *)file + 8, len), *entry;
	entry = cJSON_GetObjectItemCaseSensitive(root, name);
	if (!entry)
		die("has no such tensor");
	if (new_name) {
		cJSON_AddItemToObject(root, new_name, cJSON_Duplicate(entry, 1));
		cJSON_DeleteItemFromObjectCaseSensitive(root, name);
	} else {
		set(entry, key, value);
	}
	char *out = cJSON_PrintUnformatted(root);
	uint64_t m = strlen(out);
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(m >> 8 * i);
	spill(length, 8, out, m, file + 8 + len, n - 8 - len);
	free(out);
	cJSON_Delete(root);
	free(file);
}

static void edit_bytes(uint64_t at, const unsigned char *bytes, size_t count)
{
	size_t n;
	unsigned char *file = slurp(&n);

	if (at > n || count > n - at)
		die("is shorter than that");
	if (bytes)
		memcpy(file + at, bytes, count);
	else
		file[at] ^= 0xff;
	spill(file, n, "", 0, "", 0);
	free(file);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	path = argc > 2 ? argv[2] : "";
	if (!strcmp(what, "json") && argc == 5) {
		edit_json(argv[3], argv[4]);
	} else if (!strcmp(what, "tensor") && argc == 6) {
		edit_tensor(argv[3], argv[4], argv[5], NULL);
	} else if (!strcmp(what, "rename") && argc == 5) {
		edit_tensor(argv[3], NULL, NULL, argv[4]);
	} else if (!strcmp(what, "length") && argc == 4) {
		uint64_t v = strtoull(argv[3], NULL, 10);
		unsigned char bytes[8];
		for (int i = 0; i < 8; i++)
			bytes[i] = (unsigned char)(v >> 8 * i);
		edit_bytes(0, bytes, 8);
	} else if (!strcmp(what, "flip") && argc == 4) {
		edit_bytes(strtoull(argv[3], NULL, 10), NULL, 1);
	} else {
		fprintf(stderr, "usage: see the comment at the top of tests/tool_damage.c\n");
		return 1;
	}
	return 0;
}
