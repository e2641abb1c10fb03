/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of --prompts, and the record of a batch's folder. */
#include "support.h"

#include "line.h"
#include "record.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dtp_err err;
static struct dtp_line line;
static const struct dtp_args defaults = {.tp_degree = 1, .guidance_scale = -1, .height = 96, .output = "folder"};

static enum dtp_code parse_bytes(const char *text, size_t len)
{
	dtp_line_free(&line);
	err = (struct dtp_err)DTP_ERR_INIT;
	return dtp_line_parse(text, len, &defaults, &line, &err);
}

#define parse(text) parse_bytes(text, strlen(text))

static void parses(const char *text)
{
	if (parse(text))
		fail_msg("'%s' is refused: %s", text, err.message);
}

static void refused(const char *text, const char *why)
{
	assert_int_equal(parse(text), DTP_REFUSED);
	assert_string_equal(err.message, why);
}

static int free_line(void **state)
{
	(void)state;
	dtp_line_free(&line);
	return 0;
}

static void line_is_a_prompt(void **state)
{
	(void)state;
	parses(" a red fox \r");
	assert_string_equal(line.args.prompt, " a red fox ");
	assert_true(line.args.height == 96 && !line.has_seed && !line.has_output);
	assert_null(line.args.output); /* the command line's is the folder */
	parses("# [x] \"y\" \\n \t");
	assert_string_equal(line.args.prompt, "# [x] \"y\" \\n \t");
	assert_true(dtp_line_is_blank(" \t\r", 3) && dtp_line_is_blank("", 0));
	assert_false(dtp_line_is_blank(" \0", 2));
	assert_int_equal(parse_bytes("a\0b", 3), DTP_REFUSED);
	assert_string_equal(err.message, "the byte 0 at offset 1 cannot be in a prompt");
	refused("\xc3(", "byte 0xc3 at offset 0 is not valid UTF-8");
}

static void line_is_an_object(void **state)
{
	(void)state;
	parses("\t{\"prompt\": \"a\\n\\u00e9\", \"seed\": 7, \"num-images\": 2, \"guidance\": 0.5, \"output\": \"a/b.png\"} \r");
	assert_string_equal(line.args.prompt, "a\n\xc3\xa9");
	assert_true(line.args.seed == 7 && line.has_seed && line.args.num_images == 2 && line.args.guidance_scale == 0.5);
	assert_true(line.args.height == 96 && line.has_output);
	assert_string_equal(line.args.output, "a/b.png");
	parses("{\"prompt\":\"\",\"seed\":\"18446744073709551615\"}");
	assert_true(line.args.seed == UINT64_MAX && !line.has_output);
	parses("{\"prompt\":\"\",\"seed\":9007199254740991,\"steps\":2e1}");
	assert_true(line.args.seed == UINT64_C(9007199254740991) && line.args.steps == 20);
}

static void line_says_what_is_wrong(void **state)
{
	(void)state;
	refused("{\"prompt\":\"x\"", "column 14 of an object (the line begins with '{'): malformed JSON: expected ',' or '}', found the end "
		"of the text");
	refused("{red|blue} fox", "column 2 of an object (the line begins with '{'): malformed JSON: expected a key in double quotes, found "
		"'r'");
	refused("{\"prompt\":\"x\",\"prompt\":\"y\"}", "the key 'prompt' occurs twice in one object");
	refused("{\"prompt\":\"x\",\"guidance_scale\":1,\"guidance\":1}", "'guidance' says again what another key says");
	refused("{\"prompt\":null}", "'prompt' is null, expected a string");
	refused("{\"prompt\":\"x\",\"width\":true}", "'width' is true or false, expected a number");
	refused("{\"prompt\":\"x\",\"seed\":[1]}", "'seed' is an array, expected a number or a string of digits");
	refused("{\"prompt\":\"x\",\"seed\":-1}", "option '--seed': '-1' is not a whole number (0 to 18446744073709551615)");
	/* the second is read as the first */
	refused("{\"prompt\":\"x\",\"seed\":9007199254740992}", "'seed' is too large for a JSON number to be exact: write it as a string");
	refused("{\"prompt\":\"x\",\"seed\":9007199254740993}", "'seed' is too large for a JSON number to be exact: write it as a string");
	refused("{\"prompt\":\"x\",\"height\":0}", "option '--height': 0 is out of range (1 to 16384)");
	refused("{\"prompt\":\"x\",\"guidance_scale\":1e9}", "option '--guidance-scale': 1000000000 is out of range (0 to 1000)");
	refused("{\"prompt\":\"x\",\"model\":\"y\"}", "'model' is no key of a line");
	refused("{\"Prompt\":\"x\"}", "'Prompt' is no key of a line: did you mean 'prompt'?");
	/* how many images it stands for is read all the same: the numbers of the next lines depend on it */
	refused("{\"steps\":\"x\",\"num_images\":5}", "'steps' is a string, expected a number");
	assert_int_equal(line.args.num_images, 5);
}

