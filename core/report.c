/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "pipeline_internal.h"
#include "plan_internal.h"

#include <stdlib.h>
#include <string.h>

/* A module counts as large from this part of a rank's weights on. */
#define LARGE 0.02

struct make {
	struct dtp_backend *dry;
	const struct dtp_component *c;
	struct dtp_report_part *part;
	bool shared; /* ranks send each other what no plan splits */
};

static uint64_t param_bytes(const struct dtp_tree *t, const struct dtp_module *m, int rank, int degree, struct dtp_backend *be)
{
	struct dtp_param p;
	struct dtp_split s;
	uint64_t bytes = 0;

	for (int which = 0; m->needed && dtp_module_param(m, which, &p); which++) {
		dtp_placement(t, &p, rank, degree, &s);
		bytes += dtp_weights_param_memory(&p, &s, be);
	}
	return bytes;
}

static const struct dtp_component *component_of(const struct dtp_pipeline *p, const char *name)
{
	for (int i = 0; i < DTP_COMPONENTS; i++)
		if (!strcmp(p->component[i].name, name))
			return &p->component[i];
	return NULL;
}

struct dtp_tree *dtp_pipeline_tree(struct dtp_pipeline *p, const char *component)
{
	const struct dtp_component *c = component_of(p, component);

	return c ? c->tree : NULL;
}

static enum dtp_dtype dtype_of(const struct dtp_component *c, const struct dtp_module *m)
{
	struct dtp_param p;
	const struct dtp_st_entry *e = dtp_module_param(m, 0, &p) ? dtp_weights_entry(&c->st, c->prefix, &p) : NULL;

	return e ? e->dtype : DTP_NO_DTYPE;
}

enum dtp_dtype dtp_report_dtype(const struct dtp_pipeline *p, const struct dtp_report_part *part, const struct dtp_module *m)
{
	return dtype_of(component_of(p, part->name), m);
}

void dtp_report_placed(struct dtp_pipeline *p, const struct dtp_report_part *part, const struct dtp_module *m, int rank,
		       struct dtp_split *split, int64_t shape[DTP_MAX_DIMS], uint64_t *bytes)
{
	struct dtp_param weight;
	struct dtp_backend *dry;

	dtp_module_param(m, 0, &weight);
	dtp_placement(part->tree, &weight, rank, part->degree, split);
	dtp_split_shape(&weight, split, shape);
	*bytes = 0;
	if (dtp_backend_dry(p->compute, p->device, &dry, NULL))
		return;
	*bytes = param_bytes(part->tree, m, rank, part->degree, dry);
	dry->ops->destroy(dry);
}

/* ---- the lines */

/* Modules that one line may stand for. */
static bool alike(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	const struct make *mk = arg;

	return a->kind == b->kind && a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape) && a->bias == b->bias &&
	       a->needed == b->needed && a->style == b->style && (a->rule < 0) == (b->rule < 0) && a->nblocks == b->nblocks &&
	       !memcmp(a->blocks, b->blocks, (size_t)a->nblocks * sizeof *a->blocks) && a->out_unit == b->out_unit &&
	       a->in_unit == b->in_unit && (a->follows < 0) == (b->follows < 0) && a->group == b->group &&
	       dtype_of(mk->c, a) == dtype_of(mk->c, b);
}

static void local_shapes(const struct make *mk, struct dtp_report_line *l)
{
	struct dtp_param weight;
	struct dtp_split s;
	int64_t least = INT64_MAX, most = -1, length, end = -1;

	dtp_module_param(l->module, 0, &weight);
	for (int rank = 0; rank < mk->part->degree; rank++) {
		dtp_placement(mk->part->tree, &weight, rank, mk->part->degree, &s);
		length = dtp_split_length(&s);
		if (length < least)
			dtp_split_shape(&weight, &s, l->shape_least);
		if (length > most)
			dtp_split_shape(&weight, &s, l->shape_most);
		least = length < least ? length : least;
		most = length > most ? length : most;
		if (s.dim >= 0 && s.nruns == 1) {
			l->uneven = l->uneven || (rank && length && s.run[0].begin < end);
			end = s.run[0].end;
		}
	}
	l->uneven = l->uneven || least != most;
}

