/* SPDX-License-Identifier: Apache-2.0 */
/* Reading image files: tests/images holds files of every kind, and what diffusers' loader made of them. */
#include "support.h"

#include "image.h"
#include "json.h"
#include "picture.h"
#include "reference.h"
#include "safetensors.h"
#include "sha256.h"

#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct dtp_err err;

static char *path_of(const char *name)
{
	static char path[700];
	snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
	return path;
}

static uint8_t *tensor(const struct dtp_st *st, const struct dtp_st_entry *e)
{
	uint8_t *v = malloc((size_t)e->nbytes);
	if (dtp_st_read(st, e, 0, e->nbytes, v, &err))
		fail_msg("%s", err.message);
	return v;
}

static void picture_of_every_kind(void **state)
{
	struct dtp_st st;
	int wrong = 0;

	(void)state;
	assert_int_equal(dtp_st_open_file(fixture("images/expected.safetensors"), &st, &err), DTP_OK);
	for (int i = 0; i < st.nentries; i++) {
		const struct dtp_st_entry *e = &st.entries[i];
		struct dtp_picture p;
		uint8_t *want = tensor(&st, e);
		if (dtp_picture_read(fixture("images/%s", e->name), NULL, &p, &err)) {
			print_error("%s: %s\n", e->name, err.message);
			wrong++;
		} else if (p.height != e->shape[0] || p.width != e->shape[1] || memcmp(p.rgb, want, e->nbytes)) {
			print_error("%s: another picture\n", e->name);
			wrong++;
		}
		dtp_picture_free(&p);
		free(want);
	}
	assert_int_equal(st.nentries, 50);
	assert_int_equal(wrong, 0);
	dtp_st_close(&st);
}

/* ---- resizing */

static void picture_resize_is_pillows(void **state)
{
	static const char *const cases[][2] = {{"in.200x150", "out.200x150.area9216"}, {"in.75x133", "out.75x133.area4096"},
		{"in.160x64", "out.160x64.area6400"}};
	struct dtp_st st;

	(void)state;
	assert_int_equal(dtp_st_open_file(fixture("reference/resize.safetensors"), &st, &err), DTP_OK);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct dtp_st_entry *in = dtp_st_find(&st, cases[i][0]), *out = dtp_st_find(&st, cases[i][1]);
		struct dtp_picture p = {in->shape[0], in->shape[1], tensor(&st, in)}, q;
		uint8_t *want = tensor(&st, out);
		assert_int_equal(dtp_picture_resize(&p, out->shape[0], out->shape[1], &q, &err), DTP_OK);
		assert_memory_equal(q.rgb, want, out->nbytes);
		dtp_picture_free(&p);
		dtp_picture_free(&q);
		free(want);
	}
	dtp_st_close(&st);
}

/* R = (7x + 13y) % 256, G = (x*y / 16) % 256, B = (x^y)*5 % 256. */
static struct dtp_picture formula(int64_t h, int64_t w)
{
	struct dtp_picture p = {h, w, malloc((size_t)(3 * h * w))};
	for (int64_t y = 0; y < h; y++)
		for (int64_t x = 0; x < w; x++) {
			uint8_t *v = p.rgb + (y * w + x) * 3;
			v[0] = (uint8_t)(7 * x + 13 * y);
			v[1] = (uint8_t)(x * y / 16);
			v[2] = (uint8_t)((x ^ y) * 5);
		}
	return p;
}

/* A large reference is reduced to a megapixel, its shape kept: from a file, as a user gives it. */
static void reference_is_reduced_as_diffusers_does(void **state)
{
	struct dtp_json doc;
	const cJSON *c;
	int n = 0;

	(void)state;
	assert_int_equal(dtp_json_load(fixture("reference/resize_large.json"), 0, &doc, &err), DTP_OK);
	cJSON_ArrayForEach(c, cJSON_GetObjectItemCaseSensitive(doc.root, "images")) {
		int64_t w, h, width, height;
		const char *want;
		char got[65];
		assert_int_equal(sscanf(c->string, "%" SCNd64 "x%" SCNd64, &w, &h), 2);
		assert_false(dtp_json_int(&doc, c, "width", 1, 10000, &width, &err) || dtp_json_int(&doc, c, "height", 1, 10000, &height, &err) ||
			     dtp_json_string(&doc, c, "sha256_rgb", &want, &err));
		struct dtp_picture p = formula(h, w), q;
		char *path = path_of("large.png");
		assert_int_equal(dtp_png_write(path, NULL, p.rgb, h, w, NULL, 0, &err), DTP_OK);
		assert_int_equal(dtp_reference_read(path, &q, &err), DTP_OK);
		assert_int_equal(q.width, width);
		assert_int_equal(q.height, height);
		sha256_hex(q.rgb, (size_t)(3 * width * height), got);
		assert_string_equal(got, want);
		dtp_picture_free(&p);
		dtp_picture_free(&q);
		n++;
	}
	assert_int_equal(n, 3);
	dtp_json_free(&doc);
}

