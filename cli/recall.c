/* SPDX-License-Identifier: Apache-2.0 */
#include "recall.h"

#include "exclude.h"
#include "image.h"
#include "infile.h"
#include "recipe.h"
#include "text.h"
#include "utf8.h"
#include "values.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 60 /* characters of a value in a note */

/* ---- reading */

/* What other programs leave, or editors that drop what they do not know. */
static enum dtp_code no_recipe(const char *path, struct dtp_err *err)
{
	char *foreign = NULL;
	struct dtp_err ignored = DTP_ERR_INIT;

	dtp_png_read_text(path, "parameters", &foreign, &ignored);
	dtp_fail(err, DTP_REFUSED, "'%s' holds no record of difftp%s", path,
		 foreign ? ", only the parameters that another program or an editor left: give them as options"
			 : ": it was drawn by another program, with --no-metadata, or an editor has dropped it");
	free(foreign);
	return err->code;
}

enum dtp_code dtp_recipe_read(const char *path, struct dtp_json *doc, struct dtp_err *err)
{
	char name[4200], *text;

	*doc = (struct dtp_json){0};
	if (dtp_png_read_text(path, DTP_RECIPE_KEY, &text, err))
		return err->code;
	if (!text)
		return no_recipe(path, err);
	snprintf(name, sizeof name, "the record in '%s'", path);
	enum dtp_code code = dtp_json_parse(name, text, strlen(text), doc, err);
	free(text);
	return code;
}

/* ---- taking */

/* Recorded options that another one stands in for when it is given. */
static bool is_replaced(const struct dtp_args *args, const struct dtp_option *o)
{
	static const struct {
		size_t given, replaces;
	} pairs[] = {
#define PAIR(a, b) {offsetof(struct dtp_args, a), offsetof(struct dtp_args, b)}
		PAIR(seed, latents), PAIR(latents, seed), PAIR(latents, height), PAIR(latents, width),
#undef PAIR
	};

	if (DTP_GIVEN(args, prompt_embeds) && dtp_embeds_exclude(o->offset))
		return true;
	for (int i = 0; o->offset == offsetof(struct dtp_args, prompt_embeds) && i < dtp_noptions; i++)
		if (dtp_options[i].commands & DTP_CMD_RECIPE && dtp_embeds_exclude(dtp_options[i].offset) &&
		    dtp_args_given(args, dtp_options[i].offset))
			return true;

	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		if (o->offset == pairs[i].replaces && dtp_args_given(args, pairs[i].given))
			return true;
	return false;
}

static void add_line(char **to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_line(char **to, const char *fmt, ...)
{
	char *line = NULL, *both = NULL;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&line, fmt, ap) < 0)
		line = NULL;
	va_end(ap);
	if (line && asprintf(&both, "%s%s\n", *to ? *to : "", line) >= 0) {
		free(*to);
		*to = both;
	}
	free(line);
}

static const char *shown(char buf[4 * SHOWN + 4], const char *text)
{
	dtp_clean(buf, 4 * SHOWN, text);
	if (strlen(buf) > SHOWN)
		strcpy(buf + dtp_utf8_fit(buf, SHOWN - 3), "...");
	return buf;
}

/* The command line's value instead of the recorded one: said where they are not the same. */
static void note_override(struct dtp_recall *r, const struct dtp_args *args, const struct dtp_option *o,
			  const struct dtp_args *recorded)
{
	char *now = dtp_value_text(o, args), *then = dtp_value_text(o, recorded), a[4 * SHOWN + 4], b[4 * SHOWN + 4];

	if (now && then && strcmp(now, then))
		add_line(&r->notes, "--%s is '%s' instead of the recorded '%s'", o->name, shown(a, now), shown(b, then));
	free(now);
	free(then);
}

static enum dtp_code take_key(struct dtp_args *args, const struct dtp_args *typed, struct dtp_recall *r, const cJSON *v,
			      struct dtp_err *err)
{
	static const char *const others[] = {"class", "plan", "sha256"};
	struct dtp_args recorded = {0};
	struct dtp_suggest unused;
	const struct dtp_option *o = dtp_option_find(DTP_CMD_RECIPE, v->string, &unused);
	char key[4 * SHOWN + 4];

	if (!strcmp(v->string, "difftp")) {
		if (!cJSON_IsString(v) || strcmp(v->valuestring, DTP_VERSION))
			add_line(&r->warnings, "it was drawn by difftp %s, this is " DTP_VERSION ": the picture may differ",
				 cJSON_IsString(v) ? shown(key, v->valuestring) : "?");
		return DTP_OK;
	}
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (!strcmp(v->string, others[i]))
			return DTP_OK;
	if (!o) {
		add_line(&r->warnings, "this version does not know what '%s' is: the picture may differ", shown(key, v->string));
		return DTP_OK;
	}
	if (dtp_value_take(o, v, &recorded, err))
		return err->code;
	if (dtp_args_given(typed, o->offset))
		note_override(r, typed, o, &recorded);
	else if (!is_replaced(typed, o))
		return dtp_value_take(o, v, args, err);
	return DTP_OK;
}

enum dtp_code dtp_recall_apply(struct dtp_args *args, struct dtp_recall *r, struct dtp_err *err)
{
	const struct dtp_args typed = *args;
	const cJSON *v;

	if (!cJSON_GetObjectItemCaseSensitive(r->doc.root, "difftp"))
		return dtp_fail(err, DTP_REFUSED, "the key 'difftp', which says the version, is missing");
	cJSON_ArrayForEach(v, r->doc.root)
		if (take_key(args, &typed, r, v, err))
			return err->code;
	args->recalled = args->given & ~typed.given;
	return DTP_OK;
}

enum dtp_code dtp_recall_take(struct dtp_args *args, struct dtp_recall *r, struct dtp_err *err)
{
	*r = (struct dtp_recall){.path = args->from};
	if (args->prompts)
		return dtp_fail(err, DTP_REFUSED, "--from draws what one picture was drawn of: it cannot be given with --prompts");
	if (dtp_path_reads_once(args->from))
		return dtp_fail(err, DTP_REFUSED, "--from '%s' is no regular file: each rank reads it again", args->from);
	if (dtp_recipe_read(args->from, &r->doc, err))
		return err->code;
	if (dtp_recall_apply(args, r, err))
		return dtp_err_prefix(err, "the record in '%s': ", args->from);
	args->recall = r;
	return DTP_OK;
}

void dtp_recall_free(struct dtp_recall *r)
{
	dtp_json_free(&r->doc);
	free(r->notes);
	free(r->warnings);
	*r = (struct dtp_recall){0};
}
