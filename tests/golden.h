/* SPDX-License-Identifier: Apache-2.0 */
/* Running the shipped program on the recorded cases, and comparing what it made with the recordings. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include "support.h"

#include "json.h"
#include "safetensors.h"

#include <fcntl.h>
#include <math.h>
#include <png.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_SECONDS 120 /* a case takes a second or so; a hang must not stop the suite; $RUN_SECONDS: where it is slower */

static const char *const cases[][2] = { /* folder in tests/reference, case */
	{"klein-tiny", "64x64"}, {"klein-tiny", "96x64"}, {"klein-tiny", "default512"}, {"klein-tiny-sharded", "64x64"},
	{"klein-base-tiny", "64x64"}, {"dev-tiny", "64x64"},
	{"klein-edit-tiny", "one"}, {"klein-edit-tiny", "two"}, /* reference images */
	{"klein-heads12-tiny", "64x64"}, /* for 3, 6 and 12 ranks; recorded in fp32 only */
};
#define NCASES (sizeof cases / sizeof cases[0])
enum { KLEIN, KLEIN_96, KLEIN_512, SHARDED, BASE, DEV, EDIT_ONE, EDIT_TWO, HEADS12 };
struct spec {
	int which; /* of cases */
	int degree;
	bool bf16, exact, in_turn;
};

/* ---- running the program */

/* Runs it with the given arguments; its output is shown when it fails or is not expected. */
static inline void run(const char *const *argv)
{
	const char *program = getenv("DIFFTP");
	char log[600];

	if (!program)
		fail_msg("DIFFTP is not set: the path of the program under test");
	snprintf(log, sizeof log, "%s/log", temp_dir());
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open(log, O_CREAT | O_TRUNC | O_WRONLY, 0600);
		dup2(fd, 1);
		dup2(fd, 2);
		const char *longer = getenv("RUN_SECONDS");
		alarm(longer ? (unsigned)strtoul(longer, NULL, 10) : RUN_SECONDS); /* kept across exec */
		execv(program, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status)
		fail_msg("difftp ended with status %#x:\n%s", (unsigned)status, read_file(log, NULL));
}

struct call {
	const char *argv[48];
	int n;
	char words[16][64];
	int nwords;
	struct dtp_json doc;
};

static inline void give(struct call *c, const char *option, const char *value)
{
	c->argv[c->n++] = option;
	if (value)
		c->argv[c->n++] = value;
}

/* An integer of the case file as an option; null: not given. */
static inline void give_int(struct call *c, const char *option, const char *key)
{
	struct dtp_err err = DTP_ERR_INIT;
	int64_t v;
	if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(c->doc.root, key)))
		return;
	if (dtp_json_int(&c->doc, NULL, key, 0, INT64_MAX >> 11, &v, &err))
		fail_msg("%s", err.message);
	char *word = c->words[c->nwords++];
	snprintf(word, sizeof c->words[0], "%lld", (long long)v);
	give(c, option, word);
}

/* The model's folder is named in the case file as "pipelines/NAME". */
static inline void give_model(struct call *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *folder;

	if (dtp_json_string(&c->doc, NULL, "pipeline_dir", &folder, &err))
		fail_msg("%s", err.message);
	give(c, "--model", fixture("models/%s", strrchr(folder, '/') + 1));
}

static inline void give_images(struct call *c, const char *folder)
{
	const cJSON *name;

	cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(c->doc.root, "input_images"))
		give(c, "--image", fixture("reference/%s/%s", folder, name->valuestring));
}

/* The arguments of a case at a degree; more can be given before it runs. */
static inline void begin_call(struct call *c, const char *const which[2], int degree, bool bf16)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *prompt;

	*c = (struct call){.n = 0};
	if (dtp_json_load(fixture("reference/%s/case_%s.json", which[0], which[1]), 0, &c->doc, &err) ||
	    dtp_json_string(&c->doc, NULL, "prompt", &prompt, &err))
		fail_msg("%s", err.message);
	give(c, "difftp", NULL);
	give(c, "--force", NULL); /* cases write to the same names, one after the other */
	give_model(c);
	give_images(c, which[0]);
	give(c, "--prompt", prompt);
	give(c, "--dtype", bf16 ? "bf16" : "fp32");
	give_int(c, "--height", "height_arg");
	give_int(c, "--width", "width_arg");
	give_int(c, "--steps", "num_inference_steps");
	give_int(c, "--max-sequence-length", "max_sequence_length");
	char *word = c->words[c->nwords++];
	snprintf(word, sizeof c->words[0], "%d", degree);
	give(c, "--tp-degree", word);
}

