/* SPDX-License-Identifier: Apache-2.0 */
/* Trees as lines and keys; plans that are derived, written with everything explicit, and compared. */
#include "plan_make.h"
#include "support.h"
#include "trees.h"

static struct dtp_tree flux, qwen;
static struct layers flux_layers, qwen_layers;

static int set_up(void **state)
{
	(void)state;
	flux2_tree(&flux, &flux_layers, &klein_tiny);
	qwen3_tree(&qwen, &qwen_layers, &qwen3_tiny);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	dtp_tree_free(&flux);
	dtp_tree_free(&qwen);
	return 0;
}

static struct dtp_plan plan_of(const char *text)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	if (dtp_plan_parse("plan.json", text, strlen(text), &plan, &err))
		fail_msg("%s", err.message);
	return plan;
}

static struct dtp_plan builtin(const char *name)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	if (dtp_plan_builtin(name, &plan, &err))
		fail_msg("%s", err.message);
	return plan;
}

/* ---- lines */

static bool same_shape(void *arg, const struct dtp_module *a, const struct dtp_module *b)
{
	(void)arg;
	return a->kind == b->kind && !memcmp(a->shape, b->shape, sizeof a->shape);
}

/* The lines as text, "DEPTH NAME COUNT TIMES" each. */
static void fold_text(const struct dtp_tree *t, char *buf, size_t size)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_fold fold;
	size_t n = 0;

	assert_int_equal(dtp_fold_make(t, same_shape, NULL, &fold, &err), DTP_OK);
	for (int i = 0; i < fold.n; i++)
		n += (size_t)snprintf(buf + n, size - n, "%d %s %d %d%s\n", fold.lines[i].depth, fold.lines[i].name, fold.lines[i].count,
				      fold.lines[i].times, fold.lines[i].module < 0 ? "" : " *");
	dtp_fold_free(&fold);
}

static void fold_equal_elements_are_one(void **state)
{
	struct dtp_tree t;
	char text[2048];

	(void)state;
	dtp_tree_init(&t, "x");
	dtp_tree_linear(&t, NULL, 4, 4, false, "in");
	dtp_tree_list(&t, "blocks");
	for (int i = 0; i < 12; i++) {
		dtp_tree_linear(&t, NULL, i == 5 ? 8 : 4, 4, false, "blocks.%d.attn.to_q", i);
		dtp_tree_linear(&t, NULL, 4, 4, false, "blocks.%d.attn.to_out.0", i);
	}
	dtp_tree_linear(&t, NULL, 4, 4, false, "only.deep.down");
	fold_text(&t, text, sizeof text);
	assert_string_equal(text, "0 in 1 1 *\n"
				  "0 blocks.0-4.attn 5 5\n1 to_q 1 5 *\n1 to_out.0 1 5 *\n"
				  "0 blocks.5.attn 1 1\n1 to_q 1 1 *\n1 to_out.0 1 1 *\n"
				  "0 blocks.6-11.attn 6 6\n1 to_q 1 6 *\n1 to_out.0 1 6 *\n"
				  "0 only.deep.down 1 1 *\n");
	dtp_tree_free(&t);
}

static void fold_lists_in_lists(void **state)
{
	struct dtp_tree t;
	char text[2048];

	(void)state;
	dtp_tree_init(&t, "x");
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 3; j++)
			dtp_tree_conv(&t, NULL, 4, 4, 3, true, "up.%d.res.%d.conv", i, j);
	for (int i = 0; i < 2; i++) {
		for (int j = 0; j < 2; j++)
			dtp_tree_norm(&t, NULL, 4, true, "down.%d.res.%d", i, j);
		dtp_tree_norm(&t, NULL, 4, true, "down.%d.last", i);
	}
	dtp_tree_norm(&t, NULL, 4, true, "names.a");
	dtp_tree_norm(&t, NULL, 4, true, "names.1");
	fold_text(&t, text, sizeof text);
	assert_string_equal(text, "0 up.0-1.res.0-2.conv 6 6 *\n"
				  "0 down.0-1 2 2\n1 res.0-1 2 4 *\n1 last 1 2 *\n"
				  "0 names 1 1\n1 a 1 1 *\n1 1 1 1 *\n");
	dtp_tree_free(&t);
}

static void keys_name_every_module_once(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_key *keys;
	int n, count = 0, lists = 0, stars = 0;

	(void)state;
	assert_int_equal(dtp_keys_make(&flux, same_shape, NULL, &keys, &n, &err), DTP_OK);
	for (int i = 0; i < n; i++) {
		count += keys[i].count;
		stars += strchr(keys[i].name, '*') != NULL;
	}
	for (int i = 0; i < flux.n; i++)
		lists += flux.modules[i].kind == DTP_MODULE_LIST;
	assert_int_equal(count, flux.n - lists);
	assert_int_equal(stars, 16 + 4);
	assert_string_equal(keys[0].name, "x_embedder");
	free(keys);
}

/* ---- explicit plans */

