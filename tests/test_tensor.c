/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include <math.h>

/* The value of a 16-bit float, from its definition: sign, `e` exponent bits, `m` mantissa bits; NaN excepted. */
static double value_of(unsigned x, int e, int m)
{
	int bias = (1 << (e - 1)) - 1, exponent = (int)(x >> m) & ((1 << e) - 1), mantissa = (int)x & ((1 << m) - 1);
	double v = exponent ? ldexp((1 << m) + mantissa, exponent - bias - m) : ldexp(mantissa, 1 - bias - m);
	if (exponent == (1 << e) - 1)
		v = mantissa ? (double)NAN : (double)INFINITY;
	return x >> 15 ? -v : v;
}

/* What infinity stands for when rounding: the next power of two. */
static double finite_value_of(unsigned x, int e, int m)
{
	double v = value_of(x, e, m);
	return isinf(v) ? copysign(ldexp(1, 1 << (e - 1)), v) : v;
}

struct format {
	int e, m;
	float (*up)(uint16_t);
	uint16_t (*down)(float);
};

static const struct format f16 = {5, 10, dtp_f16_to_f32, dtp_f32_to_f16}, bf16 = {8, 7, dtp_bf16_to_f32, dtp_f32_to_bf16};

/* All 65536 values are widened exactly and come back. */
static void check_all_values(const struct format *f)
{
	for (unsigned x = 0; x < 65536; x++) {
		float got = f->up((uint16_t)x);
		double want = value_of(x, f->e, f->m);
		if (isnan(want)) {
			assert_true(isnan(got));
			assert_true(isnan(f->up(f->down(got))));
			assert_int_equal(f->down(got) >> 15, x >> 15);
		} else {
			assert_true((double)got == want && !signbit(got) == !signbit(want));
			assert_int_equal(f->down(got), x);
		}
	}
}

/* Between any two neighbours: the middle goes to the even one, and what lies next to it or next to an end goes to the
 * nearer one.  Conversion is monotonic in between, so this covers every float. */
static void check_all_roundings(const struct format *f)
{
	unsigned inf = ((1u << f->e) - 1) << f->m;
	for (unsigned x = 0; x < inf; x++) {
		double a = finite_value_of(x, f->e, f->m), b = finite_value_of(x + 1, f->e, f->m);
		float mid = (float)((a + b) / 2), below = nextafterf(mid, -INFINITY), above = nextafterf(mid, INFINITY);
		assert_true((double)mid == (a + b) / 2); /* else the test is wrong: floats are fine enough */
		unsigned even = x & 1 ? x + 1 : x;
		if (f->down(mid) != even || f->down(below) != x || f->down(above) != x + 1)
			fail_msg("next to 0x%04x: 0x%04x 0x%04x 0x%04x", x, f->down(below), f->down(mid), f->down(above));
		assert_int_equal(f->down(-mid), even | 0x8000);
		assert_int_equal(f->down(-below), x | 0x8000);
		assert_int_equal(f->down(-above), (x + 1) | 0x8000);
		assert_int_equal(f->down(nextafterf((float)a, INFINITY)), x);
		if (x + 1 < inf)
			assert_int_equal(f->down(nextafterf((float)b, -INFINITY)), x + 1);
	}
	assert_int_equal(f->down(INFINITY), inf);
	assert_int_equal(f->down(-INFINITY), inf | 0x8000);
	assert_int_equal(f->down(3.4028234e38f), inf);
}

static void check_monotonic(const struct format *f)
{
	for (int i = 0; i < 200000; i++) {
		uint32_t u = (uint32_t)test_random() & 0x7fffffff, v = u + (uint32_t)(test_random() & 0xffff);
		float a, b;
		memcpy(&a, &u, sizeof a);
		memcpy(&b, &v, sizeof b);
		if (u >= 0x7f800000u || v >= 0x7f800000u)
			continue;
		assert_true(f->down(a) <= f->down(b));
	}
}

static void tensor_f16_exhaustive(void **state)
{
	(void)state;
	check_all_values(&f16);
	check_all_roundings(&f16);
	check_monotonic(&f16);
}

static void tensor_bf16_exhaustive(void **state)
{
	(void)state;
	check_all_values(&bf16);
	check_all_roundings(&bf16);
	check_monotonic(&bf16);
}

/* NaNs whose payload sits only in the bits that are cut off stay NaN. */
static void tensor_nan_payloads(void **state)
{
	static const uint32_t nans[] = {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7f80ffffu, 0x7fc00000u};
	(void)state;
	for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
		float x;
		memcpy(&x, &nans[i], sizeof x);
		assert_true(isnan(dtp_bf16_to_f32(dtp_f32_to_bf16(x))));
		assert_true(isnan(dtp_f16_to_f32(dtp_f32_to_f16(x))));
		assert_int_equal(dtp_f32_to_bf16(x) >> 15, nans[i] >> 31);
		assert_int_equal(dtp_f32_to_f16(x) >> 15, nans[i] >> 31);
	}
}

static void tensor_round_to(void **state)
{
	(void)state;
	assert_true(dtp_round_to(DTP_F32, 0.1f) == 0.1f);
	assert_true(dtp_round_to(DTP_BF16, 0.1f) == 0.10009765625f);
	assert_true(dtp_round_to(DTP_F16, 0.1f) == 0.0999755859375f);
	assert_true(dtp_round_to(DTP_BF16, 999.0f) == 1000.0f);
}