/* 103 x 70 -> the middle 96 x 64: cut, not stretched. */
static void reference_is_cut_in_the_middle(void **state)
{
	struct dtp_picture p = formula(70, 103);
	int64_t h, w;

	(void)state;
	dtp_reference_size(&p, 16, &h, &w);
	assert_true(h == 64 && w == 96);
	float *v = malloc((size_t)(3 * h * w) * sizeof *v);
	dtp_reference_values(&p, 16, v);
	for (int64_t y = 0; y < h; y++)
		for (int64_t x = 0; x < w; x++)
			for (int c = 0; c < 3; c++)
				assert_true(v[(y * w + x) * 3 + c] == (float)p.rgb[((y + 3) * 103 + x + 3) * 3 + c] / 255.0f * 2.0f - 1.0f);
	free(v);
	dtp_picture_free(&p);
}

/* ---- what is refused */

static void assert_refused(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void assert_refused(const char *path, const char *format, ...)
{
	struct dtp_picture p;
	char want[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(want, sizeof want, format, ap);
	va_end(ap);
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_reference_read(path, &p, &err), DTP_REFUSED);
	assert_null(p.rgb);
	assert_string_equal(err.message, want);
}

static void picture_refused_kinds(void **state)
{
	const char *path;

	(void)state;
	path = fixture("images/bad_cmyk.jpg");
	assert_refused(path, "'%s' is a CMYK picture (4 colour components); an RGB or grey one is needed", path);
	path = fixture("images/bad_animated.webp");
	assert_refused(path, "'%s' is animated; one picture is needed", path);
	path = fixture("images/bad_animated.png");
	assert_refused(path, "'%s' is animated; one picture is needed", path);
	path = fixture("images");
	assert_refused(path, "'%s' is a folder, expected an image file", path);
	path = path_of("absent.png");
	assert_refused(path, "cannot open '%s': No such file or directory", path);
	path = path_of("pipe.png");
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_refused(path, "'%s' is no regular file; an image is read more than once, so put it into a file", path);
}

static void picture_names_other_formats(void **state)
{
	static const struct {
		const char *bytes, *name;
		size_t n;
	} others[] = {
		{"GIF89a\1\0\1\0", "GIF", 10}, {"BM\0\0\0\0", "BMP", 6}, {"II*\0\10\0\0\0", "TIFF", 8}, {"MM\0*\0\0\0\10", "TIFF", 8},
		{"\0\0\0\40ftypavif", "AVIF", 12}, {"\0\0\0\30ftypheic", "HEIC", 12}, {"\377\12\0", "JPEG XL", 3}, {"%PDF-1.7", "PDF", 8},
	};
	char *path = path_of("other.png");

	(void)state;
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		write_file(path, others[i].bytes, others[i].n);
		assert_refused(path, "'%s' is a file of the format %s; PNG, JPEG and WebP files are read", path, others[i].name);
	}
	write_file(path, "{}", 2);
	assert_refused(path, "'%s' is no image file of a known format; PNG, JPEG and WebP files are read", path);
	write_file(path, "", 0);
	assert_refused(path, "'%s' is empty; a PNG, JPEG or WebP file is needed", path);
}

/* Cut anywhere, and with any byte lost, a file is refused or read, and never more than that happens. */
static void picture_truncated(void **state)
{
	static const char *const names[] = {"mode_RGB.png", "420.jpg", "progressive.jpg", "lossy.webp", "lossless.webp"};
	static const char *const messages[] = {"is a damaged PNG file: the file is truncated",
		"is a damaged or truncated JPEG file: Premature end of JPEG file", "is a damaged or truncated WebP file"};

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		size_t n;
		char *bytes = read_file(fixture("images/%s", names[i]), &n);
		const char *what = messages[strstr(names[i], "png") ? 0 : strstr(names[i], "jpg") ? 1 : 2];
		for (size_t cut = 1; cut < n - 30; cut += cut < 200 ? 1 : 37) {
			struct dtp_picture p;
			char *copy = malloc(n - cut); /* its own memory: a sanitizer sees a byte too far */
			memcpy(copy, bytes, n - cut);
			err = (struct dtp_err)DTP_ERR_INIT;
			assert_int_equal(dtp_picture_decode("cut", copy, n - cut, NULL, &p, &err), DTP_REFUSED);
			assert_message(&err, DTP_REFUSED, "'cut'", what, NULL);
			free(copy);
		}
		free(bytes);
	}
}

