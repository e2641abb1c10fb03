/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA files: which tensors belong to which module, what a rank reads of them, and the sum. */
#include "backend.h"
#include "lora.h"
#include "support.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { IN = 6, OUT = 8, RANK = 2 };

/* transformer_blocks.0.attn.to_q, to_k, to_v (one tensor in the other scheme), norm_out.linear (halves the other way round). */
static void make_tree(struct dtp_tree *t)
{
	static struct dtp_layer l[4];

	dtp_tree_init(t, "transformer");
	dtp_tree_list(t, "transformer_blocks");
	dtp_tree_linear(t, &l[0], OUT, IN, false, "transformer_blocks.0.attn.to_q");
	dtp_tree_linear(t, &l[1], OUT, IN, false, "transformer_blocks.0.attn.to_k");
	dtp_tree_linear(t, &l[2], OUT, IN, false, "transformer_blocks.0.attn.to_v");
	dtp_tree_linear(t, &l[3], OUT, IN, false, "norm_out.linear");
}

/* ---- files of factors whose values tell where they stood */
struct tensor {
	const char *name;
	int64_t rows, cols; /* cols 0: a scalar; rows is then its value */
	enum dtp_dtype type;
};

static float value(const char *name, int64_t i)
{
	return (float)((int64_t)strlen(name) * 3 % 7 + i * 5 % 23) / 8 - 1;
}

static char path[64];

static void write_factors(const struct tensor *t, int n, const char *const (*meta)[2], int nmeta)
{
	struct dtp_st_out out[16];
	static float data[16][1024];
	static uint16_t narrow[16][1024];
	struct dtp_err err = DTP_ERR_INIT;

	for (int i = 0; i < n; i++) {
		int64_t count = t[i].cols ? t[i].rows * t[i].cols : 1;
		for (int64_t k = 0; k < count; k++)
			data[i][k] = t[i].cols ? value(t[i].name, k) : (float)t[i].rows;
		dtp_from_f32(narrow[i], t[i].type, data[i], t[i].type == DTP_F32 ? 0 : (size_t)count);
		out[i].name = t[i].name;
		out[i].tensor = dtp_tensor_make(t[i].type == DTP_F32 ? (void *)data[i] : narrow[i], t[i].type, t[i].cols ? 2 : 1,
						t[i].cols ? (int64_t[]){t[i].rows, t[i].cols} : (int64_t[]){1});
	}
	if (dtp_st_write(path, NULL, out, n, meta, nmeta, &err))
		fail_msg("%s", err.message);
}

static char warned[2048];

static void keep_warning(void *arg, const char *text)
{
	(void)arg;
	snprintf(warned, sizeof warned, "%s", text);
}

static enum dtp_code open_lora(const char *given, struct dtp_tree *t, struct dtp_lora **l, struct dtp_err *err)
{
	struct dtp_monitor mon = dtp_monitor_none;

	mon.warn = keep_warning;
	warned[0] = '\0';
	make_tree(t);
	return dtp_lora_open(&given, 1, t, &mon, l, err);
}

static const struct dtp_module *module(const struct dtp_tree *t, const char *name)
{
	return &t->modules[dtp_tree_find(t, name)];
}

#define Q "transformer_blocks.0.attn.to_q"

static void lora_names_of_every_scheme(void **state)
{
	static const char *const stems[][3] = {
		{"transformer." Q, ".lora_A.weight", ".lora_B.weight"},
		{"base_model.model." Q, ".lora_A.default.weight", ".lora_B.default.weight"},
		{"diffusion_model." Q, ".lora_down.weight", ".lora_up.weight"},
		{"model.diffusion_model." Q, ".lora_A.weight", ".lora_B.weight"},
		{"transformer.base_model.model." Q, ".lora_A.weight", ".lora_B.weight"},
		{Q, ".lora.down.weight", ".lora.up.weight"},
		{"lora_unet_transformer_blocks_0_attn_to_q", ".lora_down.weight", ".lora_up.weight"},
		{"lora_transformer_transformer_blocks_0_attn_to_q", ".lora_down.weight", ".lora_up.weight"},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_lora *l;
	char a[128], b[128];

	(void)state;
	for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
		snprintf(a, sizeof a, "%s%s", stems[i][0], stems[i][1]);
		snprintf(b, sizeof b, "%s%s", stems[i][0], stems[i][2]);
		write_factors((struct tensor[]){{a, RANK, IN, DTP_F32}, {b, OUT, RANK, DTP_BF16}}, 2, NULL, 0);
		if (open_lora(path, &t, &l, &err))
			fail_msg("%s: %s", a, err.message);
		assert_int_equal(module(&t, Q)->nlora, 1);
		assert_int_equal(module(&t, "norm_out.linear")->nlora, 0);
		assert_string_equal(warned, "");
		dtp_lora_close(l);
		dtp_tree_free(&t);
	}
}

