/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of the factors: the columns of A and the rows of B that its slice of the weight has. */
#include "lora.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Elements [from, from + n) of an entry's data as floats. */
static enum dtp_code read_floats(const struct dtp_lora_part *p, const struct dtp_st_entry *e, int64_t from, int64_t n, float *dst,
				 struct dtp_err *err)
{
	uint64_t size = dtp_dtype_size(e->dtype);
	void *raw = malloc((size_t)((uint64_t)n * size) + 1);

	if (!raw)
		return dtp_fail(err, DTP_FAILED, "out of memory for %lld values of '%s'", (long long)n, e->name);
	enum dtp_code rc = dtp_st_read(p->st, e, (uint64_t)from * size, (uint64_t)n * size, raw, err);
	if (!rc)
		dtp_to_f32(dst, raw, e->dtype, (size_t)n);
	free(raw);
	return rc;
}

static enum dtp_code read_a(const struct dtp_lora_part *p, const struct dtp_split *s, int64_t cols, float *a, struct dtp_err *err)
{
	int64_t rank = p->a->shape[0], in = p->a->shape[1];
	enum dtp_code rc = DTP_OK;

	if (s->dim != 1)
		return read_floats(p, p->a, 0, rank * in, a, err);
	for (int64_t k = 0; k < rank && !rc; k++) {
		float *dst = a + k * cols;
		for (int i = 0; i < s->nruns && !rc; i++) {
			int64_t n = s->run[i].end - s->run[i].begin;
			rc = read_floats(p, p->a, k * in + s->run[i].begin, n, dst, err);
			dst += n;
		}
	}
	return rc;
}

/* Rows [begin, end) of the module, which may come from two places of b. */
static enum dtp_code read_rows(const struct dtp_lora_part *p, int64_t begin, int64_t end, int64_t rows, float *dst, struct dtp_err *err)
{
	int64_t rank = p->b->shape[1];
	enum dtp_code rc = DTP_OK;

	for (int64_t row = begin; row < end && !rc;) {
		int64_t at = (row + p->first_row) % rows, n = end - row < rows - at ? end - row : rows - at;
		rc = read_floats(p, p->b, (p->row0 + at) * rank, n * rank, dst + (row - begin) * rank, err);
		row += n;
	}
	return rc;
}

/* Rows of the module's slice, rank values each; they are scaled as they are put beside those of other parts. */
static enum dtp_code read_b(const struct dtp_lora_part *p, const struct dtp_split *s, int64_t whole, float *b, struct dtp_err *err)
{
	int64_t rank = p->b->shape[1];
	enum dtp_code rc = DTP_OK;

	if (s->dim != 0)
		return read_rows(p, 0, whole, whole, b, err);
	for (int i = 0; i < s->nruns && !rc; i++) {
		rc = read_rows(p, s->run[i].begin, s->run[i].end, whole, b, err);
		b += (s->run[i].end - s->run[i].begin) * rank;
	}
	return rc;
}

/* One part beside those that have the ranks before `at`. */
static enum dtp_code read_part(const struct dtp_lora_part *p, const struct dtp_split *split, int64_t whole, struct dtp_lora_slice *s,
			       int64_t at, struct dtp_err *err)
{
	int64_t rank = p->a->shape[0];
	float *b = malloc((size_t)(s->rows * rank) * sizeof *b + 1);
	enum dtp_code rc = b ? read_a(p, split, s->cols, s->a + at * s->cols, err)
			     : dtp_fail(err, DTP_FAILED, "out of memory for factors of rank %lld", (long long)rank);

	if (!rc)
		rc = read_b(p, split, whole, b, err);
	for (int64_t i = 0; i < s->rows && !rc; i++)
		for (int64_t k = 0; k < rank; k++)
			s->b[i * s->rank + at + k] = b[i * rank + k] * p->scale;
	free(b);
	return rc;
}

static struct dtp_lora_slice size_of(const struct dtp_module *m, const struct dtp_split *split)
{
	struct dtp_lora_slice s = {.rows = split->dim == 0 ? dtp_split_length(split) : m->shape[0],
				   .cols = split->dim == 1 ? dtp_split_length(split) : m->shape[1]};

	for (int i = 0; i < m->nlora; i++)
		s.rank += m->lora[i].a->shape[0];
	return s;
}

uint64_t dtp_lora_slice_bytes(const struct dtp_module *m, const struct dtp_split *split)
{
	struct dtp_lora_slice s = size_of(m, split);
	int64_t largest = 0; /* of b, which is read before it is put beside the others */

	for (int i = 0; i < m->nlora; i++)
		largest = m->lora[i].a->shape[0] > largest ? m->lora[i].a->shape[0] : largest;
	return (uint64_t)((s.rows + s.cols) * s.rank + 2 * s.rows * largest) * sizeof(float);
}

enum dtp_code dtp_lora_slice_read(const struct dtp_module *m, const struct dtp_split *split, struct dtp_lora_slice **out,
				  struct dtp_err *err)
{
	struct dtp_lora_slice *s = calloc(1, sizeof *s);
	enum dtp_code rc = DTP_OK;

	*out = NULL;
	if (!s)
		return dtp_fail(err, DTP_FAILED, "out of memory for the LoRA of '%s'", m->name);
	*s = size_of(m, split);
	s->a = malloc((size_t)(s->rank * s->cols) * sizeof *s->a + 1);
	s->b = malloc((size_t)(s->rows * s->rank) * sizeof *s->b + 1);
	if (!s->a || !s->b)
		rc = dtp_fail(err, DTP_FAILED, "out of memory for the LoRA of '%s' of rank %lld", m->name, (long long)s->rank);
	for (int64_t i = 0, at = 0; i < m->nlora && !rc; at += m->lora[i++].a->shape[0])
		rc = read_part(&m->lora[i], split, m->shape[0], s, at, err);
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
	free(s->a);
	free(s->b);
	free(s);
}
