/* SPDX-License-Identifier: Apache-2.0 */
/* What concerns several modules of a plan at once, and what concerns the degree. */
#include "plan_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_DEGREE_TOLD 64

static const char *key_of(const struct dtp_plan *plan, const struct dtp_module *m)
{
	return plan->rules[m->rule].key;
}

/* How a message introduces a module: by the key that names it, if one does. */
static void introduce(const struct dtp_plan *plan, const struct dtp_module *m, char *buf, size_t len)
{
	if (m->rule >= 0)
		snprintf(buf, len, "%s: key '%s'", plan->source, key_of(plan, m));
	else
		snprintf(buf, len, "%s: no key for '%s'", plan->source, m->name);
}

static const char *rowwise_for(const struct dtp_module *m)
{
	return dtp_style_name(m->nin_blocks ? DTP_PACKED_ROWWISE : DTP_ROWWISE);
}

static const char *colwise_for(const struct dtp_module *m)
{
	return dtp_style_name(m->nout_blocks ? DTP_PACKED_COLWISE : DTP_COLWISE);
}

/* ---- from producers to consumers */

/* The layer cuts its columns where its input is whole. */
static enum dtp_code input_is_whole(const struct dtp_plan *plan, const struct dtp_tree *t, const struct dtp_module *m,
				    struct dtp_err *err)
{
	if (!m->nreads)
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': the input of '%s' is replicated, '%s' needs one that is split: "
				"use 'rowwise_split_input'", plan->source, key_of(plan, m), m->name, dtp_style_name(m->style));
	const struct dtp_module *p = &t->modules[m->reads[0]];
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s': '%s' reads '%s', whose output is not split, '%s' needs an input that "
			"is: give '%s' the style '%s', or this key 'rowwise_split_input'", plan->source, key_of(plan, m), m->name,
			p->name, dtp_style_name(m->style), p->name, colwise_for(p));
}

/* The layer takes a split input for a whole one. */
static enum dtp_code input_is_split(const struct dtp_plan *plan, const struct dtp_module *m, const struct dtp_module *p,
				    struct dtp_err *err)
{
	char who[600];

	introduce(plan, m, who, sizeof who);
	return dtp_fail(err, DTP_REFUSED, "%s: '%s' reads '%s', whose output is split ('%s', key '%s'), but is '%s': use '%s'",
			who, m->name, p->name, dtp_style_name(p->style), key_of(plan, p), dtp_style_name(m->style),
			rowwise_for(m));
}

static enum dtp_code check_input(const struct dtp_plan *plan, const struct dtp_tree *t, const struct dtp_module *m,
				 struct dtp_err *err)
{
	const struct dtp_module *split = NULL, *whole = NULL;
	bool wants_split = m->style == DTP_ROWWISE || m->style == DTP_PACKED_ROWWISE;

	for (int i = 0; i < m->nreads; i++) {
		const struct dtp_module *p = &t->modules[m->reads[i]];
		if (dtp_style_cuts_rows(p->style))
			split = split ? split : p;
		else
			whole = whole ? whole : p;
	}
	if (split && whole) {
		char who[600];
		introduce(plan, whole, who, sizeof who);
		return dtp_fail(err, DTP_REFUSED, "%s: '%s' is '%s', but '%s' is '%s' (key '%s') and '%s' reads both: they must "
				"be split alike, so use '%s'", who, whole->name, dtp_style_name(whole->style), split->name,
				dtp_style_name(split->style), key_of(plan, split), m->name, colwise_for(whole));
	}
	if (wants_split && !split)
		return input_is_whole(plan, t, m, err);
	if (split && !wants_split)
		return input_is_split(plan, m, split, err);
	return DTP_OK;
}

enum dtp_code dtp_plan_check_flow(const struct dtp_plan *plan, const struct dtp_tree *t, struct dtp_err *err)
{
	enum dtp_code rc;

	for (int i = 0; i < t->n; i++) {
		const struct dtp_module *m = &t->modules[i];
		if (m->kind == DTP_MODULE_LINEAR && (rc = check_input(plan, t, m, err)))
			return rc;
		if (dtp_style_cuts_rows(m->style) && !m->is_read)
			return dtp_fail(err, DTP_REFUSED, "%s: key '%s': '%s' would split the output of '%s', but what reads it needs "
					"it whole: use 'rowwise_split_input', or leave the key out", plan->source, key_of(plan, m),
					dtp_style_name(m->style), m->name);
	}
	return DTP_OK;
}

