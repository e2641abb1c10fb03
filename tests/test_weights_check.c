/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints against trees: what is refused, what is warned of, how much memory is predicted, and the shards' hashes. */
#include "json.h"
#include "loading.h"
#include "recorder.h"
#include "sha256.h"

static struct layers layers;

/* ---- goldens */

static void compare_hash(const cJSON *hashes, int rank, const void *data, size_t len, const char *name)
{
	char hex[65];
	const cJSON *want = cJSON_GetArrayItem(hashes, rank);

	assert_true(cJSON_IsString(want));
	sha256_hex(data, len, hex);
	if (strcmp(hex, want->valuestring))
		fail_msg("%s of rank %d: %s, expected %s", name, rank, hex, want->valuestring);
}

static void compare_shards(struct dtp_tree *t, const struct dtp_st *st, int degree, const cJSON *golden)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_param p;
	int found = 0;

	plan_tree(t, "flux2", degree);
	for (int i = 0; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++) {
			const cJSON *g = cJSON_GetObjectItemCaseSensitive(golden, p.name);
			struct dtp_split s;
			dtp_placement(t, &p, 0, degree, &s);
			if (!g) { /* not listed: replicated */
				assert_int_equal(s.dim, -1);
				continue;
			}
			found++;
			assert_int_equal(s.dim, cJSON_GetObjectItem(g, "dim")->valueint);
			assert_string_equal(dtp_style_name(t->modules[i].style), cJSON_GetObjectItem(g, "style")->valuestring);
			int64_t shape[DTP_MAX_DIMS];
			dtp_split_shape(&p, &s, shape);
			size_t n = (size_t)(shape[0] * shape[1]);
			void *shard = malloc(n * 2);
			float *wide = malloc(n * sizeof *wide);
			for (int rank = 0; rank < degree; rank++) {
				must(dtp_weights_slice(t, st, "", &p, rank, degree, shard, &err), &err);
				dtp_to_f32(wide, shard, DTP_BF16, n);
				compare_hash(cJSON_GetObjectItem(g, "sha256"), rank, shard, n * 2, p.name);
				compare_hash(cJSON_GetObjectItem(g, "sha256_float32"), rank, wide, n * 4, p.name);
			}
			free(shard);
			free(wide);
		}
	assert_int_equal(found, cJSON_GetArraySize(golden));
}

