/* SPDX-License-Identifier: Apache-2.0 */
/* From rules to modules: which modules a key names, and whether its style and blocks suit each of them. */
#include "plan.h"

#include "plan_internal.h"
#include "suggest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS 256 /* room for DTP_MAX_BLOCKS numbers and what stands between them */

static const char *const kind_names[] = {
	[DTP_MODULE_LIST] = "a list of modules", [DTP_MODULE_LINEAR] = "a linear layer",
	[DTP_MODULE_EMBEDDING] = "an embedding", [DTP_MODULE_NORM] = "a norm", [DTP_MODULE_CONV] = "a convolution",
};

static const char *join(char buf[NUMBERS], const char *separator, int n, const int64_t *v)
{
	size_t len = 0;

	buf[0] = '\0';
	for (int i = 0; i < n; i++)
		len += (size_t)snprintf(buf + len, NUMBERS - len, "%s%" PRId64, i ? separator : "", v[i]);
	return buf;
}

/* ---- which modules a key names */

/* The name with its index in `list` replaced by a star; false when it does not stand in that list. */
static bool as_pattern(const char *list, const char *name, char *buf, size_t size)
{
	size_t n = strlen(list);

	if (strncmp(name, list, n) || name[n] != '.')
		return false;
	const char *index = name + n + 1;
	const char *rest = index + strspn(index, "0123456789");
	if (rest == index || *rest != '.')
		return false;
	snprintf(buf, size, "%s.*%s", list, rest);
	return true;
}

static bool list_is_empty(const struct dtp_tree *t, const char *list)
{
	char pattern[512];

	for (int i = 0; i < t->n; i++)
		if (as_pattern(list, t->modules[i].name, pattern, sizeof pattern))
			return false;
	return true;
}

static enum dtp_code matches_nothing(const struct dtp_plan *plan, const struct dtp_tree *t, const char *key,
				     struct dtp_err *err)
{
	static const char *const params[] = {".weight", ".bias"};
	char hint[320], pattern[512], bare[512];
	size_t n = (size_t)snprintf(bare, sizeof bare, "%s", key);

	/* A common slip: the name of a parameter for that of its module. */
	for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
		size_t m = strlen(params[i]);
		if (n < sizeof bare && n > m && !strcmp(bare + n - m, params[i]))
			bare[n - m] = '\0';
	}
	struct dtp_suggest near = dtp_suggest_begin(bare);
	for (int i = 0; i < t->n; i++) {
		for (int l = 0; l < t->n; l++)
			if (t->modules[l].kind == DTP_MODULE_LIST &&
			    as_pattern(t->modules[l].name, t->modules[i].name, pattern, sizeof pattern))
				dtp_suggest_try(&near, pattern);
		if (t->modules[i].kind != DTP_MODULE_LIST)
			dtp_suggest_try(&near, t->modules[i].name);
	}
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s' matches no module of the %s%s", plan->source, key, t->component,
			dtp_suggest_text(&near, hint, sizeof hint));
}

static enum dtp_code no_list(const struct dtp_plan *plan, const struct dtp_tree *t, const char *key, const char *prefix,
			     struct dtp_err *err)
{
	struct dtp_suggest near = dtp_suggest_begin(prefix);
	char hint[320], all[512] = "none";
	size_t n = 0;

	for (int i = 0; i < t->n; i++) {
		const struct dtp_module *m = &t->modules[i];
		if (m->kind != DTP_MODULE_LIST)
			continue;
		dtp_suggest_try(&near, m->name);
		if (n < sizeof all)
			n += (size_t)snprintf(all + n, sizeof all - n, "%s'%s'", n ? ", " : "", m->name);
	}
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s': '%s' is no module list of the %s%s\nlists: %s", plan->source, key,
			prefix, t->component, dtp_suggest_text(&near, hint, sizeof hint), all);
}

/* ---- whether a style suits a module */

