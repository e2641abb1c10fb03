/* SPDX-License-Identifier: Apache-2.0 */
/* `difftp plan --suggest` and `difftp plan --diff`: plans without a run. */
#include "plan.h"

#include "file.h"
#include "plan_make.h"
#include "request.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- two plans */

/* "packed_colwise [128, 128]" */
static const char *role_text(char *buf, size_t size, enum dtp_style style, int n, const int64_t *blocks)
{
	size_t used = (size_t)snprintf(buf, size, "%s", dtp_style_name(style));

	if (n && used < size)
		snprintf(buf + used, size - used, " ");
	return n && used + 1 < size ? (dtp_shape_text(buf + used + 1, size - used - 1, n, blocks), buf) : buf;
}

static cJSON *role_json(enum dtp_style style, int n, const int64_t *blocks)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "style", dtp_style_name(style));
	if (n)
		cJSON_AddItemToObject(o, "blocks", dtp_json_numbers(n, blocks));
	return o;
}

/* What differs, as lines or as JSON. */
struct differences {
	cJSON *json; /* an array; NULL: lines on stdout */
	int n;
};

static void add_difference(struct differences *d, const struct dtp_key *key, const struct dtp_role *a, const struct dtp_role *b)
{
	char x[256], y[256], name[DTP_FOLD_NAME];

	d->n++;
	if (d->json) {
		cJSON *o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "key", key->name);
		cJSON_AddNumberToObject(o, "modules", key->count);
		cJSON_AddItemToObject(o, "a", role_json(a->style, a->nblocks, a->blocks));
		cJSON_AddItemToObject(o, "b", role_json(b->style, b->nblocks, b->blocks));
		cJSON_AddItemToArray(d->json, o);
		return;
	}
	printf("%s", dtp_clean(name, sizeof name, key->name));
	if (key->count > 1)
		printf(" (%d modules)", key->count);
	printf(": %s -> %s\n", role_text(x, sizeof x, a->style, a->nblocks, a->blocks),
	       role_text(y, sizeof y, b->style, b->nblocks, b->blocks));
}

static const struct dtp_rule *find_rule(const struct dtp_plan *plan, const char *key)
{
	for (int i = 0; i < plan->n; i++)
		if (!strcmp(plan->rules[i].key, key))
			return &plan->rules[i];
	return NULL;
}

static struct dtp_role rule_role(const struct dtp_rule *r)
{
	struct dtp_role role = {.style = r ? r->style : DTP_REPLICATED, .nblocks = r ? r->nblocks : 0};

	if (r)
		memcpy(role.blocks, r->blocks, sizeof role.blocks);
	return role;
}

/* Without a model: key by key, as they are written. */
static void compare_keys(const struct dtp_plan *a, const struct dtp_plan *b, struct differences *d)
{
	struct dtp_key key = {.count = 1};

	for (int i = 0; i < a->n + b->n; i++) {
		const struct dtp_rule *r = i < a->n ? &a->rules[i] : &b->rules[i - a->n];
		if (i >= a->n && find_rule(a, r->key))
			continue;
		struct dtp_role x = rule_role(find_rule(a, r->key)), y = rule_role(find_rule(b, r->key));
		if (x.style == y.style && x.nblocks == y.nblocks &&
		    !memcmp(x.blocks, y.blocks, (size_t)x.nblocks * sizeof *x.blocks))
			continue;
		snprintf(key.name, sizeof key.name, "%s", r->key);
		add_difference(d, &key, &x, &y);
	}
}

/* With one: module by module, whatever the keys are.  The plans may be of the transformer or of the text encoder. */
static enum dtp_code compare_effect(struct dtp_pipeline *p, const struct dtp_plan *a, const struct dtp_plan *b, int degree,
				    struct differences *d, struct dtp_err *err)
{
	struct dtp_plan_change *changes;
	struct dtp_err other = DTP_ERR_INIT;
	int n;