static void tensor_convert_arrays(void **state)
{
	static const float src[] = {0, -0.0f, 1, -2.5f, 0.1f, 70000, 1e-7f, 3e38f};
	enum { N = sizeof src / sizeof *src };
	static const double wide[] = {0.1, -1e-300, 1e300};
	static const enum dtp_dtype types[] = {DTP_F32, DTP_BF16, DTP_F16};
	float back[N];
	unsigned char raw[N * 4];
	(void)state;
	for (int k = 0; k < 3; k++) {
		dtp_from_f32(raw, types[k], src, N);
		dtp_to_f32(back, raw, types[k], N);
		for (int i = 0; i < N; i++) {
			float want = dtp_round_to(types[k], src[i]);
			assert_memory_equal(&back[i], &want, sizeof want);
		}
	}
	dtp_to_f32(back, wide, DTP_F64, 3);
	assert_true(back[0] == 0.1f && back[1] == 0 && isinf(back[2]));
	dtp_to_f32(back, raw, DTP_F32, 0);
	dtp_from_f32(raw, DTP_BF16, src, 0);
}

static void tensor_dtype_names(void **state)
{
	static const struct {
		enum dtp_dtype t;
		const char *name;
		size_t size;
	} all[] = {{DTP_F32, "F32", 4}, {DTP_BF16, "BF16", 2}, {DTP_F16, "F16", 2}, {DTP_F64, "F64", 8},
		   {DTP_I64, "I64", 8}, {DTP_I32, "I32", 4},   {DTP_U8, "U8", 1}};
	(void)state;
	assert_int_equal(sizeof all / sizeof *all, DTP_NDTYPES - 1);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		assert_string_equal(dtp_dtype_name(all[i].t), all[i].name);
		assert_int_equal(dtp_dtype_size(all[i].t), all[i].size);
		assert_int_equal(dtp_dtype_parse(all[i].name), all[i].t);
	}
	assert_int_equal(dtp_dtype_parse("f32"), DTP_NO_DTYPE);
	assert_int_equal(dtp_dtype_parse("?"), DTP_NO_DTYPE);
	assert_int_equal(dtp_dtype_parse(""), DTP_NO_DTYPE);
	assert_int_equal(dtp_dtype_size(DTP_NO_DTYPE), 0);
}

static const int32_t *at(struct dtp_tensor t, int64_t i, int64_t j, int64_t k)
{
	return (const int32_t *)t.data + i * t.stride[0] + j * t.stride[1] + k * t.stride[2];
}

/* Element (i, j, k) of a dense [4, 6, 10] holds 100 i + 10 j + k - but k < 10, so the number tells where it came from. */
static void tensor_views(void **state)
{
	static int32_t data[240];
	bool ok;
	(void)state;
	struct dtp_tensor t = dtp_tensor_make(data, DTP_I32, 3, (const int64_t[]){4, 6, 10});
	for (int i = 0; i < 240; i++)
		data[i] = i / 60 * 100 + i / 10 % 6 * 10 + i % 10;
	assert_int_equal(dtp_numel(&t), 240);
	assert_true(dtp_is_dense(&t));
	assert_int_equal(*at(t, 3, 5, 9), 359);

	struct dtp_tensor n = dtp_narrow(dtp_narrow(dtp_narrow(t, 0, 1, 2), 1, 2, 3), 2, 4, 6);
	assert_int_equal(dtp_numel(&n), 36);
	assert_int_equal(*at(n, 0, 0, 0), 124);
	assert_int_equal(*at(n, 1, 2, 5), 249);
	assert_false(dtp_is_dense(&n));

	/* Rows only join when nothing lies between them. */
	struct dtp_tensor rows = dtp_as_rows(t, &ok);
	assert_true(ok);
	assert_int_equal(rows.ndim, 2);
	assert_int_equal(rows.shape[0], 24);
	assert_int_equal(rows.stride[0], 10);
	rows = dtp_as_rows(dtp_narrow(t, 2, 4, 6), &ok);
	assert_true(ok);
	assert_int_equal(rows.shape[0], 24);
	assert_int_equal(rows.shape[1], 6);
	assert_int_equal(rows.stride[0], 10);
	dtp_as_rows(dtp_narrow(t, 1, 0, 5), &ok);
	assert_false(ok);
	dtp_as_rows(dtp_narrow(dtp_narrow(t, 1, 0, 5), 0, 2, 1), &ok);
	assert_true(ok);

	struct dtp_tensor heads = dtp_split_last(rows, 3, 2);
	assert_int_equal(heads.ndim, 3);
	assert_int_equal(*at(heads, 23, 2, 1), 359);
	assert_int_equal(*at(heads, 0, 1, 0), 6);
	struct dtp_tensor joined = dtp_join_last(heads);
	assert_int_equal(joined.ndim, 2);
	assert_int_equal(joined.shape[1], 6);
	assert_int_equal(joined.stride[0], 10);
	assert_int_equal(joined.stride[1], 1);
}

static void tensor_empty_and_scalar(void **state)
{
	(void)state;
	struct dtp_tensor s = dtp_tensor_make(NULL, DTP_F32, 0, NULL);
	struct dtp_tensor e = dtp_tensor_make(NULL, DTP_F32, 2, (const int64_t[]){0, 5});
	assert_int_equal(dtp_numel(&s), 1);
	assert_true(dtp_is_dense(&s));
	assert_int_equal(dtp_numel(&e), 0);
	assert_true(dtp_is_dense(&e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensor_f16_exhaustive), cmocka_unit_test(tensor_bf16_exhaustive),
		cmocka_unit_test(tensor_nan_payloads),   cmocka_unit_test(tensor_round_to),
		cmocka_unit_test(tensor_convert_arrays), cmocka_unit_test(tensor_dtype_names),
		cmocka_unit_test(tensor_views),          cmocka_unit_test(tensor_empty_and_scalar),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
