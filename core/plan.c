/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: from JSON to rules.  What the rules mean for a model is plan_apply.c's. */
#include "plan.h"

#include "json.h"
#include "suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Proportions far beyond any use, yet whose sum cannot overflow. */
#define MAX_PROPORTION ((int64_t)1 << 40)

static const char *const style_names[DTP_NSTYLES] = {
	[DTP_REPLICATED] = "replicated",
	[DTP_COLWISE] = "colwise",
	[DTP_ROWWISE] = "rowwise",
	[DTP_ROWWISE_SPLIT_INPUT] = "rowwise_split_input",
	[DTP_PACKED_COLWISE] = "packed_colwise",
	[DTP_PACKED_ROWWISE] = "packed_rowwise",
};

const char *dtp_style_name(enum dtp_style s)
{
	return style_names[s];
}

static enum dtp_code parse_style(const struct dtp_json *at, const char *text, enum dtp_style *out, struct dtp_err *err)
{
	struct dtp_suggest near = dtp_suggest_begin(text);
	char hint[320];

	for (int s = DTP_REPLICATED + 1; s < DTP_NSTYLES; s++) {
		if (!strcmp(text, style_names[s])) {
			*out = (enum dtp_style)s;
			return DTP_OK;
		}
		dtp_suggest_try(&near, style_names[s]);
	}
	if (!strcmp(text, style_names[DTP_REPLICATED]))
		return dtp_fail(err, DTP_REFUSED, "%s: 'replicated' is no style of a plan: modules that no key names are "
				"replicated, so leave the key out", at->path);
	return dtp_fail(err, DTP_REFUSED, "%s: unknown style '%s'%s\nstyles: colwise, rowwise, rowwise_split_input, "
			"packed_colwise, packed_rowwise", at->path, text, dtp_suggest_text(&near, hint, sizeof hint));
}

static enum dtp_code check_fields(const struct dtp_json *at, struct dtp_err *err)
{
	char hint[320];

	for (const cJSON *f = at->root->child; f; f = f->next) {
		if (!strcmp(f->string, "style") || !strcmp(f->string, "blocks"))
			continue;
		struct dtp_suggest near = dtp_suggest_begin(f->string);
		dtp_suggest_try(&near, "style");
		dtp_suggest_try(&near, "blocks");
		return dtp_fail(err, DTP_REFUSED, "%s: unknown field '%s'%s\nfields: style, blocks", at->path, f->string,
				dtp_suggest_text(&near, hint, sizeof hint));
	}
	return DTP_OK;
}

/* The value of a key: "style", or {"style": "...", "blocks": [...]}. */
static enum dtp_code parse_value(const struct dtp_json *at, struct dtp_rule *rule, struct dtp_err *err)
{
	const char *style;
	enum dtp_code rc;

	if (cJSON_IsString(at->root))
		return parse_style(at, at->root->valuestring, &rule->style, err);
	if (!cJSON_IsObject(at->root))
		return dtp_fail(err, DTP_REFUSED, "%s: the value must be a style (\"colwise\"), or an object with 'style' "
				"and perhaps 'blocks'", at->path);
	if ((rc = check_fields(at, err)))
		return rc;
	if ((rc = dtp_json_string(at, NULL, "style", &style, err)))
		return rc;
	if ((rc = parse_style(at, style, &rule->style, err)))
		return rc;
	if (!cJSON_GetObjectItemCaseSensitive(at->root, "blocks"))
		return DTP_OK;
	if (rule->style != DTP_PACKED_COLWISE && rule->style != DTP_PACKED_ROWWISE)
		return dtp_fail(err, DTP_REFUSED, "%s: style '%s' takes no 'blocks': only packed_colwise and packed_rowwise do",
				at->path, style);
	return dtp_json_ints(at, NULL, "blocks", 1, MAX_PROPORTION, rule->blocks, DTP_MAX_BLOCKS, &rule->nblocks, err);
}

static enum dtp_code check_key(const struct dtp_json *at, const char *key, struct dtp_err *err)
{
	const char *star = strchr(key, '*');

	if (!key[0])
		return dtp_fail(err, DTP_REFUSED, "%s: a key must name a module, or modules of a list as in 'list.*.name'",
				at->path);
	if (!star)
		return DTP_OK;
	if (strchr(star + 1, '*'))
		return dtp_fail(err, DTP_REFUSED, "%s: more than one '*': a key has at most one, which stands for every index "
				"of a module list", at->path);
	if (star == key || star[-1] != '.' || star[1] != '.' || star - key < 2 || !star[2])
		return dtp_fail(err, DTP_REFUSED, "%s: '*' stands for the index of a module list, between the list's name and "
				"a module's, as in 'transformer_blocks.*.attn.to_q'", at->path);
	return DTP_OK;
}

