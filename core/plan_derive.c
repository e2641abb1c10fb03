/* SPDX-License-Identifier: Apache-2.0 */
/* A plan from the module tree alone.  A layer's output may be split when all that reads it can read a part: so layers and
 * their readers are split together, as groups. */
#include "plan_make.h"

#include "plan_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups: readers that share a layer they read, directly or through others */

struct derive {
	struct dtp_tree tree;  /* a copy whose modules get the styles */
	int *group;            /* of each module as a reader: index of a reader that stands for all; -1: it reads nothing */
	uint64_t *size;        /* elements of the group's modules, by that index */
};

static int root(const struct derive *d, int i)
{
	while (d->group[i] != i)
		i = d->group[i];
	return i;
}

/* The lower index stands for both. */
static void join(struct derive *d, int i, int j)
{
	int a = root(d, i), b = root(d, j);

	d->group[a > b ? a : b] = a > b ? b : a;
}

static void make_groups(struct derive *d)
{
	int *reader = d->group + d->tree.n; /* of each module's output: one of its readers */

	for (int i = 0; i < d->tree.n; i++) {
		d->group[i] = d->tree.modules[i].nreads ? i : -1;
		reader[i] = -1;
	}
	for (int i = 0; i < d->tree.n; i++)
		for (int k = 0; k < d->tree.modules[i].nreads; k++) {
			int read = d->tree.modules[i].reads[k];
			if (reader[read] < 0)
				reader[read] = i;
			else
				join(d, i, reader[read]);
		}
}

static uint64_t elements(const struct dtp_module *m)
{
	uint64_t n = 1;

	for (int i = 0; i < m->ndim; i++)
		n *= (uint64_t)m->shape[i];
	return n;
}

/* Calls fn for every layer that the group's readers read (false), and for the readers (true), until it says no. */
static bool each_member(struct derive *d, int group, bool (*fn)(struct derive *d, int group, int module, bool reader))
{
	for (int i = 0; i < d->tree.n; i++) {
		if (d->group[i] < 0 || root(d, i) != group)
			continue;
		for (int k = 0; k < d->tree.modules[i].nreads; k++)
			if (!fn(d, group, d->tree.modules[i].reads[k], false))
				return false;
		if (!fn(d, group, i, true))
			return false;
	}
	return true;
}

static bool add_size(struct derive *d, int group, int module, bool reader)
{
	(void)reader;
	d->size[group] += elements(&d->tree.modules[module]);
	return true;
}

static bool is_free(struct derive *d, int group, int module, bool reader)
{
	(void)group, (void)reader;
	return d->tree.modules[module].kind == DTP_MODULE_LINEAR && d->tree.modules[module].style == DTP_REPLICATED;
}

static bool give_style(struct derive *d, int group, int module, bool reader)
{
	struct dtp_module *m = &d->tree.modules[module];
	int n = reader ? m->nin_blocks : m->nout_blocks;

	(void)group;
	if (reader)
		m->style = n ? DTP_PACKED_ROWWISE : DTP_ROWWISE;
	else
		m->style = n ? DTP_PACKED_COLWISE : DTP_COLWISE;
	m->nblocks = n;
	memcpy(m->blocks, reader ? m->in_blocks : m->out_blocks, (size_t)n * sizeof *m->blocks);
	return true;
}

/* A module cannot be split by rows and by columns: where groups meet, the largest takes it. */
static void split_groups(struct derive *d)
{
	for (int i = 0; i < d->tree.n; i++)
		if (d->group[i] == i)
			each_member(d, i, add_size);
	for (;;) {
		int best = -1;
		for (int i = 0; i < d->tree.n; i++)
			if (d->group[i] == i && d->size[i] && (best < 0 || d->size[i] > d->size[best]))
				best = i;
		if (best < 0)
			return;
		d->size[best] = 0; /* looked at */
		if (each_member(d, best, is_free))
			each_member(d, best, give_style);
	}
}

static void split_embeddings(struct derive *d)
{
	for (int i = 0; i < d->tree.n; i++)
		if (d->tree.modules[i].kind == DTP_MODULE_EMBEDDING)
			d->tree.modules[i].style = DTP_ROWWISE;
}

/* ---- reasons */

/* A name within its block: "attn.to_out.0". */
static const char *short_name(const struct dtp_tree *t, const struct dtp_module *m)
{
	for (int i = 0; i < t->n; i++) {
		size_t n = t->modules[i].kind == DTP_MODULE_LIST ? strlen(t->modules[i].name) : 0;
		if (!n || strncmp(m->name, t->modules[i].name, n) || m->name[n] != '.')
			continue;
		const char *rest = m->name + n + 1;
		rest += strspn(rest, "0123456789");
		if (*rest == '.')
			return rest + 1;
	}
	return m->name;
}

struct list {
	char text[300];
	int n;
};

static void add_name(struct list *l, const char *name)
{
	size_t used = strlen(l->text);

	snprintf(l->text + used, sizeof l->text - used, "%s'%s'", l->n++ ? ", " : "", name);
}

static struct list readers_of(const struct dtp_tree *t, int module)
{
	struct list l = {"", 0};

	for (int i = 0; i < t->n; i++)
		for (int k = 0; k < t->modules[i].nreads; k++)
			if (t->modules[i].reads[k] == module)
				add_name(&l, short_name(t, &t->modules[i]));
	return l;
}

