/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows and columns a rank owns: exact runs, and properties over random shapes, blocks and degrees. */
#include "fold.h"
#include "plan.h"
#include "support.h"
#include "trees.h"

#include <time.h>

static const int degrees[] = {1, 2, 3, 4, 6, 8};
#define NDEGREES (int)(sizeof degrees / sizeof *degrees)

static void apply_builtin(const char *name, struct dtp_tree *t, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	assert_int_equal(dtp_plan_builtin(name, &plan, &err), DTP_OK);
	if (dtp_plan_apply(&plan, t, degree, &err))
		fail_msg("%s", err.message);
	dtp_plan_free(&plan);
}

static struct dtp_split placed(const struct dtp_tree *t, const char *module, int which, int rank, int degree)
{
	struct dtp_param p;
	struct dtp_split s;
	int i = dtp_tree_find(t, module);

	assert_true(i >= 0);
	assert_true(dtp_module_param(&t->modules[i], which, &p));
	dtp_placement(t, &p, rank, degree, &s);
	return s;
}

static void assert_runs(struct dtp_split s, int dim, int n, const int64_t (*runs)[2])
{
	assert_int_equal(s.dim, dim);
	assert_int_equal(s.nruns, n);
	for (int i = 0; i < n; i++) {
		assert_int_equal(s.run[i].begin, runs[i][0]);
		assert_int_equal(s.run[i].end, runs[i][1]);
	}
}

static void placement_flux2_runs(void **state)
{
	static struct layers ls;
	struct dtp_tree t;

	(void)state;
	flux2_tree(&t, &ls, &klein_tiny);
	apply_builtin("flux2", &t, 4);
	assert_runs(placed(&t, "transformer_blocks.0.attn.to_q", 0, 1, 4), 0, 1, (int64_t[][2]){{32, 64}});
	assert_runs(placed(&t, "transformer_blocks.0.attn.to_out.0", 0, 3, 4), 1, 1, (int64_t[][2]){{96, 128}});
	assert_runs(placed(&t, "transformer_blocks.1.ff.linear_in", 0, 1, 4), 0, 2, (int64_t[][2]){{96, 192}, {480, 576}});
	assert_runs(placed(&t, "transformer_blocks.1.ff.linear_out", 0, 1, 4), 1, 1, (int64_t[][2]){{96, 192}});
	assert_runs(placed(&t, "single_transformer_blocks.2.attn.to_qkv_mlp_proj", 0, 2, 4), 0, 5,
		    (int64_t[][2]){{64, 96}, {192, 224}, {320, 352}, {576, 672}, {960, 1056}});
	assert_runs(placed(&t, "single_transformer_blocks.2.attn.to_out", 0, 2, 4), 1, 2, (int64_t[][2]){{64, 96}, {320, 416}});
	assert_runs(placed(&t, "transformer_blocks.0.attn.norm_q", 0, 2, 4), -1, 1, (int64_t[][2]){{0, 16}});
	assert_runs(placed(&t, "proj_out", 0, 2, 4), -1, 1, (int64_t[][2]){{0, 128}});
	/* One rank: neighbouring blocks are one run. */
	assert_runs(placed(&t, "single_transformer_blocks.2.attn.to_qkv_mlp_proj", 0, 0, 1), 0, 1, (int64_t[][2]){{0, 1152}});
	dtp_tree_free(&t);
}

/* Counts how often each index of the split dimension is owned by some rank. */
static void count_owners(const struct dtp_tree *t, const struct dtp_param *p, int degree, int *owners, int *dim)
{
	for (int r = 0; r < degree; r++) {
		struct dtp_split s;
		int64_t shape[DTP_MAX_DIMS], last = 0;
		dtp_placement(t, p, r, degree, &s);
		assert_true(r == 0 || s.dim == *dim);
		*dim = s.dim;
		for (int i = 0; i < s.nruns; i++) {
			assert_true(s.run[i].begin <= s.run[i].end && s.run[i].begin >= last);
			last = s.run[i].end;
			for (int64_t k = s.run[i].begin; k < s.run[i].end; k++)
				owners[k]++;
		}
		assert_true(last <= p->shape[s.dim < 0 ? 0 : s.dim]);
		dtp_split_shape(p, &s, shape);
		for (int d = 0; d < p->ndim; d++)
			assert_int_equal(shape[d], d == s.dim ? dtp_split_length(&s) : p->shape[d]);
	}
}

