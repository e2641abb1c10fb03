/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of docs/plans.md, with the message that it gives. */
#include "plan.h"
#include "suggest.h"
#include "support.h"
#include "trees.h"

static struct dtp_tree flux, qwen;
static struct layers flux_layers, qwen_layers;

/* Plans against the tree of klein-tiny's transformer (8 heads of 16, 384 MLP columns), or of its text encoder. */
#define Q3 "\"transformer_blocks.*.attn.to_q\":\"colwise\",\"transformer_blocks.*.attn.to_k\":\"colwise\"," \
	"\"transformer_blocks.*.attn.to_v\":\"colwise\""
#define ADDED "\"transformer_blocks.*.attn.add_q_proj\":\"colwise\",\"transformer_blocks.*.attn.add_k_proj\":\"colwise\"," \
	"\"transformer_blocks.*.attn.add_v_proj\":\"colwise\""
#define OUTS "\"transformer_blocks.*.attn.to_out.0\":\"rowwise\",\"transformer_blocks.*.attn.to_add_out\":\"rowwise\""
#define SINGLE "single_transformer_blocks.*.attn."

struct bad {
	const char *name;
	struct dtp_tree *tree;
	int degree;
	const char *text, *message;
};

static const struct bad bad_plans[] = {
	/* reading */
	{"plan_parse_unknown_style", &flux, 2, "{\"x_embedder\":\"colwize\"}",
	 "plan.json: key 'x_embedder': unknown style 'colwize': did you mean 'colwise'?\n"
	 "styles: colwise, rowwise, rowwise_split_input, packed_colwise, packed_rowwise"},
	{"plan_parse_unknown_style_far", &flux, 2, "{\"x_embedder\":\"sequence_parallel\"}",
	 "plan.json: key 'x_embedder': unknown style 'sequence_parallel'\n"
	 "styles: colwise, rowwise, rowwise_split_input, packed_colwise, packed_rowwise"},
	{"plan_parse_replicated", &flux, 2, "{\"x_embedder\":\"replicated\"}",
	 "plan.json: key 'x_embedder': 'replicated' is no style of a plan: modules that no key names are replicated, so leave the "
	 "key out"},
	{"plan_parse_value_type", &flux, 2, "{\"x_embedder\":7}",
	 "plan.json: key 'x_embedder': the value must be a style (\"colwise\"), or an object with 'style' and perhaps 'blocks'"},
	{"plan_parse_value_null", &flux, 2, "{\"x_embedder\":null}",
	 "plan.json: key 'x_embedder': the value must be a style (\"colwise\"), or an object with 'style' and perhaps 'blocks'"},
	{"plan_parse_unknown_field", &flux, 2, "{\"x_embedder\":{\"style\":\"packed_colwise\",\"block\":[1,1]}}",
	 "plan.json: key 'x_embedder': unknown field 'block': did you mean 'blocks'?\nfields: style, blocks"},
	{"plan_parse_blocks_on_plain_style", &flux, 2, "{\"x_embedder\":{\"style\":\"colwise\",\"blocks\":[1,1]}}",
	 "plan.json: key 'x_embedder': style 'colwise' takes no 'blocks': only packed_colwise and packed_rowwise do"},
	{"plan_parse_two_stars", &flux, 2, "{\"transformer_blocks.*.attn.*\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn.*': more than one '*': a key has at most one, which stands for every index of a "
	 "module list"},
	{"plan_parse_star_in_word", &flux, 2, "{\"transformer_blocks.*.attn.to_q\":\"colwise\",\"transformer*.x\":\"colwise\"}",
	 "plan.json: key 'transformer*.x': '*' stands for the index of a module list, between the list's name and a module's, as in "
	 "'transformer_blocks.*.attn.to_q'"},
	{"plan_parse_star_last", &flux, 2, "{\"transformer_blocks.*\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*': '*' stands for the index of a module list, between the list's name and a module's, "
	 "as in 'transformer_blocks.*.attn.to_q'"},
	{"plan_parse_star_last_dot", &flux, 2, "{\"transformer_blocks.*.\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.': '*' stands for the index of a module list, between the list's name and a "
	 "module's, as in 'transformer_blocks.*.attn.to_q'"},
	{"plan_parse_star_first", &flux, 2, "{\"*.attn\":\"colwise\"}",
	 "plan.json: key '*.attn': '*' stands for the index of a module list, between the list's name and a module's, as in "
	 "'transformer_blocks.*.attn.to_q'"},
	{"plan_parse_empty_key", &flux, 2, "{\"\":\"colwise\"}",
	 "plan.json: key '': a key must name a module, or modules of a list as in 'list.*.name'"},
	/* which modules */
	{"plan_match_nothing", &flux, 2, "{\"transformer_blocks.*.attn.to_w\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn.to_w' matches no module of the transformer: did you mean "
	 "'transformer_blocks.*.attn.to_q'?"},
	{"plan_match_nothing_far", &flux, 2, "{\"transformer_blocks.*.mixer.gate_projection\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.mixer.gate_projection' matches no module of the transformer"},
	{"plan_match_parameter", &flux, 2, "{\"transformer_blocks.*.attn.to_q.weight\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn.to_q.weight' matches no module of the transformer: did you mean "
	 "'transformer_blocks.*.attn.to_q'?"},
	{"plan_match_star_forgotten", &flux, 2, "{\"transformer_blocks.attn.to_q\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.attn.to_q' matches no module of the transformer: did you mean "
	 "'transformer_blocks.*.attn.to_q'?"},
	{"plan_match_index_beyond", &flux, 2, "{\"transformer_blocks.2.attn.to_q\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.2.attn.to_q' matches no module of the transformer: did you mean "
	 "'transformer_blocks.*.attn.to_q'?"},
	{"plan_match_part_of_name", &flux, 2, "{\"transformer_blocks.*.attn\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn' matches no module of the transformer"},
	{"plan_match_no_list", &flux, 2, "{\"transformer_block.*.attn.to_q\":\"colwise\"}",
	 "plan.json: key 'transformer_block.*.attn.to_q': 'transformer_block' is no module list of the transformer: did you mean "
	 "'transformer_blocks'?\nlists: 'transformer_blocks', 'single_transformer_blocks'"},
	{"plan_match_list_inside", &flux, 2, "{\"transformer_blocks.0.attn.*.x\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.0.attn.*.x': 'transformer_blocks.0.attn' is no module list of the transformer\n"
	 "lists: 'transformer_blocks', 'single_transformer_blocks'"},
	{"plan_match_layer_as_list", &flux, 2, "{\"x_embedder.*.y\":\"colwise\"}",
	 "plan.json: key 'x_embedder.*.y': 'x_embedder' is no module list of the transformer\n"
	 "lists: 'transformer_blocks', 'single_transformer_blocks'"},
	{"plan_match_two_keys", &flux, 2,
	 "{\"transformer_blocks.*.attn.to_q\":\"colwise\",\"transformer_blocks.1.attn.to_q\":\"colwise\"}",
	 "plan.json: keys 'transformer_blocks.*.attn.to_q' and 'transformer_blocks.1.attn.to_q' both name module "
	 "'transformer_blocks.1.attn.to_q', which can have one style only"},
	/* kinds */
	{"plan_kind_list", &flux, 2, "{\"transformer_blocks\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks': 'transformer_blocks' is a list of modules, which cannot be split: only linear layers "
	 "and embeddings can"},
	{"plan_kind_norm", &flux, 2, "{\"transformer_blocks.*.attn.norm_q\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn.norm_q': 'transformer_blocks.0.attn.norm_q' is a norm, which cannot be split: "
	 "only linear layers and embeddings can"},
	{"plan_kind_embedding_colwise", &qwen, 2, "{\"embed_tokens\":\"colwise\"}",
	 "plan.json: key 'embed_tokens': 'embed_tokens' is an embedding, which 'colwise' cannot split: only 'rowwise' "
	 "can, by vocabulary rows"},
	{"plan_kind_embedding_split_input", &qwen, 2, "{\"embed_tokens\":\"rowwise_split_input\"}",
	 "plan.json: key 'embed_tokens': 'embed_tokens' is an embedding, which 'rowwise_split_input' cannot split: only "
	 "'rowwise' can, by vocabulary rows"},
	/* packing */
	{"plan_packing_plain_rows", &flux, 2, "{\"" SINGLE "to_qkv_mlp_proj\":\"colwise\",\"" SINGLE "to_out\":\"packed_rowwise\"}",
	 "plan.json: key '" SINGLE "to_qkv_mlp_proj': the 1152 rows of 'single_transformer_blocks.0.attn.to_qkv_mlp_proj' are "
	 "packed: 128 + 128 + 128 + 384 + 384; 'colwise' would cut across them and draw a wrong picture: use 'packed_colwise'"},
	{"plan_packing_plain_columns", &flux, 2,
	 "{\"" SINGLE "to_qkv_mlp_proj\":\"packed_colwise\",\"" SINGLE "to_out\":\"rowwise\"}",
	 "plan.json: key '" SINGLE "to_out': the 512 columns of 'single_transformer_blocks.0.attn.to_out' are packed: 128 + 384; "
	 "'rowwise' would cut across them and draw a wrong picture: use 'packed_rowwise'"},
	{"plan_packing_packed_on_plain", &flux, 2, "{\"transformer_blocks.*.attn.to_q\":\"packed_colwise\"}",
	 "plan.json: key 'transformer_blocks.*.attn.to_q': the 128 rows of 'transformer_blocks.0.attn.to_q' are not packed: use "
	 "'colwise' instead of 'packed_colwise'"},
	{"plan_packing_packed_on_plain_with_blocks", &flux, 2,
	 "{\"transformer_blocks.*.attn.to_q\":{\"style\":\"packed_colwise\",\"blocks\":[1,1]}}",
	 "plan.json: key 'transformer_blocks.*.attn.to_q': the 128 rows of 'transformer_blocks.0.attn.to_q' are not packed: use "
	 "'colwise' instead of 'packed_colwise'"},
	{"plan_packing_packed_rowwise_on_plain", &flux, 2, "{\"transformer_blocks.*.ff.linear_out\":\"packed_rowwise\"}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_out': the 384 columns of 'transformer_blocks.0.ff.linear_out' are not "
	 "packed: use 'rowwise' instead of 'packed_rowwise'"},
	{"plan_blocks_number", &flux, 2, "{\"transformer_blocks.*.ff.linear_in\":{\"style\":\"packed_colwise\",\"blocks\":[1,1,1]}}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_in': 3 blocks, [1, 1, 1], but the 768 rows of "
	 "'transformer_blocks.0.ff.linear_in' are 2: 384 + 384\nuse [1, 1], or leave 'blocks' out"},
	{"plan_blocks_sizes", &flux, 2,
	 "{\"" SINGLE "to_qkv_mlp_proj\":{\"style\":\"packed_colwise\",\"blocks\":[1,1,1,1,5]}}",
	 "plan.json: key '" SINGLE "to_qkv_mlp_proj': blocks [1, 1, 1, 1, 5] cut the 1152 rows of "
	 "'single_transformer_blocks.0.attn.to_qkv_mlp_proj' into 128 + 128 + 128 + 128 + 640, but they are 128 + 128 + 128 + "
	 "384 + 384\nuse [1, 1, 1, 3, 3], or leave 'blocks' out"},
	{"plan_blocks_sum", &flux, 2, "{\"" SINGLE "to_qkv_mlp_proj\":{\"style\":\"packed_colwise\",\"blocks\":[1,1,1,1,1]}}",
	 "plan.json: key '" SINGLE "to_qkv_mlp_proj': the sum of blocks [1, 1, 1, 1, 1], 5, does not divide the 1152 rows of "
	 "'single_transformer_blocks.0.attn.to_qkv_mlp_proj', which are 128 + 128 + 128 + 384 + 384\n"
	 "use [1, 1, 1, 3, 3], or leave 'blocks' out"},
	{"plan_blocks_order", &flux, 2, "{\"" SINGLE "to_out\":{\"style\":\"packed_rowwise\",\"blocks\":[3,1]}}",
	 "plan.json: key '" SINGLE "to_out': blocks [3, 1] cut the 512 columns of 'single_transformer_blocks.0.attn.to_out' into "
	 "384 + 128, but they are 128 + 384\nuse [1, 3], or leave 'blocks' out"},
	/* what reads what */
	{"plan_flow_colwise_unread", &flux, 2, "{\"x_embedder\":\"colwise\"}",
	 "plan.json: key 'x_embedder': 'colwise' would split the output of 'x_embedder', but what reads it needs it whole: use "
	 "'rowwise_split_input', or leave the key out"},
	{"plan_flow_consumer_missing", &flux, 2, "{\"transformer_blocks.*.ff.linear_in\":\"packed_colwise\"}",
	 "plan.json: no key for 'transformer_blocks.0.ff.linear_out': 'transformer_blocks.0.ff.linear_out' reads "
	 "'transformer_blocks.0.ff.linear_in', whose output is split ('packed_colwise', key "
	 "'transformer_blocks.*.ff.linear_in'), but is 'replicated': use 'rowwise'"},
	{"plan_flow_consumer_missing_packed", &flux, 2, "{\"" SINGLE "to_qkv_mlp_proj\":\"packed_colwise\"}",
	 "plan.json: no key for 'single_transformer_blocks.0.attn.to_out': 'single_transformer_blocks.0.attn.to_out' reads "
	 "'single_transformer_blocks.0.attn.to_qkv_mlp_proj', whose output is split ('packed_colwise', key '" SINGLE
	 "to_qkv_mlp_proj'), but is 'replicated': use 'packed_rowwise'"},
	{"plan_flow_consumer_colwise", &flux, 2,
	 "{\"transformer_blocks.*.ff.linear_in\":\"packed_colwise\",\"transformer_blocks.*.ff.linear_out\":\"colwise\"}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_out': 'transformer_blocks.0.ff.linear_out' reads "
	 "'transformer_blocks.0.ff.linear_in', whose output is split ('packed_colwise', key "
	 "'transformer_blocks.*.ff.linear_in'), but is 'colwise': use 'rowwise'"},
	{"plan_flow_split_input_of_split", &flux, 2,
	 "{\"transformer_blocks.*.ff.linear_in\":\"packed_colwise\",\"transformer_blocks.*.ff.linear_out\":\"rowwise_split_input\"}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_out': 'transformer_blocks.0.ff.linear_out' reads "
	 "'transformer_blocks.0.ff.linear_in', whose output is split ('packed_colwise', key "
	 "'transformer_blocks.*.ff.linear_in'), but is 'rowwise_split_input': use 'rowwise'"},
	{"plan_flow_rowwise_of_whole", &flux, 2, "{\"transformer_blocks.*.ff.linear_out\":\"rowwise\"}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_out': 'transformer_blocks.0.ff.linear_out' reads "
	 "'transformer_blocks.0.ff.linear_in', whose output is not split, 'rowwise' needs an input that is: give "
	 "'transformer_blocks.0.ff.linear_in' the style 'packed_colwise', or this key 'rowwise_split_input'"},
	{"plan_flow_rowwise_of_residual", &flux, 2, "{\"double_stream_modulation_img.linear\":\"rowwise\"}",
	 "plan.json: key 'double_stream_modulation_img.linear': the input of 'double_stream_modulation_img.linear' is replicated, "
	 "'rowwise' needs one that is split: use 'rowwise_split_input'"},
	{"plan_flow_qkv_unlike", &flux, 2, "{" ADDED "," OUTS ",\"transformer_blocks.*.attn.to_q\":\"colwise\"}",
	 "plan.json: no key for 'transformer_blocks.0.attn.to_k': 'transformer_blocks.0.attn.to_k' is 'replicated', but "
	 "'transformer_blocks.0.attn.to_q' is 'colwise' (key 'transformer_blocks.*.attn.to_q') and "
	 "'transformer_blocks.0.attn.to_out.0' reads both: they must be split alike, so use 'colwise'"},
	{"plan_flow_streams_unlike", &flux, 2, "{" Q3 ",\"transformer_blocks.*.attn.to_out.0\":\"rowwise\"}",
	 "plan.json: no key for 'transformer_blocks.0.attn.add_q_proj': 'transformer_blocks.0.attn.add_q_proj' is 'replicated', but "
	 "'transformer_blocks.0.attn.to_q' is 'colwise' (key 'transformer_blocks.*.attn.to_q') and "
	 "'transformer_blocks.0.attn.to_out.0' reads both: they must be split alike, so use 'colwise'"},
	{"plan_flow_qkv_rowwise", &flux, 2,
	 "{" ADDED "," OUTS ",\"transformer_blocks.*.attn.to_q\":\"colwise\",\"transformer_blocks.*.attn.to_k\":\"colwise\","
	 "\"transformer_blocks.*.attn.to_v\":\"rowwise_split_input\"}",
	 "plan.json: key 'transformer_blocks.*.attn.to_v': 'transformer_blocks.0.attn.to_v' is 'rowwise_split_input', but "
	 "'transformer_blocks.0.attn.to_q' is 'colwise' (key 'transformer_blocks.*.attn.to_q') and "
	 "'transformer_blocks.0.attn.to_out.0' reads both: they must be split alike, so use 'colwise'"},
	{"plan_flow_one_block_only", &flux, 2, "{\"transformer_blocks.1.ff.linear_in\":\"packed_colwise\"}",
	 "plan.json: no key for 'transformer_blocks.1.ff.linear_out': 'transformer_blocks.1.ff.linear_out' reads "
	 "'transformer_blocks.1.ff.linear_in', whose output is split ('packed_colwise', key "
	 "'transformer_blocks.1.ff.linear_in'), but is 'replicated': use 'rowwise'"},
	/* the degree; structure comes first, also at degree 1 */
	{"plan_degree_heads", &flux, 3, "{" Q3 "," ADDED "," OUTS "}",
	 "plan.json: key 'transformer_blocks.*.attn.to_q': degree 3 does not divide the 8 heads of the transformer "
	 "('transformer_blocks.0.attn.to_q')\ndegrees that work: 1, 2, 4, 8"},
	{"plan_degree_heads_without_rule", &flux, 3, "{}",
	 "plan.json: degree 3 does not divide the 8 heads of the transformer\ndegrees that work: 1, 2, 4, 8"},
	{"plan_degree_zero", &flux, 0, "{}", "degree 0: at least 1 is needed"},
	{"plan_degree_one_checks_too", &flux, 1, "{\"x_embedder\":\"colwise\"}",
	 "plan.json: key 'x_embedder': 'colwise' would split the output of 'x_embedder', but what reads it needs it whole: use "
	 "'rowwise_split_input', or leave the key out"},
};

