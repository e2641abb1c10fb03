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
		if (dtp_png_write(path, NULL, rgb, h, w, NULL, 0, &err))
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
	static const struct dtp_png_text text[] = {
		{"prompt", "ein Füchslein 🦊 im Schnee\nzweite Zeile", true}, {"seed", "42", false}, {"empty", "", false},
		{"long", longer, false}, {"plain", "a\nb", true},
	};
	char *found;
	const uint8_t rgb[3] = {1, 2, 3};
	struct dtp_err err = DTP_ERR_INIT;
	char path[600];
	png_textp got;
	int n;
	(void)state;
	memset(longer, 'x', sizeof longer - 1);
	snprintf(path, sizeof path, "%s/text.png", temp_dir());
	assert_int_equal(dtp_png_write(path, NULL, rgb, 1, 1, text, 5, &err), DTP_OK);
	struct picture p = read_png(path);
	png_get_text(p.png, p.info, &got, &n);
	assert_int_equal(n, 5);
	for (int i = 0; i < n; i++) {
		assert_string_equal(got[i].key, text[i].key);
		assert_string_equal(got[i].text, text[i].value);
		assert_int_equal(got[i].compression, i == 4 ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE);
		assert_int_equal(dtp_png_read_text(path, text[i].key, &found, &err), DTP_OK);
		assert_string_equal(found, text[i].value);
		free(found);
	}
	assert_int_equal(dtp_png_read_text(path, "Prompt", &found, &err), DTP_OK);
	assert_null(found);
	png_destroy_read_struct(&p.png, &p.info, NULL);
}

/* Texts that an editor has put behind the pixels, of a picture in passes. */
static void png_text_behind_the_pixels(void **state)
{
	static uint8_t row[64 * 3];
	char path[600], *found, key[] = "late", value[] = "after all";
	png_text text = {.compression = PNG_TEXT_COMPRESSION_zTXt, .key = key, .text = value, .text_length = strlen(value)};
	struct dtp_err err = DTP_ERR_INIT;
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	FILE *f;

	(void)state;
	snprintf(path, sizeof path, "%s/late.png", temp_dir());
	f = fopen(path, "wb");
	assert_non_null(f);
	png_init_io(png, f);
	png_set_IHDR(png, info, 64, 33, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_ADAM7, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	png_write_info(png, info);
	for (int pass = png_set_interlace_handling(png); pass > 0; pass--)
		for (int y = 0; y < 33; y++)
			png_write_row(png, row);
	png_set_text(png, info, &text, 1);
	png_write_end(png, info);
	png_destroy_write_struct(&png, &info);
	fclose(f);
	assert_int_equal(dtp_png_read_text(path, "late", &found, &err), DTP_OK);
	assert_non_null(found);
	assert_string_equal(found, value);
	free(found);
}

static void png_text_of_bad_files(void **state)
{
	const uint8_t rgb[3] = {1, 2, 3};
	struct dtp_err err = DTP_ERR_INIT;
	size_t large = DTP_PNG_MAX_TEXT + 1, n;
	char path[600], *value = malloc(large + 1), *bytes, *found;
	const struct dtp_png_text text[] = {{"small", "x", false}, {"large", value, false}};
	FILE *f;

	(void)state;
	memset(value, 'v', large);
	value[large] = '\0';
	snprintf(path, sizeof path, "%s/large.png", temp_dir());
	assert_int_equal(dtp_png_write(path, NULL, rgb, 1, 1, text, 2, &err), DTP_OK);
	assert_int_equal(dtp_png_read_text(path, "large", &found, &err), DTP_OK);
	assert_null(found);
	assert_int_equal(dtp_png_read_text(path, "small", &found, &err), DTP_OK);
	assert_string_equal(found, "x");
	free(found);
	assert_int_equal(dtp_png_write(path, NULL, rgb, 1, 1, text, 1, &err), DTP_OK);
	f = fopen(path, "rb");
	assert_non_null(f);
	bytes = malloc(1000);
	n = fread(bytes, 1, 1000, f);
	fclose(f);
	/* whatever the length at which it is cut: no text is found without a whole file but one that stood before the cut */
	for (size_t i = 0; i < n; i++) {
		enum dtp_code rc = dtp_png_find_text("cut", bytes, i, "none", &found, &err);
		assert_int_equal(rc, DTP_REFUSED);
		assert_null(found);
	}
	assert_int_equal(dtp_png_find_text("whole", bytes, n, "none", &found, &err), DTP_OK);
	assert_null(found);
	bytes[n - 14] ^= 1; /* in the checksum of the pixels */
	assert_int_equal(dtp_png_find_text("changed", bytes, n, "none", &found, &err), DTP_REFUSED);
	assert_int_equal(dtp_png_find_text("other", "GIF89a..", 8, "none", &found, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'other' is no PNG file", NULL);
	free(bytes);
	free(value);
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
	static const struct dtp_png_text bad[] = {{"", "empty keyword", false}};
	const uint8_t rgb[3] = {0};
	struct dtp_err err = DTP_ERR_INIT;
	char dir[600], path[700];
	(void)state;
	snprintf(dir, sizeof dir, "%s/refused", temp_dir());
	assert_int_equal(mkdir(dir, 0777), 0);
	snprintf(path, sizeof path, "%s/a.png", dir);
	assert_int_equal(dtp_png_write(path, NULL, rgb, 0, 1, NULL, 0, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "1 x 0", NULL);
	assert_int_equal(dtp_png_write(path, NULL, rgb, 1, INT64_MAX, NULL, 0, &err), DTP_FAILED);
	assert_int_equal(dtp_png_write(path, NULL, rgb, 1, 1, bad, 1, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, path, "keyword", NULL);
	assert_int_equal(dtp_png_write("/absent/a.png", NULL, rgb, 1, 1, NULL, 0, &err), DTP_FAILED);
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
			enum dtp_code rc = dtp_png_write(path, NULL, rgb, sizes[i], sizes[i], NULL, 0, &err);
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
		cmocka_unit_test(png_text_behind_the_pixels),
		cmocka_unit_test(png_text_of_bad_files),
		cmocka_unit_test(png_write_refused),
		cmocka_unit_test(png_write_full_disk),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
