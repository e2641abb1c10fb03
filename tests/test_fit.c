/* SPDX-License-Identifier: Apache-2.0 */
/* The memory check and the names of outputs.  The pipeline is made up here, so that its numbers are known. */
#include "support.h"

#include "fit.h"
#include "naming.h"
#include "request.h"

#include <sys/stat.h>

#define MB UINT64_C(1000000)

/* A model whose transformer holds 1000 MB that are split and 100 MB that are not; fp32 doubles it. */
struct dtp_pipeline {
	struct dtp_options o;
};

enum dtp_code dtp_pipeline_open(const struct dtp_options *o, const struct dtp_monitor *mon, struct dtp_pipeline **p,
				struct dtp_err *err)
{
	(void)mon, (void)err;
	*p = malloc(sizeof **p);
	(*p)->o = *o;
	return DTP_OK;
}

void dtp_pipeline_close(struct dtp_pipeline *p)
{
	free(p);
}

enum dtp_code dtp_pipeline_resolve(const struct dtp_pipeline *p, struct dtp_request *r, struct dtp_err *err)
{
	(void)p, (void)r, (void)err;
	return DTP_OK;
}

enum dtp_code dtp_pipeline_set_degree(struct dtp_pipeline *p, int tp_degree, struct dtp_err *err)
{
	(void)err;
	if (48 % tp_degree)
		return DTP_REFUSED;
	p->o.tp_degree = tp_degree;
	return DTP_OK;
}

enum dtp_device dtp_pipeline_device(const struct dtp_pipeline *p)
{
	return p->o.device;
}

int dtp_pipeline_passes(const struct dtp_pipeline *p, const struct dtp_request *r)
{
	(void)p;
	return r->guidance_scale > 1 ? 2 : 1;
}

enum dtp_code dtp_pipeline_memory(struct dtp_pipeline *p, const struct dtp_request *r, int rank,
				  struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err)
{
	uint64_t n = (uint64_t)p->o.tp_degree, wide = p->o.compute == DTP_F32 ? 2 : 1;
	uint64_t scratch = (uint64_t)(r->height * r->width) * (dtp_pipeline_passes(p, r) > 1 && !r->passes_in_turn ? 190 : 100);
	(void)err;
	out[0] = (struct dtp_phase_memory){"text_encoder", wide * 600 * MB / n, 10 * MB, 64 * MB};
	out[1] = (struct dtp_phase_memory){"transformer", wide * (1000 * MB / n + 100 * MB), scratch, 64 * MB};
	if (p->o.keep_text_encoder)
		out[1].weights += out[0].weights;
	out[2] = (struct dtp_phase_memory){"vae", rank ? 0 : 50 * MB, 20 * MB, 0};
	out[3] = (struct dtp_phase_memory){"references", 0, 0, 0};
	return DTP_OK;
}

enum dtp_code dtp_pipeline_whole_memory(struct dtp_pipeline *p, const struct dtp_request *r, struct dtp_phase_memory *out, struct dtp_err *err)
{
	(void)p, (void)r, (void)err;
	*out = (struct dtp_phase_memory){.name = "whole model", .weights = 300 * MB, .scratch = 200 * MB, .staging = 64 * MB};
	return DTP_OK;
}

static struct dtp_err err;

static uint64_t need(struct dtp_options o, struct dtp_request r)
{
	struct dtp_pipeline p = {o};
	struct dtp_fit fit;
	assert_int_equal(dtp_fit_predict(&p, &o, &r, &fit, &err), DTP_OK);
	return fit.total;
}

static enum dtp_code check(struct dtp_options o, struct dtp_request r, uint64_t available)
{
	struct dtp_pipeline p = {o};
	struct dtp_host_memory m = {available, available, UINT64_MAX};
	struct dtp_bound bound = {.host = &m};
	err = (struct dtp_err)DTP_ERR_INIT;
	return dtp_fit_check(&p, &o, &r, &bound, &err);
}

static const struct dtp_request request = {.height = 1000, .width = 1000};

static void fit_counts_each_rank_at_its_peak(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 1, .compute = DTP_BF16};
	assert_true(need(o, request) == 1100 * MB + 100 * MB + 64 * MB + dtp_rank_base_bytes(DTP_DEVICE_CPU));
	o.tp_degree = 2;
	assert_true(need(o, request) == 2 * (600 * MB + 100 * MB + 64 * MB + dtp_rank_base_bytes(DTP_DEVICE_CPU)));
	o.keep_text_encoder = true;
	assert_true(need(o, request) == 2 * (900 * MB + 100 * MB + 64 * MB + dtp_rank_base_bytes(DTP_DEVICE_CPU)));
}