/* 95 texts of 4 MB, each of some 4 kB in the file, are no matter to who looks for another; nor as often the same. */
static void picture_many_texts(void **state)
{
	struct rusage before, after;
	struct dtp_picture p;
	char *text = NULL, *one, *bytes, *at;
	size_t n, len;

	(void)state;
	one = read_file(fixture("images/long_text.png"), &n); /* signature, header, the text, the rest */
	len = 12 + ((size_t)(uint8_t)one[35] << 8 | (uint8_t)one[36]);
	at = bytes = malloc(n + 94 * len);
	at = mempcpy(at, one, 33);
	for (int i = 0; i < 95; i++)
		at = mempcpy(at, one + 33, len);
	memcpy(at, one + 33 + len, n - 33 - len);
	n += 94 * len;
	getrusage(RUSAGE_SELF, &before);
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_picture_decode("texts", bytes, n, NULL, &p, &err), DTP_OK);
	dtp_picture_free(&p);
	assert_int_equal(dtp_png_find_text("texts", bytes, n, "difftp", &text, &err), DTP_OK);
	assert_null(text);
	assert_int_equal(dtp_png_find_text("texts", bytes, n, "k", &text, &err), DTP_OK);
	assert_int_equal(strlen(text), 4000000);
	free(text);
	getrusage(RUSAGE_SELF, &after);
	assert_true(after.ru_maxrss - before.ru_maxrss < 50000); /* kB */
	free(bytes);
	free(one);
}

/* A header of 1x170000000 pixels, which is within the limit, before four bytes of them: no memory is touched for the others.  As a
 * reference, it is refused for its size, which is looked at first. */
static void picture_of_many_rows(void **state)
{
	static const uint8_t png[] = {
		0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00, 0x00, 0x01,
		0x0a, 0x21, 0xfe, 0x80, 0x08, 0x02, 0x00, 0x00, 0x00, 0xd1, 0x28, 0x3d, 0x71, 0x00, 0x00, 0x00, 0x04, 0x49, 0x44, 0x41,
		0x54, 0x78, 0x9c, 0x00, 0x00, 0xb0, 0xa1, 0x2e, 0xe0, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60,
		0x82};
	struct rusage before, after;
	struct dtp_picture p;

	(void)state;
	getrusage(RUSAGE_SELF, &before);
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_picture_decode("high", png, sizeof png, NULL, &p, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "'high' is a damaged PNG file", NULL);
	getrusage(RUSAGE_SELF, &after);
	assert_true(after.ru_maxrss - before.ru_maxrss < 100000); /* kB */
	write_file(path_of("high.png"), png, sizeof png);
	assert_refused(path_of("high.png"), "'%s' has 1x170000000 pixels; a reference image needs at least 64 on each side", path_of("high.png"));
}

/* A chunk that announces 2 GB in a file of 100 bytes: refused without memory for it. */
static void picture_lying_chunk(void **state)
{
	static const char *const kinds[] = {"tEXt", "iTXt", "zTXt", "eXIf", "iCCP", "acTL", "IDAT"};
	static const uint8_t head[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0, 0, 13, 'I', 'H', 'D', 'R', 0, 0, 0, 8, 0, 0, 0, 8, 8, 2, 0, 0, 0,
		0x4b, 0x6d, 0x29, 0xdc, 0x7e, 0, 0, 0};
	struct rusage before, after;

	(void)state;
	getrusage(RUSAGE_SELF, &before);
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		char *text = NULL, bytes[100] = {0};
		struct dtp_picture p;

		memcpy(bytes, head, sizeof head);
		memcpy(bytes + sizeof head, kinds[i], 4);
		memset(bytes + sizeof head + 4, 'k', 20);
		err = (struct dtp_err)DTP_ERR_INIT;
		assert_int_equal(dtp_picture_decode("lying", bytes, sizeof bytes, NULL, &p, &err), DTP_REFUSED);
		assert_message(&err, DTP_REFUSED, "'lying' is a damaged PNG file: the file is truncated", NULL);
		err = (struct dtp_err)DTP_ERR_INIT;
		assert_int_equal(dtp_png_find_text("lying", bytes, sizeof bytes, "k", &text, &err), DTP_REFUSED);
		assert_message(&err, DTP_REFUSED, "'lying' is a damaged PNG file: the file is truncated", NULL);
	}
	getrusage(RUSAGE_SELF, &after);
	assert_true(after.ru_maxrss - before.ru_maxrss < 256 << 10); /* KiB */
}

