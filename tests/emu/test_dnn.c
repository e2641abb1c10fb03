/* SPDX-License-Identifier: Apache-2.0 */
/* cuda/dnn.h for GPUs that are described: the real cuDNN plans for them wherever this runs.  What runs is in test_cudnn.c. */
#include "../support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../cuda/dnn.h"
#include "footprint.h"
#include "properties.h"

static struct dtp_err err;

static struct dtp_dnn *open_for(int sm, int device, const char *cache)
{
	char text[2048];
	struct dtp_dnn *d = NULL;

	assert_non_null(emu_properties(sm, device, text, sizeof text));
	err = (struct dtp_err)DTP_ERR_INIT;
	if (dtp_dnn_open(text, cache, &dtp_monitor_none, &d, &err))
		fail_msg("%s", err.message);
	return d;
}

/* NULL: refused, with the reason in *why. */
static const struct dtp_dnn_plan *attention(struct dtp_dnn *d, const struct dtp_dnn_attention *s, const char **why)
{
	const struct dtp_dnn_plan *p;

	*why = NULL;
	if (dtp_dnn_plan_attention(d, s, &p, why, &err))
		fail_msg("%s", err.message);
	assert_true(p || (*why && **why));
	return p;
}

static const struct dtp_dnn_plan *conv(struct dtp_dnn *d, const struct dtp_dnn_conv *s, const char **why)
{
	const struct dtp_dnn_plan *p;

	*why = NULL;
	if (dtp_dnn_plan_conv(d, s, &p, why, &err))
		fail_msg("%s", err.message);
	assert_true(p || (*why && **why));
	return p;
}

static struct dtp_dnn_attention dense(enum dtp_dtype t, int64_t sq, int64_t sk, int64_t heads, int64_t kv, int64_t dim)
{
	return (struct dtp_dnn_attention){.dtype = t, .sq = sq, .sk = sk, .heads = heads, .kv_heads = kv, .dim = dim, .q_row = heads * dim,
					  .k_row = kv * dim, .v_row = kv * dim, .out_row = heads * dim};
}

/* klein-4B at 1024 x 1024 with 512 tokens of text, over two ranks: odd views of one packed projection, and with the sums. */
static void test_attention_is_planned(void **state)
{
	struct dtp_dnn *d = open_for(90, 0, NULL);
	struct dtp_dnn_attention s = dense(DTP_BF16, 4608, 4608, 12, 12, 128);
	const struct dtp_dnn_plan *p;
	const char *why;

	(void)state;
	p = attention(d, &s, &why);
	if (!p)
		fail_msg("%s", why);
	assert_true(dtp_dnn_workspace(p) <= DTP_CUDA_DNN_WORKSPACE);
	assert_ptr_equal(attention(d, &s, &why), p);
	s.q_row = s.k_row = s.v_row = 3 * 12 * 128 + 2 * 9216;
	s.sq = 4603;
	s.stats = true;
	assert_non_null(attention(d, &s, &why));
	assert_ptr_not_equal(attention(d, &s, &why), p);
	dtp_dnn_close(d);
}

static void test_attention_is_refused(void **state)
{
	struct dtp_dnn *d = open_for(80, 0, NULL);
	const char *why;
	struct dtp_dnn_attention s;

	(void)state;
	s = dense(DTP_F32, 64, 64, 4, 4, 64); /* by its notes: it would round to TF32 */
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "TF32"));
	s = dense(DTP_BF16, 64, 64, 6, 4, 64);
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "6 query heads"));
	s = dense(DTP_BF16, 64, 64, 4, 4, 10);
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "20 bytes"));
	s = dense(DTP_BF16, 64, 64, 4, 4, 64);
	s.k_row += 4;
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "rows of k"));
	s = dense(DTP_BF16, 64, 64, 4, 4, 64);
	s.causal = true;
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "causal"));
	s = dense(DTP_BF16, 64, 64, 1, 1, 512); /* the VAE's */
	assert_null(attention(d, &s, &why));
	assert_non_null(strstr(why, "256"));
	dtp_dnn_close(d);
}