#define NBAD (sizeof bad_plans / sizeof *bad_plans)

static enum dtp_code apply(const char *text, struct dtp_tree *tree, int degree, struct dtp_err *err)
{
	struct dtp_plan plan;
	enum dtp_code rc = dtp_plan_parse("plan.json", text, strlen(text), &plan, err);

	if (rc)
		return rc;
	rc = dtp_plan_apply(&plan, tree, degree, err);
	dtp_plan_free(&plan);
	return rc;
}

static void refused_with_message(void **state)
{
	const struct bad *b = *state;
	struct dtp_err err = DTP_ERR_INIT;

	assert_int_equal(apply(b->text, b->tree, b->degree, &err), DTP_REFUSED);
	assert_int_equal(err.code, DTP_REFUSED);
	assert_string_equal(err.message, b->message);
}

/* What json.c says about fields must come with the file and the key. */
static const struct {
	const char *text, *part;
} bad_fields[] = {
	{"{\"x_embedder\":{}}", "style"},
	{"{\"x_embedder\":{\"style\":7}}", "style"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,0]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,-1]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,1.5]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,1e300]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,\"1\"]}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":2}}", "blocks"},
	{"{\"x_embedder\":{\"style\":\"packed_colwise\",\"blocks\":[1,1,1,1,1,1,1,1,1]}}", "blocks"},
};
#define NFIELDS (sizeof bad_fields / sizeof *bad_fields)