static void weights_slice_goldens(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	struct dtp_tree t;
	struct dtp_st st;
	int degrees = 0;

	(void)state;
	must(dtp_json_load(fixture("reference/tp_shards_klein-tiny.json"), 0, &doc, &err), &err);
	open_fixture("models/klein-tiny/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	for (const cJSON *tp = cJSON_GetObjectItem(doc.root, "tp")->child; tp; tp = tp->next, degrees++)
		compare_shards(&t, &st, atoi(tp->string), tp);
	assert_int_equal(degrees, 2);
	dtp_tree_free(&t);
	dtp_st_close(&st);
	dtp_json_free(&doc);
}

static void weights_memory_predicted(void **state)
{
	struct dtp_tree t;
	struct recorder r;

	(void)state;
	recorder_init(&r);
	mixed_tree(&t, &layers);
	plan_text(&t, MIXED_PLAN, 2);
	/* bf16 matrices, f32 vectors */
	uint64_t matrices = 3 * 5 + 7 * 3 + 1500 * 401 + 401 * 1020 + 5 * 27 + 5 * 3, vectors = 3 + 7 + 1500 + 401 + 5 + 18;
	assert_int_equal(dtp_weights_memory(&t, 0, 2, &r.be), matrices * 2 + vectors * 4);      /* table: rows 0..5, one: none */
	assert_int_equal(dtp_weights_memory(&t, 1, 2, &r.be), (matrices + 3 + 1) * 2 + vectors * 4);
	dtp_tree_free(&t);
}

/* ---- checks */

struct listener {
	struct dtp_monitor mon;
	char warning[1024];
	int warnings;
};

static void warned(void *arg, const char *text)
{
	struct listener *m = arg;

	m->warnings++;
	snprintf(m->warning, sizeof m->warning, "%s", text);
}

static void listener_init(struct listener *m)
{
	*m = (struct listener){.mon = dtp_monitor_none};
	m->mon.arg = m;
	m->mon.warn = warned;
}

static void check_mixed(const struct content *c, int n, struct listener *m, enum dtp_code code, struct dtp_err *err)
{
	struct dtp_tree t;
	struct dtp_st st;

	listener_init(m);
	open_file(write_checkpoint("check.safetensors", c, n), &st);
	mixed_tree(&t, &layers);
	t.modules[dtp_tree_find(&t, "one")].needed = false;
	assert_int_equal(dtp_weights_check(&t, &st, "net.", &m->mon, err), code);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* The mixed checkpoint with its first tensor replaced. */
static void check_first(struct content first, const char *const *parts)
{
	struct content c[NMIXED];
	struct dtp_err err = DTP_ERR_INIT;
	struct listener m;

	memcpy(c, mixed, sizeof mixed);
	c[0] = first;
	check_mixed(c, NMIXED, &m, DTP_REFUSED, &err);
	for (; *parts; parts++)
		assert_message(&err, DTP_REFUSED, "check.safetensors'", *parts, (char *)NULL);
}

static void weights_check_refusals(void **state)
{
	(void)state;
	check_first((struct content){"net.x.weight", "F16", 2, {6, 5}},
		    (const char *[]){" lacks tensor 'net.a.weight' of shape [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "F16", 2, {5, 6}},
		    (const char *[]){": tensor 'net.a.weight' has the shape [5, 6], expected [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "F16", 1, {30}},
		    (const char *[]){": tensor 'net.a.weight' has the shape [30], expected [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "I64", 2, {6, 5}},
		    (const char *[]){": tensor 'net.a.weight' has the dtype I64; supported are BF16, F16 and F32", NULL});
	check_first((struct content){"net.a.weight", "F8_E4M3", 2, {6, 5}},
		    (const char *[]){": tensor 'net.a.weight' has the dtype F8_E4M3: quantised checkpoints are not supported; "
				     "supported are BF16, F16 and F32", NULL});
	check_first((struct content){"net.a.weight", "U8", 2, {6, 3}}, /* two values a byte: named for what it is, not its shape */
		    (const char *[]){"has the dtype U8: quantised checkpoints are not supported", NULL});
	check_first((struct content){"net.a.qweight", "U8", 2, {6, 3}},
		    (const char *[]){" lacks tensor 'net.a.weight', but 'net.a.qweight' is there: quantised checkpoints are not "
				     "supported; supported are BF16, F16 and F32", NULL});
}

static void weights_check_extras_warned(void **state)
{
	struct content c[NMIXED + 5];
	struct dtp_err err = DTP_ERR_INIT;
	struct listener m;

	(void)state;
	memcpy(c, mixed, sizeof mixed);
	check_mixed(c, NMIXED, &m, DTP_OK, &err); /* num_batches_tracked and the module that is not needed: no extras */
	assert_int_equal(m.warnings, 0);
	check_mixed(c, NMIXED - 1, &m, DTP_OK, &err); /* what is not needed may be missing */
	c[NMIXED] = (struct content){"vision.x", "I64", 0, {0}};
	check_mixed(c, NMIXED + 1, &m, DTP_OK, &err);
	assert_int_equal(m.warnings, 1);
	assert_string_equal(m.warning, "1 tensor of the checkpoint that the net does not use: 'vision.x'");
	c[NMIXED + 1] = (struct content){"a.weight", "F32", 1, {2}}; /* outside the prefix */
	c[NMIXED + 2] = (struct content){"vision.y", "F8_E4M3", 1, {3}};
	c[NMIXED + 3] = (struct content){"vision.z", "U8", 1, {3}};
	check_mixed(c, NMIXED + 4, &m, DTP_OK, &err);
	assert_int_equal(m.warnings, 1);
	assert_string_equal(m.warning, "4 tensors of the checkpoint that the net does not use: 'a.weight', 'vision.x', "
			    "'vision.y', ...");
}

static void weights_check_fixtures(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct listener m;
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	listener_init(&m);
	open_fixture("models/klein-tiny/text_encoder", "model", &st);
	qwen3_tree(&t, &layers, &qwen3_tiny);
	must(dtp_weights_check(&t, &st, "model.", &m.mon, &err), &err);
	assert_int_equal(m.warnings, 0);
	dtp_tree_free(&t);
	dtp_st_close(&st);
	/* Of another size: the shape is named; with several files, the folder is. */
	open_fixture("models/klein-tiny-sharded/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	assert_int_equal(dtp_weights_check(&t, &st, "", &m.mon, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "transformer_blocks.0.ff.linear_in.weight", "[512, 128], expected [768, 128]",
		       (char *)NULL);
	assert_int_equal(dtp_weights_check(&t, &st, "no.", &m.mon, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "none of the 5 files of '", "klein-tiny-sharded/transformer' holds tensor 'no.x_embedder",
		       (char *)NULL);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_slice_goldens),
		cmocka_unit_test(weights_memory_predicted),
		cmocka_unit_test(weights_check_refusals),
		cmocka_unit_test(weights_check_extras_warned),
		cmocka_unit_test(weights_check_fixtures),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