/* Bytes of a line of modules, added to the lines that it stands below. */
static void weigh(struct make *mk, struct dtp_report_line *lines, int at, uint64_t *sums)
{
	struct dtp_report_part *part = mk->part;
	struct dtp_report_line *l = &lines[at];
	const struct dtp_tree *t = part->tree;

	for (int rank = 0; rank < part->degree; rank++) {
		uint64_t bytes = (uint64_t)l->at.times * param_bytes(t, l->module, rank, part->degree, mk->dry);
		for (int i = at, depth = l->at.depth + 1; i >= 0; i--)
			if (lines[i].at.depth < depth) {
				sums[(size_t)i * (size_t)part->degree + (size_t)rank] += bytes;
				depth = lines[i].at.depth;
			}
	}
	uint64_t whole = (uint64_t)l->at.times * param_bytes(t, l->module, 0, 1, mk->dry);
	for (int i = at, depth = l->at.depth + 1; i >= 0; i--)
		if (lines[i].at.depth < depth) {
			lines[i].whole += whole;
			depth = lines[i].at.depth;
		}
	if (l->module->style == DTP_REPLICATED)
		part->replicated += whole;
}

static void find_extremes(const uint64_t *v, int n, uint64_t *least, uint64_t *most)
{
	*least = UINT64_MAX;
	*most = 0;
	for (int i = 0; i < n; i++) {
		*least = v[i] < *least ? v[i] : *least;
		*most = v[i] > *most ? v[i] : *most;
	}
}

static enum dtp_code make_lines(struct make *mk, struct dtp_err *err)
{
	struct dtp_report_part *part = mk->part;
	struct dtp_fold fold;

	if (dtp_fold_make(part->tree, alike, mk, &fold, err))
		return err->code;
	part->lines = calloc((size_t)fold.n + 1, sizeof *part->lines);
	part->sums = calloc(((size_t)fold.n + 1) * (size_t)part->degree, sizeof *part->sums);
	if (!part->lines || !part->sums) {
		dtp_fold_free(&fold);
		return dtp_fail(err, DTP_FAILED, "out of memory for a report of %d lines", fold.n);
	}
	part->nlines = fold.n;
	for (int i = 0; i < fold.n; i++) {
		struct dtp_report_line *l = &part->lines[i];
		l->at = fold.lines[i];
		l->rank = part->sums + (size_t)i * (size_t)part->degree;
		if (l->at.module < 0)
			continue;
		l->module = &part->tree->modules[l->at.module];
		l->dtype = dtype_of(mk->c, l->module);
		local_shapes(mk, l);
		weigh(mk, part->lines, i, part->sums);
	}
	dtp_fold_free(&fold);
	uint64_t *total = part->sums + (size_t)part->nlines * (size_t)part->degree;
	for (int i = 0; i < part->nlines; i++) {
		struct dtp_report_line *l = &part->lines[i];
		find_extremes(l->rank, part->degree, &l->least, &l->most);
		for (int rank = 0; rank < part->degree && !l->at.depth; rank++)
			total[rank] += l->rank[rank];
		part->whole += l->at.depth ? 0 : l->whole;
	}
	find_extremes(total, part->degree, &part->least, &part->most);
	return DTP_OK;
}

/* ---- large modules that nobody named */

static bool same_need(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	(void)arg;
	return (a->rule < 0) == (b->rule < 0) && a->needed == b->needed;
}

