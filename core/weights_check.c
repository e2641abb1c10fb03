/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's headers against the module tree. */
#include "weights_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_TOLD 3
#define SUPPORTED "supported are BF16, F16 and F32"

/* What a message calls the checkpoint: its file, or its folder. */
static const char *place(const struct dtp_st *st, char *buf, size_t size)
{
	const char *path = st->nfiles ? st->files[0].path : "", *slash = strrchr(path, '/');

	if (st->nfiles == 1)
		snprintf(buf, size, "'%s'", path);
	else
		snprintf(buf, size, "none of the %d files of '%.*s'", st->nfiles, slash ? (int)(slash - path) : 1,
			 slash ? path : ".");
	return buf;
}

/* A tensor that stands for this module's weight in a quantised checkpoint: the module's name, then another suffix. */
static const char *packed_instead(const struct dtp_st *st, const char *prefix, const struct dtp_module *m)
{
	static const char *const suffixes[] = {"qweight", "weight_packed", "weight_scale", "scales", "SCB"};
	char name[512];

	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
		snprintf(name, sizeof name, "%s%s.%s", prefix, m->name, suffixes[i]);
		const struct dtp_st_entry *e = dtp_st_find(st, name);
		if (e)
			return e->name;
	}
	return NULL;
}

static enum dtp_code missing(const struct dtp_st *st, const char *prefix, const struct dtp_param *p, struct dtp_err *err)
{
	const char *packed = packed_instead(st, prefix, p->module);
	char where[600], shape[128];

	place(st, where, sizeof where);
	if (packed)
		return dtp_fail(err, DTP_REFUSED, "%s %s tensor '%s%s', but '%.200s' is there: quantised checkpoints are not "
				"supported; " SUPPORTED, where, st->nfiles == 1 ? "lacks" : "holds", prefix, p->name, packed);
	return dtp_fail(err, DTP_REFUSED, "%s %s tensor '%s%s' of shape %s", where, st->nfiles == 1 ? "lacks" : "holds", prefix,
			p->name, dtp_shape_text(shape, sizeof shape, p->ndim, p->shape));
}

static bool is_quantised(const char *dtype)
{
	return !strncmp(dtype, "F8", 2) || !strncmp(dtype, "F6", 2) || !strncmp(dtype, "F4", 2) || !strcmp(dtype, "I8") ||
	       !strcmp(dtype, "U8");
}

const struct dtp_st_entry *dtp_weights_entry(const struct dtp_st *st, const char *prefix, const struct dtp_param *p)
{
	char name[512];

	return (size_t)snprintf(name, sizeof name, "%s%s", prefix, p->name) < sizeof name ? dtp_st_find(st, name) : NULL;
}

enum dtp_code dtp_weights_find(const struct dtp_st *st, const char *prefix, const struct dtp_param *p,
			       const struct dtp_st_entry **out, struct dtp_err *err)
{
	const struct dtp_st_entry *e = dtp_weights_entry(st, prefix, p);
	char want[128], have[192];

	if (!e)
		return missing(st, prefix, p, err);
	const char *path = st->files[e->file].path;
	if (e->dtype != DTP_BF16 && e->dtype != DTP_F16 && e->dtype != DTP_F32)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the dtype %s%s; " SUPPORTED, path, e->name,
				e->dtype_name, is_quantised(e->dtype_name) ? ": quantised checkpoints are not supported" : "");
	bool same = e->ndim == p->ndim;
	for (int d = 0; same && d < p->ndim; d++)
		same = e->shape[d] == p->shape[d];
	if (!same)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the shape %s, expected %s", path, e->name,
				dtp_shape_text(have, sizeof have, e->ndim, e->shape),
				dtp_shape_text(want, sizeof want, p->ndim, p->shape));
	*out = e;
	return DTP_OK;
}

/* ---- tensors that nobody declared */

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted names of all parameters, prefix included; NULL when out of memory. */
static char **declared(const struct dtp_tree *tree, const char *prefix, size_t *n)
{
	char **names = calloc((size_t)tree->n * 2 + 1, sizeof *names);
	struct dtp_param p;

	*n = 0;
	for (int i = 0; names && i < tree->n; i++)
		for (int which = 0; dtp_module_param(&tree->modules[i], which, &p); which++) {
			if (asprintf(&names[*n], "%s%s", prefix, p.name) < 0)
				abort();
			++*n;
		}
	if (names)
		qsort(names, *n, sizeof *names, compare_names);
	return names;
}

/* A counter that torch keeps with every batch norm; it has no meaning for inference. */
static bool is_bookkeeping(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot && !strcmp(dot, ".num_batches_tracked");
}

static bool is_unused(const struct dtp_tree *tree, const char *name)
{
	for (const char *const *u = tree->unused; u && *u; u++) {
		size_t n = strlen(*u);
		for (const char *at = name; (at = strstr(at, *u)); at += n)
			if ((at == name || at[-1] == '.') && (!at[n] || at[n] == '.'))
				return true;
	}
	return false;
}

static void warn_of_extras(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix,
			   const struct dtp_monitor *mon)
{
	char list[700] = "", text[1024];
	size_t n, len = 0;
	int extras = 0;
	char **names = declared(tree, prefix, &n);

	if (!names)
		return;
	for (int i = 0; i < st->nentries; i++) {
		const char *name = st->entries[i].name;
		if (bsearch(&name, names, n, sizeof *names, compare_names) || is_bookkeeping(name) ||
		    is_unused(tree, name))
			continue;
		if (extras++ < NAMES_TOLD)
			len += (size_t)snprintf(list + len, sizeof list - len, "%s'%.200s'", len ? ", " : "", name);
	}
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
	if (!extras)
		return;
	snprintf(text, sizeof text, "%d tensor%s of the checkpoint that the %s does not use: %s%s", extras,
		 extras > 1 ? "s" : "", tree->component, list, extras > NAMES_TOLD ? ", ..." : "");
	mon->warn(mon->arg, text);
}

enum dtp_code dtp_weights_check(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix,
				const struct dtp_monitor *mon, struct dtp_err *err)
{
	const struct dtp_st_entry *e;
	struct dtp_param p;
	enum dtp_code rc;

	for (int i = 0; i < tree->n; i++)
		for (int which = 0; tree->modules[i].needed && dtp_module_param(&tree->modules[i], which, &p); which++)
			if ((rc = dtp_weights_find(st, prefix, &p, &e, err)))
				return rc;
	warn_of_extras(tree, st, prefix, mon);
	return DTP_OK;
}
