/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are computed: what they are, that a slice has what the whole has, and that runs at any degree draw the same. */
#include "golden.h"
#include "op.h"
#include "trees.h"

#include "plan.h"
#include "synthetic.h"
#include "weights.h"

/* ---- what lies in a weight, by the operations that use it */

static struct dtp_tensor identity(enum dtp_dtype t, int64_t k)
{
	float *v = calloc((size_t)(k * k) + 1, sizeof *v);

	for (int64_t i = 0; i < k; i++)
		v[i * k + i] = 1;
	struct dtp_tensor x = make2(t, k, k, 0, v);
	free(v);
	return x;
}

static float *transposed(struct dtp_tensor x)
{
	int64_t m = x.shape[0], n = x.shape[1];
	float *v = values_of(x), *out = malloc((size_t)(m * n) * sizeof *out + 1);

	for (int64_t i = 0; i < m * n; i++)
		out[i % n * m + i / n] = v[i];
	free(v);
	return out;
}

/* Row-major, as the file would have it; filters of one tap. */
static float *weight_values(struct dtp_backend *be, const struct dtp_weight *w)
{
	enum dtp_dtype t = be->compute;
	int64_t n = w->shape[0], k = w->ndim > 1 ? w->shape[1] : 1;
	struct dtp_tensor eye = identity(t, k), out;
	float *v;

	if (w->kind == DTP_WEIGHT_VECTOR) {
		float *zeros = calloc((size_t)n + 1, sizeof *zeros);
		out = make2(t, 1, n, 0, zeros);
		MUST(be->ops->add_bias(be, out, w, err));
		free(zeros);
		v = values_of(out);
	} else if (w->kind == DTP_WEIGHT_TABLE) {
		int32_t *ids = malloc((size_t)n * sizeof *ids + 1);
		for (int64_t i = 0; i < n; i++)
			ids[i] = (int32_t)i;
		out = make2(t, n, k, 0, NULL);
		MUST(be->ops->embedding(be, out, ids, w, 0, err));
		free(ids);
		v = values_of(out);
	} else {
		out = make2(t, k, n, 0, NULL);
		if (w->kind == DTP_WEIGHT_CONV)
			MUST(be->ops->conv2d(be, dtp_tensor_make(out.data, t, 3, (int64_t[]){1, k, n}),
					     dtp_tensor_make(eye.data, t, 3, (int64_t[]){1, k, k}), w, NULL, 1, 0, 0, err));
		else if (n && k)
			MUST(be->ops->linear(be, out, eye, w, NULL, err));
		v = transposed(out);
	}
	free(eye.data), free(out.data);
	return v;
}

static enum dtp_weight_kind kind_of(const struct dtp_param *p)
{
	return p->which || p->module->kind == DTP_MODULE_NORM ? DTP_WEIGHT_VECTOR
	       : p->module->kind == DTP_MODULE_EMBEDDING    ? DTP_WEIGHT_TABLE
	       : p->module->kind == DTP_MODULE_CONV	    ? DTP_WEIGHT_CONV
							    : DTP_WEIGHT_MATRIX;
}

/* A rank's slice of a parameter; *n: its elements. */
static float *slice_values(struct dtp_backend *be, const struct dtp_tree *t, const struct dtp_param *p, int rank, int degree,
			   struct dtp_split *s, int64_t shape[DTP_MAX_DIMS], int64_t *n)
{
	struct dtp_weight *w;
	struct dtp_fill f;

	dtp_placement(t, p, rank, degree, s);
	dtp_split_shape(p, s, shape);
	dtp_synthetic_fill(p, s, &f);
	MUST(be->ops->weight_new(be, kind_of(p), p->ndim, shape, &w, err));
	MUST(be->ops->weight_fill(be, w, &f, err));
	float *v = weight_values(be, w);
	be->ops->weight_free(be, w);
	*n = 1;
	for (int d = 0; d < p->ndim; d++)
		*n *= shape[d];
	return v;
}

/* ---- slices */