#define MAX_DIM 4096
static void assert_partition(const struct dtp_tree *t, const struct dtp_param *p, int degree)
{
	static int owners[MAX_DIM];
	int dim = -1;

	memset(owners, 0, sizeof owners);
	count_owners(t, p, degree, owners, &dim);
	int64_t n = p->shape[dim < 0 ? 0 : dim];
	assert_true(n <= MAX_DIM);
	for (int64_t k = 0; k < n; k++) {
		if (p->module->follows >= 0)
			assert_true(owners[k] >= 1);
		else
			assert_int_equal(owners[k], dim < 0 ? degree : 1);
	}
}

static void assert_tree_partition(const struct dtp_tree *t, int degree)
{
	struct dtp_param p;

	for (int i = 0; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++)
			assert_partition(t, &p, degree);
}

static int64_t random_below(int64_t n)
{
	return (int64_t)(test_random() % (uint64_t)n);
}

static void placement_flux2_covers_once(void **state)
{
	static struct layers ls;

	(void)state;
	for (int i = 0; i < 30; i++) {
		int degree = degrees[random_below(NDEGREES)];
		struct flux2_size z = {degree * (1 + random_below(3)), 2 * (1 + random_below(8)), degree * (1 + random_below(20)),
				       1 + random_below(50), 1 + random_below(50), 1 + (int)random_below(2), 1};
		struct dtp_tree t;
		flux2_tree(&t, &ls, &z);
		apply_builtin("flux2", &t, degree);
		assert_tree_partition(&t, degree);
		dtp_tree_free(&t);
	}
}

static void placement_text_covers_once(void **state)
{
	static struct layers ls;

	(void)state;
	for (int i = 0; i < 60; i++) {
		int degree = 1 + (int)random_below(12);
		int64_t kv = 1 + random_below(5);
		struct qwen3_size z = {kv * (1 + random_below(4)), kv, 1 + random_below(8), 1 + random_below(20),
				       1 + random_below(40), 1 + random_below(100), 1, 1};
		struct dtp_tree t;
		qwen3_tree(&t, &ls, &z);
		apply_builtin("text", &t, degree);
		assert_tree_partition(&t, degree);
		dtp_tree_free(&t);
	}
}

/* What the forward pass relies on: a rank's kv heads are those of its query heads, its o_proj columns its query rows. */
static void placement_text_heads_agree(void **state)
{
	static struct layers ls;

	(void)state;
	for (int i = 0; i < 100; i++) {
		int degree = 1 + (int)random_below(12);
		int64_t kv = 1 + random_below(5), group = 1 + random_below(4), dim = 1 + random_below(8);
		struct qwen3_size z = {kv * group, kv, dim, 8, 8, 8, 1, 1};
		struct dtp_tree t;
		qwen3_tree(&t, &ls, &z);
		apply_builtin("text", &t, degree);
		for (int r = 0; r < degree; r++) {
			struct dtp_split q = placed(&t, "layers.0.self_attn.q_proj", 0, r, degree);
			struct dtp_split k = placed(&t, "layers.0.self_attn.k_proj", 0, r, degree);
			struct dtp_split o = placed(&t, "layers.0.self_attn.o_proj", 0, r, degree);
			int64_t q0 = q.run[0].begin / dim, q1 = q.run[0].end / dim;
			assert_int_equal(q.run[0].begin, z.heads * r / degree * dim);
			assert_int_equal(q.run[0].end, z.heads * (r + 1) / degree * dim);
			assert_int_equal(o.run[0].begin, q.run[0].begin);
			assert_int_equal(o.run[0].end, q.run[0].end);
			if (q0 == q1) {
				assert_int_equal(dtp_split_length(&k), 0);
				continue;
			}
			assert_int_equal(k.run[0].begin, q0 / group * dim);
			assert_int_equal(k.run[0].end, ((q1 - 1) / group + 1) * dim);
		}
		dtp_tree_free(&t);
	}
}

