/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: matrices and convolutions packed for the products, tables as rows, vectors as floats. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "vec.h"

/* The matrix that a weight is: a row per output, a column per input (for a convolution: per tap and input channel). */
static void matrix_of(enum dtp_weight_kind kind, int ndim, const int64_t *shape, int64_t *n, int64_t *k)
{
	*n = shape[0];
	*k = 1;
	for (int d = 1; d < ndim; d++)
		*k *= shape[d];
	if (kind == DTP_WEIGHT_VECTOR)
		*k = 1;
}

uint64_t dtp_cpu_weight_bytes(enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	int64_t n, k;

	matrix_of(kind, ndim, shape, &n, &k);
	switch (kind) {
	case DTP_WEIGHT_VECTOR:
		return (uint64_t)n * sizeof(float);
	case DTP_WEIGHT_TABLE:
		return (uint64_t)(n * k) * dtp_dtype_size(t);
	default:
		return (uint64_t)dtp_pack_size(t, n, k) * dtp_dtype_size(t);
	}
}

void dtp_cpu_describe(struct dtp_weight *w, enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	w->kind = kind;
	w->ndim = ndim;
	memcpy(w->shape, shape, (size_t)ndim * sizeof *shape);
	w->row_align = kind == DTP_WEIGHT_MATRIX || kind == DTP_WEIGHT_CONV ? DTP_NB : 1;
	w->nbytes = dtp_cpu_weight_bytes(t, kind, ndim, shape);
}

enum dtp_code dtp_cpu_weight_new(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
				 struct dtp_weight **out, struct dtp_err *err)
{
	struct dtp_cpu_weight *w = calloc(1, sizeof *w);

	*out = NULL;
	if (!w)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for a weight's description", sizeof *w);
	dtp_cpu_describe(&w->base, be->compute, kind, ndim, shape);
	matrix_of(kind, ndim, shape, &w->n, &w->k);
	w->piece = kind == DTP_WEIGHT_MATRIX && dtp_cpu_of(be)->bf16_fastest ? dtp_pack_piece(w->k) : w->k;
	enum dtp_code rc = dtp_cpu_alloc(be, w->base.nbytes, &w->data, err);
	if (rc) {
		free(w);
		return rc;
	}
	*out = &w->base;
	return DTP_OK;
}

void dtp_cpu_weight_free(struct dtp_backend *be, struct dtp_weight *weight)
{
	struct dtp_cpu_weight *w = (struct dtp_cpu_weight *)weight;

	if (!w)
		return;
	dtp_cpu_free(be, w->data, w->base.nbytes);
	free(w);
}

/* n dense values to floats. */
static void to_floats(float *dst, const void *src, enum dtp_dtype t, int64_t n)
{
	if (t == DTP_F32 || t == DTP_BF16)
		dtp_vec_load(dst, src, t, n);
	else
		dtp_to_f32(dst, src, t, (size_t)n);
}

/* n dense values of src_type as T. */
static void to_type(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t n)
{
	float piece[DTP_PIECE];
	int64_t ds = (int64_t)dtp_dtype_size(t), ss = (int64_t)dtp_dtype_size(src_type);

	if (t == src_type) {
		memcpy(dst, src, (size_t)(n * ds));
		return;
	}
	for (int64_t i = 0; i < n; i += DTP_PIECE) {
		int64_t m = n - i < DTP_PIECE ? n - i : DTP_PIECE;
		to_floats(piece, (const char *)src + i * ss, src_type, m);
		dtp_vec_store((char *)dst + i * ds, t, piece, m);
	}
}

/* One filter [C, kh*kw] as a row [kh*kw, C] of T; tmp holds C*kh*kw floats. */
static void filter_row(void *dst, enum dtp_dtype t, const void *src, enum dtp_dtype src_type, int64_t c, int64_t taps,
		       float *tmp)
{
	float *order = tmp + c * taps;

	to_floats(tmp, src, src_type, c * taps);
	for (int64_t tap = 0; tap < taps; tap++)
		for (int64_t i = 0; i < c; i++)
			order[tap * c + i] = tmp[i * taps + tap];
	dtp_vec_store(dst, t, order, c * taps);
}

static enum dtp_code write_filters(const struct dtp_cpu_weight *w, enum dtp_dtype t, char *dst, int64_t rows, const char *src,
				   enum dtp_dtype src_type, struct dtp_err *err)
{
	int64_t size = (int64_t)dtp_dtype_size(t), c = w->base.shape[1], taps = c ? w->k / c : 0;
	size_t tmp_bytes = (size_t)(2 * w->k) * sizeof(float), row_bytes = (size_t)(w->k * size);
	char *tmp = malloc(tmp_bytes + DTP_NB * row_bytes + 1);

	if (!tmp)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes to turn filters in",
				tmp_bytes + DTP_NB * row_bytes);
	char *block = tmp + tmp_bytes;
	for (int64_t r = 0; r < rows; r++)
		filter_row(block + r * (int64_t)row_bytes, t, src + r * w->k * (int64_t)dtp_dtype_size(src_type), src_type, c,
			   taps, (float *)tmp);
	dtp_pack_rows(dst, t, block, t, w->k, rows, w->k, true);
	free(tmp);
	return DTP_OK;
}

/* One block of rows of a matrix, from row0 on, into each of its pieces. */
static void write_matrix(const struct dtp_cpu_weight *w, enum dtp_dtype t, int64_t row0, int64_t rows, const char *src,
			 enum dtp_dtype src_type)
{
	for (int64_t k = 0; k < w->k; k += w->piece) {
		int64_t cols = w->k - k < w->piece ? w->k - k : w->piece;
		int64_t at = dtp_pack_blocks(w->n) * DTP_NB * k + row0 / DTP_NB * dtp_pack_block_size(t, cols);
		dtp_pack_rows((char *)w->data + at * (int64_t)dtp_dtype_size(t), t, src + k * (int64_t)dtp_dtype_size(src_type),
			      src_type, w->k, rows, cols, true);
	}
}

enum dtp_code dtp_cpu_weight_write(struct dtp_backend *be, struct dtp_weight *weight, int64_t row0, int64_t nrows,
				   const void *src, enum dtp_dtype src_type, struct dtp_err *err)
{
	struct dtp_cpu_weight *w = (struct dtp_cpu_weight *)weight;
	enum dtp_dtype t = be->compute;
	int64_t size = (int64_t)dtp_dtype_size(t), src_size = (int64_t)dtp_dtype_size(src_type);
	int64_t block_bytes = dtp_pack_block_size(t, w->k) * size;
	enum dtp_code rc = DTP_OK;

	if (w->base.kind == DTP_WEIGHT_TABLE) {
		to_type((char *)w->data + row0 * w->k * size, t, src, src_type, nrows * w->k);
		return DTP_OK;
	}
	if (w->base.kind == DTP_WEIGHT_VECTOR) {
		float *v = (float *)w->data + row0;
		to_floats(v, src, src_type, nrows);
		dtp_vec_round(v, t, nrows);
		return DTP_OK;
	}
	for (int64_t r = 0; !rc && r < nrows; r += DTP_NB) {
		int64_t rows = nrows - r < DTP_NB ? nrows - r : DTP_NB;
		const char *s = (const char *)src + r * w->k * src_size;
		if (w->base.kind == DTP_WEIGHT_MATRIX)
			write_matrix(w, t, row0 + r, rows, s, src_type);
		else
			rc = write_filters(w, t, (char *)w->data + (row0 + r) / DTP_NB * block_bytes, rows, s, src_type, err);
	}
	return rc;
}
