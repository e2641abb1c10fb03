/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "footprints.h"
#include "progress.h"
#include "units.h"

static double clock_now;
static char *text;
static size_t text_len;

static double now(void)
{
	return clock_now;
}

static struct dtp_progress begin(bool redraw, bool quiet)
{
	struct dtp_progress p;
	FILE *f = open_memstream(&text, &text_len);
	assert_non_null(f);
	dtp_progress_init(&p, f, DTP_ARG_PROGRESS_AUTO, quiet);
	assert_false(p.redraw); /* memory is no terminal */
	p.redraw = redraw;
	p.columns = 80;
	p.now = now;
	clock_now = 100;
	return p;
}

static void end(struct dtp_progress *p, const char *expected)
{
	fclose(p->f);
	assert_string_equal(text, expected);
	free(text);
}

static void stage(struct dtp_progress *p, int rank, enum dtp_phase phase, const char *name)
{
	dtp_progress_event(p, &(struct dtp_event){.kind = DTP_EVENT_STAGE, .rank = rank, .phase = phase, .text = name});
}

static void moved(struct dtp_progress *p, int rank, uint64_t done, uint64_t total)
{
	dtp_progress_event(p, &(struct dtp_event){.kind = DTP_EVENT_PROGRESS, .rank = rank, .done = done, .total = total});
}

static void says(struct dtp_progress *p, int rank, enum dtp_event_kind kind, const char *what)
{
	dtp_progress_event(p, &(struct dtp_event){.kind = kind, .rank = rank, .text = what});
}

static void progress_plain_lines_every_five_seconds(void **state)
{
	(void)state;
	struct dtp_progress p = begin(false, false);
	stage(&p, 0, DTP_PHASE_LOAD, "load transformer");
	stage(&p, 1, DTP_PHASE_LOAD, "load transformer"); /* only rank 0 is shown */
	for (int i = 1; i <= 12; i++) {
		clock_now += 1;
		moved(&p, 0, (uint64_t)i * 100000000, 2000000000);
		moved(&p, 1, 1, 2);
	}
	says(&p, 0, DTP_EVENT_NOTE, "wrote out.png");
	dtp_progress_end(&p);
	end(&p, "load transformer\n"
		"load transformer: 500 MB of 2.0 GB, 100 MB/s, 15 s left\n"
		"load transformer: 1.0 GB of 2.0 GB, 100 MB/s, 10 s left\n"
		"wrote out.png\n");
}

static void progress_steps_tell_the_time_left(void **state)
{
	(void)state;
	struct dtp_progress p = begin(false, false);
	char line[128];
	stage(&p, 0, DTP_PHASE_STEP, "step 1/4");
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 1/4");
	clock_now += 20; /* the first is slow */
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 1/4: 20 s");
	moved(&p, 0, 1, 4); /* of the steps: not of this one */
	stage(&p, 0, DTP_PHASE_STEP, "step 2/4");
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 2/4: 20 s per step, 60 s left");
	clock_now += 10;
	stage(&p, 0, DTP_PHASE_STEP, "step 3/4");
	clock_now += 5;
	moved(&p, 0, 2, 4);
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 3/4: 10 s per step, 15 s left");
	clock_now += 5;
	stage(&p, 0, DTP_PHASE_STEP, "step 4/4");
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 4/4: 10 s per step, 10 s left");
	clock_now += 11; /* slower than the others: no time is negative */
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "step 4/4: 10 s per step, 0.00 s left");
	/* The next image begins anew. */
	stage(&p, 0, DTP_PHASE_DECODE, "decode");
	stage(&p, 0, DTP_PHASE_STEP, "image 2/3, step 1/4");
	dtp_progress_line(&p, line, sizeof line);
	assert_string_equal(line, "image 2/3, step 1/4");
	fclose(p.f);
	free(text);
}

static void progress_redraws_one_line(void **state)
{
	(void)state;
	struct dtp_progress p = begin(true, false);
	stage(&p, 0, DTP_PHASE_ENCODE, "encode");
	moved(&p, 0, 1, 4); /* too soon to draw again */
	clock_now += 0.2;
	moved(&p, 0, 2, 4);
	dtp_progress_warn(&p, "careful");
	dtp_progress_end(&p);
	dtp_progress_end(&p);
	end(&p, "\rencode\033[K\rencode: 50 %\033[K\r\033[Kwarning: careful\n\rencode: 50 %\033[K\r\033[K");
}