static void picture_damaged(void **state)
{
	static const char *const names[] = {"mode_RGB.png", "palette_4.png", "xmp.png", "420.jpg", "progressive.jpg", "orientation_6.jpg",
		"lossy_alpha.webp", "lossless.webp", "orientation_7.webp"};
	int read = 0;

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		size_t n;
		char *bytes = read_file(fixture("images/%s", names[i]), &n);
		for (int k = 0; k < 400; k++) {
			struct dtp_picture p;
			size_t at = test_random() % (k % 2 ? n : 400);
			char before = bytes[at];
			bytes[at] = (char)test_random();
			err = (struct dtp_err)DTP_ERR_INIT;
			if (!dtp_picture_decode("damaged", bytes, n, NULL, &p, &err))
				read++;
			else
				assert_message(&err, DTP_REFUSED, "'damaged'", NULL);
			dtp_picture_free(&p);
			bytes[at] = before;
		}
		free(bytes);
	}
	assert_true(read > 0);
}

/* A header that announces more pixels than the limit is refused before memory is taken for them. */
static void picture_that_unpacks_too_far(void **state)
{
	static const unsigned char png[] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x4e\x20\0\0\x4e\x20\x08\2\0\0\0\x6c\x12\xd1\x6e\0\0\0\0IDAT";
	size_t n;
	char *path = path_of("bomb.png"), *jpeg = read_file(fixture("images/420.jpg"), &n);

	(void)state;
	write_file(path, png, sizeof png - 1);
	assert_refused(path, "'%s' has 20000x20000 pixels; a picture of 1 to 178956970 pixels is read", path);
	for (size_t i = 0; i + 9 < n; i++)
		if ((unsigned char)jpeg[i] == 0xff && (unsigned char)jpeg[i + 1] == 0xc0)
			memset(jpeg + i + 5, 0x40, 4);
	write_file(path, jpeg, n);
	assert_refused(path, "'%s' has 16448x16448 pixels; a picture of 1 to 178956970 pixels is read", path);
	free(jpeg);
}

static void reference_of_unusable_shape(void **state)
{
	struct dtp_picture p = formula(600, 600);
	char *path = path_of("shape.png");

	(void)state;
	assert_int_equal(dtp_png_write(path, NULL, p.rgb, 63, 100, NULL, 0, &err), DTP_OK);
	assert_refused(path, "'%s' has 100x63 pixels; a reference image needs at least 64 on each side", path);
	assert_int_equal(dtp_png_write(path, NULL, p.rgb, 64, 513, NULL, 0, &err), DTP_OK);
	assert_refused(path, "'%s' has 513x64 pixels, one side is 8.0 times the other; a reference image may have 8 times at most", path);
	assert_int_equal(dtp_png_write(path, NULL, p.rgb, 64, 512, NULL, 0, &err), DTP_OK);
	struct dtp_picture q;
	assert_int_equal(dtp_reference_read(path, &q, &err), DTP_OK);
	dtp_picture_free(&q);
	dtp_picture_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(picture_of_every_kind),
		cmocka_unit_test(picture_resize_is_pillows),
		cmocka_unit_test(reference_is_reduced_as_diffusers_does),
		cmocka_unit_test(reference_is_cut_in_the_middle),
		cmocka_unit_test(picture_refused_kinds),
		cmocka_unit_test(picture_names_other_formats),
		cmocka_unit_test(picture_truncated), cmocka_unit_test(picture_many_texts), cmocka_unit_test(picture_of_many_rows), cmocka_unit_test(picture_lying_chunk),
		cmocka_unit_test(picture_damaged),
		cmocka_unit_test(picture_that_unpacks_too_far),
		cmocka_unit_test(reference_of_unusable_shape),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
