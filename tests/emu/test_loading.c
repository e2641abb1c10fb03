/* SPDX-License-Identifier: Apache-2.0 */
/* The loader with the CUDA backend: through pinned buffers, by several threads at once, what lies in device memory is what the files say. */
#include "../loading.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "../../cuda/cuda.h"

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

/* One case: cmocka puts its own handler of SIGSEGV in front of the emulator's before each. */
static void loading_fills_device_memory(void **state)
{
	(void)state;
	use_buffers_again();
	load_every_kind();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loading_fills_device_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