static void placement_text_uneven_runs(void **state)
{
	static struct layers ls;
	struct dtp_tree t;

	(void)state;
	qwen3_tree(&t, &ls, &qwen3_tiny); /* 4 query heads and 2 kv heads of 16, mlp 96, vocabulary 1824 */
	apply_builtin("text", &t, 3);
	assert_runs(placed(&t, "layers.0.self_attn.q_proj", 0, 0, 3), 0, 1, (int64_t[][2]){{0, 16}});
	assert_runs(placed(&t, "layers.0.self_attn.q_proj", 0, 1, 3), 0, 1, (int64_t[][2]){{16, 32}});
	assert_runs(placed(&t, "layers.0.self_attn.q_proj", 0, 2, 3), 0, 1, (int64_t[][2]){{32, 64}});
	assert_runs(placed(&t, "layers.0.self_attn.k_proj", 0, 1, 3), 0, 1, (int64_t[][2]){{0, 16}});
	assert_runs(placed(&t, "layers.0.self_attn.k_proj", 0, 2, 3), 0, 1, (int64_t[][2]){{16, 32}});
	assert_runs(placed(&t, "layers.0.mlp.gate_proj", 0, 1, 3), 0, 1, (int64_t[][2]){{32, 64}});
	assert_runs(placed(&t, "embed_tokens", 0, 2, 3), 0, 1, (int64_t[][2]){{1216, 1824}});
	apply_builtin("text", &t, 8); /* more ranks than query heads: some own none */
	assert_runs(placed(&t, "layers.0.self_attn.q_proj", 0, 0, 8), 0, 1, (int64_t[][2]){{0, 0}});
	assert_runs(placed(&t, "layers.0.self_attn.k_proj", 0, 0, 8), 0, 1, (int64_t[][2]){{0, 0}});
	assert_runs(placed(&t, "layers.0.self_attn.q_proj", 0, 7, 8), 0, 1, (int64_t[][2]){{48, 64}});
	assert_runs(placed(&t, "layers.0.self_attn.k_proj", 0, 7, 8), 0, 1, (int64_t[][2]){{16, 32}});
	dtp_tree_free(&t);
}

/* A tree with biases and every style. */
static void styled_tree(struct dtp_tree *t, struct dtp_layer l[7])
{
	dtp_tree_init(t, "transformer");
	t->even = true;
	int a = dtp_tree_linear(t, &l[0], 12, 10, true, "a");
	int b = dtp_tree_linear(t, &l[1], 10, 12, true, "b");
	dtp_tree_reads(t, b, 1, &a);
	int c = dtp_tree_linear(t, &l[2], 36, 10, true, "c");
	dtp_tree_out_blocks(t, c, 3, (int64_t[]){12, 12, 12});
	int d = dtp_tree_linear(t, &l[3], 10, 24, true, "d");
	dtp_tree_in_blocks(t, d, 2, (int64_t[]){12, 12});
	dtp_tree_reads(t, d, 1, &c);
	dtp_tree_linear(t, &l[4], 7, 12, true, "e");
	dtp_tree_embedding(t, &l[5], 24, 10, "f");
	dtp_tree_norm(t, &l[6], 10, true, "g");
}

static const char styled_plan[] =
	"{\"a\":\"colwise\",\"b\":\"rowwise\",\"c\":\"packed_colwise\",\"d\":{\"style\":\"packed_rowwise\",\"blocks\":[2,2]},"
	"\"e\":\"rowwise_split_input\",\"f\":\"rowwise\"}";