static struct list read_by(const struct dtp_tree *t, const struct dtp_module *m)
{
	struct list l = {"", 0};

	for (int k = 0; k < m->nreads; k++)
		add_name(&l, short_name(t, &t->modules[m->reads[k]]));
	return l;
}

/* "8 heads of 16 rows", "1152 rows in blocks of 128 + 128 + 128 + 384 + 384", "384 columns". */
static void describe(const struct dtp_module *m, bool rows, char *buf, size_t len)
{
	int64_t dim = m->shape[rows ? 0 : 1], unit = rows ? m->out_unit : m->in_unit;
	const char *what = rows ? "rows" : "columns";
	int n = rows ? m->nout_blocks : m->nin_blocks;
	const int64_t *blocks = rows ? m->out_blocks : m->in_blocks;

	if (unit > 1) {
		snprintf(buf, len, "%" PRId64 " heads of %" PRId64 " %s", dim / unit, unit, what);
		return;
	}
	size_t at = (size_t)snprintf(buf, len, "%" PRId64 " %s%s", dim, what, n ? " in blocks of " : "");
	for (int i = 0; i < n && at < len; i++)
		at += (size_t)snprintf(buf + at, len - at, "%s%" PRId64, i ? " + " : "", blocks[i]);
}

static void explain_whole(const struct dtp_tree *t, int module, char *text, size_t len)
{
	const struct dtp_module *m = &t->modules[module];
	struct list readers = readers_of(t, module);

	if (!m->needed)
		snprintf(text, len, "is not used, so not loaded");
	else if (readers.n || m->nreads)
		snprintf(text, len, "what it reads or what reads it (%s) is split otherwise",
			 readers.n ? readers.text : read_by(t, m).text);
	else
		snprintf(text, len, "its input and its output are needed whole; 'rowwise_split_input' would split it, for one more sum "
			 "over the ranks");
}

static void explain(const struct dtp_tree *t, int module, char *text, size_t len)
{
	const struct dtp_module *m = &t->modules[module];
	bool rows = dtp_style_cuts_rows(m->style);
	char what[200];

	describe(m, rows || m->kind == DTP_MODULE_EMBEDDING, what, sizeof what);
	if (m->style == DTP_REPLICATED)
		explain_whole(t, module, text, len);
	else if (m->kind == DTP_MODULE_EMBEDDING)
		snprintf(text, len, "%s of a vocabulary: a rank gives zeros for a token that it does not have, the sum over the ranks "
			 "is the embedding", what);
	else if (rows)
		snprintf(text, len, "%s, read by %s only, which can take a part each", what, readers_of(t, module).text);
	else
		snprintf(text, len, "%s, as %s give%s them; the products are summed over the ranks", what, read_by(t, m).text,
			 m->nreads == 1 ? "s" : "");
}

/* One key may not stand for modules that were explained differently. */
static bool alike(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	(void)arg;
	return a->style == b->style && a->needed == b->needed && a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape, sizeof a->shape);
}

static enum dtp_code give_reasons(const struct derive *d, struct dtp_reason **why, int *n, struct dtp_err *err)
{
	struct dtp_key *keys;
	int nkeys;
	enum dtp_code rc = dtp_keys_make(&d->tree, alike, NULL, &keys, &nkeys, err);

	if (rc)
		return rc;
	*why = calloc((size_t)nkeys + 1, sizeof **why);
	if (!*why)
		rc = dtp_fail(err, DTP_FAILED, "out of memory for %d reasons", nkeys);
	for (int i = 0; !rc && i < nkeys; i++) {
		const struct dtp_module *m = &d->tree.modules[keys[i].module];
		if (m->kind != DTP_MODULE_LINEAR && m->kind != DTP_MODULE_EMBEDDING)
			continue;
		struct dtp_reason *r = &(*why)[(*n)++];
		*r = (struct dtp_reason){.key = keys[i], .style = m->style};
		explain(&d->tree, keys[i].module, r->text, sizeof r->text);
	}
	free(keys);
	return rc;
}

enum dtp_code dtp_plan_derive(const struct dtp_tree *tree, struct dtp_plan *plan, struct dtp_reason **why, int *n,
			      struct dtp_err *err)
{
	size_t count = (size_t)tree->n + 1;
	struct derive d = {*tree, calloc(2 * count, sizeof *d.group), calloc(count, sizeof *d.size)};
	enum dtp_code rc = DTP_OK;

	*plan = (struct dtp_plan){0};
	*why = NULL;
	*n = 0;
	d.tree.modules = malloc(count * sizeof *d.tree.modules);
	if (!d.group || !d.size || !d.tree.modules) {
		rc = dtp_fail(err, DTP_FAILED, "out of memory for %d modules", tree->n);
	} else {
		memcpy(d.tree.modules, tree->modules, (size_t)tree->n * sizeof *tree->modules);
		for (int i = 0; i < tree->n; i++) {
			d.tree.modules[i].style = DTP_REPLICATED;
			d.tree.modules[i].nblocks = 0;
		}
		make_groups(&d);
		split_groups(&d);
		split_embeddings(&d);
		rc = dtp_plan_explicit(&d.tree, "derived plan", plan, err);
	}
	if (!rc && (rc = give_reasons(&d, why, n, err))) {
		free(*why);
		*why = NULL;
		*n = 0;
		dtp_plan_free(plan);
	}
	free(d.group);
	free(d.size);
	free(d.tree.modules);
	return rc;
}