/* ---- the degree */

/* What of a module the degree does not divide ("the 384 rows"); false when it divides everything. */
static bool misfits(const struct dtp_tree *t, const struct dtp_module *m, int degree, char *what, size_t len)
{
	/* The vocabulary of an embedding lies along dimension 0, whatever the style's name says. */
	bool rows = dtp_style_cuts_rows(m->style) || m->kind == DTP_MODULE_EMBEDDING;
	const char *name = rows ? "rows" : "columns";
	int64_t dim = m->shape[rows ? 0 : 1], unit = rows ? m->out_unit : m->in_unit;

	if (m->style == DTP_REPLICATED)
		return false;
	for (int i = 0; i < m->nblocks; i++)
		if (m->blocks[i] % degree) {
			snprintf(what, len, "block %d of the %" PRId64 " %s (%" PRId64 " %s)", i + 1, dim, name, m->blocks[i], name);
			return true;
		}
	/* Runs of a text encoder may differ by one; kv heads follow their query heads. */
	if (!t->even || m->nblocks || m->follows >= 0)
		return false;
	if (m->style == DTP_ROWWISE_SPLIT_INPUT)
		unit = 1;
	if (dim % (degree * unit) == 0)
		return false;
	if (unit > 1)
		snprintf(what, len, "the %" PRId64 " heads (%" PRId64 " %s)", dim / unit, dim, name);
	else
		snprintf(what, len, "the %" PRId64 " %s", dim, name);
	return true;
}

static enum dtp_code heads_misfit(const struct dtp_plan *plan, const struct dtp_tree *t, int degree, struct dtp_err *err)
{
	char degrees[256];
	const struct dtp_module *m = NULL;

	if (!err)
		return DTP_REFUSED;
	/* The first split module whose dimension is heads stands for all of them. */
	for (int i = 0; i < t->n && !m; i++)
		if (t->modules[i].rule >= 0 && (t->modules[i].out_unit > 1 || t->modules[i].in_unit > 1))
			m = &t->modules[i];
	dtp_plan_degrees_text(plan, t, degrees, sizeof degrees);
	if (!m)
		return dtp_fail(err, DTP_REFUSED, "%s: degree %d does not divide the %" PRId64 " heads of the %s\n"
				"degrees that work: %s", plan->source, degree, t->heads, t->component, degrees);
	return dtp_fail(err, DTP_REFUSED, "%s: key '%s': degree %d does not divide the %" PRId64 " heads of the %s ('%s')\n"
			"degrees that work: %s", plan->source, key_of(plan, m), degree, t->heads, t->component, m->name, degrees);
}

enum dtp_code dtp_plan_check_degree(const struct dtp_plan *plan, const struct dtp_tree *t, int degree, struct dtp_err *err)
{
	char what[128], degrees[256];

	if (degree < 1)
		return dtp_fail(err, DTP_REFUSED, "degree %d: at least 1 is needed", degree);
	if (t->even && t->heads && t->heads % degree)
		return heads_misfit(plan, t, degree, err);
	for (int i = 0; i < t->n; i++) {
		const struct dtp_module *m = &t->modules[i];
		if (!misfits(t, m, degree, what, sizeof what))
			continue;
		if (!err) /* so that listing the degrees ends */
			return DTP_REFUSED;
		return dtp_fail(err, DTP_REFUSED, "%s: key '%s': degree %d does not divide %s of '%s'\ndegrees that work: %s",
				plan->source, key_of(plan, m), degree, what, m->name,
				dtp_plan_degrees_text(plan, t, degrees, sizeof degrees));
	}
	return DTP_OK;
}

const char *dtp_plan_degrees_text(const struct dtp_plan *plan, const struct dtp_tree *t, char *buf, size_t len)
{
	size_t n = 0;
	int works = 0;

	for (int d = 1; d <= MAX_DEGREE_TOLD; d++) {
		if (dtp_plan_check_degree(plan, t, d, NULL))
			continue;
		works++;
		if (n < len)
			n += (size_t)snprintf(buf + n, len - n, "%s%d", n ? ", " : "", d);
	}
	if (works == MAX_DEGREE_TOLD)
		snprintf(buf, len, "any");
	return buf;
}
