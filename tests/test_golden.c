/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped program against what diffusers made of the same folder, prompt and seed: every recorded stage of every
 * case, at every degree.  tests/reference describes the recordings. */
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
};
#define NCASES (sizeof cases / sizeof cases[0])
enum { KLEIN, KLEIN_96, KLEIN_512, SHARDED, BASE, DEV, EDIT_ONE, EDIT_TWO };
static const int heads[NCASES] = {8, 8, 8, 8, 4, 8, 8, 8}; /* what a degree must divide */
#ifdef DTP_SANITIZE
static const int degrees[] = {1, 2}; /* some ten times slower */
#else
static const int degrees[] = {1, 2, 4, 8};
#endif
#define NDEGREES (sizeof degrees / sizeof degrees[0])

struct spec {
	int which; /* of cases */
	int degree;
	bool bf16, exact, in_turn;
};

/* ---- running the program */

/* Runs it with the given arguments; its output is shown when it fails or is not expected. */
static void run(const char *const *argv)
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

static void give(struct call *c, const char *option, const char *value)
{
	c->argv[c->n++] = option;
	if (value)
		c->argv[c->n++] = value;
}

/* An integer of the case file as an option; null: not given. */
static void give_int(struct call *c, const char *option, const char *key)
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
static void give_model(struct call *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *folder;

	if (dtp_json_string(&c->doc, NULL, "pipeline_dir", &folder, &err))
		fail_msg("%s", err.message);
	give(c, "--model", fixture("models/%s", strrchr(folder, '/') + 1));
}

static void give_images(struct call *c, const char *folder)
{
	const cJSON *name;

	cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(c->doc.root, "input_images"))
		give(c, "--image", fixture("reference/%s/%s", folder, name->valuestring));
}

/* The arguments of a case at a degree; more can be given before it runs. */
static void begin_call(struct call *c, const char *const which[2], int degree, bool bf16)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *prompt;

	*c = (struct call){.n = 0};
	if (dtp_json_load(fixture("reference/%s/case_%s.json", which[0], which[1]), 0, &c->doc, &err) ||
	    dtp_json_string(&c->doc, NULL, "prompt", &prompt, &err))
		fail_msg("%s", err.message);
	give(c, "difftp", NULL);
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

static void end_call(struct call *c)
{
	run(c->argv);
	dtp_json_free(&c->doc);
}

/* Path of a case's result, which is made when it is first asked for. */
static void result(const struct spec *s, const char *suffix, char path[700])
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

static void open_tensors(const char *path, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	if (dtp_st_open_file(path, st, &err))
		fail_msg("%s", err.message);
}

/* A tensor's values as doubles (64-bit integers of the recordings are small); malloc'd. */
static double *values(const struct dtp_st *st, const char *name, size_t *n)
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

static bool same_shape(const struct dtp_st_entry *a, const struct dtp_st_entry *b)
{
	return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->ndim);
}

struct difference {
	double mean, max;
	double over; /* share of the values that differ by more than `near` */
};

/* Two tensors of one shape. */
static struct difference differ(const struct dtp_st *a, const char *a_name, const struct dtp_st *b, const char *b_name,
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

static double rms(const struct dtp_st *st, const char *name)
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
static void compare_stage(const struct dtp_st *ours, const struct dtp_st *golden, const struct dtp_st_entry *g,
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

static uint8_t *read_png(const char *path, size_t *n)
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
static int png_differences(const char *a, const char *b)
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

static void compare_all(const char *path, const char *const which[2])
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
	assert_true(t.compared >= 50);
	assert_true(4 * t.loose <= t.compared); /* most stages have no value over 1e-5 */
	dtp_st_close(&ours);
	dtp_st_close(&golden);
}

/* ---- the tests */

static void every_stage(void **state)
{
	const struct spec *s = *state;
	char path[700];

	result(s, ".safetensors", path);
	compare_all(path, cases[s->which]);
	result(s, ".png", path);
	int n = png_differences(path, fixture("reference/%s/image_%s.png", cases[s->which][0], cases[s->which][1]));
	if (n > 5)
		fail_msg("%d values of the picture differ by 1, at most 5 may", n);
}

/* Whether the runs have this prediction; it differs by at most 1e-5. */
static bool predictions_agree(const struct dtp_st *a, const struct dtp_st *b, int step, const char *suffix)
{
	char name[64];

	snprintf(name, sizeof name, "step.%d.noise_pred%s", step, suffix);
	if (!dtp_st_find(a, name))
		return false;
	double max = differ(a, name, b, name, 0).max;
	if (!(max <= 1e-5))
		fail_msg("%s differs by %g between two degrees", name, max);
	return true;
}

static void degrees_agree(void **state)
{
	struct spec s = *(const struct spec *)*state;
	struct dtp_st st[NDEGREES];
	char path[700];
	size_t n;

	for (n = 0; n < NDEGREES && heads[s.which] % degrees[n] == 0; n++) {
		s.degree = degrees[n];
		result(&s, ".safetensors", path);
		open_tensors(path, &st[n]);
	}
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < i; j++)
			for (int step = 0;; step++) {
				/* Guidance makes up to 2 * 4 - 1 times the difference of its two predictions. */
				bool guided = predictions_agree(&st[i], &st[j], step, "_cond") &&
					      predictions_agree(&st[i], &st[j], step, "_uncond");
				if (!guided && !predictions_agree(&st[i], &st[j], step, ""))
					break;
			}
	for (size_t i = 0; i < n; i++)
		dtp_st_close(&st[i]);
}