static void plan_parse_fields_named(void **state)
{
	(void)state;
	for (size_t i = 0; i < NFIELDS; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		apply(bad_fields[i].text, &flux, 2, &err);
		assert_message(&err, DTP_REFUSED, "plan.json: key 'x_embedder'", bad_fields[i].part, (char *)NULL);
	}
}

static void plan_parse_json_errors(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	apply("{\"a\":\"colwise\",\n\"b\":}", &flux, 2, &err);
	assert_message(&err, DTP_REFUSED, "plan.json:2:", (char *)NULL);
	apply("[1]", &flux, 2, &err);
	assert_message(&err, DTP_REFUSED, "plan.json", (char *)NULL);
	apply("{\"x_embedder\":\"colwise\",\"x_embedder\":\"rowwise\"}", &flux, 2, &err);
	assert_message(&err, DTP_REFUSED, "plan.json", "x_embedder", (char *)NULL);
}

static void plan_load_missing_file(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	(void)state;
	assert_int_equal(dtp_plan_load("no/such/plan.json", &plan, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "no/such/plan.json", (char *)NULL);
	dtp_plan_free(&plan); /* harmless after a failure */
}

static void plan_load_file_equals_builtin(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan a, b;

	(void)state;
	for (const struct dtp_builtin_plan *p = dtp_builtin_plans; p->name; p++) {
		assert_int_equal(dtp_plan_load(fixture("../plans/%s.json", p->name), &a, &err), DTP_OK);
		assert_int_equal(dtp_plan_builtin(p->name, &b, &err), DTP_OK);
		assert_int_equal(a.n, b.n);
		assert_true(a.n > 0);
		for (int i = 0; i < a.n; i++) {
			assert_string_equal(a.rules[i].key, b.rules[i].key);
			assert_int_equal(a.rules[i].style, b.rules[i].style);
		}
		dtp_plan_free(&a);
		dtp_plan_free(&b);
	}
}

static void plan_builtin_unknown(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	(void)state;
	assert_int_equal(dtp_plan_builtin("flux3", &plan, &err), DTP_REFUSED);
	assert_string_equal(err.message, "no built-in plan 'flux3': did you mean 'flux2'?\nbuilt-in plans: flux2, text");
}

static void plan_parse_schema_key_ignored(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	assert_int_equal(apply("{\"$schema\":\"schema.json\"}", &flux, 2, &err), DTP_OK);
}

static const struct dtp_module *module(const struct dtp_tree *t, const char *name)
{
	int i = dtp_tree_find(t, name);

	assert_true(i >= 0);
	return &t->modules[i];
}

static void plan_apply_flux2(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;
	int count[DTP_NSTYLES] = {0};

	(void)state;
	assert_int_equal(dtp_plan_builtin("flux2", &plan, &err), DTP_OK);
	assert_int_equal(plan.n, 14);
	assert_int_equal(dtp_plan_apply(&plan, &flux, 4, &err), DTP_OK);
	for (int i = 0; i < flux.n; i++)
		count[flux.modules[i].style]++;
	assert_int_equal(count[DTP_COLWISE], 2 * 6);
	assert_int_equal(count[DTP_ROWWISE], 2 * 4);
	assert_int_equal(count[DTP_PACKED_COLWISE], 2 * 2 + 3);
	assert_int_equal(count[DTP_PACKED_ROWWISE], 3);
	const struct dtp_module *m = module(&flux, "single_transformer_blocks.2.attn.to_qkv_mlp_proj");
	assert_int_equal(m->nblocks, 5);
	assert_int_equal(m->blocks[4], 384);
	assert_string_equal(plan.rules[m->rule].key, "single_transformer_blocks.*.attn.to_qkv_mlp_proj");
	m = module(&flux, "transformer_blocks.1.ff_context.linear_in"); /* proportions became sizes */
	assert_int_equal(m->nblocks, 2);
	assert_int_equal(m->blocks[0], 384);
	assert_int_equal(module(&flux, "x_embedder")->rule, -1);
	dtp_plan_free(&plan);
}

static void plan_apply_refused_changes_nothing(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	assert_int_equal(apply("{" Q3 "," ADDED "," OUTS "}", &flux, 2, &err), DTP_OK);
	assert_int_equal(apply("{\"x_embedder\":\"rowwise_split_input\",\"proj_out\":\"rowwise\"}", &flux, 2, &err), DTP_REFUSED);
	assert_int_equal(module(&flux, "x_embedder")->style, DTP_REPLICATED);
	assert_int_equal(module(&flux, "transformer_blocks.0.attn.to_q")->style, DTP_COLWISE);
	/* and one that passes replaces all of the former */
	assert_int_equal(apply("{\"x_embedder\":\"rowwise_split_input\"}", &flux, 2, &err), DTP_OK);
	assert_int_equal(module(&flux, "x_embedder")->style, DTP_ROWWISE_SPLIT_INPUT);
	assert_int_equal(module(&flux, "transformer_blocks.0.attn.to_q")->style, DTP_REPLICATED);
}

static void plan_apply_split_input_anywhere(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	/* without a star; on a packed input that is whole; on rows that are packed; one block alone */
	assert_int_equal(apply("{\"double_stream_modulation_img.linear\":\"rowwise_split_input\","
			       "\"" SINGLE "to_out\":\"rowwise_split_input\","
			       "\"" SINGLE "to_qkv_mlp_proj\":\"rowwise_split_input\","
			       "\"transformer_blocks.1.ff.linear_in\":\"packed_colwise\","
			       "\"transformer_blocks.1.ff.linear_out\":\"rowwise\"}", &flux, 2, &err), DTP_OK);
}

static void plan_apply_star_over_empty_list(void **state)
{
	struct flux2_size z = klein_tiny;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;
	struct dtp_tree t;
	static struct layers ls;

	(void)state;
	z.nsingle = 0;
	flux2_tree(&t, &ls, &z);
	assert_int_equal(dtp_plan_builtin("flux2", &plan, &err), DTP_OK);
	assert_int_equal(dtp_plan_apply(&plan, &t, 2, &err), DTP_OK);
	dtp_plan_free(&plan);
	dtp_tree_free(&t);
}

static void valid_degrees(const char *text, const struct dtp_tree *t, const char *expected)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;
	char buf[256];

	assert_int_equal(dtp_plan_parse("plan.json", text, strlen(text), &plan, &err), DTP_OK);
	dtp_plan_valid_degrees(&plan, t, buf, sizeof buf);
	assert_string_equal(buf, expected);
	dtp_plan_free(&plan);
}