/* Takes an option and its value back. */
static inline void forget(struct call *c, const char *option)
{
	for (int i = 0; i < c->n; i++)
		if (!strcmp(c->argv[i], option)) {
			for (c->n -= 2; i < c->n; i++)
				c->argv[i] = c->argv[i + 2];
			c->argv[c->n] = NULL;
			return;
		}
}

static inline void end_call(struct call *c)
{
	run(c->argv);
	dtp_json_free(&c->doc);
}

/* Path of a case's result, which is made when it is first asked for. */
static inline void result(const struct spec *s, const char *suffix, char path[700])
{
	char base[640];
	struct call c;

	snprintf(base, sizeof base, "%s/%s-%s-tp%d%s%s%s", temp_dir(), cases[s->which][0], cases[s->which][1], s->degree,
		 s->bf16 ? "-bf16" : "", s->exact ? "-exact" : "", s->in_turn ? "-in-turn" : "");
	snprintf(path, 700, "%s.safetensors", base);
	if (access(path, F_OK)) {
		char png[700];
		snprintf(png, sizeof png, "%s.png", base);
		begin_call(&c, cases[s->which], s->degree, s->bf16);
		give_int(&c, "--seed", "seed");
		give(&c, "--dump-stages", path);
		give(&c, "-o", png);
		give(&c, "--guidance-passes", s->in_turn ? "in-turn" : "together");
		if (s->exact)
			give(&c, "--exact-timesteps", NULL);
		end_call(&c);
	}
	snprintf(path, 700, "%s%s", base, suffix);
}

/* ---- comparing */

static inline void open_tensors(const char *path, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	if (dtp_st_open_file(path, st, &err))
		fail_msg("%s", err.message);
}

/* A tensor's values as doubles (64-bit integers of the recordings are small); malloc'd. */
static inline double *values(const struct dtp_st *st, const char *name, size_t *n)
{
	const struct dtp_st_entry *e = dtp_st_find(st, name);
	struct dtp_err err = DTP_ERR_INIT;

	if (!e)
		fail_msg("'%s' is missing in '%s'", name, st->files[0].path);
	size_t size = dtp_dtype_size(e->dtype), count = (size_t)(e->nbytes / size);
	unsigned char *raw = malloc(e->nbytes + 1);
	double *v = malloc((count + 1) * sizeof *v);
	if (dtp_st_read(st, e, 0, e->nbytes, raw, &err))
		fail_msg("%s", err.message);
	for (size_t i = 0; i < count; i++) {
		float f;
		int64_t whole;
		switch (e->dtype) {
		case DTP_F64: memcpy(&v[i], raw + i * 8, 8); break;
		case DTP_I64: memcpy(&whole, raw + i * 8, 8); v[i] = (double)whole; break;
		case DTP_U8: v[i] = raw[i]; break;
		default: dtp_to_f32(&f, raw + i * size, e->dtype, 1); v[i] = f; break;
		}
	}
	free(raw);
	*n = count;
	return v;
}

static inline bool same_shape(const struct dtp_st_entry *a, const struct dtp_st_entry *b)
{
	return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->ndim);
}

struct difference {
	double mean, max;
	double over; /* share of the values that differ by more than `near` */
};

/* Two tensors of one shape. */
static inline struct difference differ(const struct dtp_st *a, const char *a_name, const struct dtp_st *b, const char *b_name,
				double near)
{
	size_t n, m;
	double *x = values(a, a_name, &n), *y = values(b, b_name, &m);
	struct difference d = {0, 0, 0};

	if (!same_shape(dtp_st_find(a, a_name), dtp_st_find(b, b_name)))
		fail_msg("'%s' and '%s' differ in shape", a_name, b_name);
	for (size_t i = 0; i < n; i++) {
		double v = fabs(x[i] - y[i]);
		d.mean += v;
		d.over += !(v <= near);
		if (!(v <= d.max)) /* NaN is the largest */
			d.max = v;
	}
	d.mean /= (double)(n ? n : 1);
	d.over /= (double)(n ? n : 1);
	free(x);
	free(y);
	return d;
}

static inline double rms(const struct dtp_st *st, const char *name)
{
	size_t n;
	double *v = values(st, name, &n), ss = 0;

	for (size_t i = 0; i < n; i++)
		ss += v[i] * v[i];
	free(v);
	return n && ss > 0 ? sqrt(ss / (double)n) : 1;
}

struct tally {
	int compared, loose, wrong;
	char worst[128];
	double worst_rel, most_over;
};