static uint64_t key_bytes(const struct make *mk, const struct dtp_key *key)
{
	/* The modules of one key differ in their shapes at most where a model does so; each counts by itself. */
	const struct dtp_tree *t = mk->part->tree;
	uint64_t bytes = 0;

	for (int i = 0; i < t->n; i++)
		if (dtp_key_match(key->name, t->modules[i].name))
			bytes += param_bytes(t, &t->modules[i], 0, 1, mk->dry);
	return bytes;
}

static int by_bytes(const void *a, const void *b)
{
	const struct dtp_report_large *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->key.module < y->key.module ? -1 : 1;
}

static enum dtp_code find_large(struct make *mk, struct dtp_err *err)
{
	struct dtp_report_part *part = mk->part;
	struct dtp_key *keys;
	int n;

	if (part->degree < 2)
		return DTP_OK;
	if (dtp_keys_make(part->tree, same_need, NULL, &keys, &n, err))
		return err->code;
	part->large = calloc((size_t)n + 1, sizeof *part->large);
	if (!part->large) {
		free(keys);
		return dtp_fail(err, DTP_FAILED, "out of memory for a report of %d keys", n);
	}
	for (int i = 0; i < n; i++) {
		const struct dtp_module *m = &part->tree->modules[keys[i].module];
		if (m->rule >= 0 || !m->needed || (m->kind != DTP_MODULE_LINEAR && m->kind != DTP_MODULE_EMBEDDING))
			continue;
		uint64_t bytes = key_bytes(mk, &keys[i]);
		if ((double)bytes >= LARGE * (double)part->most)
			part->large[part->nlarge++] = (struct dtp_report_large){
				keys[i], bytes,
				m->kind == DTP_MODULE_LINEAR && !m->nreads && !m->is_read};
	}
	free(keys);
	qsort(part->large, (size_t)part->nlarge, sizeof *part->large, by_bytes);
	return DTP_OK;
}

/* ---- the whole */

static enum dtp_code make_part(struct make *mk, struct dtp_err *err)
{
	struct dtp_report_part *part = mk->part;

	part->name = mk->c->name;
	part->degree = mk->c->degree;
	part->tree = mk->c->tree;
	if (make_lines(mk, err) || find_large(mk, err))
		return err->code;
	for (int rank = 0; rank < part->degree; rank++) {
		struct dtp_comm ranks = {.rank = rank, .size = part->degree}; /* nothing is sent */
		const struct dtp_sharing with = {.sums = mk->shared && part->degree > 1 ? &ranks : NULL};
		uint64_t read = dtp_weights_file_bytes(mk->c->tree, &mk->c->st, mk->c->prefix, rank, part->degree, &with);
		part->read = read > part->read ? read : part->read;
	}
	return DTP_OK;
}

enum dtp_code dtp_report_make(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_report *out,
			      struct dtp_err *err)
{
	const struct dtp_plan *plans[DTP_COMPONENTS] = {[DTP_TEXT] = p->embeds.length ? NULL : &p->text_plan, [DTP_TRANSFORMER] = &p->plan};
	struct make mk = {.shared = p->device == DTP_DEVICE_CUDA};

	*out = (struct dtp_report){0};
	dtp_vae_need(&p->vae, req->nimages > 0, req->output == DTP_OUTPUT_PNG);
	enum dtp_code rc = dtp_backend_dry(p->compute, p->device, &mk.dry, err);
	if (rc)
		return rc;
	for (int i = 0; !rc && i < DTP_COMPONENTS; i++) {
		mk.c = &p->component[i];
		mk.part = &out->part[i];
		mk.part->plan = plans[i];
		rc = make_part(&mk, err);
	}
	mk.dry->ops->destroy(mk.dry);
	if (rc)
		dtp_report_free(out);
	return rc;
}

void dtp_report_free(struct dtp_report *r)
{
	for (int i = 0; i < DTP_REPORT_PARTS; i++) {
		free(r->part[i].lines);
		free(r->part[i].large);
		free(r->part[i].sums);
	}
	*r = (struct dtp_report){0};
}
