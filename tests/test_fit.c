/* SPDX-License-Identifier: Apache-2.0 */
/* The memory check and the names of outputs.  The pipeline is made up here, so that its numbers are known. */
#include "support.h"

#include "fit.h"
#include "naming.h"
#include "offload.h"
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

void dtp_pipeline_stay(struct dtp_pipeline *p, struct dtp_residency stay)
{
	p->o.stay = stay;
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
	out[0] = (struct dtp_phase_memory){"text_encoder", wide * 600 * MB / n, 10 * MB, 64 * MB, 0};
	out[1] = (struct dtp_phase_memory){"transformer", wide * (1000 * MB / n + 100 * MB), scratch, 64 * MB, 0};
	if (p->o.stay.text)
		out[1].weights += out[0].weights;
	out[2] = (struct dtp_phase_memory){"vae", rank ? 0 : 50 * MB, 20 * MB, 0, 0};
	if (p->o.stay.pictures) {
		out[2].weights += out[1].weights;
		out[2].scratch += out[1].scratch + (uint64_t)p->o.stay.prompts * 5 * MB;
	}
	out[3] = (struct dtp_phase_memory){"references", 0, 0, 0, 0};
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
	assert_true(need(o, request) == 1100 * MB + 100 * MB + 64 * MB + dtp_rank_base_bytes(DTP_DEVICE_CPU, 1));
	o.tp_degree = 2;
	assert_true(need(o, request) == 2 * (600 * MB + 100 * MB + 64 * MB + dtp_rank_base_bytes(DTP_DEVICE_CPU, 1)));
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
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_F32, .stay = dtp_offload_least(DTP_ARG_OFFLOAD_NONE)};
	check(o, request, 2800 * MB);
	assert_message(&err, DTP_REFUSED, "not enough memory for --offload none: 2 ranks need 4.1 GB at the peak, 2.8 GB are available (MemAvailable)",
		       "in phase 'vae' weights 1.9 GB, scratch 125 MB, staging 0 bytes",
		       "\n--dtype bf16 needs 2.3 GB and fits", NULL);
	assert_null(strstr(err.message, "tp-degree"));
	assert_null(strstr(err.message, "\n--offload stage"));
	check(o, request, 3100 * MB);
	assert_message(&err, DTP_REFUSED, "\n--offload stage needs 2.9 GB and fits", NULL);
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
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, 1, &err), DTP_OK);
	assert_false(r.passes_in_turn); /* there is one only */
	r.guidance_scale = 4;
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, 1, &err), DTP_OK);
	assert_true(r.passes_in_turn);
	assert_int_equal(dtp_fit_check(&p, &o, &r, &bound, &err), DTP_OK);
	m.available += 2 * 90 * MB;
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, 1, &err), DTP_OK);
	assert_false(r.passes_in_turn);
	m.available--;
	assert_int_equal(dtp_fit_check(&p, &o, &r, &bound, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "\n--guidance-passes in-turn needs 1.7 GB and fits", NULL);
	assert_int_equal(dtp_fit_passes(&p, &o, &r, &bound, 1, &err), DTP_OK);
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

/* More ranks are an advice as far as there are devices for them. */
static void fit_advises_more_ranks_where_there_are_devices(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_limits l;
	struct dtp_bound bound = {.device = &l};

	assert_int_equal(dtp_devices_parse("4x700MB", &l, &err), DTP_OK);
	dtp_fit_check(&p, &o, &request, &bound, &err);
	assert_message(&err, DTP_REFUSED, "\n--tp-degree 3 needs 664 MB a rank and fits", NULL);
	bound.replicas = 2;
	dtp_fit_check(&p, &o, &request, &bound, &err);
	assert_null(strstr(err.message, "tp-degree"));
}

static void fit_of_a_job_that_was_out_of_memory(void **state)
{
	(void)state;
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_limits l;
	struct dtp_bound bound = {.device = &l};

	assert_int_equal(dtp_devices_parse("4x2GB", &l, &err), DTP_OK);
	dtp_fail(&err, DTP_FAILED, "out of GPU memory");
	dtp_fit_advise(&p, &o, &request, &bound, &err);
	assert_string_equal(err.message, "out of GPU memory"); /* it should have fitted: nothing is known of what would */
	assert_int_equal(dtp_devices_parse("4x700MB", &l, &err), DTP_OK);
	dtp_fail(&err, DTP_FAILED, "out of GPU memory");
	dtp_fit_advise(&p, &o, &request, &bound, &err);
	assert_int_equal(err.code, DTP_FAILED);
	assert_string_equal(err.message, "out of GPU memory\n--tp-degree 3 needs 664 MB a rank and fits");
}

/* What is chosen where each rank may take so much, of a guided picture if passes_in_turn is not NULL. */
static struct dtp_offload choose_guided(enum dtp_arg_offload asked, int images, bool prompts, uint64_t limit, bool *passes_in_turn)
{
	struct dtp_options o = {.tp_degree = 2, .compute = DTP_BF16};
	struct dtp_pipeline p = {o};
	struct dtp_request r = request;
	static struct dtp_limits l;
	struct dtp_bound bound[2] = {{.limit = &l}, {.limit = &l}};
	struct dtp_offload f;
	struct dtp_offload_wish wish = {.asked = asked, .prompts = prompts, .passes = passes_in_turn};

	l = (struct dtp_limits){"--max-memory", 1, {limit}};
	r.num_images = images;
	r.guidance_scale = passes_in_turn ? 4 : 1;
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_offload_choose(&p, &o, &r, &wish, bound, 2, &f, &err), DTP_OK);
	assert_memory_equal(&p.o.stay, &f.stay, sizeof f.stay); /* the pipeline has it */
	if (passes_in_turn)
		*passes_in_turn = r.passes_in_turn;
	return f;
}

