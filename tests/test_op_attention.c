/* SPDX-License-Identifier: Apache-2.0 */
/* attention, against the plain formula in f64. */
#include "op.h"

#include "footprint.h"

struct dims {
	int64_t sq, sk, heads, kv_heads, d;
};

/* [Sq,H,D] from dense [S,H,D]; a row of no keys is 0.  size: the weighted mean of the values' sizes. */
static void reference(float *out, float *size, const float *q, const float *k, const float *v, const struct dims *s,
		      const struct dtp_attention *a)
{
	double *p = malloc((size_t)(s->sk + 1) * sizeof *p);

	for (int64_t i = 0; i < s->sq; i++)
		for (int64_t h = 0; h < s->heads; h++) {
			int64_t kv = (a->q_head0 + h) / a->group - a->kv_head0;
			double max = -INFINITY, sum = 0;
			float *o = out + (i * s->heads + h) * s->d, *z = size + (i * s->heads + h) * s->d;
			for (int64_t j = 0; j < s->sk; j++) {
				p[j] = -INFINITY;
				if (j < a->key_begin || j >= a->key_end || (a->causal && j > i))
					continue;
				p[j] = 0;
				for (int64_t c = 0; c < s->d; c++)
					p[j] += (double)q[(i * s->heads + h) * s->d + c] * k[(j * s->kv_heads + kv) * s->d + c];
				p[j] *= (double)a->scale;
				max = p[j] > max ? p[j] : max;
			}
			for (int64_t j = 0; j < s->sk; j++)
				sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - max);
			for (int64_t c = 0; c < s->d; c++) {
				double x = 0, y = 0;
				for (int64_t j = 0; j < s->sk; j++) {
					double term = p[j] ? p[j] * v[(j * s->kv_heads + kv) * s->d + c] : 0;
					x += term;
					y += fabs(term);
				}
				o[c] = sum ? (float)(x / sum) : 0;
				z[c] = sum ? (float)(y / sum) : 0;
			}
		}
	free(p);
}

/* Where products have BF16 operands, each weight is rounded to it: by half a unit of its last place at most. */
static void check_mean(const char *what, const struct dtp_backend *be, struct dtp_tensor out, const float *ref, float *size,
		       int64_t n)
{
	float unit = dtp_cpu_operand((const struct dtp_cpu *)be) == DTP_BF16 ? 0x1p-8f : 0;

	for (int64_t i = 0; i < dtp_numel(&out); i++)
		size[i] *= unit;
	check_bounded(what, out, ref, n, 1, size);
}

static void check_attention(struct dtp_backend *be, const char *name, struct dims s, struct dtp_attention a, int64_t gap)
{
	enum dtp_dtype t = be->compute;
	float *qv = random_values(t, s.sq * s.heads * s.d), *kv = random_values(t, s.sk * s.kv_heads * s.d);
	float *vv = random_values(t, s.sk * s.kv_heads * s.d), *ref = malloc((size_t)(s.sq * s.heads * s.d + 1) * sizeof *ref);
	float *size = malloc((size_t)(s.sq * s.heads * s.d + 1) * sizeof *size);
	struct dtp_tensor q = make3(t, s.sq, s.heads, s.d, gap, qv), k = make3(t, s.sk, s.kv_heads, s.d, gap, kv);
	struct dtp_tensor v = make3(t, s.sk, s.kv_heads, s.d, gap, vv), out = make3(t, s.sq, s.heads, s.d, gap, NULL);
	char what[160];

	reference(ref, size, qv, kv, vv, &s, &a);
	MUST(be->ops->attention(be, out, q, k, v, &a, err));
	snprintf(what, sizeof what, "%s, Sq %d, Sk %d, H %d/%d, D %d, causal %d, keys %d..%d, gap %d", name, (int)s.sq, (int)s.sk,
		 (int)s.heads, (int)s.kv_heads, (int)s.d, a.causal, (int)a.key_begin, (int)a.key_end, (int)gap);
	/* A result is a mean: its RMS may be well below that of the values, so allow for sums 16 times as long. */
	check_mean(what, be, out, ref, size, 16 * (s.sk + s.d));
	free(q.data), free(k.data), free(v.data), free(out.data), free(qv), free(kv), free(vv), free(ref), free(size);
}

