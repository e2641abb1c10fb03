/* SPDX-License-Identifier: Apache-2.0 */
/* What `difftp plan` tells is what a run does: the report, the costs and the degrees of a fixture. */
#include "pipeline.h"
#include "report.h"
#include "support.h"

static struct dtp_pipeline *open_at(int degree, enum dtp_dtype compute)
{
	struct dtp_options o = {.model = fixture("models/klein-tiny"), .tp_degree = degree, .compute = compute, .no_tokenizer = true};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p;

	if (dtp_pipeline_open(&o, &dtp_monitor_none, &p, &err))
		fail_msg("%s", err.message);
	return p;
}

static struct dtp_request request_of(const struct dtp_pipeline *p)
{
	struct dtp_request r = {.prompt = "", .height = 64, .width = 96, .guidance_scale = -1, .max_sequence_length = 32};
	struct dtp_err err = DTP_ERR_INIT;

	if (dtp_pipeline_resolve(p, &r, &err))
		fail_msg("%s", err.message);
	return r;
}

static uint64_t sum_of_lines(const struct dtp_report_part *part, int rank, bool modules)
{
	uint64_t n = 0;

	for (int i = 0; i < part->nlines; i++)
		if (modules ? part->lines[i].module != NULL : part->lines[i].at.depth == 0)
			n += part->lines[i].rank[rank];
	return n;
}

static void report_sums_are_the_ranks_memory(void **state)
{
	static const int degrees[] = {1, 2, 4, 8};
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	for (size_t k = 0; k < sizeof degrees / sizeof *degrees; k++) {
		struct dtp_pipeline *p = open_at(degrees[k], k % 2 ? DTP_F32 : DTP_BF16);
		struct dtp_request r = request_of(p);
		struct dtp_report report;
		if (dtp_report_make(p, &r, &report, &err))
			fail_msg("%s", err.message);
		for (int rank = 0; rank < degrees[k]; rank++) {
			struct dtp_phase_memory m[DTP_NPHASES];
			assert_int_equal(dtp_pipeline_memory(p, &r, rank, m, &err), DTP_OK);
			for (int i = 0; i < DTP_REPORT_PARTS; i++) {
				const struct dtp_report_part *part = &report.part[i];
				assert_string_equal(part->name, m[i].name);
				if (rank >= part->degree)
					continue; /* the VAE is rank 0's */
				assert_true(sum_of_lines(part, rank, true) == m[i].weights);
				assert_true(sum_of_lines(part, rank, false) == m[i].weights);
				assert_true(part->least <= m[i].weights && m[i].weights <= part->most);
			}
		}
		dtp_report_free(&report);
		dtp_pipeline_close(p);
	}
}

static void report_finds_large_modules(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p = open_at(2, DTP_BF16);
	struct dtp_request r = request_of(p);
	struct dtp_report report;

	(void)state;
	assert_int_equal(dtp_report_make(p, &r, &report, &err), DTP_OK);
	const struct dtp_report_part *part = &report.part[1];
	assert_int_equal(report.part[0].nlarge, 0);
	assert_true(part->nlarge >= 3);
	assert_string_equal(part->large[0].key.name, "double_stream_modulation_img.linear");
	assert_true(part->large[0].bytes == 768 * 128 * 2);
	assert_true(part->large[0].alone);
	for (int i = 1; i < part->nlarge; i++)
		assert_true(part->large[i].bytes <= part->large[i - 1].bytes);
	dtp_report_free(&report);
	dtp_pipeline_close(p);
}

/* The sums of a step, counted by hand: a double block has 4 (two attention outputs, two MLPs), a single block 1; each is
 * [tokens, width] in 32 bits. */
static void cost_counts_the_sums(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p = open_at(1, DTP_BF16);
	struct dtp_request r = request_of(p);
	struct dtp_phase_cost cost[DTP_NPHASES];
	int64_t text = 32, image = 4 * 6, all = text + image;

	(void)state;
	assert_int_equal(dtp_pipeline_cost(p, &r, 0, cost, &err), DTP_OK);
	assert_true(cost[0].reductions == 0 && cost[1].reductions == 0);
	double alone = cost[1].flops;
	assert_int_equal(dtp_pipeline_set_degree(p, 4, &err), DTP_OK);
	assert_int_equal(dtp_pipeline_cost(p, &r, 0, cost, &err), DTP_OK);
	assert_string_equal(cost[1].name, "step");
	assert_true(cost[1].reductions == 2 * 4 + 3);
	assert_true(cost[1].reduce_bytes == (double)(4 * 128 * (2 * 2 * all + 3 * all)));
	assert_true(cost[0].reductions == 1 + 27 * 2); /* the embedding; attention and MLP of each layer */
	assert_true(cost[1].flops < alone && cost[1].flops > alone / 4);
	assert_true(cost[2].flops > 0);
	assert_int_equal(dtp_pipeline_cost(p, &r, 1, cost, &err), DTP_OK);
	assert_true(cost[2].flops == 0);
	dtp_pipeline_close(p);
}