static void progress_is_cut_to_the_columns(void **state)
{
	(void)state;
	struct dtp_progress p = begin(true, false);
	p.columns = 8;
	stage(&p, 0, DTP_PHASE_LOAD, "load text_encoder");
	end(&p, "\rload te\033[K");
}

static void progress_quiet_leaves_warnings(void **state)
{
	(void)state;
	struct dtp_progress p = begin(true, true);
	stage(&p, 0, DTP_PHASE_LOAD, "load");
	clock_now += 60;
	moved(&p, 0, 1, 2);
	says(&p, 0, DTP_EVENT_NOTE, "seed 1");
	says(&p, 0, DTP_EVENT_WARN, "cut");
	says(&p, 3, DTP_EVENT_WARN, "odd");
	dtp_progress_end(&p);
	end(&p, "warning: cut\nrank 3: warning: odd\n");
}

static void progress_other_ranks_are_named(void **state)
{
	(void)state;
	struct dtp_progress p = begin(false, false);
	says(&p, 2, DTP_EVENT_STDERR, "libfoo: bad");
	says(&p, 2, DTP_EVENT_NOTE, "wrote b.png"); /* a result, whichever replica has drawn it */
	end(&p, "rank 2: libfoo: bad\nwrote b.png\n");
}

static void progress_names_cannot_steer_the_terminal(void **state)
{
	(void)state;
	struct dtp_progress p = begin(false, false);
	dtp_progress_warn(&p, "tensor 'a\033[2Jb\r\x7f'\tc\n\xc3\xa9");
	end(&p, "warning: tensor 'a?[2Jb?" "?'\tc\n\xc3\xa9\n");
}

static void progress_colour_of_warnings(void **state)
{
	(void)state;
	struct dtp_progress p = begin(true, false);
	p.colour = true;
	dtp_progress_warn(&p, "x");
	end(&p, "\033[33mwarning:\033[0m x\n");
}

static void progress_columns_from_the_environment(void **state)
{
	(void)state;
	struct dtp_progress p;
	setenv("COLUMNS", "33", 1);
	dtp_progress_init(&p, stderr, DTP_ARG_PROGRESS_AUTO, false);
	assert_int_equal(p.columns, 33);
	setenv("COLUMNS", "-4", 1);
	dtp_progress_init(&p, stderr, DTP_ARG_PROGRESS_AUTO, false);
	assert_true(p.columns > 0 && p.columns != 33);
	unsetenv("COLUMNS");
}

static void progress_none_leaves_notes(void **state)
{
	(void)state;
	struct dtp_progress p = begin(true, false);
	p.mode = DTP_ARG_PROGRESS_NONE;
	stage(&p, 0, DTP_PHASE_LOAD, "load");
	clock_now += 60;
	moved(&p, 0, 1, 2);
	says(&p, 0, DTP_EVENT_NOTE, "seed 1");
	dtp_progress_end(&p);
	end(&p, "seed 1\n");
}