static enum dtp_code check_kind(const struct dtp_plan *plan, const struct dtp_rule *r, const struct dtp_module *m,
				struct dtp_err *err)
{
	if (m->kind == DTP_MODULE_LINEAR || (m->kind == DTP_MODULE_EMBEDDING && r->style == DTP_ROWWISE))
		return DTP_OK;
	if (m->kind == DTP_MODULE_EMBEDDING)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': '%s' is an embedding, which '%s' cannot split: only 'rowwise' "
				"can, by vocabulary rows", plan->source, r->key, m->name, dtp_style_name(r->style));
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s': '%s' is %s, which cannot be split: only linear layers and embeddings "
			"can", plan->source, r->key, m->name, kind_names[m->kind]);
}

int64_t dtp_gcd(int64_t a, int64_t b)
{
	while (b) {
		int64_t r = a % b;
		a = b;
		b = r;
	}
	return a;
}

/* The blocks of the dimension that the style cuts. */
struct packing {
	const char *what; /* "rows", "columns" */
	int64_t dim;
	int n;
	const int64_t *blocks;
};

static struct packing packing_of(const struct dtp_module *m, enum dtp_style s)
{
	if (dtp_style_cuts_rows(s))
		return (struct packing){"rows", m->shape[0], m->nout_blocks, m->out_blocks};
	return (struct packing){"columns", m->shape[1], m->nin_blocks, m->in_blocks};
}

/* Whether the proportions of a rule are those of the module's own blocks. */
static enum dtp_code check_blocks(const struct dtp_plan *plan, const struct dtp_rule *r, const struct dtp_module *m,
				  const struct packing *own, struct dtp_err *err)
{
	char given[NUMBERS], have[NUMBERS], right[NUMBERS], made[NUMBERS];
	int64_t sum = 0, unit = 0, sizes[DTP_MAX_BLOCKS];
	bool same = r->nblocks == own->n;

	for (int i = 0; i < own->n; i++)
		unit = dtp_gcd(unit, own->blocks[i]);
	for (int i = 0; i < own->n; i++)
		sizes[i] = own->blocks[i] / unit;
	join(right, ", ", own->n, sizes);
	join(have, " + ", own->n, own->blocks);
	join(given, ", ", r->nblocks, r->blocks);
	for (int i = 0; i < r->nblocks; i++)
		sum += r->blocks[i];
	if (!same)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': %d blocks, [%s], but the %" PRId64 " %s of '%s' are %d: %s\n"
				"use [%s], or leave 'blocks' out", plan->source, r->key, r->nblocks, given, own->dim, own->what,
				m->name, own->n, have, right);
	if (own->dim % sum)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': the sum of blocks [%s], %" PRId64 ", does not divide the %"
				PRId64 " %s of '%s', which are %s\nuse [%s], or leave 'blocks' out", plan->source, r->key, given,
				sum, own->dim, own->what, m->name, have, right);
	for (int i = 0; i < own->n; i++) {
		sizes[i] = r->blocks[i] * (own->dim / sum);
		same = same && sizes[i] == own->blocks[i];
	}
	if (same)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s': blocks [%s] cut the %" PRId64 " %s of '%s' into %s, but they are %s\n"
			"use [%s], or leave 'blocks' out", plan->source, r->key, given, own->dim, own->what, m->name,
			join(made, " + ", own->n, sizes), have, right);
}

static enum dtp_code check_packing(const struct dtp_plan *plan, const struct dtp_rule *r, const struct dtp_module *m,
				   struct dtp_err *err)
{
	bool packed_style = r->style == DTP_PACKED_COLWISE || r->style == DTP_PACKED_ROWWISE;
	struct packing own = packing_of(m, r->style);
	const char *way = dtp_style_cuts_rows(r->style) ? "colwise" : "rowwise";
	char have[NUMBERS];

	/* A replicated input may be cut anywhere: blocks do not matter to rowwise_split_input. */
	if (m->kind != DTP_MODULE_LINEAR || r->style == DTP_ROWWISE_SPLIT_INPUT)
		return DTP_OK;
	if (packed_style && !own.n)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': the %" PRId64 " %s of '%s' are not packed: use '%s' instead of "
				"'%s'", plan->source, r->key, own.dim, own.what, m->name, way, dtp_style_name(r->style));
	if (!packed_style && own.n)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': the %" PRId64 " %s of '%s' are packed: %s; '%s' would cut across "
				"them and draw a wrong picture: use 'packed_%s'", plan->source, r->key, own.dim, own.what, m->name,
				join(have, " + ", own.n, own.blocks), way, way);
	return r->nblocks ? check_blocks(plan, r, m, &own, err) : DTP_OK;
}