static float scale_with(const char *given, const struct tensor *t, int n, const char *const (*meta)[2], int nmeta)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree tree;
	struct dtp_lora *l;

	write_factors(t, n, meta, nmeta);
	if (open_lora(given, &tree, &l, &err))
		fail_msg("%s", err.message);
	float scale = module(&tree, Q)->lora[0].scale;
	dtp_lora_close(l);
	dtp_tree_free(&tree);
	return scale;
}

static void lora_scale_is_alpha_over_rank_times_the_given_one(void **state)
{
	static const struct tensor pair[] = {{"transformer." Q ".lora_A.weight", RANK, IN, DTP_F32},
		{"transformer." Q ".lora_B.weight", OUT, RANK, DTP_F32}, {"transformer." Q ".alpha", 5, 0, DTP_F32}};
	static const char *const plain[][2] = {{"lora_adapter_metadata", "{\"transformer.r\": 2, \"transformer.lora_alpha\": 3}"}};
	static const char *const rooted[][2] = {{"lora_adapter_metadata",
		"{\"transformer.lora_alpha\": 3, \"transformer.use_rslora\": true}"}};
	static const char *const each[][2] = {{"lora_adapter_metadata",
		"{\"transformer.lora_alpha\": 3, \"transformer.alpha_pattern\": {\"" Q "\": 7}}"}};
	static const char *const ends[][2] = {{"lora_adapter_metadata",
		"{\"transformer.lora_alpha\": 3, \"transformer.alpha_pattern\": {\"o_q\": 9, \"to_q\": 5, \"" Q "\": 7}}"}};
	/* PEFT's keys are regular expressions; the first that fits counts */
	static const char *const expressions[][2] = {{"lora_adapter_metadata",
		"{\"transformer.lora_alpha\": 3, \"transformer.alpha_pattern\": {\"[0-9]+\\\\.attn\\\\.to_k\": 5, \"attn\": 6, "
		"\".*\\\\.[0-9]+\\\\.attn\\\\.to_(q|v)\": 11, \"to_q\": 7}}"}};
	char given[80];

	(void)state;
	snprintf(given, sizeof given, "%s:-0.5", path);
	assert_true(scale_with(path, pair, 2, NULL, 0) == 1);
	assert_true(scale_with(given, pair, 2, NULL, 0) == -0.5f);
	assert_true(scale_with(given, pair, 3, NULL, 0) == -1.25f);
	assert_true(scale_with(path, pair, 2, plain, 1) == 1.5f);
	assert_true(scale_with(path, pair, 3, plain, 1) == 2.5f);
	assert_true(scale_with(path, pair, 2, rooted, 1) == (float)(3 / sqrt(2)));
	assert_true(scale_with(path, pair, 2, each, 1) == 3.5f);
	assert_true(scale_with(path, pair, 2, ends, 1) == 2.5f);
	assert_true(scale_with(path, pair, 2, expressions, 1) == 5.5f);
}