static void explicit_round_trip(struct dtp_tree *t, const char *text, int rules)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan given = plan_of(text), made, again;
	struct dtp_plan_change *changes;
	int n;

	assert_int_equal(dtp_plan_apply(&given, t, 2, &err), DTP_OK);
	assert_int_equal(dtp_plan_explicit(t, "made", &made, &err), DTP_OK);
	assert_int_equal(made.n, rules);
	for (int i = 0; i < made.n; i++)
		assert_true((made.rules[i].nblocks > 0) ==
			    (made.rules[i].style == DTP_PACKED_COLWISE || made.rules[i].style == DTP_PACKED_ROWWISE));
	char *written = dtp_plan_text(&made);
	again = plan_of(written);
	if (dtp_plan_compare(&given, &again, t, 2, &changes, &n, &err))
		fail_msg("%s", err.message);
	assert_int_equal(n, 0);
	free(changes);
	free(written);
	dtp_plan_free(&given);
	dtp_plan_free(&made);
	dtp_plan_free(&again);
}

static void explicit_gives_the_same_placement(void **state)
{
	(void)state;
	explicit_round_trip(&flux, "{}", 0);
	explicit_round_trip(&flux, "{\"single_transformer_blocks.*.attn.to_qkv_mlp_proj\":\"packed_colwise\","
			    "\"single_transformer_blocks.*.attn.to_out\":\"packed_rowwise\"}", 2);
	/* One block of two: no key with a star names it alone. */
	explicit_round_trip(&flux, "{\"transformer_blocks.1.ff.linear_in\":{\"style\":\"packed_colwise\",\"blocks\":[2,2]},"
			    "\"transformer_blocks.1.ff.linear_out\":\"rowwise\",\"x_embedder\":\"rowwise_split_input\"}", 3);
	explicit_round_trip(&qwen, "{\"embed_tokens\":\"rowwise\"}", 1);
}

static void explicit_text(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan flux2 = builtin("flux2"), made;

	(void)state;
	assert_int_equal(dtp_plan_apply(&flux2, &flux, 2, &err), DTP_OK);
	assert_int_equal(dtp_plan_explicit(&flux, "made", &made, &err), DTP_OK);
	char *text = dtp_plan_text(&made);
	assert_non_null(strstr(text, "{\n  \"transformer_blocks.*.attn.to_q\": \"colwise\",\n"));
	assert_non_null(strstr(text, "  \"single_transformer_blocks.*.attn.to_qkv_mlp_proj\": {\"style\": \"packed_colwise\", "
				     "\"blocks\": [1, 1, 1, 3, 3]},\n"));
	assert_non_null(strstr(text, "  \"single_transformer_blocks.*.attn.to_out\": {\"style\": \"packed_rowwise\", "
				     "\"blocks\": [1, 3]}\n}\n"));
	free(text);
	dtp_plan_free(&flux2);
	dtp_plan_free(&made);
}

/* ---- derived plans */

static void derived_equals(struct dtp_tree *t, const char *name)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan own = builtin(name), derived;
	struct dtp_reason *why;
	struct dtp_plan_change *changes;
	int n, nchanges;

	assert_int_equal(dtp_plan_derive(t, &derived, &why, &n, &err), DTP_OK);
	assert_int_equal(derived.n, own.n);
	if (dtp_plan_compare(&own, &derived, t, 2, &changes, &nchanges, &err))
		fail_msg("%s", err.message);
	assert_int_equal(nchanges, 0);
	for (int i = 0; i < n; i++)
		assert_true(strlen(why[i].text) > 10);
	free(changes);
	free(why);
	dtp_plan_free(&own);
	dtp_plan_free(&derived);
}

static void derive_equals_the_builtin_plans(void **state)
{
	(void)state;
	derived_equals(&flux, "flux2");
	derived_equals(&qwen, "text");
}

static const struct dtp_reason *reason_of(const struct dtp_reason *why, int n, const char *key)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(why[i].key.name, key))
			return &why[i];
	fail_msg("no reason for '%s'", key);
	return NULL;
}

static void derive_says_why(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;
	struct dtp_reason *why;
	int n;

	(void)state;
	assert_int_equal(dtp_plan_derive(&flux, &plan, &why, &n, &err), DTP_OK);
	const struct dtp_reason *r = reason_of(why, n, "transformer_blocks.*.attn.to_q");
	assert_int_equal(r->style, DTP_COLWISE);
	assert_int_equal(r->key.count, 2);
	assert_string_equal(r->text, "8 heads of 16 rows, read by 'attn.to_out.0', 'attn.to_add_out' only, which can take a part each");
	r = reason_of(why, n, "single_transformer_blocks.*.attn.to_out");
	assert_string_equal(r->text, "512 columns in blocks of 128 + 384, as 'attn.to_qkv_mlp_proj' gives them; the products are summed "
				     "over the ranks");
	r = reason_of(why, n, "x_embedder");
	assert_int_equal(r->style, DTP_REPLICATED);
	assert_non_null(strstr(r->text, "'rowwise_split_input' would split it"));
	free(why);
	dtp_plan_free(&plan);
}