static void plan_degrees_listed(void **state)
{
	(void)state;
	valid_degrees("{" Q3 "," ADDED "," OUTS "}", &flux, "1, 2, 4, 8");
	valid_degrees("{\"x_embedder\":\"colwise\"}", &flux, "none");
	valid_degrees("{\"embed_tokens\":\"rowwise\"}", &qwen, "any");
}

/* A dimension or a block that a degree which suits the heads does not divide. */
static const struct {
	struct flux2_size z;
	int degree;
	const char *text, *message;
} uneven_plans[] = {
	{{12, 16, 100, 128, 120, 1, 1}, 3,
	 "{\"transformer_blocks.*.ff.linear_in\":\"packed_colwise\",\"transformer_blocks.*.ff.linear_out\":\"rowwise\"}",
	 "plan.json: key 'transformer_blocks.*.ff.linear_in': degree 3 does not divide block 1 of the 200 rows (100 rows) of "
	 "'transformer_blocks.0.ff.linear_in'\ndegrees that work: 1, 2, 4"},
	{{12, 16, 100, 128, 120, 1, 1}, 6,
	 "{\"" SINGLE "to_qkv_mlp_proj\":\"packed_colwise\",\"" SINGLE "to_out\":\"packed_rowwise\"}",
	 "plan.json: key '" SINGLE "to_qkv_mlp_proj': degree 6 does not divide block 4 of the 776 rows (100 rows) of "
	 "'single_transformer_blocks.0.attn.to_qkv_mlp_proj'\ndegrees that work: 1, 2, 4"},
	{{12, 16, 100, 128, 90, 1, 1}, 4, "{\"context_embedder\":\"rowwise_split_input\"}",
	 "plan.json: key 'context_embedder': degree 4 does not divide the 90 columns of 'context_embedder'\n"
	 "degrees that work: 1, 2, 3, 6"},
};
#define NUNEVEN (sizeof uneven_plans / sizeof *uneven_plans)