static void fit_exactly_enough_is_enough(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	uint64_t n = need(o, request);
	assert_int_equal(check(o, request, n), DTP_OK);
	assert_int_equal(check(o, request, UINT64_MAX), DTP_OK);
	assert_int_equal(check(o, request, n - 1), DTP_REFUSED);
}

static void fit_says_what_would_fit(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_F32, .keep_text_encoder = true};
	check(o, request, 2800 * MB);
	assert_message(&err, DTP_REFUSED, "not enough memory: 2 ranks need 4.1 GB at the peak, 2.8 GB are available (MemAvailable)",
		       "in phase 'transformer' weights 1.8 GB, scratch 100 MB, staging 64 MB",
		       "\n--dtype bf16 needs 2.3 GB and fits", NULL);
	assert_null(strstr(err.message, "tp-degree"));
	assert_null(strstr(err.message, "keep-text-encoder"));
	check(o, request, 3100 * MB);
	assert_message(&err, DTP_REFUSED, "\nwithout --keep-text-encoder it needs 2.9 GB and fits", NULL);
	o = (struct dtp_options){.tp_degree = 8, .compute = DTP_BF16};
	check(o, request, 1400 * MB);
	assert_message(&err, DTP_REFUSED, "8 ranks need", "\n--tp-degree 1 needs 1.3 GB and fits", NULL);
}

static void fit_takes_passes_in_turn_where_both_do_not_fit(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_request r = request;
	struct dtp_host_memory m = {0};
	struct dtp_bound bound = {.host = &m};
	err = (struct dtp_err)DTP_ERR_INIT;
	m.available = m.machine = need(o, request);
	r.passes_in_turn = true;
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, &err), DTP_OK);
	assert_false(r.passes_in_turn); /* there is one only */
	r.guidance_scale = 4;
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, &err), DTP_OK);
	assert_true(r.passes_in_turn);
	assert_int_equal(dtp_fit_check(&p, &o, &r, &bound, &err), DTP_OK);
	m.available += 2 * 90 * MB;
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, &err), DTP_OK);
	assert_false(r.passes_in_turn);
	m.available--;
	assert_int_equal(dtp_fit_check(&p, &o, &r, &bound, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "\n--guidance-passes in-turn needs 1.7 GB and fits", NULL);
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, &err), DTP_OK);
	assert_true(r.passes_in_turn);
}

static void fit_counts_every_replica(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	uint64_t n = 3 * need(o, request);
	struct dtp_host_memory m = {n, n, UINT64_MAX};
	struct dtp_limits limits = {"--max-memory", 4, {5000 * MB, 5000 * MB, 5000 * MB, 100 * MB}};
	struct dtp_bound bound = {.replicas = 3, .host = &m};
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_fit_check(&p, &o, &request, &bound, &err), DTP_OK);
	m.available = m.machine = n - 1;
	assert_int_equal(dtp_fit_check(&p, &o, &request, &bound, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "6 ranks need 4986653184 bytes", "\n--dp-degree 2 needs 3.3 GB and fits", NULL);
	bound = (struct dtp_bound){.replicas = 2, .limit = &limits};
	assert_int_equal(dtp_fit_check(&p, &o, &request, &bound, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "rank 3 needs", "--max-memory allows 100 MB", NULL);
}

static void fit_suggests_a_smaller_picture(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 1, .compute = DTP_BF16};
	struct dtp_request big = {.height = 8192, .width = 4096};
	check(o, big, 2200 * MB);
	assert_message(&err, DTP_REFUSED, "1 rank needs 4.6 GB", "\n--height 4096 --width 2048 needs 2.1 GB and fits", NULL);
	check(o, big, 100 * MB); /* nothing helps: nothing is promised */
	assert_null(strstr(err.message, "fits"));
}

static void fit_names_the_control_group(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 1, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_host_memory m = {MB, 9000 * MB, MB};
	struct dtp_bound bound = {.host = &m};
	err = (struct dtp_err)DTP_ERR_INIT;
	dtp_fit_check(&p, &o, &request, &bound, &err);
	assert_message(&err, DTP_REFUSED, "1.0 MB are available (control group's limit)", NULL);
}