static struct dtp_attention plain(struct dims s)
{
	struct dtp_attention a = {.scale = 1 / sqrtf((float)(s.d ? s.d : 1)), .key_end = s.sk, .group = s.heads / s.kv_heads};
	return a;
}

static void attention_plain_shapes(void **state)
{
	static const struct dims shapes[] = {{1, 1, 1, 1, 1},	  {5, 7, 2, 2, 16},    {130, 200, 3, 3, 64}, {96, 96, 4, 2, 128},
					     {65, 129, 2, 1, 20}, {300, 300, 1, 1, 80}, {40, 33, 6, 3, 100}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
			for (int64_t gap = 0; gap <= 5; gap += 5)
				check_attention(be, c->name, shapes[i], plain(shapes[i]), gap);
}

static void attention_masked_causal(void **state)
{
	static const struct dims shapes[] = {{1, 1, 1, 1, 16}, {70, 70, 4, 2, 16}, {300, 300, 2, 1, 32}, {10, 40, 2, 2, 8}, {40, 10, 2, 2, 8}};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
			struct dtp_attention a = plain(shapes[i]);
			a.causal = true;
			check_attention(be, c->name, shapes[i], a, 0);
		}
}

/* Padding on the right and on the left: there the first rows may attend to nothing and give 0. */
static void attention_masked_key_range(void **state)
{
	static const int64_t ranges[][2] = {{0, 50}, {33, 90}, {89, 90}, {0, 0}, {90, 90}, {70, 20}, {0, 1000}};
	struct dims s = {90, 90, 2, 1, 32};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
			for (int causal = 0; causal < 2; causal++) {
				struct dtp_attention a = plain(s);
				a.key_begin = ranges[i][0];
				a.key_end = ranges[i][1];
				a.causal = causal;
				check_attention(be, c->name, s, a, 0);
			}
}

/* What stands in masked keys must not matter, not even NaNs. */
static void attention_masked_keys_unread(void **state)
{
	enum { S = 80, H = 2, D = 16, BEGIN = 7, END = 71 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *x[3], *ref = malloc(sizeof(float) * S * H * D), *size = malloc(sizeof(float) * S * H * D);
		struct dtp_tensor t[3], out = make3(c->t, S, H, D, 0, NULL);
		struct dims s = {S, S, H, H, D};
		struct dtp_attention a = plain(s);
		a.key_begin = BEGIN;
		a.key_end = END;
		for (int i = 0; i < 3; i++)
			x[i] = random_values(c->t, S * H * D);
		reference(ref, size, x[0], x[1], x[2], &s, &a);
		for (int i = 0; i < 3; i++) {
			for (int j = 0; i && j < S * H * D; j++)
				if (j < BEGIN * H * D || j >= END * H * D)
					x[i][j] = NAN;
			t[i] = make3(c->t, S, H, D, 0, x[i]);
		}
		MUST(be->ops->attention(be, out, t[0], t[1], t[2], &a, err));
		check_mean(c->name, be, out, ref, size, 16 * S);
		for (int i = 0; i < 3; i++)
			free(t[i].data), free(x[i]);
		free(out.data), free(ref), free(size);
	}
}

/* A rank's heads need not begin with a whole group, nor with head 0. */
static void attention_grouped_uneven_heads(void **state)
{
	(void)state;
	FOR_EACH_BACKEND(be, c)
		for (int64_t group = 1; group <= 4; group++)
			for (int64_t first = 0; first < 5; first++)
				for (int64_t n = 1; n < 6; n += 2) {
					struct dims s = {33, 33, n, (first + n - 1) / group - first / group + 1, 8};
					struct dtp_attention a = {.scale = 0.3f, .key_end = 33, .q_head0 = first,
								  .kv_head0 = first / group, .group = group, .causal = true};
					check_attention(be, c->name, s, a, 0);
				}
}