/* The whole's element that is element i of a slice of `local` shape. */
static int64_t whole_index(const struct dtp_param *p, const struct dtp_split *s, const int64_t *local, int64_t i)
{
	int64_t k = p->ndim > 1 ? local[1] : 1, at[2] = {i / k, i % k}, left = s->dim < 0 ? 0 : at[s->dim];

	for (int r = 0; s->dim >= 0 && r < s->nruns; r++) {
		int64_t length = s->run[r].end - s->run[r].begin;
		if (left >= 0 && left < length)
			at[s->dim] = s->run[r].begin + left;
		left -= length;
	}
	return at[0] * (p->ndim > 1 ? p->shape[1] : 1) + at[1];
}

static int check_slices(struct dtp_backend *be, const struct dtp_tree *t, int degree)
{
	struct dtp_split s;
	struct dtp_param p;
	int64_t local[DTP_MAX_DIMS], n, all;
	int cut = 0;

	for (int i = 0; i < t->n; i++)
		for (int which = 0; t->modules[i].needed && dtp_module_param(&t->modules[i], which, &p); which++) {
			float *whole = slice_values(be, t, &p, 0, 1, &s, local, &all);
			for (int rank = 0; rank < degree; rank++) {
				float *part = slice_values(be, t, &p, rank, degree, &s, local, &n);
				for (int64_t j = 0; j < n; j++)
					if (part[j] != whole[whole_index(&p, &s, local, j)])
						fail_msg("rank %d of %d: element %lld of '%s' differs", rank, degree, (long long)j, p.name);
				cut += s.dim >= 0;
				free(part);
			}
			free(whole);
		}
	return cut;
}

static void check_plan(struct dtp_backend *be, struct dtp_tree *t, const char *name, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	assert_int_equal(dtp_plan_builtin(name, &plan, &err), DTP_OK);
	if (dtp_plan_apply(&plan, t, degree, &err))
		fail_msg("%s", err.message);
	assert_true(check_slices(be, t, degree) >= 10 * degree);
	dtp_plan_free(&plan);
}

static void synthetic_slices(void **state)
{
	static const struct flux2_size flux2 = {4, 16, 96, 32, 24, 1, 2};
	static const struct qwen3_size qwen3 = {4, 2, 16, 40, 98, 130, 3, 2};
	static struct layers layers;
	struct dtp_tree t;

	(void)state;
	FOR_EACH_BACKEND(be, c) {
		if (c != &configs[0] && c != &configs[3]) /* the values do not depend on how products are computed */
			continue;
		flux2_tree(&t, &layers, &flux2);
		check_plan(be, &t, "flux2", 4);
		dtp_tree_free(&t);
		qwen3_tree(&t, &layers, &qwen3); /* uneven, and kv heads that two ranks have */
		check_plan(be, &t, "text", 3);
		check_plan(be, &t, "text", 8);
		dtp_tree_free(&t);
	}
}

/* ---- values */

static void synthetic_sizes_of_values(void **state)
{
	enum { N = 200, K = 300, C = 3 };
	struct dtp_layer l[4];
	struct dtp_tree t;
	struct dtp_split s;
	struct dtp_param p;
	int64_t shape[DTP_MAX_DIMS], n;
	float *before = NULL;

	(void)state;
	dtp_tree_init(&t, "test");
	dtp_tree_linear(&t, &l[0], N, K, false, "a");
	dtp_tree_linear(&t, &l[1], N, K, false, "b");
	dtp_tree_embedding(&t, &l[2], N, K, "c");
	dtp_tree_conv(&t, &l[3], N, K, 1, false, "d");
	FOR_EACH_BACKEND(be, c)
		for (int i = 0; i < t.n; i++) {
			double sum = 0, squares = 0, same = 0, terms = i == 2 ? 1 : K;
			assert_true(dtp_module_param(&t.modules[i], 0, &p));
			float *v = slice_values(be, &t, &p, 0, 1, &s, shape, &n), most = 0;
			assert_int_equal(n, N * K);
			for (int64_t j = 0; j < n; j++) {
				sum += v[j];
				squares += (double)v[j] * v[j];
				most = fmaxf(most, fabsf(v[j]));
				same += i == 1 && v[j] == before[j];
			}
			/* 60,000 values: 5 standard deviations of a mean are 0.02 of their own, of a variance 0.018 of it. */
			assert_true(fabs(sum / (double)n) < 0.02 / sqrt(terms));
			assert_true(fabs(squares / (double)n * terms - 1) < 0.02);
			assert_true(most < 1.74 / sqrt(terms)); /* sqrt 3, rounded to bf16 */
			assert_true(same < (double)n / 100); /* bf16 has few values */
			free(before);
			before = v;
		}
	free(before);
	dtp_tree_free(&t);
}