static void fit_of_the_whole_model_beside_gpus(void **state)
{
	(void)state;
	struct dtp_pipeline p = {{.tp_degree = 2, .device = DTP_DEVICE_CUDA, .beside_whole = true}};
	struct dtp_host_memory m = {564 * MB, 564 * MB, UINT64_MAX};
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_fit_check_whole(&p, &request, &m, &err), DTP_OK);
	m.available--;
	dtp_fit_check_whole(&p, &request, &m, &err);
	assert_message(&err, DTP_REFUSED, "which takes 564000000 bytes, 563999999 bytes are available\nthe largest layer 300 MB, scratch 200 MB, "
		       "staging 64 MB", NULL);
}

static void fit_holds_each_rank_to_its_limit(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_limits l;
	struct dtp_bound bound = {.limit = &l};
	char exact[64], list[128];

	uint64_t rank = need(o, request) / 2;
	snprintf(exact, sizeof exact, "%lluB", (unsigned long long)rank);
	assert_int_equal(dtp_max_memory_parse(exact, &l, &err), DTP_OK);
	assert_int_equal(dtp_fit_check(&p, &o, &request, &bound, &err), DTP_OK);
	snprintf(list, sizeof list, "1TB,%lluB", (unsigned long long)rank - 1);
	assert_int_equal(dtp_max_memory_parse(list, &l, &err), DTP_OK);
	dtp_fit_check(&p, &o, &request, &bound, &err);
	assert_message(&err, DTP_REFUSED, "not enough memory: rank 1 needs 831108864 bytes at the peak, --max-memory allows 831108863 bytes\n"
		       "in phase 'transformer' weights 600 MB, scratch 100 MB, staging 64 MB, and 67 MB for the program", NULL);
	assert_null(strstr(err.message, "tp-degree"));
	/* At 8 a rank takes 125 + 100 + 100 + 64 + 67 MB. */
	assert_int_equal(dtp_max_memory_parse("425MB", &l, &err), DTP_OK);
	dtp_fit_check(&p, &o, &request, &bound, &err);
	assert_message(&err, DTP_REFUSED, "\n--tp-degree 12 needs 414 MB a rank and fits", NULL);
	assert_int_equal(p.o.tp_degree, 2);
}

static void fit_finds_the_smallest_degree(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 1, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_limits l;
	struct dtp_bound bound = {.device = &l};
	struct dtp_fit fit;

	assert_int_equal(dtp_devices_parse("2x700MB", &l, &err), DTP_OK);
	assert_int_equal(dtp_fit_smallest(&p, &o, &request, &bound, 1, 64, &fit), 3);
	assert_true(fit.largest < 700 * MB);
	assert_int_equal(dtp_fit_smallest(&p, &o, &request, &bound, 4, 64, &fit), 4);
	assert_int_equal(dtp_devices_parse("200MB", &l, &err), DTP_OK);
	assert_int_equal(dtp_fit_smallest(&p, &o, &request, &bound, 1, 64, &fit), 0);
}

static void sizes(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"1B", 1}, {"24GB", 24000000000}, {"24gb", 24000000000}, {"24G", 24000000000}, {"1.5 GiB", 1610612736},
		{"512MiB", 536870912}, {"0.5kB", 500}, {"3T", 3000000000000}, {"1KiB", 1024},
	};
	static const char *const bad[] = {"", "24", "GB", "24GBs", "-1GB", "1e3GB", "0GB", "inf", "nanGB", "0x10GB", "1..5GB", "2000000TB"};
	uint64_t bytes;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		err = (struct dtp_err)DTP_ERR_INIT;
		if (dtp_size_parse("--max-memory", good[i].text, &bytes, &err))
			fail_msg("%s", err.message);
		assert_true(bytes == good[i].bytes);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		dtp_size_parse("--max-memory", bad[i], &bytes, &err);
		assert_message(&err, DTP_REFUSED, "option '--max-memory': ", NULL);
	}
}

static void lists_of_sizes(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "0x1GB", "1025x1GB", "1024x1GB,1GB", "x1GB", "2x", "1GB,", ",1GB", "2x2x1GB"};
	static struct dtp_limits l;
	assert_int_equal(dtp_devices_parse("2x24GB,80GB,1X1kB", &l, &err), DTP_OK);
	assert_int_equal(l.n, 4);
	assert_true(dtp_limit(&l, 0) == 24000 * MB && dtp_limit(&l, 1) == 24000 * MB && dtp_limit(&l, 2) == 80000 * MB);
	assert_true(dtp_limit(&l, 3) == 1000 && dtp_limit(&l, 9) == 1000);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		dtp_devices_parse(bad[i], &l, &err);
		assert_message(&err, DTP_REFUSED, "option '--devices': ", NULL);
	}
	assert_int_equal(dtp_max_memory_parse("2x1GB", &l, &err), DTP_REFUSED); /* counts are for devices */
	assert_int_equal(dtp_max_memory_parse(NULL, &l, &err), DTP_OK);
	assert_true(l.n == 0 && dtp_limit(&l, 0) == UINT64_MAX);
	assert_int_equal(dtp_max_memory_parse("1GB,2GB", &l, &err), DTP_OK);
	dtp_max_memory_check(&l, 3, &err);
	assert_message(&err, DTP_REFUSED, "option '--max-memory' lists 2 sizes for 3 ranks: give one for all, or one for each", NULL);
	assert_int_equal(dtp_max_memory_check(&l, 2, &err), DTP_OK);
}