/* The kinds of convolutions of the VAE: 3 x 3, from and to 3 channels, the encoder's uneven padding, 1 x 1. */
static void test_convolutions_are_planned(void **state)
{
	static const struct dtp_dnn_conv shapes[] = {
		{.h = 64, .w = 48, .c = 512, .n = 512, .kh = 3, .kw = 3, .stride = 1, .pad_top_left = 1, .pad_bottom_right = 1, .bias = true},
		{.h = 64, .w = 48, .c = 3, .n = 128, .kh = 3, .kw = 3, .stride = 1, .pad_top_left = 1, .pad_bottom_right = 1, .bias = true},
		{.h = 64, .w = 48, .c = 128, .n = 3, .kh = 3, .kw = 3, .stride = 1, .pad_top_left = 1, .pad_bottom_right = 1, .bias = true},
		{.h = 64, .w = 48, .c = 128, .n = 128, .kh = 3, .kw = 3, .stride = 2, .pad_top_left = 0, .pad_bottom_right = 1, .bias = true},
		{.h = 64, .w = 48, .c = 512, .n = 256, .kh = 1, .kw = 1, .stride = 1, .bias = true},
		{.h = 64, .w = 48, .c = 512, .n = 256, .kh = 1, .kw = 1, .stride = 1, .bias = false},
	};
	static const enum dtp_dtype types[] = {DTP_BF16, DTP_F32};
	struct dtp_dnn *d = open_for(90, 0, NULL);
	const char *why;

	(void)state;
	for (int t = 0; t < 2; t++)
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
			struct dtp_dnn_conv s = shapes[i];
			s.dtype = types[t];
			const struct dtp_dnn_plan *p = conv(d, &s, &why);
			if (!p)
				fail_msg("%s shape %zu: %s", dtp_dtype_name(s.dtype), i, why);
			assert_true(dtp_dnn_workspace(p) <= DTP_CUDA_DNN_WORKSPACE);
		}
	struct dtp_dnn_conv small = shapes[0];
	small.dtype = DTP_F32;
	small.h = 1;
	small.pad_top_left = small.pad_bottom_right = 0;
	assert_null(conv(d, &small, &why));
	assert_non_null(strstr(why, "smaller than the filter"));
	dtp_dnn_close(d);
}

/* ---- the cache */

/* The files of a folder; the path of the last. */
static int files_in(const char *dir, char *path, size_t size)
{
	DIR *f = opendir(dir);
	int n = 0;

	assert_non_null(f);
	for (struct dirent *e; (e = readdir(f)) != NULL;)
		if (e->d_name[0] != '.') {
			snprintf(path, size, "%s/%s", dir, e->d_name);
			n++;
		}
	closedir(f);
	return n;
}

static const struct dtp_dnn_conv cached = {.dtype = DTP_F32, .h = 16, .w = 16, .c = 32, .n = 32, .kh = 3, .kw = 3, .stride = 1,
	.pad_top_left = 1, .pad_bottom_right = 1, .bias = true};

/* Plans the one shape with a cache; the workspace of its plan. */
static uint64_t plan_cached(int sm, int device, const char *dir)
{
	struct dtp_dnn *d = open_for(sm, device, dir);
	const char *why;
	const struct dtp_dnn_plan *p = conv(d, &cached, &why);
	uint64_t n = dtp_dnn_workspace(p);

	dtp_dnn_close(d);
	return n;
}

/* The time of a file's last change, and its inode: whether it was written anew. */
static bool written_anew(const char *path, struct stat *last)
{
	struct stat now;
	bool anew;

	assert_int_equal(stat(path, &now), 0);
	anew = now.st_ino != last->st_ino || now.st_mtim.tv_sec != last->st_mtim.tv_sec || now.st_mtim.tv_nsec != last->st_mtim.tv_nsec;
	*last = now;
	return anew;
}