static void plan_degree_dimensions(void **state)
{
	(void)state;
	for (size_t i = 0; i < NUNEVEN; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		static struct layers ls;
		struct dtp_tree t;
		flux2_tree(&t, &ls, &uneven_plans[i].z);
		assert_int_equal(apply(uneven_plans[i].text, &t, uneven_plans[i].degree, &err), DTP_REFUSED);
		assert_string_equal(err.message, uneven_plans[i].message);
		dtp_tree_free(&t);
	}
}

static void plan_degree_text_encoder_any(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	(void)state;
	assert_int_equal(dtp_plan_builtin("text", &plan, &err), DTP_OK);
	for (int d = 1; d <= 9; d++)
		assert_int_equal(dtp_plan_apply(&plan, &qwen, d, &err), DTP_OK);
	assert_int_equal(module(&qwen, "embed_tokens")->style, DTP_ROWWISE);
	assert_int_equal(module(&qwen, "layers.3.self_attn.k_proj")->style, DTP_COLWISE);
	dtp_plan_free(&plan);
}

/* The n-th block of the documentation with this language, malloc'd; NULL past the last. */
static char *docs_block(const char *language, int n)
{
	char fence[32], *docs = read_file(fixture("../docs/plans.md"), NULL), *p = docs, *out = NULL;

	snprintf(fence, sizeof fence, "\n```%s\n", language);
	for (int i = 0; (p = strstr(p, fence)); i++) {
		p += strlen(fence);
		if (i == n) {
			out = strndup(p, (size_t)(strstr(p, "\n```") - p));
			break;
		}
	}
	free(docs);
	return out;
}

