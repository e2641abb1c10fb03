/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a parameter a rank owns.  Nothing else in the program computes with a rank and a degree. */
#include "plan.h"

#include "plan_internal.h"

#include <string.h>

struct run {
	int64_t begin, end;
};

/* Rank r of N owns [r n/N, (r+1) n/N) of n things: equal where N divides n, else lengths that differ by one. */
static struct run share(int64_t n, int rank, int degree)
{
	/* n * degree could overflow for absurd n only; the quotient form cannot. */
	int64_t q = n / degree, rest = n % degree;
	return (struct run){q * rank + rest * rank / degree, q * (rank + 1) + rest * (rank + 1) / degree};
}

static struct run scale(struct run r, int64_t unit)
{
	return (struct run){r.begin * unit, r.end * unit};
}

/* The kv heads that the query heads of a rank need: more than one rank may need one. */
static struct run kv_share(const struct dtp_tree *t, const struct dtp_module *m, int rank, int degree)
{
	const struct dtp_module *q = &t->modules[m->follows];
	struct run r = share(q->shape[0] / q->out_unit, rank, degree);

	if (r.begin == r.end)
		return (struct run){0, 0};
	return (struct run){r.begin / m->group, (r.end + m->group - 1) / m->group};
}

static void append(struct dtp_split *s, struct run r)
{
	if (s->nruns && s->run[s->nruns - 1].end == r.begin) {
		s->run[s->nruns - 1].end = r.end;
		return;
	}
	s->run[s->nruns].begin = r.begin;
	s->run[s->nruns++].end = r.end;
}

static void split_packed(const struct dtp_module *m, int rank, int degree, struct dtp_split *s)
{
	int64_t at = 0;

	for (int i = 0; i < m->nblocks; i++) {
		struct run r = share(m->blocks[i], rank, degree);
		append(s, (struct run){at + r.begin, at + r.end});
		at += m->blocks[i];
	}
}

void dtp_placement(const struct dtp_tree *t, const struct dtp_param *p, int rank, int degree, struct dtp_split *s)
{
	const struct dtp_module *m = p->module;
	bool rows = dtp_style_cuts_rows(m->style) || (m->kind == DTP_MODULE_EMBEDDING && m->style == DTP_ROWWISE);

	*s = (struct dtp_split){.dim = rows ? 0 : 1};
	if (m->style == DTP_REPLICATED || (p->which && !rows)) {
		s->dim = -1;
		append(s, (struct run){0, p->shape[0]});
	} else if (m->nblocks) {
		split_packed(m, rank, degree, s);
	} else if (rows && m->follows >= 0) {
		append(s, scale(kv_share(t, m, rank, degree), m->out_unit));
	} else {
		int64_t unit = rows ? m->out_unit : m->style == DTP_ROWWISE_SPLIT_INPUT ? 1 : m->in_unit;
		append(s, scale(share(m->shape[s->dim] / unit, rank, degree), unit));
	}
}

int64_t dtp_split_length(const struct dtp_split *s)
{
	int64_t n = 0;

	for (int i = 0; i < s->nruns; i++)
		n += s->run[i].end - s->run[i].begin;
	return n;
}

void dtp_split_shape(const struct dtp_param *p, const struct dtp_split *s, int64_t shape[DTP_MAX_DIMS])
{
	memcpy(shape, p->shape, sizeof p->shape);
	if (s->dim >= 0)
		shape[s->dim] = dtp_split_length(s);
}

static void bind(const struct dtp_tree *t, const struct dtp_module *m, int rank, int degree)
{
	struct dtp_layer *l = m->layer;
	struct dtp_param p;
	struct dtp_split s;
	int64_t shape[DTP_MAX_DIMS];

	dtp_module_param(m, 0, &p);
	dtp_placement(t, &p, rank, degree, &s);
	dtp_split_shape(&p, &s, shape);
	*l = (struct dtp_layer){.weight = l->weight, .bias = l->bias, .module = m};
	l->out = shape[0];
	l->in = m->ndim > 1 ? shape[1] : 1;
	if (s.dim == 0)
		l->out_begin = s.run[0].begin;
	if (s.dim == 1)
		l->in_begin = s.run[0].begin;
	l->split_input = m->style == DTP_ROWWISE_SPLIT_INPUT;
	l->reduce = degree > 1 && dtp_style_cuts_columns(m->style);
}

void dtp_plan_bind(struct dtp_tree *t, int rank, int degree)
{
	for (int i = 0; i < t->n; i++)
		if (t->modules[i].layer)
			bind(t, &t->modules[i], rank, degree);
}