/* bf16: how far we are from diffusers' bf16 run, measured by how far arithmetic in bf16 is from fp32. */
static void bf16_error(void **state)
{
	static const char *const stages[][2] = {{"step.0.noise_pred", "noise_pred.0"},
		{"final.output_type_latent", "output_type_latent"}};
	const struct spec *s = *state;
	const char *const *which = cases[s->which];
	struct dtp_st ours, golden, torch;
	char path[700], exact_t[64], own[64];

	result(s, ".safetensors", path);
	open_tensors(path, &ours);
	open_tensors(fixture("reference/%s/golden_%s.safetensors", which[0], which[1]), &golden);
	open_tensors(fixture("reference/%s/bf16_%s.safetensors", which[0], which[1]), &torch);
	for (int i = 0; i < 2; i++) {
		snprintf(exact_t, sizeof exact_t, "exact_t.%s", stages[i][1]);
		snprintf(own, sizeof own, "own_noise.%s", stages[i][1]);
		double unit = differ(&torch, exact_t, &golden, stages[i][0], 0).mean;
		double mean = s->exact ? differ(&ours, stages[i][0], &golden, stages[i][0], 0).mean
				       : differ(&ours, stages[i][0], &torch, own, 0).mean;
		print_message("%s: mean error %.2g, %.2f of exact_t's\n", stages[i][0], mean, mean / unit);
		if (!(mean <= (s->exact ? 1.5 : 2) * unit))
			fail_msg("%s: mean error %g, that of exact_t is %g", stages[i][0], mean, unit);
	}
	dtp_st_close(&ours);
	dtp_st_close(&golden);
	dtp_st_close(&torch);
	unlink(path); /* no other test reads it */
}

/* A plan with a key that has no '*', of the style that cuts a replicated input. */
static void split_input_plan(void **state)
{
	const struct spec *s = *state;
	char *plan = read_file(fixture("../plans/flux2.json"), NULL), *end = strrchr(plan, '}');
	char plan_path[700], dump[700], png[700], *text;
	struct call c;

	assert_non_null(end);
	*end = '\0';
	assert_true(asprintf(&text, "%s, \"double_stream_modulation_img.linear\": \"rowwise_split_input\"}", plan) > 0);
	snprintf(plan_path, sizeof plan_path, "%s/plan.json", temp_dir());
	snprintf(dump, sizeof dump, "%s/split.safetensors", temp_dir());
	snprintf(png, sizeof png, "%s/split.png", temp_dir());
	write_file(plan_path, text, strlen(text));
	begin_call(&c, cases[s->which], s->degree, false);
	give_int(&c, "--seed", "seed");
	give(&c, "--tp-plan", plan_path);
	give(&c, "--dump-stages", dump);
	give(&c, "-o", png);
	end_call(&c);
	compare_all(dump, cases[s->which]);
	free(plan);
	free(text);
}

/* --output-type latent: what the pipeline class returns, and what is needed to read it. */
static void latent_file(void **state)
{
	const struct spec *s = *state;
	const char *const metadata[][2] = {{"class", s->which == DEV ? "Flux2Pipeline" : "Flux2KleinPipeline"},
		{"height", s->which == DEV ? "64" : "96"}, {"width", "64"}, {"format", "pt"}};
	struct dtp_st ours, golden;
	char path[700];
	struct call c;

	snprintf(path, sizeof path, "%s/latents-%d.safetensors", temp_dir(), s->bf16);
	begin_call(&c, cases[s->which], s->degree, s->bf16);
	give_int(&c, "--seed", "seed");
	give(&c, "--output-type", "latent");
	give(&c, "-o", path);
	end_call(&c);
	open_tensors(path, &ours);
	assert_int_equal(ours.nentries, 1);
	assert_int_equal(ours.entries[0].dtype, s->bf16 ? DTP_BF16 : DTP_F32);
	open_tensors(fixture("reference/%s/golden_%s.safetensors", cases[s->which][0], cases[s->which][1]), &golden);
	struct difference d = differ(&ours, "latents", &golden, "final.output_type_latent", 0);
	if (!s->bf16)
		assert_true(d.max <= 1e-4 * rms(&golden, "final.output_type_latent"));
	for (size_t i = 0; i < sizeof metadata / sizeof metadata[0]; i++) {
		char *v = dtp_st_metadata(&ours, metadata[i][0]);
		assert_non_null(v);
		assert_string_equal(v, metadata[i][1]);
		free(v);
	}
	char *seed = dtp_st_metadata(&ours, "seed");
	assert_non_null(seed);
	free(seed);
	dtp_st_close(&ours);
	dtp_st_close(&golden);
}