static void styled_apply(struct dtp_tree *t, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	assert_int_equal(dtp_plan_parse("p.json", styled_plan, strlen(styled_plan), &plan, &err), DTP_OK);
	if (dtp_plan_apply(&plan, t, degree, &err))
		fail_msg("%s", err.message);
	dtp_plan_free(&plan);
}

static void placement_biases(void **state)
{
	struct dtp_layer l[7] = {{0}};
	struct dtp_tree t;

	(void)state;
	styled_tree(&t, l);
	styled_apply(&t, 3);
	assert_runs(placed(&t, "a", 1, 1, 3), 0, 1, (int64_t[][2]){{4, 8}});
	assert_runs(placed(&t, "b", 1, 1, 3), -1, 1, (int64_t[][2]){{0, 10}});
	assert_runs(placed(&t, "c", 1, 1, 3), 0, 3, (int64_t[][2]){{4, 8}, {16, 20}, {28, 32}});
	assert_runs(placed(&t, "d", 1, 1, 3), -1, 1, (int64_t[][2]){{0, 10}});
	assert_runs(placed(&t, "d", 0, 1, 3), 1, 2, (int64_t[][2]){{4, 8}, {16, 20}});
	assert_runs(placed(&t, "e", 1, 1, 3), -1, 1, (int64_t[][2]){{0, 7}});
	for (int i = 0; i < NDEGREES - 1; i++) { /* 12 and 24 */
		styled_apply(&t, degrees[i]);
		assert_tree_partition(&t, degrees[i]);
	}
	dtp_tree_free(&t);
}

static void assert_layer(const struct dtp_layer *l, const char *name, int64_t out, int64_t in, int64_t out_begin,
			 int64_t in_begin, bool split_input, bool reduce)
{
	assert_string_equal(l->module->name, name);
	assert_int_equal(l->out, out);
	assert_int_equal(l->in, in);
	assert_int_equal(l->out_begin, out_begin);
	assert_int_equal(l->in_begin, in_begin);
	assert_int_equal(l->split_input, split_input);
	assert_int_equal(l->reduce, reduce);
}

static void placement_bind_styles(void **state)
{
	struct dtp_layer l[7] = {{0}};
	struct dtp_tree t;

	(void)state;
	styled_tree(&t, l);
	styled_apply(&t, 3);
	dtp_plan_bind(&t, 1, 3);
	assert_layer(&l[0], "a", 4, 10, 4, 0, false, false);
	assert_layer(&l[1], "b", 10, 4, 0, 4, false, true);
	assert_layer(&l[2], "c", 12, 10, 4, 0, false, false);
	assert_layer(&l[3], "d", 10, 8, 0, 4, false, true);
	assert_layer(&l[4], "e", 7, 4, 0, 4, true, true);
	assert_layer(&l[5], "f", 8, 10, 8, 0, false, true);
	assert_layer(&l[6], "g", 10, 1, 0, 0, false, false);
	dtp_plan_bind(&t, 0, 1);
	assert_layer(&l[1], "b", 10, 12, 0, 0, false, false);
	assert_layer(&l[4], "e", 7, 12, 0, 0, true, false);
	assert_layer(&l[5], "f", 24, 10, 0, 0, false, false);
	dtp_tree_free(&t);
}

/* A model without a plan is whole on every rank. */
static void placement_bind_unplanned(void **state)
{
	struct dtp_layer l[2] = {{0}};
	struct dtp_tree t;

	(void)state;
	dtp_tree_init(&t, "vae");
	dtp_tree_conv(&t, &l[0], 32, 16, 3, true, "decoder.conv_in");
	dtp_tree_norm(&t, &l[1], 128, true, "bn");
	dtp_plan_bind(&t, 2, 4);
	assert_layer(&l[0], "decoder.conv_in", 32, 16, 0, 0, false, false);
	assert_layer(&l[1], "bn", 128, 1, 0, 0, false, false);
	assert_tree_partition(&t, 4);
	dtp_tree_free(&t);
}