static void degree_is_set_as_by_opening(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p = open_at(1, DTP_BF16), *q = open_at(4, DTP_BF16);
	struct dtp_request r = request_of(p);
	struct dtp_phase_memory a[DTP_NPHASES], b[DTP_NPHASES];

	(void)state;
	assert_int_equal(dtp_pipeline_set_degree(p, 3, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "degree 3 does not divide the 8 heads", "degrees that work: 1, 2, 4, 8", NULL);
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_pipeline_set_degree(p, 4, &err), DTP_OK);
	assert_int_equal(dtp_pipeline_set_degree(p, 5, NULL), DTP_REFUSED); /* stays at 4 */
	for (int rank = 0; rank < 4; rank++) {
		assert_int_equal(dtp_pipeline_memory(p, &r, rank, a, &err), DTP_OK);
		assert_int_equal(dtp_pipeline_memory(q, &r, rank, b, &err), DTP_OK);
		for (int i = 0; i < DTP_NPHASES; i++)
			assert_true(a[i].weights == b[i].weights && a[i].scratch == b[i].scratch);
	}
	dtp_pipeline_close(p);
	dtp_pipeline_close(q);
}

/* A prompt's ids do not matter to what a run takes. */
static void prediction_needs_no_tokenizer(void **state)
{
	struct dtp_options o = {.model = fixture("models/klein-tiny"), .tp_degree = 2, .compute = DTP_BF16};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p = open_at(2, DTP_BF16), *q;
	struct dtp_phase_memory a[DTP_NPHASES], b[DTP_NPHASES];

	(void)state;
	assert_int_equal(dtp_pipeline_open(&o, &dtp_monitor_none, &q, &err), DTP_OK);
	struct dtp_request r = request_of(p);
	assert_int_equal(dtp_pipeline_memory(p, &r, 0, a, &err), DTP_OK);
	assert_int_equal(dtp_pipeline_memory(q, &r, 0, b, &err), DTP_OK);
	for (int i = 0; i < DTP_NPHASES; i++)
		assert_true(a[i].weights == b[i].weights && a[i].scratch == b[i].scratch && a[i].staging == b[i].staging);
	dtp_pipeline_close(p);
	dtp_pipeline_close(q);
}

/* The whole model that verify computes takes the host's memory, the same on whatever the ranks compute: of ranks on CPUs it is part of
 * their own, of ranks on GPUs it is not. */
static void whole_model_is_the_hosts(void **state)
{
	struct dtp_phase_memory whole[2], alone[DTP_NPHASES], beside[DTP_NPHASES];
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	for (int gpu = 0; gpu < 2; gpu++) {
		struct dtp_options o = {.model = fixture("models/klein-tiny"), .tp_degree = 2, .compute = DTP_BF16, .no_tokenizer = true,
					.device = gpu ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU};
		struct dtp_pipeline *p, *q;
		assert_int_equal(dtp_pipeline_open(&o, &dtp_monitor_none, &p, &err), DTP_OK);
		o.beside_whole = true;
		assert_int_equal(dtp_pipeline_open(&o, &dtp_monitor_none, &q, &err), DTP_OK);
		struct dtp_request r = request_of(p);
		assert_int_equal(dtp_pipeline_whole_memory(q, &r, &whole[gpu], &err), DTP_OK);
		for (int rank = 0; rank < 2; rank++) {
			uint64_t added = !gpu && !rank;
			assert_int_equal(dtp_pipeline_memory(p, &r, rank, alone, &err), DTP_OK);
			assert_int_equal(dtp_pipeline_memory(q, &r, rank, beside, &err), DTP_OK);
			for (int i = 0; i < DTP_NPHASES - 1; i++) {
				assert_true(beside[i].weights == alone[i].weights + added * whole[gpu].weights);
				assert_true(beside[i].scratch == alone[i].scratch + added * whole[gpu].scratch);
			}
		}
		assert_int_equal(dtp_pipeline_device(q), o.device);
		dtp_pipeline_close(p);
		dtp_pipeline_close(q);
	}
	assert_true(whole[0].weights > 0 && whole[0].scratch > 0);
	assert_true(whole[0].weights == whole[1].weights && whole[0].scratch == whole[1].scratch && whole[0].staging == whole[1].staging);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(report_sums_are_the_ranks_memory),
		cmocka_unit_test(report_finds_large_modules),
		cmocka_unit_test(cost_counts_the_sums),
		cmocka_unit_test(degree_is_set_as_by_opening),
		cmocka_unit_test(prediction_needs_no_tokenizer),
		cmocka_unit_test(whole_model_is_the_hosts),
	};
	return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