/* Scores far apart: one key takes all; and infinite values of other rows stay where they are. */
static void attention_extreme_scores(void **state)
{
	enum { S = 66, D = 8 };
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		float *q = random_values(c->t, S * D), *k = random_values(c->t, S * D), *v = random_values(c->t, S * D);
		float *ref = malloc(sizeof(float) * S * D), *size = malloc(sizeof(float) * S * D);
		struct dims s = {S, S, 1, 1, D};
		struct dtp_attention a = plain(s);
		for (int i = 0; i < S * D; i++) {
			q[i] = dtp_round_to(c->t, q[i] * 300);
			k[i] = dtp_round_to(c->t, k[i] * 300);
		}
		for (int i = 0; i < D; i++)
			q[5 * D + i] = NAN;
		struct dtp_tensor tq = make3(c->t, S, 1, D, 0, q), tk = make3(c->t, S, 1, D, 0, k), tv = make3(c->t, S, 1, D, 0, v);
		struct dtp_tensor out = make3(c->t, S, 1, D, 0, NULL);
		reference(ref, size, q, k, v, &s, &a);
		MUST(be->ops->attention(be, out, tq, tk, tv, &a, err));
		float *got = values_of(out);
		for (int i = 0; i < S; i++)
			for (int j = 0; j < D; j++)
				if (i == 5)
					assert_true(isnan(got[i * D + j]));
				else /* scores of some 10^5 carry absolute errors of 10^-2 */
					assert_true(fabsf(got[i * D + j] - ref[i * D + j]) <= 0.05f);
		free(tq.data), free(tk.data), free(tv.data), free(out.data), free(q), free(k), free(v), free(ref), free(size), free(got);
	}
}

static void attention_empty(void **state)
{
	static const struct dims shapes[] = {{0, 5, 2, 2, 8}, {5, 0, 2, 2, 8}, {5, 5, 2, 2, 0}};
	(void)state;
	FOR_EACH_BACKEND(be, c) {
		for (size_t i = 0; i < 3; i++)
			check_attention(be, c->name, shapes[i], plain(shapes[i]), 0);
		/* A rank may own no heads at all. */
		struct dims none = {5, 5, 0, 1, 8};
		struct dtp_attention a = {.scale = 1, .key_end = 5, .group = 1};
		check_attention(be, c->name, none, a, 0);
	}
}

/* Long sequences go in smaller blocks of queries. */
static void attention_long(void **state)
{
	struct dims s = {80, 5000, 1, 1, 16};
	(void)state;
	FOR_EACH_BACKEND(be, c)
		check_attention(be, c->name, s, plain(s), 0);
}

static void attention_all_without_avx512(void **state)
{
	(void)state;
	run_with_less();
}

/* What attention by matrix products takes on a GPU: no more than it may, unless that is too little for one query. */
static void attention_scores_fit_their_room(void **state)
{
	static const enum dtp_dtype types[] = {DTP_F32, DTP_BF16};

	(void)state;
	for (int t = 0; t < 2; t++)
		for (int64_t keys = 1; keys < 3000; keys += keys < 40 ? 1 : 97)
			for (uint64_t room = 1000; room < 400000; room += 331) {
				struct dtp_cuda_scores s = dtp_cuda_scores(types[t], 100000, keys, room);
				assert_true(s.rows == 1 || s.nbytes <= room);
				assert_true(s.rows >= 128 || s.nbytes + (uint64_t)s.pitch * (t ? 6 : 4) + 255 >= room);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_plain_shapes),
		cmocka_unit_test(attention_masked_causal),
		cmocka_unit_test(attention_masked_key_range),
		cmocka_unit_test(attention_masked_keys_unread),
		cmocka_unit_test(attention_grouped_uneven_heads),
		cmocka_unit_test(attention_extreme_scores),
		cmocka_unit_test(attention_empty),
		cmocka_unit_test(attention_long),
		cmocka_unit_test(attention_all_without_avx512),
		cmocka_unit_test(attention_scores_fit_their_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
