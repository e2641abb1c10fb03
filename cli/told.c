/* SPDX-License-Identifier: Apache-2.0 */
#include "told.h"

#include "commands.h"
#include "utf8.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN 80 /* characters of a value in a message */

/* ---- the record: names and values in turn, each with its NUL */

static void put(FILE *f, const char *name, const char *value)
{
	fwrite(name, 1, strlen(name) + 1, f);
	fwrite(value, 1, strlen(value) + 1, f);
}

static bool put_option(FILE *f, const struct dtp_option *o, const struct dtp_args *args)
{
	const void *at = (const char *)args + o->offset;
	const struct dtp_list *list = at;
	char name[64], *text;

	snprintf(name, sizeof name, "--%s", o->name);
	for (int i = 0; o->kind == DTP_OPT_LIST && i < list->n; i++)
		put(f, name, list->item[i]);
	if (o->kind == DTP_OPT_LIST)
		return true;
	text = dtp_value_text(o, args);
	if (text)
		put(f, name, o->kind == DTP_OPT_SWITCH && *(const bool *)at ? "" : text);
	free(text);
	return text != NULL;
}

char *dtp_told_record(const struct dtp_args *args, size_t *len)
{
	char *buf = NULL;
	FILE *f = open_memstream(&buf, len);
	bool ok = true;

	if (!f)
		return NULL;
	for (int i = 0; i < dtp_ncommands; i++)
		if (dtp_commands[i].bit == args->command)
			put(f, "the command", dtp_commands[i].name);
	for (int i = 0; i < args->nwords; i++)
		put(f, "the word", args->word[i]);
	for (int i = 0; i < dtp_noptions; i++)
		if ((args->given | args->preset) >> i & 1 && !dtp_options[i].may_differ)
			ok = put_option(f, &dtp_options[i], args) && ok;
	if (!fclose(f) && ok)
		return buf;
	free(buf);
	return NULL;
}

/* ---- comparing */

struct entry {
	const char *name, *value; /* NULL: none (any more) */
};

static struct entry next(const char **p, const char *end)
{
	struct entry e = {*p, NULL};

	if (*p >= end || !(e.value = memchr(*p, '\0', (size_t)(end - *p))) || ++e.value >= end)
		return (struct entry){NULL, NULL};
	*p = e.value + strnlen(e.value, (size_t)(end - e.value)) + 1;
	return e;
}

static bool has(const char *p, const char *end, const char *name)
{
	struct entry e;

	while ((e = next(&p, end)).name)
		if (!strcmp(e.name, name))
			return true;
	return false;
}

static void say(char *buf, size_t size, const char *name, const char *value)
{
	if (!value)
		snprintf(buf, size, "no '%s'", name);
	else if (!*value)
		snprintf(buf, size, "'%s'", name);
	else
		snprintf(buf, size, "'%s %.*s%s'", name, (int)dtp_utf8_fit(value, SHOWN), value, strlen(value) > SHOWN ? "..." : "");
}

bool dtp_told_same(const char *a, size_t a_len, const char *b, size_t b_len, char *a_says, char *b_says, size_t size)
{
	const char *a_end = a + a_len, *b_end = b + b_len, *a_at = a, *b_at = b;

	if (a_len == b_len && !memcmp(a, b, a_len))
		return true;
	for (;;) { /* both are in the order of the table */
		struct entry x = next(&a_at, a_end), y = next(&b_at, b_end);
		if (!x.name && !y.name)
			return true;
		if (x.name && y.name && !strcmp(x.name, y.name)) {
			if (!strcmp(x.value, y.value))
				continue;
			say(a_says, size, x.name, x.value);
			say(b_says, size, y.name, y.value);
			return false;
		}
		/* What only one of them has. */
		bool only_a = x.name && !has(b, b_end, x.name);
		say(a_says, size, only_a || !y.name ? x.name : y.name, only_a || !y.name ? x.value : NULL);
		say(b_says, size, only_a || !y.name ? x.name : y.name, only_a || !y.name ? NULL : y.value);
		return false;
	}
}