	if (dtp_plan_compare(a, b, dtp_pipeline_tree(p, "transformer"), degree, &changes, &n, err)) {
		if (dtp_plan_compare(a, b, dtp_pipeline_tree(p, "text_encoder"), degree, &changes, &n, &other))
			return err->code;
		err->code = DTP_OK;
	}
	for (int i = 0; i < n; i++)
		add_difference(d, &changes[i].key, &changes[i].a, &changes[i].b);
	free(changes);
	return DTP_OK;
}

/* A file, or the name of a built-in plan. */
static enum dtp_code read_plan(const char *name, struct dtp_plan *plan, struct dtp_err *err)
{
	struct stat st;
	struct dtp_err builtin = DTP_ERR_INIT;

	if (stat(name, &st) && !strchr(name, '/') && !strchr(name, '.')) {
		if (!dtp_plan_builtin(name, plan, &builtin))
			return DTP_OK;
		return dtp_fail(err, DTP_REFUSED, "'%s' is neither a file nor a built-in plan: %s", name, builtin.message);
	}
	return dtp_plan_load(name, plan, err);
}

static enum dtp_code open_pipeline(const struct dtp_args *args, struct dtp_pipeline **p, struct dtp_err *err)
{
	struct dtp_options options;
	struct dtp_request request;

	dtp_request_make(args, &options, &request);
	options.no_tokenizer = true;
	options.tp_plan = NULL;
	options.tp_degree = 0;
	return dtp_pipeline_open(&options, &dtp_monitor_none, p, err);
}

static enum dtp_code compare(const struct dtp_args *args, const struct dtp_plan *a, const struct dtp_plan *b,
			     struct differences *d, struct dtp_err *err)
{
	struct dtp_pipeline *p;

	if (!args->model) {
		compare_keys(a, b, d);
		return DTP_OK;
	}
	if (open_pipeline(args, &p, err))
		return err->code;
	enum dtp_code code = compare_effect(p, a, b, (int)args->tp_degree, d, err);
	dtp_pipeline_close(p);
	return code;
}

static enum dtp_code conclude(const struct dtp_args *args, struct differences *d, struct dtp_err *err)
{
	if (args->json) {
		cJSON *o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "a", args->word[0]);
		cJSON_AddStringToObject(o, "b", args->word[1]);
		cJSON_AddBoolToObject(o, "in_effect", args->model != NULL);
		cJSON_AddItemToObject(o, "differences", d->json);
		d->json = NULL;
		if (dtp_write_json(stdout, o, err))
			return err->code;
	} else if (!d->n) {
		printf("no difference%s\n", args->model ? " in effect" : "");
	}
	return d->n ? DTP_FAILED : DTP_OK;
}

enum dtp_code dtp_plan_diff(const struct dtp_args *args, struct dtp_err *err)
{
	struct dtp_plan a = {0}, b = {0};
	struct differences d = {0};

	if (args->nwords != 2)
		return dtp_fail(err, DTP_REFUSED, "option '--diff' needs two plans, files or built-in ones: difftp plan --diff A B");
	if (args->suggest || args->emit || args->tp_plan)
		return dtp_fail(err, DTP_REFUSED, "option '--diff' compares the two plans that follow: --suggest, --emit and --tp-plan do "
				"not go with it");
	if (args->json)
		d.json = cJSON_CreateArray();
	enum dtp_code code = read_plan(args->word[0], &a, err);
	if (code == DTP_OK)
		code = read_plan(args->word[1], &b, err);
	if (code == DTP_OK)
		code = compare(args, &a, &b, &d, err);
	if (code == DTP_OK)
		code = conclude(args, &d, err);
	cJSON_Delete(d.json);
	dtp_plan_free(&a);
	dtp_plan_free(&b);
	return code;
}

/* ---- a plan from the modules */