/* B A of the whole module against what a rank holds: rows of b0 from row0 on, halves exchanged. */
static void check_slice(const struct dtp_module *m, const struct dtp_split *split, const char *a, const char *b, int64_t row0,
			int64_t first_row)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_lora_slice *s;

	if (dtp_lora_slice_read(m, split, &s, &err))
		fail_msg("%s", err.message);
	assert_int_equal(s->nparts, 1);
	assert_int_equal(s->part[0].r, RANK);
	assert_int_equal(s->part[0].type, DTP_F32);
	assert_true(s->part[0].scale == 2);
	const float *have_a = s->part[0].a, *have_b = s->part[0].b;
	int64_t row = 0, col = 0;
	for (int i = 0; i < split->nruns; i++)
		for (int64_t at = split->run[i].begin; at < split->run[i].end; at++) {
			for (int k = 0; k < RANK && split->dim == 1; k++)
				assert_true(have_a[k * s->cols + col] == value(a, k * IN + at));
			for (int k = 0; k < RANK && split->dim != 1; k++)
				assert_true(have_b[row * RANK + k] == value(b, (row0 + (at + first_row) % OUT) * RANK + k));
			col += split->dim == 1;
			row += split->dim != 1;
		}
	assert_int_equal(split->dim == 1 ? s->cols : s->rows, split->dim == 1 ? col : row);
	dtp_lora_slice_free(s);
}

static void lora_slices_of_fused_and_turned_modules(void **state)
{
	static const struct dtp_split splits[] = {
		{.dim = -1, .nruns = 1, .run = {{0, OUT}}}, {.dim = 0, .nruns = 2, .run = {{1, 3}, {5, 8}}},
		{.dim = 0, .nruns = 1, .run = {{3, 6}}},    {.dim = 1, .nruns = 2, .run = {{0, 1}, {3, 6}}},
	};
	static const struct tensor tensors[] = {
		{"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", RANK, IN, DTP_F32},
		{"lora_unet_double_blocks_0_img_attn_qkv.lora_up.weight", 3 * OUT, RANK, DTP_F32},
		{"diffusion_model.final_layer.adaLN_modulation.1.lora_A.weight", RANK, IN, DTP_F32},
		{"diffusion_model.final_layer.adaLN_modulation.1.lora_B.weight", OUT, RANK, DTP_F32},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_lora *l;
	char given[80];

	(void)state;
	snprintf(given, sizeof given, "%s:2", path);
	write_factors(tensors, 4, NULL, 0);
	if (open_lora(given, &t, &l, &err))
		fail_msg("%s", err.message);
	for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
		check_slice(module(&t, Q), &splits[i], tensors[0].name, tensors[1].name, 0, 0);
		check_slice(module(&t, "transformer_blocks.0.attn.to_k"), &splits[i], tensors[0].name, tensors[1].name, OUT, 0);
		check_slice(module(&t, "transformer_blocks.0.attn.to_v"), &splits[i], tensors[0].name, tensors[1].name, 2 * OUT, 0);
		check_slice(module(&t, "norm_out.linear"), &splits[i], tensors[2].name, tensors[3].name, 0, OUT / 2);
	}
	dtp_lora_close(l);
	dtp_tree_free(&t);
}

/* Read calls of this process, or -1 where the system does not count them. */
static long read_calls(void)
{
	FILE *f = fopen("/proc/self/io", "r");
	char line[100];
	long n = -1;

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "syscr: %ld", &n) == 1)
			break;
	if (f)
		fclose(f);
	return n;
}

/* Rows of A are close to each other: what lies between a rank's columns costs less than a call for each. */
static void lora_columns_take_one_read(void **state)
{
	static const struct tensor pair[] = {{"transformer." Q ".lora_A.weight", RANK, IN, DTP_F32},
					     {"transformer." Q ".lora_B.weight", OUT, RANK, DTP_F32}};
	static const struct dtp_split split = {.dim = 1, .nruns = 2, .run = {{0, 1}, {3, 6}}};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_lora_slice *s;
	struct dtp_tree t;
	struct dtp_lora *l;

	(void)state;
	long first = read_calls(), second = read_calls();
	if (first < 0)
		skip();
	write_factors(pair, 2, NULL, 0);
	if (open_lora(path, &t, &l, &err))
		fail_msg("%s", err.message);
	long before = read_calls();
	if (dtp_lora_slice_read(module(&t, Q), &split, &s, &err))
		fail_msg("%s", err.message);
	assert_int_equal(read_calls() - before, second - first + 2);
	dtp_lora_slice_free(s);
	dtp_lora_close(l);
	dtp_tree_free(&t);
}

