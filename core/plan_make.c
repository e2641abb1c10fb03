/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_make.h"

#include "plan_internal.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- everything explicit */

static bool same_role(enum dtp_style s, int n, const int64_t *blocks, enum dtp_style t, int m, const int64_t *others)
{
	return s == t && n == m && !memcmp(blocks, others, (size_t)n * sizeof *blocks);
}

/* Blocks of the same proportions make one key, whatever their sizes. */
static void proportions(const struct dtp_module *m, int64_t out[DTP_MAX_BLOCKS])
{
	int64_t unit = 0;

	for (int i = 0; i < m->nblocks; i++)
		unit = dtp_gcd(m->blocks[i], unit);
	for (int i = 0; i < m->nblocks; i++)
		out[i] = m->blocks[i] / unit;
}

static bool alike(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	int64_t x[DTP_MAX_BLOCKS], y[DTP_MAX_BLOCKS];

	(void)arg;
	proportions(a, x);
	proportions(b, y);
	return same_role(a->style, a->nblocks, x, b->style, b->nblocks, y);
}

static bool add_rule(struct dtp_plan *plan, const char *key, const struct dtp_module *m)
{
	struct dtp_rule *r = &plan->rules[plan->n];

	*r = (struct dtp_rule){.key = strdup(key), .style = m->style, .nblocks = m->nblocks};
	proportions(m, r->blocks);
	plan->n += r->key != NULL;
	return r->key != NULL;
}

enum dtp_code dtp_plan_explicit(const struct dtp_tree *tree, const char *source, struct dtp_plan *plan,
				struct dtp_err *err)
{
	struct dtp_key *keys;
	int n;

	*plan = (struct dtp_plan){0};
	enum dtp_code rc = dtp_keys_make(tree, alike, NULL, &keys, &n, err);
	if (rc)
		return rc;
	*plan = (struct dtp_plan){.source = strdup(source), .rules = calloc((size_t)n + 1, sizeof *plan->rules)};
	bool ok = plan->source && plan->rules;
	for (int i = 0; ok && i < n; i++)
		if (tree->modules[keys[i].module].style != DTP_REPLICATED)
			ok = add_rule(plan, keys[i].name, &tree->modules[keys[i].module]);
	free(keys);
	if (ok)
		return DTP_OK;
	dtp_plan_free(plan);
	return dtp_fail(err, DTP_FAILED, "out of memory for a plan of %d keys", n);
}

/* ---- text */

static void write_rule(FILE *f, const struct dtp_rule *r, bool last)
{
	cJSON *key = cJSON_CreateString(r->key);
	char *quoted = key ? cJSON_PrintUnformatted(key) : NULL;

	fprintf(f, "  %s: ", quoted ? quoted : "\"\"");
	if (r->nblocks) {
		fprintf(f, "{\"style\": \"%s\", \"blocks\": [", dtp_style_name(r->style));
		for (int i = 0; i < r->nblocks; i++)
			fprintf(f, "%s%" PRId64, i ? ", " : "", r->blocks[i]);
		fputs("]}", f);
	} else {
		fprintf(f, "\"%s\"", dtp_style_name(r->style));
	}
	fputs(last ? "\n" : ",\n", f);
	cJSON_free(quoted);
	cJSON_Delete(key);
}

char *dtp_plan_text(const struct dtp_plan *plan)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	fputs("{\n", f);
	for (int i = 0; i < plan->n; i++)
		write_rule(f, &plan->rules[i], i + 1 == plan->n);
	fputs("}\n", f);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- what differs */

struct comparison {
	const struct dtp_tree *tree;
	struct dtp_role *a; /* by module */
};

static bool same_change(void *arg, const struct dtp_module *x, const struct dtp_module *y)
{
	const struct comparison *c = arg;
	const struct dtp_role *p = &c->a[x - c->tree->modules], *q = &c->a[y - c->tree->modules];

	return same_role(x->style, x->nblocks, x->blocks, y->style, y->nblocks, y->blocks) &&
	       same_role(p->style, p->nblocks, p->blocks, q->style, q->nblocks, q->blocks);
}

static struct dtp_role role_of(const struct dtp_module *m)
{
	struct dtp_role r = {.style = m->style, .nblocks = m->nblocks};

	memcpy(r.blocks, m->blocks, sizeof r.blocks);
	return r;
}

static enum dtp_code list_changes(const struct comparison *c, struct dtp_plan_change **changes, int *n, struct dtp_err *err)
{
	struct dtp_key *keys;
	int nkeys;
	enum dtp_code rc = dtp_keys_make(c->tree, same_change, (void *)c, &keys, &nkeys, err);

	if (rc)
		return rc;
	*changes = calloc((size_t)nkeys + 1, sizeof **changes);
	if (!*changes)
		rc = dtp_fail(err, DTP_FAILED, "out of memory for %d keys", nkeys);
	for (int i = 0; !rc && i < nkeys; i++) {
		const struct dtp_module *m = &c->tree->modules[keys[i].module];
		const struct dtp_role *a = &c->a[keys[i].module];
		if (!same_role(a->style, a->nblocks, a->blocks, m->style, m->nblocks, m->blocks))
			(*changes)[(*n)++] = (struct dtp_plan_change){keys[i], *a, role_of(m)};
	}
	free(keys);
	return rc;
}

enum dtp_code dtp_plan_compare(const struct dtp_plan *a, const struct dtp_plan *b, struct dtp_tree *tree, int degree,
			       struct dtp_plan_change **changes, int *n, struct dtp_err *err)
{
	struct comparison c = {tree, calloc((size_t)tree->n + 1, sizeof *c.a)};

	*changes = NULL;
	*n = 0;
	if (!c.a)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d modules", tree->n);
	enum dtp_code rc = dtp_plan_apply(a, tree, degree, err);
	for (int i = 0; i < tree->n; i++)
		c.a[i] = role_of(&tree->modules[i]);
	if (!rc)
		rc = dtp_plan_apply(b, tree, degree, err);
	if (!rc)
		rc = list_changes(&c, changes, n, err);
	free(c.a);
	return rc;
}
