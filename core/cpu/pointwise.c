/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that touch each element once: bound by memory, so they run row by row in pieces that stay in the cache. */
#include <string.h>

#include "cpu.h"
#include "vec.h"

enum dtp_code dtp_cpu_embedding(struct dtp_backend *be, struct dtp_tensor out, const int32_t *ids,
				const struct dtp_weight *table, int64_t first_row, struct dtp_err *err)
{
	const struct dtp_cpu_weight *w = dtp_cpu_weight_of(table);
	size_t row = (size_t)w->k * dtp_dtype_size(be->compute);

	(void)err;
	for (int64_t i = 0; i < out.shape[0]; i++) {
		int64_t r = ids[i] - first_row;
		if (r >= 0 && r < w->n)
			memcpy(dtp_row(&out, i), (const char *)w->data + (size_t)r * row, row);
		else
			memset(dtp_row(&out, i), 0, row);
	}
	return DTP_OK;
}

/* A dense tensor of any shape as one row. */
static struct dtp_tensor as_row(struct dtp_tensor t)
{
	int64_t shape[2] = {1, dtp_numel(&t)};
	return dtp_tensor_make(t.data, t.dtype, 2, shape);
}

/* The pieces of a matrix: `n` elements at [row, col]; pieces of one row follow each other. */
#define PER_ROW(cols) (((cols) + DTP_PIECE - 1) / DTP_PIECE)

static void *element(const struct dtp_tensor *t, int64_t row, int64_t col)
{
	return (char *)dtp_row(t, row) + col * (int64_t)dtp_dtype_size(t->dtype);
}

enum dtp_code dtp_cpu_swiglu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up,
			     struct dtp_err *err)
{
	int64_t cols = out.shape[1], per_row = PER_ROW(cols);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < out.shape[0] * per_row; i++) {
		int64_t row = i / per_row, col = i % per_row * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		dtp_vec_swiglu(element(&out, row, col), element(&gate, row, col), element(&up, row, col), out.dtype, n);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_gated_residual(struct dtp_backend *be, struct dtp_tensor x, struct dtp_tensor gate,
				     struct dtp_tensor y, struct dtp_err *err)
{
	int64_t cols = x.shape[1], per_row = PER_ROW(cols), size = (int64_t)dtp_dtype_size(gate.dtype);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < x.shape[0] * per_row; i++) {
		int64_t row = i / per_row, col = i % per_row * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		float a[DTP_PIECE], b[DTP_PIECE], g[DTP_PIECE];
		dtp_vec_load(a, element(&x, row, col), x.dtype, n);
		dtp_vec_load(b, element(&y, row, col), y.dtype, n);
		if (gate.data) {
			dtp_vec_load(g, (const char *)gate.data + col * size, gate.dtype, n);
			dtp_vec_add_product(a, g, b, n);
			dtp_vec_store(element(&x, row, col), x.dtype, a, n);
		} else {
			dtp_vec_store_sum(element(&x, row, col), x.dtype, a, b, n);
		}
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_add_bias(struct dtp_backend *be, struct dtp_tensor x, const struct dtp_weight *bias,
			       struct dtp_err *err)
{
	int64_t cols = x.shape[1], per_row = PER_ROW(cols);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < x.shape[0] * per_row; i++) {
		int64_t row = i / per_row, col = i % per_row * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		float a[DTP_PIECE];
		dtp_vec_load(a, element(&x, row, col), x.dtype, n);
		dtp_vec_store_sum(element(&x, row, col), x.dtype, a, dtp_cpu_vector(bias) + col, n);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_silu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_err *err)
{
	struct dtp_tensor o = as_row(out), s = as_row(x);
	int64_t cols = o.shape[1], pieces = PER_ROW(cols);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < pieces; i++) {
		int64_t col = i * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		float a[DTP_PIECE];
		dtp_vec_load(a, element(&s, 0, col), s.dtype, n);
		dtp_vec_silu(a, n);
		dtp_vec_store(element(&o, 0, col), o.dtype, a, n);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_add(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b,
			  struct dtp_err *err)
{
	struct dtp_tensor o = as_row(out), s = as_row(a), t = as_row(b);
	int64_t cols = o.shape[1], pieces = PER_ROW(cols);

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < pieces; i++) {
		int64_t col = i * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		float x[DTP_PIECE], y[DTP_PIECE];
		dtp_vec_load(x, element(&s, 0, col), s.dtype, n);
		dtp_vec_load(y, element(&t, 0, col), t.dtype, n);
		dtp_vec_store_sum(element(&o, 0, col), o.dtype, x, y, n);
	}
	return DTP_OK;
}

enum dtp_code dtp_cpu_euler_step(struct dtp_backend *be, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt,
				 struct dtp_err *err)
{
	struct dtp_tensor l = as_row(latents), e = as_row(noise);
	int64_t cols = l.shape[1], pieces = PER_ROW(cols);
	float by = *(const float *)dt.data;

	(void)err;
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < pieces; i++) {
		int64_t col = i * DTP_PIECE, n = cols - col < DTP_PIECE ? cols - col : DTP_PIECE;
		float x[DTP_PIECE], y[DTP_PIECE];
		dtp_vec_load(x, element(&l, 0, col), l.dtype, n);
		dtp_vec_load(y, element(&e, 0, col), e.dtype, n);
		dtp_vec_add_scaled(x, y, by, n);
		dtp_vec_store(element(&l, 0, col), l.dtype, x, n);
	}
	return DTP_OK;
}

static void convert_row(void *dst, enum dtp_dtype dt, const void *src, enum dtp_dtype st, int64_t n)
{
	float piece[DTP_PIECE];
	int64_t ds = (int64_t)dtp_dtype_size(dt), ss = (int64_t)dtp_dtype_size(st);

	if (dt == st)
		memcpy(dst, src, (size_t)(n * ds));
	else if (dt == DTP_F32)
		dtp_vec_load(dst, src, st, n);
	else if (st == DTP_F32)
		dtp_vec_store(dst, dt, src, n);
	else
		for (int64_t i = 0; i < n; i += DTP_PIECE) {
			size_t m = (size_t)(n - i < DTP_PIECE ? n - i : DTP_PIECE);
			dtp_to_f32(piece, (const char *)src + i * ss, st, m);
			dtp_from_f32((char *)dst + i * ds, dt, piece, m);
		}
}

enum dtp_code dtp_cpu_copy(struct dtp_backend *be, struct dtp_tensor dst, struct dtp_tensor src, struct dtp_err *err)
{
	int64_t shape[3] = {1, 1, 1}, ds[3] = {0}, ss[3] = {0}; /* the leading dimensions */
	int64_t dsize = (int64_t)dtp_dtype_size(dst.dtype), ssize = (int64_t)dtp_dtype_size(src.dtype);
	int last = dst.ndim - 1;

	(void)err;
	for (int d = 0; d < last; d++) {
		shape[d] = dst.shape[d];
		ds[d] = dst.stride[d];
		ss[d] = src.stride[d];
	}
#pragma omp parallel for num_threads(dtp_cpu_of(be)->threads)
	for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i++) {
		int64_t a = i / (shape[1] * shape[2]), b = i / shape[2] % shape[1], c = i % shape[2];
		convert_row((char *)dst.data + (a * ds[0] + b * ds[1] + c * ds[2]) * dsize, dst.dtype,
			    (const char *)src.data + (a * ss[0] + b * ss[1] + c * ss[2]) * ssize, src.dtype,
			    last < 0 ? 1 : dst.shape[last]);
	}
	return DTP_OK;
}
