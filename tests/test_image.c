/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "image.h"

#include <dirent.h>
#include <png.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static uint8_t *random_rgb(int64_t h, int64_t w)
{
	uint8_t *p = malloc((size_t)(h * w * 3));
	for (int64_t i = 0; i < h * w * 3; i++)
		p[i] = (uint8_t)test_random();
	return p;
}

struct picture {
	png_structp png;
	png_infop info;
	png_uint_32 w, h;
	png_bytepp rows;
};

static struct picture read_png(const char *path)
{
	struct picture p = {0};
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	p.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	p.info = png_create_info_struct(p.png);
	if (setjmp(png_jmpbuf(p.png)))
		fail_msg("libpng does not read %s", path);
	png_init_io(p.png, f);
	png_read_png(p.png, p.info, PNG_TRANSFORM_IDENTITY, NULL);
	fclose(f);
	p.w = png_get_image_width(p.png, p.info);
	p.h = png_get_image_height(p.png, p.info);
	p.rows = png_get_rows(p.png, p.info);
	assert_int_equal(png_get_bit_depth(p.png, p.info), 8);
	assert_int_equal(png_get_color_type(p.png, p.info), PNG_COLOR_TYPE_RGB);
	return p;
}

static void png_write_round_trip(void **state)
{
	static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {1, 300}, {257, 2}, {130, 257}};
	char path[600];
	(void)state;
	snprintf(path, sizeof path, "%s/a.png", temp_dir());
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int64_t h = sizes[i][0], w = sizes[i][1];
		struct dtp_err err = DTP_ERR_INIT;
		uint8_t *rgb = random_rgb(h, w);
		if (dtp_png_write(path, rgb, h, w, NULL, 0, &err))
			fail_msg("%s", err.message);
		struct picture p = read_png(path);
		assert_int_equal(p.h, h);
		assert_int_equal(p.w, w);
		for (int64_t y = 0; y < h; y++)
			assert_memory_equal(p.rows[y], rgb + y * w * 3, (size_t)w * 3);
		png_destroy_read_struct(&p.png, &p.info, NULL);
		free(rgb);
	}
}

static void png_write_text(void **state)
{
	static char longer[20001];
	static const char *const text[][2] = {
		{"prompt", "ein Füchslein 🦊 im Schnee\nzweite Zeile"}, {"seed", "42"}, {"empty", ""}, {"long", longer},
	};
	const uint8_t rgb[3] = {1, 2, 3};
	struct dtp_err err = DTP_ERR_INIT;
	char path[600];
	png_textp got;
	int n;
	(void)state;
	memset(longer, 'x', sizeof longer - 1);
	snprintf(path, sizeof path, "%s/text.png", temp_dir());
	assert_int_equal(dtp_png_write(path, rgb, 1, 1, text, 4, &err), DTP_OK);
	struct picture p = read_png(path);
	png_get_text(p.png, p.info, &got, &n);
	assert_int_equal(n, 4);
	for (int i = 0; i < n; i++) {
		assert_string_equal(got[i].key, text[i][0]);
		assert_string_equal(got[i].text, text[i][1]);
		assert_int_equal(got[i].compression, PNG_ITXT_COMPRESSION_NONE);
	}
	png_destroy_read_struct(&p.png, &p.info, NULL);
}

static int files_in(const char *dir)
{
	int n = -2;
	DIR *d = opendir(dir);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void png_write_refused(void **state)
{
	static const char *const bad[][2] = {{"", "empty keyword"}};
	const uint8_t rgb[3] = {0};
	struct dtp_err err = DTP_ERR_INIT;
	char dir[600], path[700];
	(void)state;
	snprintf(dir, sizeof dir, "%s/refused", temp_dir());
	assert_int_equal(mkdir(dir, 0777), 0);
	snprintf(path, sizeof path, "%s/a.png", dir);
	assert_int_equal(dtp_png_write(path, rgb, 0, 1, NULL, 0, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "1 x 0", NULL);
	assert_int_equal(dtp_png_write(path, rgb, 1, INT64_MAX, NULL, 0, &err), DTP_FAILED);
	assert_int_equal(dtp_png_write(path, rgb, 1, 1, bad, 1, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "keyword", NULL);
	assert_int_equal(dtp_png_write("/absent/a.png", rgb, 1, 1, NULL, 0, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "'/absent'", NULL);
	assert_int_equal(files_in(dir), 0);
}

/* The file may grow to 3,000 bytes: neither a broken picture nor a temporary is left, and what was there stays. */
static void png_write_full_disk(void **state)
{
	const int64_t sizes[] = {40 /* fails at the end */, 300 /* fails in the middle */};
	char dir[600], path[700];
	struct rlimit former, l;
	(void)state;
	snprintf(dir, sizeof dir, "%s/full", temp_dir());
	assert_int_equal(mkdir(dir, 0777), 0);
	snprintf(path, sizeof path, "%s/a.png", dir);
	signal(SIGXFSZ, SIG_IGN);
	for (int existing = 0; existing < 2; existing++) {
		if (existing)
			write_file(path, "old", 3);
		for (int i = 0; i < 2; i++) {
			struct dtp_err err = DTP_ERR_INIT;
			uint8_t *rgb = random_rgb(sizes[i], sizes[i]);
			assert_int_equal(getrlimit(RLIMIT_FSIZE, &former), 0);
			l = former;
			l.rlim_cur = 3000;
			assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
			enum dtp_code rc = dtp_png_write(path, rgb, sizes[i], sizes[i], NULL, 0, &err);
			setrlimit(RLIMIT_FSIZE, &former);
			free(rgb);
			assert_int_equal(rc, DTP_FAILED);
			assert_message(&err, DTP_FAILED, path, "File too large", NULL);
			assert_int_equal(files_in(dir), existing);
		}
	}
	char *s = read_file(path, NULL);
	assert_string_equal(s, "old");
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(png_write_round_trip),
		cmocka_unit_test(png_write_text),
		cmocka_unit_test(png_write_refused),
		cmocka_unit_test(png_write_full_disk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