static void lora_that_is_wrong_is_refused(void **state)
{
#define A "transformer." Q ".lora_A.weight"
#define B "transformer." Q ".lora_B.weight"
	static const struct {
		struct tensor t[3];
		int n;
		const char *message;
	} cases[] = {
		{{{A, RANK, IN, DTP_F32}}, 1, "tensor '" A "' has no partner: a LoRA has two factors for a module"},
		{{{A, RANK, IN, DTP_I32}, {B, OUT, RANK, DTP_F32}}, 2, "tensor '" A "' has the dtype 'I32'; F32, BF16 and F16 are read"},
		{{{A, RANK, IN + 1, DTP_F32}, {B, OUT, RANK, DTP_F32}}, 2, "tensors '" A "' [2, 7] and '" B "' [8, 2] do not fit module '" Q
		  "', to whose weight [8, 6] factors [r, 6] and [8, r] add"},
		{{{A, RANK, IN, DTP_F32}, {B, OUT, RANK + 1, DTP_F32}}, 2, "tensors '" A "' [2, 6] and '" B "' [8, 3] do not fit module '" Q
		  "', to whose weight [8, 6] factors [r, 6] and [8, r] add"},
		{{{A, RANK, IN, DTP_F32}, {B, OUT, RANK, DTP_F32}, {"transformer." Q ".dora_scale", 1, 8, DTP_F32}}, 3,
		 "tensor 'transformer." Q ".dora_scale' (DoRA); only LoRA itself is merged"},
		{{{A, RANK, IN, DTP_F32}, {B, OUT, RANK, DTP_F32}, {"model.diffusion_model." Q ".diff", OUT, IN, DTP_F32}}, 3,
		 "tensor 'model.diffusion_model." Q ".diff' (a full difference); only LoRA itself is merged"},
		{{{"unet.down.lora_A.weight", 1, 2, DTP_F32}}, 1, "changes nothing here: none of its 1 tensors names a module of the transformer"
		  " (it is for another model, or no LoRA): 'unet.down.lora_A.weight'"},
	};
	struct dtp_tree t;
	struct dtp_lora *l;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		write_factors(cases[i].t, cases[i].n, NULL, 0);
		assert_int_equal(open_lora(path, &t, &l, &err), DTP_REFUSED);
		if (!strstr(err.message, path) || !strstr(err.message, cases[i].message))
			fail_msg("'%s' does not say '%s'", err.message, cases[i].message);
		dtp_tree_free(&t);
	}
}

static void lora_keys_that_are_no_expressions_are_refused(void **state)
{
	static const struct tensor pair[] = {{A, RANK, IN, DTP_F32}, {B, OUT, RANK, DTP_F32}};
	static const struct {
		const char *key, *why;
	} cases[] = {
		{"to_(q", "the pattern is not valid: missing closing parenthesis"},
		{"(([a-z_0-9]*\\\\.?)*)*[A-Z]", "the pattern fails on '" Q "': match limit exceeded"},
	};
	char about[200], want[300];
	const char *const meta[][2] = {{"lora_adapter_metadata", about}};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_tree t;
		struct dtp_lora *l;
		snprintf(about, sizeof about, "{\"transformer.alpha_pattern\": {\"%s\": 7}}", cases[i].key);
		write_factors(pair, 2, meta, 1);
		assert_int_equal(open_lora(path, &t, &l, &err), DTP_REFUSED);
		snprintf(want, sizeof want, "' of 'transformer.alpha_pattern': %s", cases[i].why);
		assert_message(&err, DTP_REFUSED, path, want, NULL);
		dtp_tree_free(&t);
	}
}

static void lora_scale_beyond_a_float_is_refused(void **state)
{
	static const struct tensor pair[] = {{A, RANK, IN, DTP_F32}, {B, OUT, RANK, DTP_F32}};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_lora *l;
	char given[80], want[200];

	(void)state;
	write_factors(pair, 2, NULL, 0);
	snprintf(given, sizeof given, "%s:1e39", path);
	assert_int_equal(open_lora(given, &t, &l, &err), DTP_REFUSED);
	snprintf(want, sizeof want, "'%s': the scale of module '" Q "' is not finite", path);
	assert_string_equal(err.message, want);
	dtp_tree_free(&t);
}

