/* SPDX-License-Identifier: Apache-2.0 */
#include "synthetic.h"

#include "fnv.h"
#include "weights_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DTP_FILL_RUNS >= DTP_MAX_RUNS, "a fill has room for the runs of a split");

/* What a vector of this name is, all of it; others are random. */
static const struct {
	const char *suffix;
	float value;
} vectors[] = {{"weight", 1}, {"bias", 0}, {"running_mean", 0}, {"running_var", 1}};

static float vector_value(const struct dtp_param *p)
{
	for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
		if (!strcmp(p->module->param[p->which], vectors[i].suffix))
			return vectors[i].value;
	return 0;
}

void dtp_synthetic_fill(const struct dtp_param *p, const struct dtp_split *s, struct dtp_fill *out)
{
	int64_t inner = 1, terms;

	for (int d = 2; d < p->ndim; d++)
		inner *= p->shape[d];
	*out = (struct dtp_fill){.seed = dtp_fnv1a(p->name, strlen(p->name)), .columns = s->dim == 1, .nruns = s->nruns};
	for (int i = 0; i < s->nruns; i++) {
		out->run[i].begin = s->run[i].begin * (out->columns ? inner : 1);
		out->run[i].end = s->run[i].end * (out->columns ? inner : 1);
	}
	if (dtp_weights_kind(p) == DTP_WEIGHT_VECTOR) {
		out->mean = vector_value(p);
		return;
	}
	/* A row of a table is looked up, not summed with others.  The variance of u is 2^46 / 3. */
	terms = p->module->kind == DTP_MODULE_EMBEDDING ? 1 : p->shape[1] * inner;
	out->scale = (float)(sqrt(3.0 / (double)terms) * 0x1p-23);
}

static enum dtp_code load_param(struct dtp_tree *tree, const struct dtp_param *p, int rank, int degree, struct dtp_backend *be,
				uint64_t *bytes, struct dtp_err *err)
{
	struct dtp_layer *l = p->module->layer;
	struct dtp_weight **home = p->which ? &l->bias : &l->weight;
	int64_t shape[DTP_MAX_DIMS];
	struct dtp_split s;
	struct dtp_fill f;

	dtp_placement(tree, p, rank, degree, &s);
	dtp_split_shape(p, &s, shape);
	dtp_synthetic_fill(p, &s, &f);
	if (be->ops->weight_new(be, dtp_weights_kind(p), p->ndim, shape, home, err))
		return dtp_err_prefix(err, "while making room for '%s': ", p->name);
	*bytes += (*home)->nbytes;
	return be->ops->weight_fill(be, *home, &f, err) ? dtp_err_prefix(err, "while filling '%s': ", p->name) : DTP_OK;
}

static enum dtp_code load_all(struct dtp_tree *tree, int rank, int degree, struct dtp_backend *be, const struct dtp_monitor *mon,
			      struct dtp_err *err)
{
	uint64_t total = dtp_weights_memory(tree, rank, degree, be), done = 0;
	struct dtp_param p;

	for (int i = 0; i < tree->n; i++) {
		const struct dtp_module *m = &tree->modules[i];
		for (int which = 0; m->needed && m->layer && dtp_module_param(m, which, &p); which++) {
			if (mon->stopped(mon->arg))
				return dtp_fail(err, DTP_INTERRUPTED, "interrupted");
			if (load_param(tree, &p, rank, degree, be, &done, err))
				return err->code;
			mon->progress(mon->arg, done, total);
		}
	}
	return be->ops->sync(be, err);
}

enum dtp_code dtp_synthetic_load(struct dtp_tree *tree, int rank, int degree, struct dtp_backend *be, const struct dtp_monitor *mon,
				 struct dtp_err *err)
{
	enum dtp_code rc = load_all(tree, rank, degree, be, mon, err);

	if (rc)
		dtp_weights_free(tree, be);
	return rc;
}

enum dtp_code dtp_synthetic_prompt(int64_t vocab, int64_t length, int number, struct dtp_prompt *out, struct dtp_err *err)
{
	*out = (struct dtp_prompt){.ids = malloc((size_t)length * sizeof *out->ids), .length = length, .end = length};
	if (!out->ids)
		return dtp_fail(err, DTP_FAILED, "out of memory for a prompt of %lld tokens", (long long)length);
	for (int64_t i = 0; i < length; i++)
		out->ids[i] = (int32_t)(dtp_fill_bits(dtp_fill_key((uint64_t)number, 0), (uint32_t)i) % (uint64_t)vocab);
	return DTP_OK;
}