/* Image i of several is the image that seed S + i draws alone. */
static void images_of_consecutive_seeds(void **state)
{
	const struct spec *s = *state;
	char several[700], alone[700], made[700], seed[24];
	struct call c;

	snprintf(several, sizeof several, "%s/several.png", temp_dir());
	snprintf(alone, sizeof alone, "%s/alone.png", temp_dir());
	begin_call(&c, cases[s->which], s->degree, false);
	give(&c, "--seed", "4294967294");
	give(&c, "--num-images", "3");
	give(&c, "-o", several);
	end_call(&c);
	assert_int_not_equal(access(several, F_OK), 0);
	for (unsigned i = 0; i < 3; i++) {
		begin_call(&c, cases[s->which], s->degree, false);
		snprintf(seed, sizeof seed, "%llu", 4294967294ull + i);
		give(&c, "--seed", seed);
		give(&c, "-o", alone);
		end_call(&c);
		snprintf(made, sizeof made, "%s/several_%u.png", temp_dir(), i);
		assert_int_equal(png_differences(made, alone), 0);
	}
}

/* The second pass sees the negative prompt as the first one would see it. */
static void negative_prompt(void **state)
{
	const struct spec *s = *state;
	struct dtp_st with, alone;
	char path[2][700], png[700];
	struct call c;

	snprintf(png, sizeof png, "%s/negative.png", temp_dir());
	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof path[i], "%s/negative-%d.safetensors", temp_dir(), i);
		begin_call(&c, cases[s->which], s->degree, false);
		give(&c, i ? "--prompt" : "--negative-prompt", "a blue ball on grass");
		give(&c, "--dump-stages", path[i]);
		give(&c, "-o", png);
		end_call(&c);
	}
	open_tensors(path[0], &with);
	open_tensors(path[1], &alone);
	assert_true(differ(&with, "neg.prompt_embeds", &alone, "text.prompt_embeds", 0).max == 0);
	assert_true(differ(&with, "text.prompt_embeds", &alone, "text.prompt_embeds", 0).max > 0);
	dtp_st_close(&with);
	dtp_st_close(&alone);
}

/* ---- the list */

static struct CMUnitTest tests[128];
static struct spec specs[128];
static size_t ntests;

static void add(CMUnitTestFunction fn, const char *what, struct spec s)
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

/* An argument is the name of the one test to run, or a pattern with '*'. */
int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	for (int which = 0; which < (int)NCASES; which++) {
		for (size_t d = 0; d < NDEGREES && heads[which] % degrees[d] == 0; d++) {
			add(every_stage, "stages", (struct spec){.which = which, .degree = degrees[d]});
			add(bf16_error, "error", (struct spec){.which = which, .degree = degrees[d], .bf16 = true});
			add(bf16_error, "error", (struct spec){.which = which, .degree = degrees[d], .bf16 = true, .exact = true});
		}
		add(degrees_agree, "degrees_agree", (struct spec){.which = which, .degree = heads[which]});
	}
	add(split_input_plan, "split_input_plan", (struct spec){.which = KLEIN, .degree = 1});
	add(split_input_plan, "split_input_plan", (struct spec){.which = KLEIN, .degree = 2});
	add(latent_file, "latent_file", (struct spec){.which = KLEIN_96, .degree = 2});
	add(latent_file, "latent_file", (struct spec){.which = KLEIN_96, .degree = 2, .bf16 = true});
	add(latent_file, "latent_file", (struct spec){.which = DEV, .degree = 2});
	for (int degree = 1; degree <= 2; degree++) {
		add(every_stage, "stages", (struct spec){.which = BASE, .degree = degree, .in_turn = true});
		add(bf16_error, "error", (struct spec){.which = BASE, .degree = degree, .bf16 = true, .in_turn = true});
	}
	add(negative_prompt, "negative_prompt", (struct spec){.which = BASE, .degree = 2});
	add(images_of_consecutive_seeds, "consecutive_seeds", (struct spec){.which = KLEIN, .degree = 2});
	return _cmocka_run_group_tests("golden", tests, ntests, NULL, NULL);
}