static void lora_tensors_that_are_not_applied_are_listed(void **state)
{
	static const struct tensor tensors[] = {{A, RANK, IN, DTP_F32}, {B, OUT, RANK, DTP_F32},
		{"text_encoder.q_proj.lora_A.weight", RANK, IN, DTP_F32}, {"text_encoder.q_proj.lora_B.weight", OUT, RANK, DTP_F32}};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tree t;
	struct dtp_lora *l;
	char want[300];

	(void)state;
	write_factors(tensors, 4, NULL, 0);
	assert_int_equal(open_lora(path, &t, &l, &err), DTP_OK);
	snprintf(want, sizeof want, "'%s': 2 of 4 tensors name no module of the transformer and are not applied: "
		 "'text_encoder.q_proj.lora_A.weight', 'text_encoder.q_proj.lora_B.weight'", path);
	assert_string_equal(warned, want);
	dtp_lora_close(l);
	dtp_tree_free(&t);
}

/* Random factors of type, and what they are as floats. */
struct factors {
	struct dtp_low_rank of;
	float *b, *a;
	void *kept_b, *kept_a;
};

static float *fill_factor(void **kept, int64_t n, enum dtp_dtype type)
{
	float *x = malloc((size_t)(n + 1) * sizeof *x);

	*kept = malloc((size_t)(n + 1) * dtp_dtype_size(type));
	for (int64_t i = 0; i < n; i++)
		x[i] = test_normal();
	dtp_from_f32(*kept, type, x, (size_t)n);
	dtp_to_f32(x, *kept, type, (size_t)n);
	return x;
}

static struct factors random_factors(enum dtp_dtype type, int64_t n, int64_t r, int64_t k, float scale)
{
	struct factors f;

	f.b = fill_factor(&f.kept_b, n * r, type);
	f.a = fill_factor(&f.kept_a, r * k, type);
	f.of = (struct dtp_low_rank){r, scale, type, f.kept_b, f.kept_a};
	return f;
}

/* Element (i, j) of what is added, in double, and the sum of the sizes of what it is made of. */
static double add_element(const struct factors *f, int64_t k, int64_t i, int64_t j, double *size)
{
	double sum = 0;

	for (int64_t l = 0; l < f->of.r; l++) {
		double x = f->of.scale * ((double)f->b[i * f->of.r + l] * f->a[l * k + j]);
		sum += x;
		*size += fabs(x);
	}
	return sum;
}

/* dst as T plus two parts of these types, each element against a sum in double. */
static void check_sum(struct dtp_backend *be, enum dtp_dtype t, const enum dtp_dtype types[2], int64_t n, int64_t r, int64_t k)
{
	float *want = malloc((size_t)(n * k + 1) * sizeof *want), *got = malloc((size_t)(n * k + 1) * sizeof *got);
	struct factors f[2] = {random_factors(types[0], n, r, k, 0.7f), random_factors(types[1], n, r + 1, k, -1.3f)};
	struct dtp_low_rank parts[2] = {f[0].of, f[1].of};
	char *dst = malloc((size_t)(n * k + 1) * dtp_dtype_size(t));
	struct dtp_err err = DTP_ERR_INIT;

	for (int64_t i = 0; i <= n * k; i++)
		want[i] = test_normal();
	dtp_from_f32(dst, t, want, (size_t)(n * k + 1));
	dtp_to_f32(want, dst, t, (size_t)(n * k + 1));
	assert_int_equal(be->ops->low_rank_add(be, dst, t, parts, 2, n, k, &err), DTP_OK);
	dtp_to_f32(got, dst, t, (size_t)(n * k + 1));
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < k; j++) {
			double size = fabs(want[i * k + j]), sum = want[i * k + j];
			sum += add_element(&f[0], k, i, j, &size) + add_element(&f[1], k, i, j, &size);
			double rounding = t == DTP_BF16 ? 0x1p-8 * fabs(sum) : 0;
			assert_true(fabs(got[i * k + j] - sum) <= (double)(r + 4) * 0x1p-24 * size + rounding);
		}
	assert_true(got[n * k] == want[n * k]);
	for (int i = 0; i < 2; i++)
		free(f[i].a), free(f[i].b), free(f[i].kept_a), free(f[i].kept_b);
	free(dst), free(want), free(got);
}