static void line_is_bounded(void **state)
{
	(void)state;
	char *text = malloc(DTP_LINE_MAX + 2);
	memset(text, 'x', DTP_LINE_MAX + 2);
	assert_int_equal(parse_bytes(text, DTP_LINE_MAX), DTP_OK);
	assert_int_equal(parse_bytes(text, DTP_LINE_MAX + 1), DTP_REFUSED);
	assert_string_equal(err.message, "the line has 1048577 bytes, at most 1048576 are taken");
	free(text);
}

static void outputs_stay_in_their_folder(void **state)
{
	static const char *const good[] = {"a.png", "..a.png", "a..", "...", "a/b/c", ".a"};
	static const char *const bad[] = {"", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", "a/.", DTP_RECORD_NAME};

	(void)state;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		assert_int_equal(dtp_line_check_output(good[i], &err), DTP_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(dtp_line_check_output(bad[i], &err), DTP_REFUSED);
	refused("{\"prompt\":\"x\",\"output\":\"\"}", "option '--output': the path is empty");
}

/* ---- the record */

static const char *fresh_folder(void)
{
	static char path[600];
	static int n;

	snprintf(path, sizeof path, "%s/%d", temp_dir(), n++);
	assert_int_equal(mkdir(path, 0700), 0);
	return path;
}

static struct dtp_record *open_record(const char *folder, bool lead)
{
	struct dtp_record *r;

	err = (struct dtp_err)DTP_ERR_INIT;
	if (dtp_record_open(folder, lead, true, &dtp_monitor_none, &r, &err))
		fail_msg("%s", err.message);
	return r;
}

static void put(const char *folder, const char *name, const char *text)
{
	char path[700];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	write_file(path, text, strlen(text));
}

static void record_knows_what_it_was_told(void **state)
{
	const char *folder = fresh_folder();
	struct dtp_record *r = open_record(folder, true), *other;
	uint64_t seed;

	(void)state;
	assert_false(dtp_record_seed(folder, &seed));
	put(folder, "a.png", "picture");
	put(folder, "b \".png", "another");
	assert_int_equal(dtp_record_begin(r, UINT64_MAX, &err), DTP_OK);
	assert_int_equal(dtp_record_add(r, "a.png", "{\"seed\":\"1\",\"x\":0.1}", &err), DTP_OK);
	assert_int_equal(dtp_record_add(r, "b \".png", "{\"seed\":\"2\"}", &err), DTP_OK);
	assert_int_equal(dtp_record_add(r, "a.png", "{\"seed\":\"3\"}", &err), DTP_OK);
	assert_false(dtp_record_has(r, "a.png", "{\"seed\":\"1\",\"x\":0.1}")); /* it was opened before */
	dtp_record_close(r);

	r = open_record(folder, true);
	assert_true(dtp_record_seed(folder, &seed) && seed == UINT64_MAX);
	assert_true(dtp_record_has(r, "a.png", "{\"seed\":\"1\",\"x\":0.1}"));
	assert_true(dtp_record_has(r, "a.png", "{\"seed\":\"3\"}"));
	assert_true(dtp_record_has(r, "b \".png", "{\"seed\":\"2\"}"));
	assert_false(dtp_record_has(r, "b \".png", "{\"seed\":\"3\"}"));
	assert_false(dtp_record_has(r, "c.png", "{\"seed\":\"3\"}"));
	put(folder, "a.png", "pictore");
	assert_false(dtp_record_has(r, "a.png", "{\"seed\":\"1\",\"x\":0.1}"));
	put(folder, "a.png", "picture");
	assert_true(dtp_record_has(r, "a.png", "{\"seed\":\"1\",\"x\":0.1}"));
	assert_int_equal(dtp_record_add(r, "none.png", "{}", &err), DTP_FAILED);

	/* one run at a time; its replicas share it */
	assert_int_equal(dtp_record_open(folder, true, false, &dtp_monitor_none, &other, &err), DTP_REFUSED);
	assert_non_null(strstr(err.message, "another run of difftp is drawing into"));
	other = open_record(folder, false);
	dtp_record_close(other);
	dtp_record_close(r);
}

static void record_survives_what_it_does_not_know(void **state)
{
	static const char *const torn[] = {"{\"file\":\"a.png\",\"by", "\xff\n", "[1]\n", "{\"file\":3}\n", "{\"seed\":\"x\"}\n", "\n\n", ""};
	const char *folder = fresh_folder();
	uint64_t seed;

	(void)state;
	for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
		put(folder, DTP_RECORD_NAME, torn[i]);
		put(folder, "a.png", "picture");
		struct dtp_record *r = open_record(folder, true);
		assert_false(dtp_record_has(r, "a.png", "{}"));
		assert_int_equal(dtp_record_begin(r, 5, &err), DTP_OK);
		assert_int_equal(dtp_record_add(r, "a.png", "{}", &err), DTP_OK);
		dtp_record_close(r);
		r = open_record(folder, true);
		assert_true(dtp_record_has(r, "a.png", "{}"));
		assert_true(dtp_record_seed(folder, &seed) && seed == 5);
		dtp_record_close(r);
	}
}

/* A number of bytes that no file has: it was undefined what it became, here 0. */
static void record_of_absurd_sizes(void **state)
{
	static const char *const sizes[] = {"1e300", "18446744073709551616", "-1", "0.5", "9007199254740992", "0"};
	const char *folder = fresh_folder();
	char text[300];

	(void)state;
	put(folder, "a.png", "");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		snprintf(text, sizeof text, "{\"file\":\"a.png\",\"bytes\":%s,\"sha256\":\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b"
			 "7852b855\",\"parameters\":{}}\n", sizes[i]);
		put(folder, DTP_RECORD_NAME, text);
		struct dtp_record *r = open_record(folder, true);
		assert_int_equal(dtp_record_has(r, "a.png", "{}"), !strcmp(sizes[i], "0"));
		dtp_record_close(r);
	}
}

