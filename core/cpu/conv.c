/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution as a matrix product: the patches under the filter, a strip of pixels at a time, are the rows of the first
 * operand.  A pixel's sum runs over its own patch, so the strips leave no trace in the result. */
#include <string.h>

#include "conv.h"
#include "cpu.h"
#include "vec.h"

struct conv {
	struct dtp_tensor x;
	enum dtp_dtype operand;
	int64_t kh, kw, stride, pad, ow;
};

static void load_or_copy(void *dst, enum dtp_dtype operand, const void *src, enum dtp_dtype src_type, int64_t n)
{
	if (operand == src_type)
		memcpy(dst, src, (size_t)n * dtp_dtype_size(operand));
	else
		dtp_vec_load(dst, src, src_type, n);
}

/* The patch of output pixel p: [kh, kw, C], zeros outside of the picture. */
static void gather(const struct conv *v, int64_t p, char *dst)
{
	int64_t h = v->x.shape[0], w = v->x.shape[1], c = v->x.shape[2];
	int64_t size = (int64_t)dtp_dtype_size(v->operand), xsize = (int64_t)dtp_dtype_size(v->x.dtype);
	int64_t y0 = p / v->ow * v->stride - v->pad, x0 = p % v->ow * v->stride - v->pad;
	int64_t left = x0 < 0 ? -x0 : 0, right = x0 + v->kw > w ? x0 + v->kw - w : 0; /* taps outside */

	left = left < v->kw ? left : v->kw;
	right = right < v->kw - left ? right : v->kw - left;
	for (int64_t y = y0; y < y0 + v->kh; y++, dst += v->kw * c * size) {
		if (y < 0 || y >= h) {
			memset(dst, 0, (size_t)(v->kw * c * size));
			continue;
		}
		int64_t n = (v->kw - left - right) * c;
		memset(dst, 0, (size_t)(left * c * size));
		if (n > 0)
			load_or_copy(dst + left * c * size, v->operand,
				     (const char *)v->x.data + (y * w + x0 + left) * c * xsize, v->x.dtype, n);
		memset(dst + (v->kw - right) * c * size, 0, (size_t)(right * c * size));
	}
}

/* A picture [h, w, C] as rows [h*w, C]. */
static struct dtp_tensor pixels(struct dtp_tensor t)
{
	int64_t shape[2] = {t.shape[0] * t.shape[1], t.shape[2]};
	return dtp_tensor_make(t.data, t.dtype, 2, shape);
}

enum dtp_code dtp_cpu_conv2d(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *weight,
			     const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right,
			     struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	const struct dtp_cpu_weight *w = dtp_cpu_weight_of(weight);
	struct conv v = {x, dtp_cpu_operand(cpu), weight->shape[2], weight->shape[3], stride, pad_top_left, out.shape[1]};
	int64_t m = out.shape[0] * out.shape[1], row = w->k * (int64_t)dtp_dtype_size(v.operand);
	int64_t strip = dtp_cpu_strip_rows(cpu, w->k), n = out.shape[2];

	if (w->k == 0 || (v.kh == 1 && v.kw == 1 && stride == 1 && !pad_top_left && !pad_bottom_right))
		return dtp_cpu_linear(be, pixels(out), pixels(x), weight, bias, err);
	if (m == 0 || n == 0)
		return DTP_OK;
	if (dtp_winograd_fits(cpu, w, stride))
		return dtp_winograd(cpu, out, x, w, dtp_cpu_vector(bias), pad_top_left, err);
	strip = strip < m ? strip : m;
	enum dtp_code rc = dtp_cpu_scratch(cpu, (uint64_t)(strip * row), dtp_cpu_gemm_local(cpu, w), err);
	for (int64_t p = 0; !rc && p < m; p += strip) {
		int64_t rows = m - p < strip ? m - p : strip;
		char *a = cpu->shared;
#pragma omp parallel for num_threads(cpu->threads)
		for (int64_t r = 0; r < rows; r++)
			gather(&v, p + r, a + r * row);
		struct dtp_cpu_out o = {(char *)out.data + p * n * (int64_t)dtp_dtype_size(out.dtype), out.dtype, n};
		rc = dtp_cpu_gemm(cpu, a, rows, w, dtp_cpu_vector(bias), o, err);
	}
	return rc;
}
