/* SPDX-License-Identifier: Apache-2.0 */
#include "module.h"
#include "fnv.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME 220

void dtp_tree_init(struct dtp_tree *t, const char *component)
{
	*t = (struct dtp_tree){.component = component};
}

void dtp_tree_free(struct dtp_tree *t)
{
	for (int i = 0; i < t->n; i++)
		free(t->modules[i].name);
	free(t->modules);
	free(t->slot);
	t->modules = NULL;
	t->slot = NULL;
	t->n = t->cap = 0;
}

/* Where the name is, or would be: at most half of the slots are taken. */
static int *slot_of(const struct dtp_tree *t, const char *name)
{
	size_t mask = 2 * (size_t)t->cap - 1, at = dtp_fnv1a(name, strlen(name)) & mask;

	while (t->slot[at] >= 0 && strcmp(t->modules[t->slot[at]].name, name))
		at = (at + 1) & mask;
	return &t->slot[at];
}

int dtp_tree_find(const struct dtp_tree *t, const char *name)
{
	return t->cap ? *slot_of(t, name) : -1;
}

const char *dtp_key_match(const char *key, const char *name)
{
	const char *star = strchr(key, '*');

	if (!star)
		return strcmp(key, name) ? NULL : name + strlen(name);
	size_t head = (size_t)(star - key);
	if (strncmp(key, name, head))
		return NULL;
	size_t digits = strspn(name + head, "0123456789");
	return digits && !strcmp(name + head + digits, star + 1) ? name + head : NULL;
}

static void grow(struct dtp_tree *t)
{
	int cap = t->cap ? 2 * t->cap : 64;
	struct dtp_module *modules = realloc(t->modules, (size_t)cap * sizeof *modules);
	int *slot = realloc(t->slot, 2 * (size_t)cap * sizeof *slot);

	if (!modules || !slot)
		abort();
	t->modules = modules;
	t->slot = slot;
	t->cap = cap;
	memset(slot, -1, 2 * (size_t)cap * sizeof *slot);
	for (int i = 0; i < t->n; i++)
		*slot_of(t, modules[i].name) = i;
}

static int add(struct dtp_tree *t, enum dtp_module_kind kind, struct dtp_layer *l, bool bias, const char *fmt, va_list ap)
{
	char *name;

	/* A parameter's name, with its suffix, must fit into struct dtp_param. */
	if (vasprintf(&name, fmt, ap) < 0 || strlen(name) > MAX_NAME || dtp_tree_find(t, name) >= 0)
		abort();
	if (t->n == t->cap)
		grow(t);
	*slot_of(t, name) = t->n;
	t->modules[t->n] = (struct dtp_module){
		.name = name, .kind = kind, .bias = bias, .needed = true, .param = {"weight", "bias"},
		.out_unit = 1, .in_unit = 1, .follows = -1, .group = 1, .layer = l, .rule = -1,
	};
	return t->n++;
}

static void set_shape(struct dtp_module *m, int ndim, int64_t a, int64_t b, int64_t c, int64_t d)
{
	m->ndim = ndim;
	m->shape[0] = a;
	m->shape[1] = b;
	m->shape[2] = c;
	m->shape[3] = d;
}

int dtp_tree_list(struct dtp_tree *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int i = add(t, DTP_MODULE_LIST, NULL, false, fmt, ap);
	va_end(ap);
	return i;
}

int dtp_tree_linear(struct dtp_tree *t, struct dtp_layer *l, int64_t out, int64_t in, bool bias, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int i = add(t, DTP_MODULE_LINEAR, l, bias, fmt, ap);
	va_end(ap);
	set_shape(&t->modules[i], 2, out, in, 0, 0);
	return i;
}

int dtp_tree_embedding(struct dtp_tree *t, struct dtp_layer *l, int64_t rows, int64_t width, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int i = add(t, DTP_MODULE_EMBEDDING, l, false, fmt, ap);
	va_end(ap);
	set_shape(&t->modules[i], 2, rows, width, 0, 0);
	return i;
}

int dtp_tree_norm(struct dtp_tree *t, struct dtp_layer *l, int64_t n, bool bias, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int i = add(t, DTP_MODULE_NORM, l, bias, fmt, ap);
	va_end(ap);
	set_shape(&t->modules[i], 1, n, 0, 0, 0);
	return i;
}

int dtp_tree_conv(struct dtp_tree *t, struct dtp_layer *l, int64_t out, int64_t in, int64_t k, bool bias, const char *fmt,
		  ...)
{
	va_list ap;

	va_start(ap, fmt);
	int i = add(t, DTP_MODULE_CONV, l, bias, fmt, ap);
	va_end(ap);
	set_shape(&t->modules[i], 4, out, in, k, k);
	return i;
}

void dtp_tree_reads(struct dtp_tree *t, int module, int n, const int *producers)
{
	struct dtp_module *m = &t->modules[module];

	if (n > DTP_MAX_READS)
		abort();
	m->nreads = n;
	memcpy(m->reads, producers, (size_t)n * sizeof *producers);
	for (int i = 0; i < n; i++)
		t->modules[producers[i]].is_read = true;
}

/* A declaration whose blocks do not make up the dimension is a bug. */
static void set_blocks(int64_t *blocks, int *nblocks, int64_t dim, int n, const int64_t *sizes)
{
	int64_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += sizes[i];
	if (n > DTP_MAX_BLOCKS || sum != dim)
		abort();
	*nblocks = n;
	memcpy(blocks, sizes, (size_t)n * sizeof *sizes);
}

void dtp_tree_out_blocks(struct dtp_tree *t, int module, int n, const int64_t *sizes)
{
	struct dtp_module *m = &t->modules[module];
	set_blocks(m->out_blocks, &m->nout_blocks, m->shape[0], n, sizes);
}

void dtp_tree_in_blocks(struct dtp_tree *t, int module, int n, const int64_t *sizes)
{
	struct dtp_module *m = &t->modules[module];
	set_blocks(m->in_blocks, &m->nin_blocks, m->shape[1], n, sizes);
}

bool dtp_module_param(const struct dtp_module *m, int which, struct dtp_param *p)
{
	if (m->kind == DTP_MODULE_LIST || which < 0 || which > (m->bias ? 1 : 0))
		return false;
	*p = (struct dtp_param){.module = m, .which = which};
	snprintf(p->name, sizeof p->name, "%s.%s", m->name, m->param[which]);
	if (which) {
		p->ndim = 1;
		p->shape[0] = m->shape[0];
	} else {
		p->ndim = m->ndim;
		memcpy(p->shape, m->shape, sizeof p->shape);
	}
	return true;
}