static void print_reasons(const struct dtp_plan *plan, const struct dtp_reason *why, int n)
{
	fputs("\nplan\n", stdout);
	for (int i = 0; i < n; i++) {
		const struct dtp_rule *rule = find_rule(plan, why[i].key.name);
		if (!rule)
			continue;
		char role[256];
		printf("  %s: %s\n      %s\n", why[i].key.name, role_text(role, sizeof role, rule->style, rule->nblocks, rule->blocks),
		       why[i].text);
	}
	fputs("\nreplicated\n", stdout);
	for (int i = 0; i < n; i++)
		if (why[i].style == DTP_REPLICATED)
			printf("  %s\n      %s\n", why[i].key.name, why[i].text);
}

static enum dtp_code print_suggestion_json(const struct dtp_plan *plan, const struct dtp_reason *why, int n,
					   const char *degrees, bool same, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *rules = cJSON_AddObjectToObject(o, "plan"), *reasons;

	for (int i = 0; i < plan->n; i++) {
		const struct dtp_rule *r = &plan->rules[i];
		cJSON_AddItemToObject(rules, r->key, r->nblocks ? role_json(r->style, r->nblocks, r->blocks)
								 : cJSON_CreateString(dtp_style_name(r->style)));
	}
	reasons = cJSON_AddArrayToObject(o, "reasons");
	for (int i = 0; i < n; i++) {
		cJSON *r = cJSON_CreateObject();
		cJSON_AddStringToObject(r, "key", why[i].key.name);
		cJSON_AddNumberToObject(r, "modules", why[i].key.count);
		cJSON_AddStringToObject(r, "style", dtp_style_name(why[i].style));
		cJSON_AddStringToObject(r, "reason", why[i].text);
		cJSON_AddItemToArray(reasons, r);
	}
	cJSON_AddStringToObject(o, "degrees", degrees);
	cJSON_AddBoolToObject(o, "same_as_builtin", same);
	return dtp_write_json(stdout, o, err);
}

static enum dtp_code print_suggestion(const struct dtp_args *args, struct dtp_pipeline *p, const struct dtp_plan *plan,
				      const struct dtp_reason *why, int n, struct dtp_err *err)
{
	struct dtp_tree *tree = dtp_pipeline_tree(p, "transformer");
	struct dtp_plan builtin;
	struct dtp_plan_change *changes;
	char degrees[256];
	int nchanges = 0;

	dtp_plan_valid_degrees(plan, tree, degrees, sizeof degrees);
	if (dtp_plan_builtin(dtp_pipeline_builtin(p), &builtin, err))
		return err->code;
	enum dtp_code code = dtp_plan_compare(&builtin, plan, tree, 1, &changes, &nchanges, err);
	free(changes);
	if (!code && args->json) {
		code = print_suggestion_json(plan, why, n, degrees, !nchanges, err);
	} else if (!code) {
		printf("%s: a plan for the transformer, from its modules alone\n", args->model);
		print_reasons(plan, why, n);
		printf("\ndegrees that work: %s\n", degrees);
		if (nchanges)
			printf("differs from %s: compare with 'difftp plan --diff'\n", builtin.source);
		else
			printf("the same in effect as %s\n", builtin.source);
	}
	dtp_plan_free(&builtin);
	return code;
}

enum dtp_code dtp_plan_suggest(const struct dtp_args *args, struct dtp_err *err)
{
	struct dtp_pipeline *p;
	struct dtp_plan plan;
	struct dtp_reason *why;
	int n;

	if (args->tp_plan)
		return dtp_fail(err, DTP_REFUSED, "option '--suggest' derives a plan: --tp-plan does not go with it; 'difftp plan --diff' "
				"compares two");
	if ((args->emit && dtp_output_check_file(args, args->emit, err)) || open_pipeline(args, &p, err))
		return err->code;
	enum dtp_code code = dtp_plan_derive(dtp_pipeline_tree(p, "transformer"), &plan, &why, &n, err);
	if (code == DTP_OK && args->emit)
		code = dtp_plan_write(&plan, args, err);
	if (code == DTP_OK)
		code = print_suggestion(args, p, &plan, why, n, err);
	free(why);
	dtp_plan_free(&plan);
	dtp_pipeline_close(p);
	return code;
}