/* Within 1e-4 of the golden's RMS at the maximum, and 99 values of 100 within 1e-5. */
static inline void compare_stage(const struct dtp_st *ours, const struct dtp_st *golden, const struct dtp_st_entry *g,
			  struct tally *t)
{
	const struct dtp_st_entry *o = dtp_st_find(ours, g->name);
	bool whole = g->dtype == DTP_I64, wrong;

	if (!o || !same_shape(o, g) || whole != (o->dtype == DTP_I64)) {
		print_error("%s: %s\n", g->name, !o ? "missing" : "another shape or kind of number");
		t->wrong++;
		return;
	}
	double unit = rms(golden, g->name);
	struct difference d = differ(ours, g->name, golden, g->name, 1e-5 * unit);
	if (whole)
		wrong = d.max != 0;
	else if (g->dtype == DTP_U8)
		wrong = !(d.max <= 1);
	else
		wrong = !(d.max <= 1e-4 * unit) || d.over > 0.01;
	if (wrong) {
		print_error("%s: differs by %g of its RMS at the maximum, %.2g %% of the values by more than 1e-5\n", g->name,
			    d.max / unit, 100 * d.over);
		t->wrong++;
	}
	if (whole || g->dtype == DTP_U8)
		return;
	t->compared++;
	t->loose += d.over > 0;
	t->most_over = d.over > t->most_over ? d.over : t->most_over;
	if (d.max / unit > t->worst_rel) {
		t->worst_rel = d.max / unit;
		snprintf(t->worst, sizeof t->worst, "%s", g->name);
	}
}

static inline uint8_t *read_png(const char *path, size_t *n)
{
	png_image image = {.version = PNG_IMAGE_VERSION};

	if (!png_image_begin_read_from_file(&image, path))
		fail_msg("%s: %s", path, image.message);
	assert_false(image.format & (PNG_FORMAT_FLAG_ALPHA | PNG_FORMAT_FLAG_LINEAR));
	image.format = PNG_FORMAT_RGB;
	*n = PNG_IMAGE_SIZE(image);
	uint8_t *p = malloc(*n);
	if (!png_image_finish_read(&image, NULL, p, 0, NULL))
		fail_msg("%s: %s", path, image.message);
	return p;
}

/* Values that differ; a difference of more than 1 fails. */
static inline int png_differences(const char *a, const char *b)
{
	size_t n, m;
	uint8_t *x = read_png(a, &n), *y = read_png(b, &m);
	int count = 0;

	assert_int_equal(n, m);
	for (size_t i = 0; i < n; i++) {
		if (abs(x[i] - y[i]) > 1)
			fail_msg("%s and %s: value %zu is %d and %d", a, b, i, x[i], y[i]);
		count += x[i] != y[i];
	}
	free(x);
	free(y);
	return count;
}

static inline void compare_all(const char *path, const char *const which[2])
{
	struct dtp_st ours, golden;
	struct tally t = {0};

	open_tensors(path, &ours);
	open_tensors(fixture("reference/%s/golden_%s.safetensors", which[0], which[1]), &golden);
	for (int i = 0; i < golden.nentries; i++)
		compare_stage(&ours, &golden, &golden.entries[i], &t);
	print_message("%d stages, %d of them over 1e-5 somewhere, in at most %.2g %% of the values; worst %s: %.2g of its RMS\n",
		      t.compared, t.loose, 100 * t.most_over, t.worst, t.worst_rel);
	if (t.wrong)
		fail_msg("%d stages are wrong", t.wrong);
	assert_true(t.compared >= 15);
	assert_true(4 * t.loose <= t.compared); /* most stages have no value over 1e-5 */
	dtp_st_close(&ours);
	dtp_st_close(&golden);
}

/* ---- the list */

static struct CMUnitTest tests[128];
static struct spec specs[128];
static size_t ntests;

static inline void add(CMUnitTestFunction fn, const char *what, struct spec s)
{
	char *name;

	assert_true(ntests < sizeof tests / sizeof tests[0]);
	if (asprintf(&name, "golden_%s_%s_%s%s%s%s_tp%d", what, cases[s.which][0], cases[s.which][1], s.bf16 ? "_bf16" : "",
		     s.exact ? "_exact" : "", s.in_turn ? "_in_turn" : "", s.degree) < 0)
		exit(1);
	specs[ntests] = s;
	tests[ntests] = (struct CMUnitTest){name, fn, NULL, NULL, &specs[ntests]};
	ntests++;
}

#endif