static struct dtp_offload choose(enum dtp_arg_offload asked, int images, bool prompts, uint64_t limit)
{
	return choose_guided(asked, images, prompts, limit, NULL);
}

static void told(const struct dtp_offload *f, int i, const char *expected)
{
	char text[400];

	dtp_offload_text(f, i, 2, 1, DTP_DEVICE_CPU, text, sizeof text);
	assert_string_equal(text, expected);
}

/* A rank takes 67 MB for the program; 600 MB of the transformer and 50 MB of the VAE beside it, with 120 MB of activations and 5 MB
 * for each prompt; 300 MB of the text encoder; at the transformer's load 64 MB more, with its 100 MB of activations. */
static void offload_keeps_what_fits(void **state)
{
	(void)state;
	const uint64_t program = dtp_rank_base_bytes(DTP_DEVICE_CPU, 1), all = program + 600 * MB + 50 * MB + 120 * MB + 5 * MB + 300 * MB;
	const uint64_t pictures = all - 300 * MB, in_turn = program + 764 * MB;
	static const struct {
		int less;              /* MB than all of it */
		bool pictures, text;
		int prompts;
	} batch[] = {{0, true, true, 1}, {1, true, false, 32}, {145, true, false, 32}, {146, true, false, 4}, {285, true, false, 4},
		     {286, true, false, 1}, {300, true, false, 1}, {301, false, false, 1}};

	for (size_t i = 0; i < sizeof batch / sizeof *batch; i++) {
		struct dtp_offload f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, all - (uint64_t)batch[i].less * MB);
		if (f.over || f.stay.pictures != batch[i].pictures || f.stay.text != batch[i].text || f.stay.prompts != batch[i].prompts)
			fail_msg("%d MB less: pictures %d, text %d, %d prompts", batch[i].less, f.stay.pictures, f.stay.text, f.stay.prompts);
		assert_true(f.stay.again);
	}
	/* Images of one prompt: the text encoder is not needed again, however much room there is. */
	struct dtp_offload f = choose(DTP_ARG_OFFLOAD_AUTO, 2, false, 2 * all);
	assert_true(f.stay.pictures && !f.stay.text && !f.stay.again && !f.over);
	f = choose(DTP_ARG_OFFLOAD_AUTO, 2, false, pictures - 1);
	assert_true(!f.stay.pictures && !f.over);
	/* A single one: nothing is. */
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, false, 2 * all);
	assert_true(!f.stay.pictures && !f.stay.text && !f.over);
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, in_turn);
	assert_true(!f.stay.pictures && !f.over);
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, in_turn - 1);
	assert_true(!f.stay.pictures && f.over);
	/* What is asked for is done or refused. */
	f = choose(DTP_ARG_OFFLOAD_STAGE, 1, true, 2 * all);
	assert_true(!f.stay.pictures && !f.stay.text && f.stay.prompts == 1);
	f = choose(DTP_ARG_OFFLOAD_NONE, 1, false, all);
	assert_true(f.stay.pictures && f.stay.text && !f.over);
	f = choose(DTP_ARG_OFFLOAD_NONE, 1, false, all - 1);
	assert_true(f.stay.pictures && f.stay.text && f.over);
}

/* At the transformer's load both passes take 190 MB, one 100 MB; beside the VAE 20 MB and 5 MB more, where the transformer's 64 MB of
 * staging are not: whether both are taken follows from what must be there, so that the same picture comes out at each choice. */
