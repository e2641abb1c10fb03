/* SPDX-License-Identifier: Apache-2.0 */
/* Names of output files, and sheets of several pictures. */
#include "support.h"

#include "naming.h"
#include "sheet.h"

#include <sys/stat.h>
#include <unistd.h>

static struct dtp_err err;

static void names(void **state)
{
	static const struct {
		const char *output, *prompt;
		int i, n;
		const char *name;
	} cases[] = {
		{"{seed}.png", "", 0, 1, "18446744073709551615.png"}, {"a/{index}", "", 1, 3, "a/0041"},
		{"{prompt}.png", "A Red  fox!", 0, 1, "a-red-fox.png"}, {"{prompt}.png", "--", 0, 1, "image.png"},
		{"{prompt}.png", "/../../etc/passwd", 0, 1, "etc-passwd.png"}, {"{prompt}.png", "\xff", 0, 1, "image.png"},
		{"{prompt}.png", "\xe7\x8c\xab\xe3\x80\x81 Stra\xc3\x9f" "e", 0, 1, "\xe7\x8c\xab-stra\xc3\x9f" "e.png"},
		{"{prompt}.png", "x", 1, 2, "x_1.png"}, {"{prompt}-{seed}.png", "x", 1, 2, "x-18446744073709551615.png"},
		{"{{{prompt}}}.png", "x", 0, 1, "{x}.png"}, {"{{seed}}.png", "", 0, 1, "{seed}.png"}, {"{{seed}}.png", "", 1, 2, "{seed}_1.png"},
		{"{prompt}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xe7\x8c\xab",
		 0, 1, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_name_values v = {cases[i].prompt, UINT64_MAX, 41};
		assert_int_equal(dtp_name_check(cases[i].output, &err), DTP_OK);
		char *name = dtp_name_make(cases[i].output, &v, cases[i].i, cases[i].n);
		assert_string_equal(name, cases[i].name);
		free(name);
	}
}

static void patterns_that_are_wrong(void **state)
{
	static const char *const bad[] = {"{", "}", "a{seed", "a}seed", "{seed}}", "{{seed}", "{seed{index}}", "{}", "{Seed}", "{seeds}", "{seed }"};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		if (dtp_name_check(bad[i], &err) != DTP_REFUSED)
			fail_msg("'%s' is accepted", bad[i]);
	assert_int_equal(dtp_name_folder("a/b/{seed}/c.png"), 3);
	assert_int_equal(dtp_name_folder("{seed}/c.png"), 0);
	assert_int_equal(dtp_name_folder("a.{seed}"), 0);
}

static void names_that_are_taken(void **state)
{
	char file[600], folder[600], link[600], dangling[600];

	(void)state;
	snprintf(file, sizeof file, "%s/file", temp_dir());
	snprintf(folder, sizeof folder, "%s/x/y/z", temp_dir());
	snprintf(link, sizeof link, "%s/link", temp_dir());
	snprintf(dangling, sizeof dangling, "%s/dangling", temp_dir());
	write_file(file, "x", 1);
	assert_int_equal(symlink("/dev/null", link), 0);
	assert_int_equal(symlink("nowhere", dangling), 0);
	assert_true(dtp_name_is_taken(file) && dtp_name_is_taken(dangling));
	assert_false(dtp_name_is_taken(link) || dtp_name_is_taken("/dev/null") || dtp_name_is_taken(folder));
	assert_int_equal(dtp_make_folders(folder, 0, DTP_FAILED, &err), DTP_OK);
	write_file(folder, "x", 1);
	snprintf(folder, sizeof folder, "%s/file/a/b", temp_dir());
	assert_int_equal(dtp_make_folders(folder, 0, DTP_REFUSED, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "cannot make the folder '", "file/a'", NULL);
}

/* Cell i is filled with i + 1. */
static void sheet_of_five(void **state)
{
	uint8_t rgb[2 * 3 * 3];
	struct dtp_picture p;
	struct dtp_sheet s;

	(void)state;
	assert_int_equal(dtp_sheet_open(&s, 5, 2, 3, &err), DTP_OK);
	for (int i = 0; i < 5; i++) {
		memset(rgb, i + 1, sizeof rgb);
		rgb[0] = (uint8_t)(100 + i);
		assert_int_equal(dtp_sheet_put(&s, i, rgb, 2, 3, &err), DTP_OK);
	}
	assert_int_equal(dtp_sheet_picture(&s, &p, &err), DTP_OK);
	assert_true(p.height == 4 && p.width == 9);
	for (int64_t y = 0; y < 4; y++)
		for (int64_t x = 0; x < 27; x++) {
			int64_t i = y / 2 * 3 + x / 9;
			assert_int_equal(p.rgb[y * 27 + x], i > 4 ? 0 : y % 2 || x % 9 ? i + 1 : 100 + i);
		}
	dtp_picture_free(&p);
	dtp_sheet_close(&s);
}

static void sheets_have_an_end(void **state)
{
	static const struct {
		int n;
		int64_t h, w, cell_h, cell_w;
	} cases[] = {
		{1, 1024, 768, 1024, 768}, {16, 1024, 1024, 1024, 1024}, {17, 1024, 1024, 819, 819}, {1, 16384, 64, 4096, 16},
		{4, 64, 16384, 8, 2048}, {10000, 1024, 512, 40, 20}, {2, 1024, 1024, 1024, 1024}, {10000, 16384, 16, 40, 1},
	};
	uint8_t *grey = calloc(3, 1024 * 1024);
	struct dtp_sheet s;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(dtp_sheet_open(&s, cases[i].n, cases[i].h, cases[i].w, &err), DTP_OK);
		assert_int_equal(s.height, cases[i].cell_h);
		assert_int_equal(s.width, cases[i].cell_w);
		dtp_sheet_close(&s);
	}
	memset(grey, 77, 3 * 1024 * 1024);
	assert_int_equal(dtp_sheet_open(&s, 17, 1024, 1024, &err), DTP_OK);
	assert_int_equal(dtp_sheet_put(&s, 16, grey, 1024, 1024, &err), DTP_OK);
	assert_int_equal(s.cells[3 * 819 * 819 * 17 - 1], 77);
	assert_int_equal(s.cells[3 * 819 * 819 * 16 - 1], 0);
	dtp_sheet_close(&s);
	free(grey);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(patterns_that_are_wrong),
		cmocka_unit_test(names_that_are_taken),
		cmocka_unit_test(sheet_of_five),
		cmocka_unit_test(sheets_have_an_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