/* a -> b -> c: b cannot be split by its columns and by its rows; the larger pair, b and c, is split. */
static void derive_of_a_chain(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_plan plan;
	struct dtp_reason *why;
	int n;

	(void)state;
	dtp_tree_init(&t, "x");
	int a = dtp_tree_linear(&t, NULL, 8, 8, false, "a"), b = dtp_tree_linear(&t, NULL, 64, 8, false, "b");
	int c = dtp_tree_linear(&t, NULL, 8, 64, false, "c");
	dtp_tree_reads(&t, b, 1, &a);
	dtp_tree_reads(&t, c, 1, &b);
	assert_int_equal(dtp_plan_derive(&t, &plan, &why, &n, &err), DTP_OK);
	assert_int_equal(plan.n, 2);
	assert_string_equal(plan.rules[0].key, "b");
	assert_int_equal(plan.rules[0].style, DTP_COLWISE);
	assert_int_equal(plan.rules[1].style, DTP_ROWWISE);
	assert_string_equal(reason_of(why, n, "a")->text, "what it reads or what reads it ('b') is split otherwise");
	if (dtp_plan_apply(&plan, &t, 2, &err))
		fail_msg("%s", err.message);
	free(why);
	dtp_plan_free(&plan);
	dtp_tree_free(&t);
}

/* d is read by e and f: all of them are split, or none. */
static void derive_needs_every_reader(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_plan plan;
	struct dtp_reason *why;
	int n;

	(void)state;
	dtp_tree_init(&t, "x");
	int d = dtp_tree_linear(&t, NULL, 8, 8, false, "d"), norm = dtp_tree_norm(&t, NULL, 8, false, "norm");
	int e = dtp_tree_linear(&t, NULL, 8, 8, false, "e"), f = dtp_tree_linear(&t, NULL, 8, 8, false, "f");
	dtp_tree_reads(&t, e, 1, &d);
	dtp_tree_reads(&t, f, 2, (int[]){d, norm});
	assert_int_equal(dtp_plan_derive(&t, &plan, &why, &n, &err), DTP_OK);
	assert_int_equal(plan.n, 0); /* the norm, which f reads with d, cannot be split */
	free(why);
	dtp_plan_free(&plan);
	dtp_tree_free(&t);
}

/* ---- differences */

#define PAIR(block, second) \
	"\"transformer_blocks." block ".ff.linear_in\":\"packed_colwise\",\"transformer_blocks." block ".ff.linear_out\":" second

static void compare_names_what_differs(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan all = plan_of("{" PAIR("*", "\"rowwise\"") "}"), each, one;
	struct dtp_plan_change *changes;
	int n;

	(void)state;
	each = plan_of("{" PAIR("0", "\"rowwise\"") "," PAIR("1", "\"rowwise\"") "}");
	one = plan_of("{" PAIR("1", "\"rowwise\"") ",\"x_embedder\":\"rowwise_split_input\"}");
	assert_int_equal(dtp_plan_compare(&all, &each, &flux, 2, &changes, &n, &err), DTP_OK);
	assert_int_equal(n, 0);
	free(changes);
	assert_int_equal(dtp_plan_compare(&all, &one, &flux, 2, &changes, &n, &err), DTP_OK);
	assert_int_equal(n, 3);
	assert_string_equal(changes[0].key.name, "x_embedder");
	assert_int_equal(changes[0].a.style, DTP_REPLICATED);
	assert_int_equal(changes[0].b.style, DTP_ROWWISE_SPLIT_INPUT);
	assert_string_equal(changes[1].key.name, "transformer_blocks.0.ff.linear_in");
	assert_int_equal(changes[1].key.count, 1);
	assert_int_equal(changes[1].a.style, DTP_PACKED_COLWISE);
	assert_int_equal(changes[1].a.nblocks, 2);
	assert_int_equal(changes[1].a.blocks[1], 384);
	assert_int_equal(changes[1].b.style, DTP_REPLICATED);
	assert_string_equal(changes[2].key.name, "transformer_blocks.0.ff.linear_out");
	free(changes);
	dtp_plan_free(&all);
	dtp_plan_free(&each);
	dtp_plan_free(&one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fold_equal_elements_are_one),
		cmocka_unit_test(fold_lists_in_lists),
		cmocka_unit_test(keys_name_every_module_once),
		cmocka_unit_test(explicit_gives_the_same_placement),
		cmocka_unit_test(explicit_text),
		cmocka_unit_test(derive_equals_the_builtin_plans),
		cmocka_unit_test(derive_says_why),
		cmocka_unit_test(derive_of_a_chain),
		cmocka_unit_test(derive_needs_every_reader),
		cmocka_unit_test(compare_names_what_differs),
	};
	return cmocka_run_group_tests_name("plan_make", tests, set_up, tear_down);
}