static void offload_does_not_change_the_passes(void **state)
{
	(void)state;
	const uint64_t program = dtp_rank_base_bytes(DTP_DEVICE_CPU, 1), together = program + 600 * MB + 190 * MB + 64 * MB;
	const uint64_t beside = program + 600 * MB + 50 * MB + 190 * MB + 20 * MB + 5 * MB;
	bool in_turn;

	/* Transformer and VAE would fit together with passes in turn. */
	struct dtp_offload f = choose_guided(DTP_ARG_OFFLOAD_AUTO, 2, false, together, &in_turn);
	assert_true(!in_turn && !f.over && !f.stay.pictures);
	choose_guided(DTP_ARG_OFFLOAD_AUTO, 1, false, together, &in_turn);
	assert_false(in_turn);
	choose_guided(DTP_ARG_OFFLOAD_AUTO, 1, true, together, &in_turn);
	assert_false(in_turn);
	choose_guided(DTP_ARG_OFFLOAD_STAGE, 2, false, together, &in_turn);
	assert_false(in_turn);
	f = choose_guided(DTP_ARG_OFFLOAD_AUTO, 2, false, beside, &in_turn);
	assert_true(!in_turn && f.stay.pictures);
	/* Where both do not fit, those in turn leave the room. */
	f = choose_guided(DTP_ARG_OFFLOAD_AUTO, 2, false, together - 1, &in_turn);
	assert_true(in_turn && !f.over && f.stay.pictures);
	choose_guided(DTP_ARG_OFFLOAD_STAGE, 1, false, together - 1, &in_turn);
	assert_true(in_turn);
	/* What none keeps must stay. */
	f = choose_guided(DTP_ARG_OFFLOAD_NONE, 1, false, beside + 300 * MB, &in_turn);
	assert_true(!in_turn && !f.over);
	f = choose_guided(DTP_ARG_OFFLOAD_NONE, 1, false, beside + 300 * MB - 1, &in_turn);
	assert_true(in_turn && !f.over);
}

static void offload_is_told_with_its_numbers(void **state)
{
	(void)state;
	struct dtp_offload f = choose(DTP_ARG_OFFLOAD_AUTO, 1, false, 2000 * MB);
	told(&f, 0, "text encoder: ranks 0 and 1 (CPU), phase 'text_encoder'; freed before the transformer: one prompt needs it once");
	told(&f, 1, "transformer: ranks 0 and 1 (CPU), phase 'transformer'; freed before the VAE: one image needs it once");
	told(&f, 2, "VAE: rank 0 (CPU), phase 'vae'; loaded last: one image needs it once");
	f = choose(DTP_ARG_OFFLOAD_AUTO, 3, false, 2000 * MB);
	told(&f, 1, "transformer: ranks 0 and 1 (CPU), resident; kept: 1.2 GB of 2.0 GB stay free");
	told(&f, 2, "VAE: rank 0 (CPU), resident; kept: 1.2 GB of 2.0 GB stay free");
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, 2000 * MB);
	told(&f, 0, "text encoder: ranks 0 and 1 (CPU), resident; kept: 858 MB of 2.0 GB stay free");
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, 1000 * MB);
	told(&f, 0, "text encoder: ranks 0 and 1 (CPU), phase 'text_encoder'; freed before the transformer: all three would need 1.1 GB of "
	     "1.0 GB; up to 32 prompts are encoded at a time");
	told(&f, 2, "VAE: rank 0 (CPU), phases 'transformer' to 'vae'; kept: 2.9 MB of 1.0 GB stay free");
	f = choose(DTP_ARG_OFFLOAD_AUTO, 1, true, 840 * MB);
	told(&f, 1, "transformer: ranks 0 and 1 (CPU), phase 'transformer'; freed before the VAE: it and the other would need 842 MB of 840 MB");
	f = choose(DTP_ARG_OFFLOAD_STAGE, 1, false, UINT64_MAX);
	told(&f, 2, "VAE: rank 0 (CPU), phase 'vae'; freed after each image as --offload stage says");
	f = choose(DTP_ARG_OFFLOAD_NONE, 1, false, UINT64_MAX);
	told(&f, 0, "text encoder: ranks 0 and 1 (CPU), resident; kept as --offload none says: 1.1 GB are needed, no limit is known");
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
		cmocka_unit_test(fit_advises_more_ranks_where_there_are_devices),
		cmocka_unit_test(fit_of_a_job_that_was_out_of_memory),
		cmocka_unit_test(offload_keeps_what_fits),
		cmocka_unit_test(offload_does_not_change_the_passes),
		cmocka_unit_test(offload_is_told_with_its_numbers),
		cmocka_unit_test(sizes),
		cmocka_unit_test(lists_of_sizes),
		cmocka_unit_test(output_names),
		cmocka_unit_test(output_formats),
		cmocka_unit_test(output_checks_every_file),
	};
	return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