static void plan_docs_messages_true(void **state)
{
	char *block;
	int n = 0;

	(void)state;
	for (; (block = docs_block("text", n)); n++) {
		bool real = false;
		for (size_t i = 0; i < NBAD; i++)
			real = real || !strcmp(block, bad_plans[i].message);
		for (size_t i = 0; i < NUNEVEN; i++)
			real = real || !strcmp(block, uneven_plans[i].message);
		if (!real)
			fail_msg("docs/plans.md shows a message that no test gets: %s", block);
		free(block);
	}
	assert_true(n >= 20);
}

static void plan_docs_example_applies(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	char *text = docs_block("json", 0);

	(void)state;
	assert_non_null(text);
	if (apply(text, &flux, 4, &err))
		fail_msg("%s", err.message);
	assert_null(docs_block("json", 1));
	free(text);
}

static void suggest_distance(void **state)
{
	static const struct {
		const char *a, *b;
		int d;
	} cases[] = {{"", "", 0}, {"abc", "abc", 0}, {"abc", "", 3}, {"", "ab", 2}, {"abc", "acb", 1}, {"abc", "abd", 1},
		     {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"abcd", "badc", 2}, {"a", "abcdefgh", 6}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(dtp_edit_distance(cases[i].a, cases[i].b, 5), cases[i].d);
}

/* For the test of the JSON Schema: a plan as a file, whose name says whether the parser takes it. */
static void write_plan(const char *dir, const char *name, const char *text)
{
	struct dtp_err err;
	struct dtp_plan plan;
	bool parsed = !dtp_plan_parse("plan.json", text, strlen(text), &plan, &err);
	char path[1024];

	snprintf(path, sizeof path, "%s/%s_%s.json", dir, parsed ? "parsed" : "refused", name);
	FILE *f = fopen(path, "w");
	if (!f || fputs(text, f) < 0 || fclose(f)) {
		perror(path);
		exit(1);
	}
	if (parsed)
		dtp_plan_free(&plan);
}

static void write_plans(const char *dir)
{
	char name[64];

	for (size_t i = 0; i < NBAD; i++)
		write_plan(dir, bad_plans[i].name, bad_plans[i].text);
	for (size_t i = 0; i < NUNEVEN; i++) {
		snprintf(name, sizeof name, "uneven_%zu", i);
		write_plan(dir, name, uneven_plans[i].text);
	}
	for (size_t i = 0; i < NFIELDS; i++) {
		snprintf(name, sizeof name, "field_%zu", i);
		write_plan(dir, name, bad_fields[i].text);
	}
}

/* With an argument: writes its plans to that folder. */
int main(int argc, char **argv)
{
	const struct CMUnitTest others[] = {
		cmocka_unit_test(plan_parse_fields_named),
		cmocka_unit_test(plan_parse_json_errors),
		cmocka_unit_test(plan_load_missing_file),
		cmocka_unit_test(plan_load_file_equals_builtin),
		cmocka_unit_test(plan_builtin_unknown),
		cmocka_unit_test(plan_parse_schema_key_ignored),
		cmocka_unit_test(plan_apply_flux2),
		cmocka_unit_test(plan_apply_refused_changes_nothing),
		cmocka_unit_test(plan_apply_split_input_anywhere),
		cmocka_unit_test(plan_apply_star_over_empty_list),
		cmocka_unit_test(plan_degrees_listed),
		cmocka_unit_test(plan_degree_dimensions),
		cmocka_unit_test(plan_degree_text_encoder_any),
		cmocka_unit_test(plan_docs_messages_true),
		cmocka_unit_test(plan_docs_example_applies),
		cmocka_unit_test(suggest_distance),
	};
	struct CMUnitTest tests[NBAD + sizeof others / sizeof *others];

	if (argc > 1) {
		write_plans(argv[1]);
		return 0;
	}

	for (size_t i = 0; i < NBAD; i++)
		tests[i] = (struct CMUnitTest){bad_plans[i].name, refused_with_message, NULL, NULL, (void *)&bad_plans[i]};
	memcpy(tests + NBAD, others, sizeof others);
	flux2_tree(&flux, &flux_layers, &klein_tiny);
	qwen3_tree(&qwen, &qwen_layers, &qwen3_tiny);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	dtp_tree_free(&flux);
	dtp_tree_free(&qwen);
	return failed;
}