/* Blocks of the kernel, stretches of columns, and what is left at their edges; even and odd ranks. */
static void lora_sum_equals_the_plain_one(void **state)
{
	static const int64_t sizes[][3] = {{1, 1, 1}, {4, 3, 64}, {5, 2, 65}, {11, 16, 200}, {3, 5, 63}, {0, 2, 7}, {8, 300, 130},
					   {8, 15, 1100}};
	static const enum dtp_dtype types[][2] = {{DTP_F32, DTP_F32}, {DTP_BF16, DTP_BF16}, {DTP_BF16, DTP_F32}};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;

	(void)state;
	assert_int_equal(dtp_backend_cpu(DTP_F32, 1, &be, &err), DTP_OK);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
			check_sum(be, DTP_F32, types[i], sizes[s][0], sizes[s][1], sizes[s][2]);
			check_sum(be, DTP_BF16, types[i], sizes[s][0], sizes[s][1], sizes[s][2]);
		}
	be->ops->destroy(be);
}

/* Every block is rounded to the nearest, ties to even, and NaN and infinity stay. */
static void lora_sum_is_rounded_as_a_weight_is(void **state)
{
	enum { N = 4, K = 64 };
	static const float bases[] = {1.0f, 1.0f + 0x1p-7f, -1.0f, NAN, INFINITY, 0x1.fep127f, 0x1p-126f, 0.0f};
	static const float adds[] = {0x1p-8f, 0x1.8p-8f, 0x1p-9f, -0x1p-8f, 0x1.fp119f, 0.0f};
	struct dtp_err err = DTP_ERR_INIT;
	uint16_t dst[N * K], want[N * K];
	float b[N] = {1, 1, 1, 1}, a[K];
	struct dtp_backend *be;

	(void)state;
	assert_int_equal(dtp_backend_cpu(DTP_BF16, 1, &be, &err), DTP_OK);
	for (int j = 0; j < K; j++)
		a[j] = adds[j % 6];
	for (int i = 0; i < N * K; i++) {
		float base = bases[(i / 6) % 8], sum;
		dtp_from_f32(&dst[i], DTP_BF16, &base, 1);
		dtp_to_f32(&base, &dst[i], DTP_BF16, 1);
		sum = base + adds[i % K % 6];
		dtp_from_f32(&want[i], DTP_BF16, &sum, 1);
	}
	struct dtp_low_rank part = {1, 1, DTP_F32, b, a};
	assert_int_equal(be->ops->low_rank_add(be, dst, DTP_BF16, &part, 1, N, K, &err), DTP_OK);
	assert_memory_equal(dst, want, sizeof dst);
	be->ops->destroy(be);
}

static int make_path(void **state)
{
	(void)state;
	snprintf(path, sizeof path, "/tmp/test_lora.%d.safetensors", (int)getpid());
	return 0;
}

static int drop_path(void **state)
{
	(void)state;
	return unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lora_names_of_every_scheme),
		cmocka_unit_test(lora_scale_is_alpha_over_rank_times_the_given_one),
		cmocka_unit_test(lora_slices_of_fused_and_turned_modules),
		cmocka_unit_test(lora_columns_take_one_read),
		cmocka_unit_test(lora_that_is_wrong_is_refused),
		cmocka_unit_test(lora_keys_that_are_no_expressions_are_refused),
		cmocka_unit_test(lora_scale_beyond_a_float_is_refused),
		cmocka_unit_test(lora_tensors_that_are_not_applied_are_listed),
		cmocka_unit_test(lora_sum_equals_the_plain_one),
		cmocka_unit_test(lora_sum_is_rounded_as_a_weight_is),
	};
	return cmocka_run_group_tests(tests, make_path, drop_path);
}
