/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of the factors: the columns of A and the rows of B that its slice of the weight has. */
#include "lora.h"
#include "slice.h"

#include <stdlib.h>
#include <string.h>

/* The rank's columns of A, which are all unless the weight is split by them. */
static struct dtp_slice slice_of_a(const struct dtp_lora_part *p, const struct dtp_split *split, int64_t cols)
{
	uint64_t size = dtp_dtype_size(p->a->dtype);
	struct dtp_slice s = {.entry = p->a, .rows = p->a->shape[0], .row_bytes = (uint64_t)cols * size,
			      .file_row_bytes = (uint64_t)p->a->shape[1] * size, .columns = split->dim == 1, .nruns = 1};

	s.run[0].end = (uint64_t)s.rows;
	for (int i = 0; s.columns && i < split->nruns; i++) {
		s.run[i].begin = (uint64_t)split->run[i].begin * size;
		s.run[i].end = (uint64_t)split->run[i].end * size;
		s.nruns = i + 1;
	}
	return s;
}

/* Rows [begin, end) of the module, which may come from two places of B. */
static void add_rows(const struct dtp_lora_part *p, int64_t begin, int64_t end, int64_t whole, struct dtp_slice *s)
{
	for (int64_t row = begin, n; row < end; row += n) {
		int64_t at = (row + p->first_row) % whole;
		n = end - row < whole - at ? end - row : whole - at;
		s->run[s->nruns].begin = (uint64_t)(p->row0 + at);
		s->run[s->nruns++].end = (uint64_t)(p->row0 + at + n);
	}
}

/* B's rows for the module's slice. */
static struct dtp_slice slice_of_b(const struct dtp_lora_part *p, const struct dtp_split *split, int64_t rows, int64_t whole)
{
	uint64_t row = (uint64_t)p->b->shape[1] * dtp_dtype_size(p->b->dtype);
	struct dtp_slice s = {.entry = p->b, .rows = rows, .row_bytes = row, .file_row_bytes = row};

	for (int i = 0; split->dim == 0 && i < split->nruns; i++)
		add_rows(p, split->run[i].begin, split->run[i].end, whole, &s);
	if (split->dim != 0)
		add_rows(p, 0, whole, whole, &s);
	return s;
}

/* As values of t, which is the file's dtype or F32. */
static enum dtp_code read_values(const struct dtp_lora_part *p, const struct dtp_slice *s, enum dtp_dtype t, void *dst, struct dtp_err *err)
{
	size_t bytes = (size_t)dtp_slice_bytes(s);
	void *raw = s->entry->dtype == t ? dst : malloc(bytes + 1);
	struct dtp_read_stats stats = {0};

	if (!raw)
		return dtp_fail(err, DTP_FAILED, "out of memory for %zu bytes of '%s'", bytes, s->entry->name);
	enum dtp_code rc = dtp_slice_read(p->st, s, 0, s->rows, raw, &stats, err);
	if (raw == dst)
		return rc;
	if (!rc)
		dtp_to_f32(dst, raw, s->entry->dtype, bytes / dtp_dtype_size(s->entry->dtype));
	free(raw);
	return rc;
}

static enum dtp_dtype type_of(const struct dtp_lora_part *p)
{
	return p->a->dtype == DTP_BF16 && p->b->dtype == DTP_BF16 ? DTP_BF16 : DTP_F32;
}

/* Of a part's factors, a whole number of F32. */
static uint64_t part_bytes(const struct dtp_lora_part *p, int64_t rows, int64_t cols)
{
	return dtp_round_up((rows + cols) * p->a->shape[0], 2) * dtp_dtype_size(type_of(p));
}

static struct dtp_lora_slice size_of(const struct dtp_module *m, const struct dtp_split *split)
{
	return (struct dtp_lora_slice){.rows = split->dim == 0 ? dtp_split_length(split) : m->shape[0],
				       .cols = split->dim == 1 ? dtp_split_length(split) : m->shape[1]};
}

uint64_t dtp_lora_slice_bytes(const struct dtp_module *m, const struct dtp_split *split)
{
	struct dtp_lora_slice s = size_of(m, split);
	uint64_t bytes = 0, largest = 0; /* what is converted is read first */

	for (int i = 0; i < m->nlora; i++) {
		const struct dtp_lora_part *p = &m->lora[i];
		uint64_t raw = type_of(p) == DTP_F32 ? (uint64_t)(s.rows > s.cols ? s.rows : s.cols) * (uint64_t)p->a->shape[0] * 2 : 0;
		bytes += part_bytes(p, s.rows, s.cols);
		largest = raw > largest ? raw : largest;
	}
	return bytes + largest;
}

static enum dtp_code read_parts(const struct dtp_module *m, const struct dtp_split *split, struct dtp_lora_slice *s, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;
	char *at = s->data;

	for (int i = 0; i < m->nlora && !rc; i++) {
		const struct dtp_lora_part *p = &m->lora[i];
		enum dtp_dtype t = type_of(p);
		int64_t r = p->a->shape[0];
		char *b = at, *a = b + s->rows * r * (int64_t)dtp_dtype_size(t);
		struct dtp_slice of_a = slice_of_a(p, split, s->cols), of_b = slice_of_b(p, split, s->rows, m->shape[0]);
		rc = read_values(p, &of_a, t, a, err);
		if (!rc)
			rc = read_values(p, &of_b, t, b, err);
		s->part[s->nparts++] = (struct dtp_low_rank){r, p->scale, t, b, a};
		at += part_bytes(p, s->rows, s->cols);
	}
	return rc;
}

enum dtp_code dtp_lora_slice_read(const struct dtp_module *m, const struct dtp_split *split, struct dtp_lora_slice **out,
				  struct dtp_err *err)
{
	struct dtp_lora_slice *s = calloc(1, sizeof *s);
	uint64_t bytes = 0;

	*out = NULL;
	if (!s)
		return dtp_fail(err, DTP_FAILED, "out of memory for the LoRA of '%s'", m->name);
	*s = size_of(m, split);
	for (int i = 0; i < m->nlora; i++)
		bytes += part_bytes(&m->lora[i], s->rows, s->cols);
	s->part = calloc((size_t)m->nlora + 1, sizeof *s->part);
	s->data = malloc((size_t)bytes + 1);
	enum dtp_code rc = s->part && s->data ? read_parts(m, split, s, err)
					      : dtp_fail(err, DTP_FAILED, "out of memory for the LoRA of '%s': its factors take %llu bytes",
							 m->name, (unsigned long long)bytes);
	if (rc)
		dtp_lora_slice_free(s);
	else
		*out = s;
	return rc;
}

void dtp_lora_slice_prefetch(const struct dtp_module *m, const struct dtp_split *split)
{
	struct dtp_lora_slice s = size_of(m, split);

	for (int i = 0; i < m->nlora; i++) {
		const struct dtp_lora_part *p = &m->lora[i];
		struct dtp_slice a = slice_of_a(p, split, s.cols), b = slice_of_b(p, split, s.rows, m->shape[0]);
		dtp_slice_prefetch(p->st, &a, 0, a.rows);
		dtp_slice_prefetch(p->st, &b, 0, b.rows);
	}
}

void dtp_lora_slice_free(struct dtp_lora_slice *s)
{
	if (!s)
		return;
	free(s->part);
	free(s->data);
	free(s);
}