static void synthetic_vectors(void **state)
{
	struct dtp_layer norm, stats, linear;
	struct dtp_tree t;
	struct dtp_split s;
	struct dtp_param p;
	int64_t shape[DTP_MAX_DIMS], n;

	(void)state;
	dtp_tree_init(&t, "test");
	dtp_tree_norm(&t, &norm, 70, true, "norm");
	int bn = dtp_tree_norm(&t, &stats, 70, true, "bn");
	t.modules[bn].param[0] = "running_mean";
	t.modules[bn].param[1] = "running_var";
	int line = dtp_tree_linear(&t, &linear, 70, 3, true, "linear");
	const struct {
		int module, which;
		float value;
	} expected[] = {{0, 0, 1}, {0, 1, 0}, {bn, 0, 0}, {bn, 1, 1}, {line, 1, 0}};
	FOR_EACH_BACKEND(be, c)
		for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
			assert_true(dtp_module_param(&t.modules[expected[i].module], expected[i].which, &p));
			float *v = slice_values(be, &t, &p, 0, 1, &s, shape, &n);
			for (int64_t j = 0; j < n; j++)
				assert_true(v[j] == expected[i].value);
			free(v);
		}
	dtp_tree_free(&t);
}

/* Of many threads' panels there are as many at once as may pass from a file, which is what is predicted. */
static void synthetic_panels_are_bounded(void **state)
{
	static const uint64_t bytes[] = {64 * 4, 64 * 3072 * 4, 64 * 27648 * 4, DTP_STAGING_BYTES / 2, DTP_STAGING_BYTES / 2 + 4, DTP_STAGING_BYTES};

	(void)state;
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
		for (int threads = 1; threads <= 256; threads *= 2) {
			int n = dtp_cpu_fill_threads(threads, 1000, bytes[i]);
			assert_in_range(n, 1, threads);
			assert_true((uint64_t)n * bytes[i] <= DTP_STAGING_BYTES);
			assert_true(n == threads || ((uint64_t)n + 1) * bytes[i] > DTP_STAGING_BYTES);
		}
	assert_int_equal(dtp_cpu_fill_threads(8, 3, 64 * 4), 3);
	assert_int_equal(dtp_cpu_fill_threads(8, 3, DTP_STAGING_BYTES + 4), 1); /* 64 rows that are more by themselves */
}

static bool stopped_at_last(void *arg)
{
	return --*(int *)arg == 0;
}

static void synthetic_load_ends_early(void **state)
{
	static const struct flux2_size flux2 = {4, 16, 96, 32, 24, 1, 2};
	static struct layers layers;
	struct dtp_err why = DTP_ERR_INIT;
	struct dtp_backend *be = open_backend(&configs[0]);
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_tree t;
	int left = 5;

	(void)state;
	flux2_tree(&t, &layers, &flux2);
	dtp_plan_bind(&t, 0, 1);
	MUST(dtp_synthetic_load(&t, 0, 1, be, &mon, err));
	for (int i = 0; i < layers.n; i++)
		assert_non_null(layers.l[i].weight);
	dtp_weights_free(&t, be);
	mon.stopped = stopped_at_last;
	mon.arg = &left;
	assert_int_equal(dtp_synthetic_load(&t, 0, 1, be, &mon, &why), DTP_INTERRUPTED);
	assert_int_equal(left, 0);
	for (int i = 0; i < layers.n; i++)
		assert_null(layers.l[i].weight);
	be->ops->destroy(be);
	dtp_tree_free(&t);
}

