/* SPDX-License-Identifier: Apache-2.0 */
/* The loader with the CUDA backend: through pinned buffers, by several threads at once, what lies in device memory is what the files say. */
#include "../loading.h"
#include "lora.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../cuda/comm_cuda.h"
#include "where.h"

static struct layers layers;

static struct dtp_backend *open_gpu(enum dtp_dtype t)
{
	struct dtp_cuda_options options = {.mon = &dtp_monitor_none};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;

	must(dtp_backend_cuda(t, &options, &be, &err), &err);
	return be;
}

/* n values of t on the device, as floats. */
static float *fetch(const void *device, enum dtp_dtype t, int64_t n)
{
	size_t size = (size_t)n * dtp_dtype_size(t);
	float *x = malloc((size_t)n * sizeof *x + 1);
	void *raw = malloc(size + 1);

	assert_int_equal(cudaMemcpy(raw, device, size, cudaMemcpyDeviceToHost), cudaSuccess);
	dtp_to_f32(x, raw, t, (size_t)n);
	free(raw);
	return x;
}

static void check_param(const struct dtp_tree *t, const struct dtp_st *st, const char *prefix, const struct dtp_param *p, int rank, int degree,
			const struct dtp_backend *be)
{
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(p->which ? p->module->layer->bias : p->module->layer->weight);
	enum dtp_dtype kept = w->base.kind == DTP_WEIGHT_VECTOR ? DTP_F32 : be->compute;
	enum dtp_dtype stored = dtp_weights_entry(st, prefix, p)->dtype;
	int64_t n = w->at.n, k = w->at.k, pitch = w->base.kind == DTP_WEIGHT_VECTOR ? 1 : w->at.pitch;
	struct dtp_err err = DTP_ERR_INIT;

	if (w->base.kind == DTP_WEIGHT_CONV || !n || !k) /* filters are turned; pictures show that */
		return;
	char *slice = malloc((size_t)(n * k) * sizeof(float));
	float *want = malloc((size_t)(n * k) * sizeof *want), *got = fetch(w->data, kept, (n - 1) * pitch + k);
	must(dtp_weights_slice(t, st, prefix, p, rank, degree, slice, &err), &err);
	dtp_to_f32(want, slice, stored, (size_t)(n * k));
	dtp_from_f32(slice, be->compute, want, (size_t)(n * k));
	dtp_to_f32(want, slice, be->compute, (size_t)(n * k));
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < k; j++) {
			float x = want[i * k + j], y = got[i * pitch + j];
			assert_true(x == y || (isnan(x) && isnan(y)));
		}
	free(slice);
	free(want);
	free(got);
}

static void load_and_check(struct dtp_tree *t, const struct dtp_st *st, const char *prefix, int rank, int degree, enum dtp_dtype compute)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be = open_gpu(compute);
	struct dtp_load_stats stats;
	struct dtp_param p;

	dtp_plan_bind(t, rank, degree);
	must(dtp_weights_load(t, st, prefix, rank, degree, be, &dtp_monitor_none, &stats, &err), &err);
	assert_true(stats.staging <= DTP_STAGING_BYTES);
	must(be->ops->sync(be, &err), &err);
	for (int i = 0; i < t->n; i++)
		for (int which = 0; t->modules[i].needed && dtp_module_param(&t->modules[i], which, &p); which++)
			check_param(t, st, prefix, &p, rank, degree, be);
	dtp_weights_free(t, be);
	be->ops->destroy(be);
}

