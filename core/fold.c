/* SPDX-License-Identifier: Apache-2.0 */
#include "fold.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the names as a tree, one node per part between dots */

struct node {
	const char *part; /* in a module's name */
	int len;
	int module;       /* -1: none of that name */
	int child, last, next; /* -1: none; children are a list in the order of the modules */
};

struct nodes {
	struct node *node; /* 0: the root */
	int n, cap;
};

static int add_node(struct nodes *t, int parent, const char *part, int len)
{
	if (t->n == t->cap) {
		int cap = t->cap ? 2 * t->cap : 256;
		struct node *p = realloc(t->node, (size_t)cap * sizeof *p);
		if (!p)
			return -1;
		t->node = p;
		t->cap = cap;
	}
	int i = t->n++;
	t->node[i] = (struct node){part, len, -1, -1, -1, -1};
	if (parent >= 0) {
		struct node *p = &t->node[parent];
		if (p->child < 0)
			p->child = i;
		else
			t->node[p->last].next = i;
		p->last = i;
	}
	return i;
}

static bool is_part(const struct node *n, const char *part, int len)
{
	return n->len == len && !memcmp(n->part, part, (size_t)len);
}

static int find_child(const struct nodes *t, int parent, const char *part, int len)
{
	int last = t->node[parent].last;

	if (last >= 0 && is_part(&t->node[last], part, len)) /* as a rule: modules come block by block */
		return last;
	for (int c = t->node[parent].child; c >= 0; c = t->node[c].next)
		if (is_part(&t->node[c], part, len))
			return c;
	return -1;
}

static bool insert(struct nodes *t, const char *name, int module)
{
	int at = 0;

	for (const char *p = name;;) {
		int len = (int)strcspn(p, "."), c = find_child(t, at, p, len);
		if (c < 0 && (c = add_node(t, at, p, len)) < 0)
			return false;
		at = c;
		if (!p[len])
			break;
		p += len + 1;
	}
	t->node[at].module = module;
	return true;
}

static enum dtp_code build(const struct dtp_tree *tree, struct nodes *t, struct dtp_err *err)
{
	bool ok = add_node(t, -1, "", 0) == 0;

	for (int i = 0; ok && i < tree->n; i++)
		if (tree->modules[i].kind != DTP_MODULE_LIST)
			ok = insert(t, tree->modules[i].name, i);
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for the names of %d modules", tree->n);
}

/* ---- lines */

struct walk {
	const struct dtp_tree *tree;
	struct nodes nodes;
	dtp_alike_fn alike;
	void *arg;
	struct dtp_fold *out;
	int cap;
	bool failed;
};

static bool same(const struct walk *w, int a, int b)
{
	const struct node *x = &w->nodes.node[a], *y = &w->nodes.node[b];

	if ((x->module < 0) != (y->module < 0) ||
	    (x->module >= 0 && !w->alike(w->arg, &w->tree->modules[x->module], &w->tree->modules[y->module])))
		return false;
	int c = x->child, d = y->child;
	for (; c >= 0 && d >= 0; c = w->nodes.node[c].next, d = w->nodes.node[d].next)
		if (!is_part(&w->nodes.node[c], w->nodes.node[d].part, w->nodes.node[d].len) || !same(w, c, d))
			return false;
	return c < 0 && d < 0;
}

static bool is_number(const struct node *n)
{
	return n->len && (int)strspn(n->part, "0123456789") >= n->len;
}

/* Whether the children are the elements of a list of several. */
static bool is_list(const struct walk *w, int node)
{
	int n = 0;

	for (int c = w->nodes.node[node].child; c >= 0; c = w->nodes.node[c].next, n++)
		if (!is_number(&w->nodes.node[c]))
			return false;
	return n > 1;
}

static void add_line(struct walk *w, const char *name, int depth, int count, int times, int module)
{
	struct dtp_fold *f = w->out;

	if (f->n == w->cap) {
		int cap = w->cap ? 2 * w->cap : 64;
		struct dtp_fold_line *p = realloc(f->lines, (size_t)cap * sizeof *p);
		if (!p) {
			w->failed = true;
			return;
		}
		f->lines = p;
		w->cap = cap;
	}
	struct dtp_fold_line *l = &f->lines[f->n++];
	*l = (struct dtp_fold_line){.depth = depth, .count = count, .times = times, .module = module};
	snprintf(l->name, sizeof l->name, "%s", name);
}

static void emit(struct walk *w, int node, const char *name, int depth, int count, int times);

/* Runs of equal elements, each a line.  above: elements that the name stands for already ("up.0-1.resnets": 2). */
static void emit_list(struct walk *w, int node, const char *name, int depth, int above, int times)
{
	char label[DTP_FOLD_NAME];

	for (int first = w->nodes.node[node].child; first >= 0;) {
		int last = first, next = w->nodes.node[first].next, count = 1;
		for (; next >= 0 && same(w, first, next); count++) {
			last = next;
			next = w->nodes.node[next].next;
		}
		const struct node *a = &w->nodes.node[first], *b = &w->nodes.node[last];
		if (count > 1)
			snprintf(label, sizeof label, "%s.%.*s-%.*s", name, a->len, a->part, b->len, b->part);
		else
			snprintf(label, sizeof label, "%s.%.*s", name, a->len, a->part);
		emit(w, first, label, depth, above * count, times * count);
		first = next;
	}
}