static void test_plans_are_kept(void **state)
{
	char dir[600], path[1200], other[1200];
	struct stat last = {0};
	size_t len;
	uint64_t n;

	(void)state;
	snprintf(dir, sizeof dir, "%s/cache/of/plans", temp_dir());
	n = plan_cached(90, 0, dir);
	assert_int_equal(files_in(dir, path, sizeof path), 1);
	assert_true(written_anew(path, &last));
	/* Found again, by another GPU of the same machine too; not by another kind. */
	assert_int_equal(plan_cached(90, 0, dir), n);
	assert_int_equal(plan_cached(90, 3, dir), n);
	assert_false(written_anew(path, &last));
	assert_int_equal(files_in(dir, other, sizeof other), 1);
	plan_cached(80, 0, dir);
	assert_int_equal(files_in(dir, other, sizeof other), 2);

	/* Whatever is wrong with a file, the plan is made and written again. */
	char *text = read_file(path, &len), *damaged = malloc(len + 1);
	const size_t at[] = {0, 20, strcspn(text, "\n") + 5, len / 2, len - 1};
	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		memcpy(damaged, text, len);
		damaged[at[i]] ^= 4;
		write_file(path, damaged, len);
		assert_int_equal(plan_cached(90, 0, dir), n);
		char *now = read_file(path, &len);
		assert_memory_equal(now, text, len);
		free(now);
	}
	const size_t cut[] = {0, 10, 80, strcspn(text, "\n") + 66, len - 1};
	for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
		size_t again;
		write_file(path, text, cut[i]);
		assert_int_equal(plan_cached(90, 0, dir), n);
		free(read_file(path, &again));
		assert_int_equal(again, len);
	}
	free(damaged);
	free(text);
}

static int notes;
static char noted[4096];
static void note(void *arg, const char *text)
{
	(void)arg;
	notes++;
	snprintf(noted, sizeof noted, "%s", text);
}

/* A folder that cannot be: the plans are made all the same, and one note says why they are not kept. */
static void test_a_cache_that_cannot_be(void **state)
{
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_dnn_conv s = cached;
	struct dtp_dnn *d;
	char text[2048], dir[600];
	const char *why;

	(void)state;
	mon.note = note;
	snprintf(dir, sizeof dir, "%s/file", temp_dir());
	write_file(dir, "", 0);
	strcat(dir, "/plans");
	assert_int_equal(dtp_dnn_open(emu_properties(90, 0, text, sizeof text), dir, &mon, &d, &err), DTP_OK);
	assert_non_null(conv(d, &s, &why));
	s.h = 17;
	assert_non_null(conv(d, &s, &why));
	assert_int_equal(notes, 1);
	assert_non_null(strstr(noted, dir));
	dtp_dnn_close(d);
}

static void test_what_is_not_there_is_refused(void **state)
{
	struct dtp_dnn *d = open_for(90, 0, NULL), *none;
	float x[8];
	const char *why;
	const struct dtp_dnn_plan *p = conv(d, &cached, &why);

	(void)state;
	assert_int_equal(dtp_dnn_run_conv(d, p, NULL, x, x, x, x, x, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "GPU that is not here", "16x16x32", NULL);
	dtp_dnn_close(d);
	err = (struct dtp_err)DTP_ERR_INIT;
	assert_int_equal(dtp_dnn_open("{\"deviceVer\": 900}", NULL, &dtp_monitor_none, &none, &err), DTP_FAILED);
	assert_null(none);
	assert_message(&err, DTP_FAILED, "properties", "cudnnBackendFinalize", "maxGridSize", NULL);
}

static void test_the_last_plans_stay(void **state)
{
	struct dtp_dnn *d = open_for(90, 0, NULL);
	struct dtp_dnn_conv s = cached;
	const struct dtp_dnn_plan *plan[4];
	const char *why;

	(void)state;
	for (int i = 0; i < 4; i++) {
		s.h = 16 + i;
		plan[i] = conv(d, &s, &why);
	}
	s.h = 16;
	assert_ptr_equal(conv(d, &s, &why), plan[0]);
	assert_int_equal(dtp_dnn_plans(d), 4);
	dtp_dnn_trim(d, 2);
	assert_int_equal(dtp_dnn_plans(d), 2);
	assert_ptr_equal(conv(d, &s, &why), plan[0]); /* asked for last */
	s.h = 19;
	assert_ptr_equal(conv(d, &s, &why), plan[3]); /* made last */
	assert_int_equal(dtp_dnn_plans(d), 2);
	s.h = 17;
	assert_non_null(conv(d, &s, &why));
	assert_int_equal(dtp_dnn_plans(d), 3);
	dtp_dnn_close(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attention_is_planned),
		cmocka_unit_test(test_attention_is_refused),
		cmocka_unit_test(test_convolutions_are_planned),
		cmocka_unit_test(test_plans_are_kept),
		cmocka_unit_test(test_a_cache_that_cannot_be),
		cmocka_unit_test(test_what_is_not_there_is_refused),
		cmocka_unit_test(test_the_last_plans_stay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