static void progress_json_is_an_object_a_line(void **state)
{
	(void)state;
	struct dtp_err why = DTP_ERR_INIT;
	struct dtp_progress p = begin(false, false);
	p.mode = DTP_ARG_PROGRESS_JSON;
	stage(&p, 0, DTP_PHASE_LOAD, "load transformer");
	clock_now += 2;
	moved(&p, 0, 500000000, 2000000000);
	clock_now += 0.1;
	moved(&p, 0, 600000000, 2000000000); /* too soon */
	says(&p, 0, DTP_EVENT_WARN, "a \"word\"\xff\n");
	says(&p, 3, DTP_EVENT_STDERR, "libfoo: bad");
	stage(&p, 0, DTP_PHASE_STEP, "step 1/3");
	clock_now += 4;
	stage(&p, 0, DTP_PHASE_STEP, "step 2/3");
	dtp_progress_event(&p, &(struct dtp_event){.kind = DTP_EVENT_IMAGE, .text = "a.png", .width = 64, .height = 32,
						   .has_seed = true, .seed = UINT64_MAX});
	const struct dtp_footprint f = {700, 200, 100, 1000, {.peak = 500}};
	dtp_progress_event(&p, &(struct dtp_event){.kind = DTP_EVENT_MEMORY, .rank = 3, .text = "vae", .memory = &f});
	dtp_fail(&why, DTP_FAILED, "rank 1 died");
	assert_int_equal(dtp_progress_close(&p, DTP_FAILED, &why), DTP_FAILED);
	assert_int_equal(why.code, DTP_OK); /* it has been told */
	end(&p, "{\"event\":\"stage\",\"phase\":\"load\",\"stage\":\"load transformer\",\"seconds\":0.000}\n"
		"{\"event\":\"progress\",\"phase\":\"load\",\"stage\":\"load transformer\",\"seconds\":2.000,\"done\":500000000,"
		"\"total\":2000000000,\"bytes_per_second\":250000000,\"seconds_left\":6.000}\n"
		"{\"event\":\"warning\",\"text\":\"a \\\"word\\\"\xef\xbf\xbd\\n\"}\n"
		"{\"event\":\"output\",\"rank\":3,\"text\":\"libfoo: bad\"}\n"
		"{\"event\":\"stage\",\"phase\":\"step\",\"stage\":\"step 1/3\",\"seconds\":0.000,\"step\":1,\"steps\":3}\n"
		"{\"event\":\"stage\",\"phase\":\"step\",\"stage\":\"step 2/3\",\"seconds\":0.000,\"step\":2,\"steps\":3,"
		"\"seconds_per_step\":4.000,\"seconds_left\":8.000}\n"
		"{\"event\":\"image\",\"path\":\"a.png\",\"width\":64,\"height\":32,\"seed\":18446744073709551615}\n"
		"{\"event\":\"memory\",\"name\":\"vae\",\"rank\":3,\"weights\":700,\"activations\":200,\"workspace\":100,\"predicted_bytes\":1000,"
		"\"peak_bytes\":500,\"peak_of_predicted\":0.5,\"device_used_bytes\":null}\n"
		"{\"event\":\"end\",\"code\":1,\"message\":\"rank 1 died\"}\n");
}

static void units_bytes(void **state)
{
	(void)state;
	static const struct {
		uint64_t n;
		const char *text;
	} cases[] = {
		{0, "0 bytes"}, {999, "999 bytes"}, {1000, "1.0 kB"}, {41234, "41 kB"}, {999499, "999 kB"},
		{999500, "1.0 MB"}, {7800000, "7.8 MB"}, {64u << 20, "67 MB"}, {16200000000, "16.2 GB"},
		{999600000000, "1.0 TB"}, {UINT64_MAX, "18.4 EB"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_string_equal(dtp_bytes_text(cases[i].n).s, cases[i].text);
}

static void units_seconds(void **state)
{
	(void)state;
	static const struct {
		double s;
		const char *text;
	} cases[] = {
		{0, "0.00 s"}, {0.994, "0.99 s"}, {0.996, "1.0 s"}, {9.94, "9.9 s"}, {9.96, "10 s"}, {119.4, "119 s"},
		{119.6, "2:00"}, {3599.6, "1:00:00"}, {3725, "1:02:05"}, {1e30, "100000:00:00"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_string_equal(dtp_seconds_text(cases[i].s).s, cases[i].text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(progress_plain_lines_every_five_seconds),
		cmocka_unit_test(progress_steps_tell_the_time_left),
		cmocka_unit_test(progress_redraws_one_line),
		cmocka_unit_test(progress_is_cut_to_the_columns),
		cmocka_unit_test(progress_quiet_leaves_warnings),
		cmocka_unit_test(progress_other_ranks_are_named),
		cmocka_unit_test(progress_names_cannot_steer_the_terminal),
		cmocka_unit_test(progress_colour_of_warnings),
		cmocka_unit_test(progress_columns_from_the_environment),
		cmocka_unit_test(progress_none_leaves_notes),
		cmocka_unit_test(progress_json_is_an_object_a_line),
		cmocka_unit_test(units_bytes),
		cmocka_unit_test(units_seconds),
	};
	return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