static void module_params_named(void **state)
{
	struct dtp_layer l;
	struct dtp_tree t;
	struct dtp_param p;

	(void)state;
	dtp_tree_init(&t, "vae");
	int list = dtp_tree_list(&t, "blocks");
	int conv = dtp_tree_conv(&t, &l, 32, 16, 3, true, "blocks.%d.conv", 4);
	int bn = dtp_tree_norm(&t, &l, 128, true, "bn");
	int plain = dtp_tree_linear(&t, &l, 3, 5, false, "plain");
	t.modules[bn].param[0] = "running_mean";
	t.modules[bn].param[1] = "running_var";
	assert_false(dtp_module_param(&t.modules[list], 0, &p));
	assert_true(dtp_module_param(&t.modules[conv], 0, &p));
	assert_string_equal(p.name, "blocks.4.conv.weight");
	assert_int_equal(p.ndim, 4);
	assert_int_equal(p.shape[3], 3);
	assert_true(dtp_module_param(&t.modules[conv], 1, &p));
	assert_string_equal(p.name, "blocks.4.conv.bias");
	assert_int_equal(p.ndim, 1);
	assert_int_equal(p.shape[0], 32);
	assert_false(dtp_module_param(&t.modules[conv], 2, &p));
	assert_true(dtp_module_param(&t.modules[bn], 1, &p));
	assert_string_equal(p.name, "bn.running_var");
	assert_false(dtp_module_param(&t.modules[plain], 1, &p));
	assert_int_equal(dtp_tree_find(&t, "blocks.4.conv"), conv);
	assert_int_equal(dtp_tree_find(&t, "blocks.4"), -1);
	dtp_tree_free(&t);
}

#define MANY 40000

static bool always_alike(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	(void)arg;
	return a->kind == b->kind;
}

/* A config.json of some hundred bytes asks for many modules: the time is in proportion to them. */
static void module_names_are_found_at_once(void **state)
{
	static struct dtp_layer l;
	struct dtp_tree t;
	struct dtp_key *keys;
	struct dtp_err err;
	int n;

	(void)state;
	clock_t begin = clock();
	dtp_tree_init(&t, "transformer");
	dtp_tree_list(&t, "blocks");
	for (int i = 0; i < MANY; i++) {
		int up = dtp_tree_linear(&t, &l, 8, 8, false, "blocks.%d.up", i);
		dtp_tree_reads(&t, dtp_tree_linear(&t, &l, 8, 8, false, "blocks.%d.down", i), 1, &up);
	}
	assert_int_equal(dtp_tree_find(&t, "blocks.39999.down"), 2 * MANY);
	assert_true(t.modules[1].is_read && !t.modules[2].is_read);
	assert_int_equal(dtp_keys_make(&t, always_alike, NULL, &keys, &n, &err), DTP_OK);
	assert_int_equal(n, 2);
	assert_string_equal(keys[0].name, "blocks.*.up");
	assert_int_equal(keys[1].count, MANY);
	double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
	if (seconds > 3) /* by comparing each name with each other: half a minute */
		fail_msg("%d modules took %.1f s of CPU time", 2 * MANY, seconds);
	free(keys);
	dtp_tree_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(placement_flux2_runs),
		cmocka_unit_test(placement_flux2_covers_once),
		cmocka_unit_test(placement_text_covers_once),
		cmocka_unit_test(placement_text_heads_agree),
		cmocka_unit_test(placement_text_uneven_runs),
		cmocka_unit_test(placement_biases),
		cmocka_unit_test(placement_bind_styles),
		cmocka_unit_test(placement_bind_unplanned),
		cmocka_unit_test(module_params_named),
		cmocka_unit_test(module_names_are_found_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
