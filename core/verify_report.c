/* SPDX-License-Identifier: Apache-2.0 */
/* Tolerances, differences and the rows that they are told in. */
#include "verify_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rounding errors of a sum of n grow as sqrt(n), and 8 standard deviations cover the largest of some 10^9 values.  The roundings
 * of the two results come on top: a value may round to a neighbour. */
double dtp_verify_tolerance(enum dtp_dtype t, int64_t n)
{
	double unit = t == DTP_BF16 ? 0x1p-9 : 0x1p-24;
	return 8 * 0x1p-24 * sqrt((double)(n > 1 ? n : 1)) + 8 * unit;
}

/* Errors of layers that follow each other are independent: their squares add up.  But softmax and products of activations make
 * a few of them many times larger: the largest may be four times what it would be if they were normal. */
double dtp_verify_tolerance_at(enum dtp_dtype t, int64_t n, uint64_t depth)
{
	return 4 * dtp_verify_tolerance(t, n) * sqrt(1 + (double)depth);
}

/* ---- differences */

void dtp_sums_add(struct dtp_sums *s, double ours, double theirs, double rms)
{
	double d = fabs(ours - theirs), unit = fabs(theirs) > rms ? fabs(theirs) : rms;

	s->values++;
	if (!isfinite(ours) || !isfinite(theirs)) {
		s->broken++;
		return;
	}
	s->square += d * d;
	if (d / unit > s->max)
		s->max = d / unit;
}

double dtp_sums_rms(const struct dtp_sums *s, double rms)
{
	return s->values ? sqrt(s->square / (double)s->values) / rms : 0;
}

/* ---- the report */

void dtp_verify_report_free(struct dtp_verify_report *r)
{
	free(r->rows);
	*r = (struct dtp_verify_report){0};
}

static struct dtp_verify_row *find_row(struct dtp_verify_report *r, const char *component, const char *name)
{
	for (int i = r->nrows - 1; i >= 0; i--)
		if (!strcmp(r->rows[i].name, name) && !strcmp(r->rows[i].component, component))
			return &r->rows[i];
	if (r->nrows == r->cap) {
		int cap = r->cap ? 2 * r->cap : 64;
		struct dtp_verify_row *rows = realloc(r->rows, (size_t)cap * sizeof *rows);
		if (!rows)
			return NULL;
		r->rows = rows;
		r->cap = cap;
	}
	struct dtp_verify_row *row = &r->rows[r->nrows++];
	*row = (struct dtp_verify_row){.compared = 0};
	snprintf(row->component, sizeof row->component, "%s", component);
	snprintf(row->name, sizeof row->name, "%s", name);
	return row;
}

static double excess(const struct dtp_difference *d)
{
	double most = d->max > 0 ? d->max / d->tolerance : 0, rms = d->rms > 0 ? d->rms / d->rms_tolerance : 0;

	return d->broken ? HUGE_VAL : most > rms ? most : rms;
}

static void remember(struct dtp_verify_report *r, const struct dtp_finding *f)
{
	for (int i = 0; i < r->nfound; i++)
		if (!strcmp(r->found[i].module, f->module) && r->found[i].kind == f->kind &&
		    !strcmp(r->found[i].component, f->component))
			return;
	if (r->nfound < DTP_VERIFY_FINDINGS)
		r->found[r->nfound++] = *f;
}

enum dtp_code dtp_verify_note(struct dtp_verify_report *r, const char *name, const struct dtp_finding *f, struct dtp_err *err)
{
	struct dtp_verify_row *row = find_row(r, f->component, name);

	if (!row)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (!row->compared++ || excess(&f->d) > excess(&row->worst.d))
		row->worst = *f;
	row->modules += f->kind == DTP_POINT_OUTPUT;
	if (dtp_differs(&f->d)) {
		row->differ++;
		r->differ++;
		remember(r, f);
	}
	return DTP_OK;
}