/* The line of a node and the lines below; nodes with one child and nothing else are one line with it. */
static void emit(struct walk *w, int node, const char *name, int depth, int count, int times)
{
	char path[DTP_FOLD_NAME];
	const struct node *n = &w->nodes.node[node];

	snprintf(path, sizeof path, "%s", name);
	while (n->module < 0 && n->child >= 0 && w->nodes.node[n->child].next < 0) {
		size_t used = strlen(path);
		node = n->child;
		n = &w->nodes.node[node];
		snprintf(path + used, sizeof path - used, ".%.*s", n->len, n->part);
	}
	if (n->module < 0 && is_list(w, node)) {
		emit_list(w, node, path, depth, count, times);
		return;
	}
	add_line(w, path, depth, count, times, n->module);
	for (int c = n->child; c >= 0; c = w->nodes.node[c].next) {
		char part[DTP_FOLD_NAME];
		snprintf(part, sizeof part, "%.*s", w->nodes.node[c].len, w->nodes.node[c].part);
		emit(w, c, part, depth + 1, 1, times);
	}
}

enum dtp_code dtp_fold_make(const struct dtp_tree *tree, dtp_alike_fn alike, void *arg, struct dtp_fold *fold,
			    struct dtp_err *err)
{
	struct walk w = {.tree = tree, .alike = alike, .arg = arg, .out = fold};

	*fold = (struct dtp_fold){0};
	enum dtp_code rc = build(tree, &w.nodes, err);
	for (int c = rc ? -1 : w.nodes.node[0].child; c >= 0; c = w.nodes.node[c].next) {
		char part[DTP_FOLD_NAME];
		snprintf(part, sizeof part, "%.*s", w.nodes.node[c].len, w.nodes.node[c].part);
		emit(&w, c, part, 0, 1, 1);
	}
	free(w.nodes.node);
	if (!rc && w.failed)
		rc = dtp_fail(err, DTP_FAILED, "out of memory for the lines of %d modules", tree->n);
	if (rc)
		dtp_fold_free(fold);
	return rc;
}

void dtp_fold_free(struct dtp_fold *fold)
{
	free(fold->lines);
	*fold = (struct dtp_fold){0};
}

/* ---- keys */

/* The outermost list that a module is an element of, by its name; -1: none.  *rest: what follows the index. */
static int list_of(const struct dtp_tree *tree, const struct dtp_module *m, const char **rest)
{
	char list[DTP_FOLD_NAME];

	for (const char *dot = strchr(m->name, '.'); dot; dot = strchr(dot + 1, '.')) {
		size_t digits = strspn(dot + 1, "0123456789");
		*rest = dot + 1 + digits;
		if (!digits || **rest != '.')
			continue;
		snprintf(list, sizeof list, "%.*s", (int)(dot - m->name), m->name);
		int i = dtp_tree_find(tree, list);
		if (i >= 0 && tree->modules[i].kind == DTP_MODULE_LIST)
			return i;
	}
	return -1;
}

/* For each module its list and the rest of its name, found once. */
struct place {
	int list;
	const char *rest;
	bool done;
};

static bool in_key(const struct place *a, const struct place *b)
{
	return a->list >= 0 && a->list == b->list && !strcmp(a->rest, b->rest);
}

static void make_key(const struct dtp_tree *tree, struct place *place, int first, dtp_alike_fn alike, void *arg,
		     struct dtp_key *key)
{
	const struct dtp_module *m = &tree->modules[first];
	int count = 0;
	bool uniform = true;

	for (int i = 0; i < tree->n; i++)
		if (in_key(&place[first], &place[i])) {
			count++;
			uniform = uniform && !place[i].done && alike(arg, m, &tree->modules[i]);
		}
	*key = (struct dtp_key){.module = first, .count = 1};
	snprintf(key->name, sizeof key->name, "%s", m->name);
	place[first].done = true;
	if (!count || !uniform)
		return;
	snprintf(key->name, sizeof key->name, "%s.*%s", tree->modules[place[first].list].name, place[first].rest);
	key->count = count;
	for (int i = 0; i < tree->n; i++)
		if (in_key(&place[first], &place[i]))
			place[i].done = true;
}

enum dtp_code dtp_keys_make(const struct dtp_tree *tree, dtp_alike_fn alike, void *arg, struct dtp_key **keys, int *n,
			    struct dtp_err *err)
{
	struct place *place = calloc((size_t)tree->n + 1, sizeof *place);

	*n = 0;
	*keys = calloc((size_t)tree->n + 1, sizeof **keys);
	if (!place || !*keys) {
		free(place);
		free(*keys);
		*keys = NULL;
		return dtp_fail(err, DTP_FAILED, "out of memory for the keys of %d modules", tree->n);
	}
	for (int i = 0; i < tree->n; i++)
		place[i].list = tree->modules[i].kind == DTP_MODULE_LIST ? -1
										  : list_of(tree, &tree->modules[i], &place[i].rest);
	for (int i = 0; i < tree->n; i++)
		if (tree->modules[i].kind != DTP_MODULE_LIST && !place[i].done)
			make_key(tree, place, i, alike, arg, &(*keys)[(*n)++]);
	free(place);
	return DTP_OK;
}