static void record_that_cannot_be_written(void **state)
{
	const char *folder = fresh_folder();
	struct dtp_record *r = open_record(folder, true);
	struct rlimit before, little = {10, 10};
	char path[700];

	(void)state;
	put(folder, "a.png", "picture");
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &before);
	little.rlim_max = before.rlim_max;
	setrlimit(RLIMIT_FSIZE, &little);
	assert_int_equal(dtp_record_add(r, "a.png", "{}", &err), DTP_FAILED);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_non_null(strstr(err.message, "No space left on device")); /* 10 bytes of a line were written */
	dtp_record_close(r);
	r = open_record(folder, true);
	assert_int_equal(dtp_record_add(r, "a.png", "{}", &err), DTP_OK);
	dtp_record_close(r);
	r = open_record(folder, true);
	assert_true(dtp_record_has(r, "a.png", "{}"));
	dtp_record_close(r);

	folder = fresh_folder();
	snprintf(path, sizeof path, "%s/" DTP_RECORD_NAME, folder);
	assert_int_equal(symlink("/dev/full", path), 0); /* without an end */
	assert_int_equal(dtp_record_open(folder, true, true, &dtp_monitor_none, &r, &err), DTP_REFUSED);
	assert_non_null(strstr(err.message, "is no regular file"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(line_is_a_prompt, free_line),
		cmocka_unit_test_teardown(line_is_an_object, free_line),
		cmocka_unit_test_teardown(line_says_what_is_wrong, free_line),
		cmocka_unit_test_teardown(line_is_bounded, free_line),
		cmocka_unit_test_teardown(outputs_stay_in_their_folder, free_line),
		cmocka_unit_test(record_knows_what_it_was_told),
		cmocka_unit_test(record_survives_what_it_does_not_know),
		cmocka_unit_test(record_of_absurd_sizes),
		cmocka_unit_test(record_that_cannot_be_written),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