static void synthetic_prompts(void **state)
{
	enum { VOCAB = 1000, LENGTH = 512 };
	struct dtp_prompt a, b, again;
	int same = 0, high = 0;

	(void)state;
	MUST(dtp_synthetic_prompt(VOCAB, LENGTH, 0, &a, err));
	MUST(dtp_synthetic_prompt(VOCAB, LENGTH, 0, &again, err));
	MUST(dtp_synthetic_prompt(VOCAB, LENGTH, 1, &b, err));
	assert_int_equal(a.length, LENGTH);
	assert_int_equal(a.end - a.begin, LENGTH);
	assert_memory_equal(a.ids, again.ids, LENGTH * sizeof *a.ids);
	for (int i = 0; i < LENGTH; i++) {
		assert_in_range(a.ids[i], 0, VOCAB - 1);
		same += a.ids[i] == b.ids[i];
		high += a.ids[i] >= VOCAB / 2;
	}
	assert_true(same < 10);
	assert_in_range(high, LENGTH / 2 - 60, LENGTH / 2 + 60);
	dtp_prompt_free(&a);
	dtp_prompt_free(&b);
	dtp_prompt_free(&again);
}

/* ---- whole runs of the program */

/* device NULL: whatever is the default. */
static void bench(const char *model, const char *degree, const char *device, struct dtp_st *st)
{
	char path[600];
	const char *argv[] = {"difftp", "bench", "--synthetic", "--config", fixture("models/%s", model), "--dtype", "fp32", "--height", "64",
			      "--width", "48", "--steps", "2", "--seed", "1", "--max-sequence-length", "24", "--output-type", "latent",
			      "--force", "-q", "--tp-degree", degree, "-o", path, device ? "--device" : NULL, device, NULL};
	struct dtp_err err = DTP_ERR_INIT;

	snprintf(path, sizeof path, "%s/%s.safetensors", temp_dir(), device ? "one" : "other");
	run(argv);
	if (dtp_st_open_file(path, st, &err))
		fail_msg("%s", err.message);
}

/* As close to one rank of CPUs as a run is to a recording. */
static void check_runs(const char *model, int n, const char *const *degrees)
{
	struct dtp_st one, other;

	bench(model, "1", "cpu", &one);
	double unit = rms(&one, "latents");
	assert_true(unit > 0.5 && unit < 5);
	for (int i = 0; i < n; i++) {
		bench(model, degrees[i], NULL, &other);
		double most = differ(&other, "latents", &one, "latents", 0).max;
		if (!(most <= 1e-4 * unit))
			fail_msg("%s at degree %s differs by %g of its RMS", model, degrees[i], most / unit);
		dtp_st_close(&other);
	}
	dtp_st_close(&one);
}

static void synthetic_runs_klein(void **state)
{
	(void)state;
	check_runs("klein-tiny", 3, (const char *[]){"1", "2", "4"});
}

static void synthetic_runs_guided(void **state)
{
	(void)state;
	check_runs("klein-base-tiny", 1, (const char *[]){"2"});
}

static void synthetic_runs_dev(void **state)
{
	(void)state;
	check_runs("dev-tiny", 1, (const char *[]){"2"});
}

/* A pattern of names: only those cases run. */
int main(int argc, char **argv)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(synthetic_slices),	     cmocka_unit_test(synthetic_sizes_of_values),
		cmocka_unit_test(synthetic_vectors),	     cmocka_unit_test(synthetic_load_ends_early),
		cmocka_unit_test(synthetic_prompts),	     cmocka_unit_test(synthetic_panels_are_bounded),
		cmocka_unit_test(synthetic_runs_klein),
		cmocka_unit_test(synthetic_runs_guided),     cmocka_unit_test(synthetic_runs_dev),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(all, NULL, NULL);
}
