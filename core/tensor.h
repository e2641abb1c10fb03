/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and the tensor view. */
#ifndef DTP_TENSOR_H
#define DTP_TENSOR_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtp_dtype {
	DTP_NO_DTYPE, /* unknown or unsupported */
	DTP_F32, DTP_BF16, DTP_F16, DTP_F64, DTP_I64, DTP_I32, DTP_U8,
	DTP_NDTYPES
};

size_t dtp_dtype_size(enum dtp_dtype t);          /* bytes of one element; 0 for DTP_NO_DTYPE */
const char *dtp_dtype_name(enum dtp_dtype t);     /* as safetensors spells it: "F32", "BF16", "U8", ... */
enum dtp_dtype dtp_dtype_parse(const char *name); /* the inverse; DTP_NO_DTYPE when not one of ours */

#define DTP_MAX_DIMS 4

/* A view: it owns nothing and is passed by value.  Strides are in elements; the last dimension is contiguous
 * (stride 1), the others may have gaps, so that q, k and v are views of one packed projection. */
struct dtp_tensor {
	void *data;
	enum dtp_dtype dtype;
	int ndim;
	int64_t shape[DTP_MAX_DIMS];
	int64_t stride[DTP_MAX_DIMS];
};

struct dtp_tensor dtp_tensor_make(void *data, enum dtp_dtype t, int ndim, const int64_t *shape); /* dense */
int64_t dtp_numel(const struct dtp_tensor *t);
bool dtp_is_dense(const struct dtp_tensor *t);
/* The elements [begin, begin + n) of dimension dim; the last dimension may be cut too (the rows get a gap). */
struct dtp_tensor dtp_narrow(struct dtp_tensor t, int dim, int64_t begin, int64_t n);
/* [..., a*b] -> [..., a, b]: the last dimension seen as two (heads, head_dim). */
struct dtp_tensor dtp_split_last(struct dtp_tensor t, int64_t a, int64_t b);
/* The same, as heads of dim: [..., heads*dim] -> [..., heads, dim]. */
struct dtp_tensor dtp_as_heads(struct dtp_tensor t, int64_t dim);
/* Joins the leading dimensions into rows [rows, cols]; *ok is false when strides do not allow it. */
struct dtp_tensor dtp_as_rows(struct dtp_tensor t, bool *ok);
/* Joins the last two dimensions ([S, heads, dim] -> [S, heads*dim]); they must be adjacent in memory. */
struct dtp_tensor dtp_join_last(struct dtp_tensor t);

/* "[2, 3]" in buf, which is returned; cut to size. */
const char *dtp_shape_text(char *buf, size_t size, int ndim, const int64_t *shape);

/* One element's conversion; round to nearest even, NaN stays NaN.  Those of bf16 are for loops, too: without a branch. */
static inline __attribute__((always_inline)) float dtp_bf16_to_f32(uint16_t x)
{
	uint32_t u = (uint32_t)x << 16;
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

static inline __attribute__((always_inline)) uint16_t dtp_f32_to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof u);
	uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
	return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

float dtp_f16_to_f32(uint16_t x);
uint16_t dtp_f32_to_f16(float x);
/* x rounded to t's precision (F32: unchanged), as a float. */
float dtp_round_to(enum dtp_dtype t, float x);
/* n elements of a floating type to float and back. */
void dtp_to_f32(float *dst, const void *src, enum dtp_dtype src_type, size_t n);
void dtp_from_f32(void *dst, enum dtp_dtype dst_type, const float *src, size_t n);
/* src [pixels, channels] -> dst [channels, pixels]. */
void dtp_hwc_to_chw(float *dst, const float *src, int64_t pixels, int64_t channels);

/* The next multiple of `to`; n is not negative. */
static inline int64_t dtp_round_up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

#ifdef __cplusplus
}
#endif
#endif