/* Twice as many panels as there are buffers, so that each is filled again. */
static void use_buffers_again(void)
{
	static char names[20][16];
	struct content c[20];
	struct dtp_tree t;
	struct dtp_st st;

	layers.n = 0;
	dtp_tree_init(&t, "net");
	for (int i = 0; i < 20; i++) {
		snprintf(names[i], sizeof names[i], "l%02d.weight", i);
		c[i] = (struct content){names[i], i % 3 ? "BF16" : "F16", 2, {700, 1001}};
		dtp_tree_linear(&t, next_layer(&layers), 700, 1001, false, "l%02d", i);
	}
	open_file(write_checkpoint("large.safetensors", c, 20), &st);
	load_and_check(&t, &st, "", 0, 1, DTP_BF16);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void load_every_kind(void)
{
	struct dtp_tree t;
	struct dtp_st st;

	open_file(write_checkpoint("mixed.safetensors", mixed, NMIXED), &st);
	mixed_tree(&t, &layers);
	for (int degree = 1; degree <= 3; degree++) {
		plan_text(&t, MIXED_PLAN, degree);
		load_and_check(&t, &st, "net.", degree - 1, degree, degree == 2 ? DTP_F32 : DTP_BF16);
	}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* ---- what is added: weights of three dtypes and factors of two, of values whose sums are exact until they are rounded */
enum { SIDE = 77, RANK = 3, SUMS = 12 };
static const char *const sums[] = {"to_q", "to_out.0"}; /* the second reads the first */
static const enum dtp_dtype stored[] = {DTP_BF16, DTP_F16, DTP_F32}, factors[] = {DTP_BF16, DTP_F32};

static float weight_at(int64_t i, int64_t j)
{
	return (float)((i * 7 + j * 5) % 31 - 15) / 16;
}

static float down_at(int64_t r, int64_t j)
{
	return (float)((r + j) % 5 - 2) / 4;
}

static float up_at(int64_t i, int64_t r)
{
	return (float)((i + 2 * r) % 7 - 3) / 4;
}

static float sum_at(int64_t i, int64_t j)
{
	float sum = weight_at(i, j);

	for (int r = 0; r < RANK; r++)
		sum += 2 * up_at(i, r) * down_at(r, j);
	return sum;
}

static void add_matrix(struct dtp_st_out *out, const char *name, float (*at)(int64_t, int64_t), int64_t rows, int64_t cols, enum dtp_dtype t)
{
	float *v = malloc((size_t)(rows * cols) * sizeof *v);
	void *data = malloc((size_t)(rows * cols) * dtp_dtype_size(t));

	for (int64_t i = 0; i < rows * cols; i++)
		v[i] = at(i / cols, i % cols);
	dtp_from_f32(data, t, v, (size_t)(rows * cols));
	free(v);
	*out = (struct dtp_st_out){name, dtp_tensor_make(data, t, 2, (int64_t[]){rows, cols})};
}

static void write_sums(char weights[300], char lora[300])
{
	struct dtp_st_out w[SUMS], f[2 * SUMS];
	static char names[3 * SUMS][80];
	struct dtp_err err = DTP_ERR_INIT;

	for (int i = 0; i < SUMS; i++) {
		snprintf(names[3 * i], sizeof *names, "transformer_blocks.%d.attn.%s.weight", i / 2, sums[i % 2]);
		snprintf(names[3 * i + 1], sizeof *names, "transformer.transformer_blocks.%d.attn.%s.lora_A.weight", i / 2, sums[i % 2]);
		snprintf(names[3 * i + 2], sizeof *names, "transformer.transformer_blocks.%d.attn.%s.lora_B.weight", i / 2, sums[i % 2]);
		add_matrix(&w[i], names[3 * i], weight_at, SIDE, SIDE, stored[i / 2 % 3]);
		add_matrix(&f[2 * i], names[3 * i + 1], down_at, RANK, SIDE, factors[i / 6]);
		add_matrix(&f[2 * i + 1], names[3 * i + 2], up_at, SIDE, RANK, factors[i / 6]);
	}
	snprintf(weights, 300, "%s/weights.safetensors", temp_dir());
	snprintf(lora, 300, "%s/lora.safetensors", temp_dir());
	must(dtp_st_write(weights, NULL, w, SUMS, NULL, 0, &err), &err);
	must(dtp_st_write(lora, NULL, f, 2 * SUMS, NULL, 0, &err), &err);
	for (int i = 0; i < SUMS; i++)
		free(w[i].tensor.data), free(f[2 * i].tensor.data), free(f[2 * i + 1].tensor.data);
}

static void check_sum(const struct dtp_tree *t, const struct dtp_module *m, int rank, int degree, enum dtp_dtype compute)
{
	const struct dtp_cuda_weight *w = dtp_cuda_weight_of(m->layer->weight);
	struct dtp_param p;
	struct dtp_split s;

	assert_true(dtp_module_param(m, 0, &p));
	dtp_placement(t, &p, rank, degree, &s);
	int64_t row = s.dim == 0 ? s.run[0].begin : 0, column = s.dim == 1 ? s.run[0].begin : 0;
	float *got = fetch(w->data, compute, (w->at.n - 1) * w->at.pitch + w->at.k);
	for (int64_t i = 0; i < w->at.n; i++)
		for (int64_t j = 0; j < w->at.k; j++)
			assert_true(got[i * w->at.pitch + j] == dtp_round_to(compute, sum_at(row + i, column + j)));
	free(got);
}

static void load_sums(const char *plan, int degree, enum dtp_dtype compute, const char *weights, const char *lora)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be = open_gpu(compute);
	struct dtp_load_stats stats;
	struct dtp_lora *added;
	struct dtp_tree t;
	struct dtp_st st;
	int rank = degree - 1;

	layers.n = 0;
	dtp_tree_init(&t, "transformer");
	dtp_tree_list(&t, "transformer_blocks");
	for (int i = 0, first = -1; i < SUMS; i++) {
		int linear = dtp_tree_linear(&t, next_layer(&layers), SIDE, SIDE, false, "transformer_blocks.%d.attn.%s", i / 2, sums[i % 2]);
		if (i % 2)
			dtp_tree_reads(&t, linear, 1, &first);
		first = linear;
	}
	plan_text(&t, plan, degree);
	dtp_plan_bind(&t, rank, degree);
	open_file(weights, &st);
	must(dtp_lora_open(&lora, 1, &t, &dtp_monitor_none, &added, &err), &err);
	must(dtp_weights_load(&t, &st, "", rank, degree, be, &dtp_monitor_none, &stats, &err), &err);
	must(be->ops->sync(be, &err), &err);
	for (int i = 0; i < t.n; i++)
		if (t.modules[i].layer)
			check_sum(&t, &t.modules[i], rank, degree, compute);
	dtp_weights_free(&t, be);
	be->ops->destroy(be);
	dtp_lora_close(added);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void load_every_sum(void)
{
	static const char split[] = "{\"transformer_blocks.*.attn.to_q\":\"colwise\",\"transformer_blocks.*.attn.to_out.0\":\"rowwise\"}";
	char weights[300], lora[300], given[310];

	write_sums(weights, lora);
	snprintf(given, sizeof given, "%s:2", lora);
	for (int i = 0; i < 2; i++) {
		load_sums("{}", 1, i ? DTP_F32 : DTP_BF16, weights, given);
		load_sums(split, 3, i ? DTP_F32 : DTP_BF16, weights, given);
	}
}

/* ---- a run that is ending */

static enum dtp_code ending(void *arg, struct dtp_err *err)
{
	(void)arg;
	return dtp_fail(err, DTP_INTERRUPTED, "the run is ending");
}

/* Nothing reads the source any more when the call has failed: the emulator ends a process that changes it before. */
static int upload_while_ending(struct dtp_backend *be)
{
	int64_t n = 1000;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tensor x = dtp_tensor_make(NULL, DTP_BF16, 1, &n);
	void *from;

	if (be->ops->alloc(be, 2000, &x.data, &err) || be->ops->host_alloc(be, 2000, &from, &err))
		return 1;
	memset(from, 1, 2000);
	if (be->ops->upload(be, x, from, DTP_BF16, &err) != DTP_INTERRUPTED)
		return 2;
	memset(from, 2, 2000);
	return cudaDeviceSynchronize() ? 3 : 0;
}

/* DIFFTP_EMU_FAIL: the rows are copied, but cannot be turned. */
static int write_while_ending(struct dtp_backend *be)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_weight *w;
	void *from;

	if (be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){10, 100}, &w, &err) || be->ops->host_alloc(be, 2000, &from, &err))
		return 1;
	memset(from, 1, 2000);
	if (be->ops->weight_write(be, w, 0, 10, from, DTP_F16, &err) != DTP_FAILED)
		return 2;
	memset(from, 2, 2000);
	return cudaDeviceSynchronize() ? 3 : 0;
}

static void in_a_process(const char *fault, int (*fn)(struct dtp_backend *))
{
	struct dtp_cuda_watch watch = {.check = ending, .mon = &dtp_monitor_none};
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL); /* not cmocka's: the emulator sets its own */
		setenv("DIFFTP_EMU_STREAMS", "deferred", 1);
		if (fault)
			setenv("DIFFTP_EMU_FAIL", fault, 1);
		struct dtp_backend *be = open_gpu(DTP_BF16);
		dtp_cuda_of(be)->watch = &watch;
		_exit(fn(be));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Before the other case: the emulator begins anew in each process. */
static void loading_that_fails_leaves_the_source(void **state)
{
	(void)state;
	if (!EMULATED)
		skip();
	in_a_process(NULL, upload_while_ending);
	in_a_process("cudaLaunchKernelExC:1", write_while_ending);
}

/* One case: cmocka puts its own handler of SIGSEGV in front of the emulator's before each. */
static void loading_fills_device_memory(void **state)
{
	(void)state;
	use_buffers_again();
	load_every_kind();
	load_every_sum();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loading_that_fails_leaves_the_source),
		cmocka_unit_test(loading_fills_device_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