static enum dtp_code parse_rule(const struct dtp_plan *plan, const cJSON *item, struct dtp_rule *rule, struct dtp_err *err)
{
	/* The getters' messages begin with the document's path: here the file and the key. */
	struct dtp_json at = {.root = (cJSON *)item};
	enum dtp_code rc;

	if (asprintf(&at.path, "%s: key '%s'", plan->source, item->string) < 0)
		return dtp_fail(err, DTP_FAILED, "%s: out of memory", plan->source);
	rc = check_key(&at, item->string, err);
	if (!rc)
		rc = parse_value(&at, rule, err);
	if (!rc && !(rule->key = strdup(item->string)))
		rc = dtp_fail(err, DTP_FAILED, "%s: out of memory", at.path);
	free(at.path);
	return rc;
}

static enum dtp_code from_json(const struct dtp_json *doc, const char *source, struct dtp_plan *plan, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;
	int size = cJSON_GetArraySize(doc->root);

	*plan = (struct dtp_plan){.source = strdup(source), .rules = calloc((size_t)size + 1, sizeof *plan->rules)};
	if (!plan->source || !plan->rules)
		rc = dtp_fail(err, DTP_FAILED, "%s: out of memory for %d rules", source, size);
	for (const cJSON *item = doc->root->child; item && !rc; item = item->next) {
		if (!strcmp(item->string, "$schema")) /* for editors */
			continue;
		rc = parse_rule(plan, item, &plan->rules[plan->n], err);
		if (!rc)
			plan->n++;
	}
	if (rc)
		dtp_plan_free(plan);
	return rc;
}

enum dtp_code dtp_plan_load(const char *path, struct dtp_plan *plan, struct dtp_err *err)
{
	struct dtp_json doc;
	enum dtp_code rc = dtp_json_load(path, 0, &doc, err);

	*plan = (struct dtp_plan){0};
	if (rc)
		return rc;
	rc = from_json(&doc, path, plan, err);
	dtp_json_free(&doc);
	return rc;
}

enum dtp_code dtp_plan_parse(const char *source, const char *text, size_t len, struct dtp_plan *plan, struct dtp_err *err)
{
	struct dtp_json doc;
	enum dtp_code rc = dtp_json_parse(source, text, len, &doc, err);

	*plan = (struct dtp_plan){0};
	if (rc)
		return rc;
	rc = from_json(&doc, source, plan, err);
	dtp_json_free(&doc);
	return rc;
}

enum dtp_code dtp_plan_builtin(const char *name, struct dtp_plan *plan, struct dtp_err *err)
{
	struct dtp_suggest near = dtp_suggest_begin(name);
	char hint[320], source[64], all[256] = "";

	*plan = (struct dtp_plan){0};
	for (const struct dtp_builtin_plan *p = dtp_builtin_plans; p->name; p++) {
		if (!strcmp(p->name, name)) {
			snprintf(source, sizeof source, "built-in plan '%s'", name);
			return dtp_plan_parse(source, p->text, strlen(p->text), plan, err);
		}
		dtp_suggest_try(&near, p->name);
		size_t n = strlen(all);
		snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", p->name);
	}
	return dtp_fail(err, DTP_REFUSED, "no built-in plan '%s'%s\nbuilt-in plans: %s", name,
			dtp_suggest_text(&near, hint, sizeof hint), all);
}

enum dtp_code dtp_plan_copy(const struct dtp_plan *from, struct dtp_plan *to, struct dtp_err *err)
{
	*to = (struct dtp_plan){.source = strdup(from->source), .rules = calloc((size_t)from->n + 1, sizeof *to->rules)};
	bool ok = to->source && to->rules;
	for (int i = 0; ok && i < from->n; i++) {
		to->rules[i] = from->rules[i];
		to->rules[i].key = strdup(from->rules[i].key);
		to->n++;
		ok = to->rules[i].key != NULL;
	}
	if (ok)
		return DTP_OK;
	dtp_plan_free(to);
	return dtp_fail(err, DTP_FAILED, "%s: out of memory for %d rules", from->source, from->n);
}

void dtp_plan_free(struct dtp_plan *plan)
{
	for (int i = 0; i < plan->n; i++)
		free(plan->rules[i].key);
	free(plan->rules);
	free(plan->source);
	*plan = (struct dtp_plan){0};
}