static enum dtp_code assign(const struct dtp_plan *plan, int rule, struct dtp_module *m, struct dtp_err *err)
{
	const struct dtp_rule *r = &plan->rules[rule];
	enum dtp_code rc;

	if (m->rule >= 0)
		return dtp_fail(err, DTP_REFUSED, "%s: keys '%s' and '%s' both name module '%s', which can have one style only",
				plan->source, plan->rules[m->rule].key, r->key, m->name);
	if ((rc = check_kind(plan, r, m, err)) || (rc = check_packing(plan, r, m, err)))
		return rc;
	m->rule = rule;
	m->style = r->style;
	if (r->style == DTP_PACKED_COLWISE || r->style == DTP_PACKED_ROWWISE) {
		struct packing own = packing_of(m, r->style);
		m->nblocks = own.n;
		memcpy(m->blocks, own.blocks, (size_t)own.n * sizeof *own.blocks);
	}
	return DTP_OK;
}

static enum dtp_code expand_rule(const struct dtp_plan *plan, int rule, struct dtp_tree *t, struct dtp_err *err)
{
	const char *key = plan->rules[rule].key, *star = strchr(key, '*');
	char prefix[512] = "";
	enum dtp_code rc;
	int found = 0;

	if (star) {
		snprintf(prefix, sizeof prefix, "%.*s", (int)(star - 1 - key), key);
		int list = dtp_tree_find(t, prefix);
		if (list < 0 || t->modules[list].kind != DTP_MODULE_LIST)
			return no_list(plan, t, key, prefix, err);
	}
	for (int i = 0; i < t->n; i++) {
		if (!dtp_key_match(key, t->modules[i].name))
			continue;
		if ((rc = assign(plan, rule, &t->modules[i], err)))
			return rc;
		found++;
	}
	/* A model may have no block of a kind at all; the star then stands for nothing, rightly. */
	if (!found && !(star && list_is_empty(t, prefix)))
		return matches_nothing(plan, t, key, err);
	return DTP_OK;
}

/* ---- the whole */

/* A copy of the tree whose modules may be changed; names and layers are shared. */
static enum dtp_code scratch_copy(const struct dtp_tree *tree, struct dtp_tree *copy, struct dtp_err *err)
{
	*copy = *tree;
	copy->modules = malloc((size_t)tree->n * sizeof *copy->modules + 1);
	if (!copy->modules)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d modules", tree->n);
	memcpy(copy->modules, tree->modules, (size_t)tree->n * sizeof *copy->modules);
	for (int i = 0; i < copy->n; i++) {
		copy->modules[i].style = DTP_REPLICATED;
		copy->modules[i].nblocks = 0;
		copy->modules[i].rule = -1;
	}
	return DTP_OK;
}

/* Everything that does not depend on the degree. */
static enum dtp_code expand(const struct dtp_plan *plan, struct dtp_tree *t, struct dtp_err *err)
{
	enum dtp_code rc;

	for (int r = 0; r < plan->n; r++)
		if ((rc = expand_rule(plan, r, t, err)))
			return rc;
	return dtp_plan_check_flow(plan, t, err);
}

enum dtp_code dtp_plan_apply(const struct dtp_plan *plan, struct dtp_tree *tree, int degree, struct dtp_err *err)
{
	struct dtp_tree copy;
	enum dtp_code rc = scratch_copy(tree, &copy, err);

	if (rc)
		return rc;
	rc = expand(plan, &copy, err);
	if (!rc)
		rc = dtp_plan_check_degree(plan, &copy, degree, err);
	if (!rc) /* only a plan that passed changes the tree */
		memcpy(tree->modules, copy.modules, (size_t)tree->n * sizeof *copy.modules);
	free(copy.modules);
	return rc;
}

void dtp_plan_valid_degrees(const struct dtp_plan *plan, const struct dtp_tree *tree, char *buf, size_t len)
{
	struct dtp_tree copy;

	snprintf(buf, len, "none");
	if (scratch_copy(tree, &copy, NULL))
		return;
	if (!expand(plan, &copy, NULL))
		dtp_plan_degrees_text(plan, &copy, buf, len);
	free(copy.modules);
}
