/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	size_t size;
} dtypes[DTP_NDTYPES] = {
	[DTP_NO_DTYPE] = {"?", 0}, [DTP_F32] = {"F32", 4}, [DTP_BF16] = {"BF16", 2}, [DTP_F16] = {"F16", 2},
	[DTP_F64] = {"F64", 8},    [DTP_I64] = {"I64", 8}, [DTP_I32] = {"I32", 4},   [DTP_U8] = {"U8", 1},
};

size_t dtp_dtype_size(enum dtp_dtype t)
{
	return dtypes[t].size;
}

const char *dtp_dtype_name(enum dtp_dtype t)
{
	return dtypes[t].name;
}

enum dtp_dtype dtp_dtype_parse(const char *name)
{
	for (int t = 1; t < DTP_NDTYPES; t++)
		if (!strcmp(dtypes[t].name, name))
			return (enum dtp_dtype)t;
	return DTP_NO_DTYPE;
}

struct dtp_tensor dtp_tensor_make(void *data, enum dtp_dtype type, int ndim, const int64_t *shape)
{
	struct dtp_tensor t = {.data = data, .dtype = type, .ndim = ndim};
	int64_t stride = 1;
	for (int d = ndim - 1; d >= 0; d--) {
		t.shape[d] = shape[d];
		t.stride[d] = stride;
		stride *= shape[d];
	}
	return t;
}

const char *dtp_shape_text(char *buf, size_t size, int ndim, const int64_t *shape)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (int i = 0; i < ndim && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

int64_t dtp_numel(const struct dtp_tensor *t)
{
	int64_t n = 1;
	for (int d = 0; d < t->ndim; d++)
		n *= t->shape[d];
	return n;
}

bool dtp_is_dense(const struct dtp_tensor *t)
{
	int64_t stride = 1;
	for (int d = t->ndim - 1; d >= 0; d--) {
		if (t->shape[d] != 1 && t->stride[d] != stride)
			return false;
		stride *= t->shape[d];
	}
	return true;
}

struct dtp_tensor dtp_narrow(struct dtp_tensor t, int dim, int64_t begin, int64_t n)
{
	t.data = (char *)t.data + begin * t.stride[dim] * (int64_t)dtp_dtype_size(t.dtype);
	t.shape[dim] = n;
	return t;
}

struct dtp_tensor dtp_split_last(struct dtp_tensor t, int64_t a, int64_t b)
{
	int d = t.ndim - 1;
	t.shape[d] = a;
	t.stride[d] = b;
	t.shape[d + 1] = b;
	t.stride[d + 1] = 1;
	t.ndim++;
	return t;
}

struct dtp_tensor dtp_as_heads(struct dtp_tensor t, int64_t dim)
{
	return dtp_split_last(t, t.shape[t.ndim - 1] / dim, dim);
}

struct dtp_tensor dtp_as_rows(struct dtp_tensor t, bool *ok)
{
	*ok = true;
	while (t.ndim > 2) {
		if (t.shape[0] != 1 && t.stride[0] != t.shape[1] * t.stride[1])
			*ok = false;
		t.shape[1] *= t.shape[0];
		for (int d = 0; d + 1 < t.ndim; d++) {
			t.shape[d] = t.shape[d + 1];
			t.stride[d] = t.stride[d + 1];
		}
		t.ndim--;
	}
	return t;
}

struct dtp_tensor dtp_join_last(struct dtp_tensor t)
{
	int d = t.ndim - 2;
	t.shape[d] *= t.shape[d + 1];
	t.stride[d] = 1;
	t.ndim--;
	return t;
}

static float from_bits(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static uint32_t to_bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

float dtp_f16_to_f32(uint16_t x)
{
	uint32_t sign = (uint32_t)(x & 0x8000) << 16, exp = x >> 10 & 31, man = x & 0x3ff;
	if (exp == 31)
		return from_bits(sign | 0x7f800000u | man << 13);
	if (exp)
		return from_bits(sign | (exp + 112) << 23 | man << 13);
	float f = (float)man * 0x1p-24f; /* zero and subnormals are exact in float */
	return sign ? -f : f;
}

uint16_t dtp_f32_to_f16(float x)
{
	uint32_t u = to_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	if (a > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00);
	if (a >= 0x477ff000u) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (a < 0x38800000u) /* below 2^-14: adding 0.5 leaves round(|x| * 2^24) in the low mantissa bits */
		return (uint16_t)(sign | (to_bits(from_bits(a) + 0.5f) - 0x3f000000u));
	a += 0xfff + (a >> 13 & 1);
	return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

float dtp_round_to(enum dtp_dtype t, float x)
{
	if (t == DTP_BF16)
		return dtp_bf16_to_f32(dtp_f32_to_bf16(x));
	if (t == DTP_F16)
		return dtp_f16_to_f32(dtp_f32_to_f16(x));
	return x;
}

void dtp_to_f32(float *dst, const void *src, enum dtp_dtype type, size_t n)
{
	if (type == DTP_BF16)
		for (size_t i = 0; i < n; i++)
			dst[i] = dtp_bf16_to_f32(((const uint16_t *)src)[i]);
	else if (type == DTP_F16)
		for (size_t i = 0; i < n; i++)
			dst[i] = dtp_f16_to_f32(((const uint16_t *)src)[i]);
	else if (type == DTP_F64)
		for (size_t i = 0; i < n; i++)
			dst[i] = (float)((const double *)src)[i];
	else
		memcpy(dst, src, n * sizeof *dst);
}

void dtp_from_f32(void *dst, enum dtp_dtype type, const float *src, size_t n)
{
	if (type == DTP_BF16)
		for (size_t i = 0; i < n; i++)
			((uint16_t *)dst)[i] = dtp_f32_to_bf16(src[i]);
	else if (type == DTP_F16)
		for (size_t i = 0; i < n; i++)
			((uint16_t *)dst)[i] = dtp_f32_to_f16(src[i]);
	else
		memcpy(dst, src, n * sizeof *src);
}

void dtp_hwc_to_chw(float *dst, const float *src, int64_t pixels, int64_t channels)
{
	for (int64_t i = 0; i < pixels; i++)
		for (int64_t c = 0; c < channels; c++)
			dst[c * pixels + i] = src[i * channels + c];
}