static void output_names(void **state)
{
	(void)state;
	static const struct {
		const char *out;
		int i, n;
		const char *name;
	} cases[] = {
		{"out.png", 0, 1, "out.png"}, {"out.png", 0, 2, "out_0.png"}, {"out.png", 11, 12, "out_11.png"},
		{"a.b/c", 1, 2, "a.b/c_1"}, {"./x.y.png", 0, 3, "./x.y_0.png"}, {".png", 0, 2, ".png_0"},
		{"d/.hidden", 2, 3, "d/.hidden_2"}, {"a.b/.c.png", 1, 2, "a.b/.c_1.png"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char *name = dtp_name_make(cases[i].out, &(struct dtp_name_values){"", 0, 0}, cases[i].i, cases[i].n);
		assert_string_equal(name, cases[i].name);
		free(name);
	}
}

static void output_formats(void **state)
{
	(void)state;
	static const struct {
		const char *out;
		int type;
		const char *message;
	} cases[] = {
		{"fox.jpg", DTP_ARG_PNG, "'fox.jpg': only PNG files are written, not '.jpg'"},
		{"fox.WebP", DTP_ARG_PNG, "only PNG files are written"},
		{"fox.safetensors", DTP_ARG_PNG, "--output-type latent writes tensors"},
		{"fox.png", DTP_ARG_LATENT, "'fox.png' names a picture, but latents are written as '.safetensors'"},
		{"fox.pt", DTP_ARG_LATENT, "latents are written as '.safetensors', not '.pt'"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct dtp_args args = {.output = cases[i].out, .output_type = cases[i].type};
		err = (struct dtp_err)DTP_ERR_INIT;
		dtp_outputs_check(&args, 1, &err);
		assert_message(&err, DTP_REFUSED, cases[i].message, NULL);
	}
}

static void output_checks_every_file(void **state)
{
	(void)state;
	char out[600], dump[600], clash[600];
	snprintf(out, sizeof out, "%s/a.png", temp_dir());
	snprintf(dump, sizeof dump, "%s/nowhere/d.safetensors", temp_dir());
	snprintf(clash, sizeof clash, "%s/a_1.png", temp_dir());
	struct dtp_args args = {.output = out};
	err = (struct dtp_err)DTP_ERR_INIT;
	if (dtp_outputs_check(&args, 3, &err))
		fail_msg("%s", err.message);
	args.dump_stages = dump;
	dtp_outputs_check(&args, 1, &err);
	assert_message(&err, DTP_REFUSED, "nowhere", NULL);
	args.dump_stages = clash;
	dtp_outputs_check(&args, 2, &err);
	assert_message(&err, DTP_REFUSED, "--output and --dump-stages would both write", "a_1.png", NULL);
	/* A folder stands where one of the files would. */
	args.dump_stages = NULL;
	assert_int_equal(mkdir(clash, 0755), 0);
	dtp_outputs_check(&args, 2, &err);
	assert_message(&err, DTP_REFUSED, "a_1.png", NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fit_counts_each_rank_at_its_peak),
		cmocka_unit_test(fit_exactly_enough_is_enough),
		cmocka_unit_test(fit_says_what_would_fit),
		cmocka_unit_test(fit_takes_passes_in_turn_where_both_do_not_fit),
		cmocka_unit_test(fit_counts_every_replica),
		cmocka_unit_test(fit_suggests_a_smaller_picture),
		cmocka_unit_test(fit_names_the_control_group),
		cmocka_unit_test(fit_of_the_whole_model_beside_gpus),
		cmocka_unit_test(fit_holds_each_rank_to_its_limit),
		cmocka_unit_test(fit_finds_the_smallest_degree),
		cmocka_unit_test(sizes),
		cmocka_unit_test(lists_of_sizes),
		cmocka_unit_test(output_names),
		cmocka_unit_test(output_formats),
		cmocka_unit_test(output_checks_every_file),
	};
	return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
