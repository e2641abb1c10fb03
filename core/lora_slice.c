/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of the factors: the columns of A and the rows of B that its slice of the weight has. */
#include "lora.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Elements [from, from + n) of an entry's data as values of t, which is its own dtype or F32. */
static enum dtp_code read_values(const struct dtp_lora_part *p, const struct dtp_st_entry *e, int64_t from, int64_t n, enum dtp_dtype t,
				 void *dst, struct dtp_err *err)
{
	uint64_t size = dtp_dtype_size(e->dtype);

	if (e->dtype == t)
		return dtp_st_read(p->st, e, (uint64_t)from * size, (uint64_t)n * size, dst, err);
	void *raw = malloc((size_t)((uint64_t)n * size) + 1);
	if (!raw)
		return dtp_fail(err, DTP_FAILED, "out of memory for %lld values of '%s'", (long long)n, e->name);
	enum dtp_code rc = dtp_st_read(p->st, e, (uint64_t)from * size, (uint64_t)n * size, raw, err);
	if (!rc)
		dtp_to_f32(dst, raw, e->dtype, (size_t)n);
	free(raw);
	return rc;
}

static enum dtp_code read_a(const struct dtp_lora_part *p, const struct dtp_split *s, int64_t cols, enum dtp_dtype t, char *a,
			    struct dtp_err *err)
{
	int64_t rank = p->a->shape[0], in = p->a->shape[1], size = (int64_t)dtp_dtype_size(t);
	enum dtp_code rc = DTP_OK;

	if (s->dim != 1)
		return read_values(p, p->a, 0, rank * in, t, a, err);
	for (int64_t k = 0; k < rank && !rc; k++) {
		char *dst = a + k * cols * size;
		for (int i = 0; i < s->nruns && !rc; i++) {
			int64_t n = s->run[i].end - s->run[i].begin;
			rc = read_values(p, p->a, k * in + s->run[i].begin, n, t, dst, err);
			dst += n * size;
		}
	}
	return rc;
}

/* Rows [begin, end) of the module, which may come from two places of b. */
static enum dtp_code read_rows(const struct dtp_lora_part *p, int64_t begin, int64_t end, int64_t rows, enum dtp_dtype t, char *dst,
			       struct dtp_err *err)
{
	int64_t rank = p->b->shape[1], size = (int64_t)dtp_dtype_size(t);
	enum dtp_code rc = DTP_OK;

	for (int64_t row = begin; row < end && !rc;) {
		int64_t at = (row + p->first_row) % rows, n = end - row < rows - at ? end - row : rows - at;
		rc = read_values(p, p->b, (p->row0 + at) * rank, n * rank, t, dst + (row - begin) * rank * size, err);
		row += n;
	}
	return rc;
}

/* Rows of the module's slice, rank values each. */
static enum dtp_code read_b(const struct dtp_lora_part *p, const struct dtp_split *s, int64_t whole, enum dtp_dtype t, char *b,
			    struct dtp_err *err)
{
	int64_t size = p->b->shape[1] * (int64_t)dtp_dtype_size(t);
	enum dtp_code rc = DTP_OK;

	if (s->dim != 0)
		return read_rows(p, 0, whole, whole, t, b, err);
	for (int i = 0; i < s->nruns && !rc; i++) {
		rc = read_rows(p, s->run[i].begin, s->run[i].end, whole, t, b, err);
		b += (s->run[i].end - s->run[i].begin) * size;
	}
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
		rc = read_a(p, split, s->cols, t, a, err);
		if (!rc)
			rc = read_b(p, split, m->shape[0], t, b, err);
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

static void prefetch(const struct dtp_st *st, const struct dtp_st_entry *e)
{
	posix_fadvise(st->files[e->file].fd, (off_t)e->offset, (off_t)e->nbytes, POSIX_FADV_WILLNEED);
}

void dtp_lora_slice_prefetch(const struct dtp_module *m)
{
	for (int i = 0; i < m->nlora; i++) {
		prefetch(m->lora[i].st, m->lora[i].a);
		prefetch(m->lora[i].st, m->lora[i].b);
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
