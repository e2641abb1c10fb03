/* SPDX-License-Identifier: Apache-2.0 */
/* Options that change how the recorded cases are drawn, or what is given and written, against the recordings. */
#include "golden.h"

#include "embeds.h"

#include <sys/stat.h>

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

/* A tensor of a file as embeddings; malloc'd f32. */
static float *f32_values(const struct dtp_st *st, const char *name)
{
	size_t n;
	double *v = values(st, name, &n);
	float *f = malloc(n * sizeof *f);

	for (size_t i = 0; i < n; i++)
		f[i] = (float)v[i];
	free(v);
	return f;
}

/* What diffusers encoded draws what diffusers drew, and what is saved here is what diffusers would be given. */
static void prompt_embeds(void **state)
{
	const struct spec *s = *state;
	const char *const *which = cases[s->which];
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st golden, saved;
	char path[700], png[700];
	struct call c;

	snprintf(path, sizeof path, "%s/embeds.safetensors", temp_dir());
	snprintf(png, sizeof png, "%s/embeds.png", temp_dir());
	open_tensors(fixture("reference/%s/golden_%s.safetensors", which[0], which[1]), &golden);
	const struct dtp_st_entry *e = dtp_st_find(&golden, "text.prompt_embeds");
	size_t bytes = (size_t)(e->shape[1] * e->shape[2]) * sizeof(float);
	int passes = dtp_st_find(&golden, "neg.prompt_embeds") ? 2 : 1;
	float *both = f32_values(&golden, "text.prompt_embeds");
	if (passes > 1) {
		float *negative = f32_values(&golden, "neg.prompt_embeds");
		both = realloc(both, 2 * bytes);
		memcpy((char *)both + bytes, negative, bytes);
		free(negative);
	}
	if (dtp_embeds_write(path, NULL, "diffusers", both, DTP_F32, passes, e->shape[1], e->shape[2], &err))
		fail_msg("%s", err.message);
	free(both);
	begin_call(&c, which, s->degree, false);
	forget(&c, "--prompt");
	forget(&c, "--max-sequence-length");
	give(&c, "--prompt-embeds", path);
	give_int(&c, "--seed", "seed");
	give(&c, "-o", png);
	end_call(&c);
	assert_true(png_differences(png, fixture("reference/%s/image_%s.png", which[0], which[1])) <= 5);

	begin_call(&c, which, s->degree, false);
	give(&c, "--save-prompt-embeds", path);
	end_call(&c);
	open_tensors(path, &saved);
	assert_int_equal(saved.nentries, passes);
	assert_true(differ(&saved, "prompt_embeds", &golden, "text.prompt_embeds", 0).max <= 1e-4 * rms(&golden, "text.prompt_embeds"));
	if (passes > 1)
		assert_true(differ(&saved, "negative_prompt_embeds", &golden, "neg.prompt_embeds", 0).max <=
			    1e-4 * rms(&golden, "neg.prompt_embeds"));
	dtp_st_close(&saved);
	dtp_st_close(&golden);
}

/* A tensor of a golden as a file's 'latents', as diffusers' user would save it: without metadata. */
static void save_golden(const struct spec *s, const char *name, char path[700])
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_st golden;

	open_tensors(fixture("reference/%s/golden_%s.safetensors", cases[s->which][0], cases[s->which][1]), &golden);
	const struct dtp_st_entry *e = dtp_st_find(&golden, name);
	assert_non_null(e);
	void *data = malloc(e->nbytes);
	assert_int_equal(dtp_st_read(&golden, e, 0, e->nbytes, data, &err), DTP_OK);
	struct dtp_st_out out = {"latents", dtp_tensor_make(data, e->dtype, e->ndim, e->shape)};
	snprintf(path, 700, "%s/golden-latents.safetensors", temp_dir());
	if (dtp_st_write(path, NULL, &out, 1, NULL, 0, &err))
		fail_msg("%s", err.message);
	free(data);
	dtp_st_close(&golden);
}

/* What diffusers' pipeline returned for output_type="latent" becomes the picture that it drew. */
static void decode_of_a_golden(void **state)
{
	const struct spec *s = *state;
	char latents[700], png[700];
	struct call c;

	save_golden(s, "final.output_type_latent", latents);
	snprintf(png, sizeof png, "%s/decoded.png", temp_dir());
	begin_call(&c, cases[s->which], 1, false);
	memset(c.argv, 0, sizeof c.argv);
	c.n = 0;
	give(&c, "difftp", NULL);
	give(&c, "decode", latents);
	give(&c, "--force", NULL);
	give_model(&c);
	if (s->which == DEV) {
		give_int(&c, "--height", "height");
		give_int(&c, "--width", "width");
	}
	give(&c, "-o", png);
	end_call(&c);
	assert_true(png_differences(png, fixture("reference/%s/image_%s.png", cases[s->which][0], cases[s->which][1])) <= 5);
}

/* diffusers' latents=: the golden's noise without its seed and size is the golden's run. */
static void given_noise(void **state)
{
	const struct spec *s = *state;
	char latents[700], dump[700], png[700];
	struct call c;

	save_golden(s, "init.noise", latents);
	snprintf(dump, sizeof dump, "%s/noise.safetensors", temp_dir());
	snprintf(png, sizeof png, "%s/noise.png", temp_dir());
	begin_call(&c, cases[s->which], s->degree, false);
	forget(&c, "--height");
	forget(&c, "--width");
	give(&c, "--latents", latents);
	give(&c, "--dump-stages", dump);
	give(&c, "-o", png);
	end_call(&c);
	compare_all(dump, cases[s->which]);
}

/* ---- a text encoder that ends where the last wanted hidden state is */

static const struct {
	const char *layers, *fewer, *state, *norm;
	double eps;
} short_encoder[] = {
	[KLEIN] = {"\"num_hidden_layers\": 28", "\"num_hidden_layers\": 27", "text.hidden_states.27", "model.norm.weight", 1e-6},
	[DEV] = {"\"num_hidden_layers\": 32", "\"num_hidden_layers\": 30", "text.hidden_states.30", "language_model.model.norm.weight",
		 1e-5},
};

/* The model's folder with fewer layers in the text encoder's config.json; what is not changed is linked. */
static const char *shorten(int which)
{
	static const char *const parts[] = {"model_index.json", "scheduler", "tokenizer", "transformer", "vae"};
	static char dir[600];
	char from[4096], to[700];

	snprintf(dir, sizeof dir, "%s/short-%d", temp_dir(), which);
	snprintf(to, sizeof to, "%s/text_encoder", dir);
	assert_true(!mkdir(dir, 0700) && !mkdir(to, 0700));
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		assert_non_null(realpath(fixture("models/%s/%s", cases[which][0], parts[i]), from));
		snprintf(to, sizeof to, "%s/%s", dir, parts[i]);
		assert_int_equal(symlink(from, to), 0);
	}
	assert_non_null(realpath(fixture("models/%s/text_encoder/model.safetensors", cases[which][0]), from));
	snprintf(to, sizeof to, "%s/text_encoder/model.safetensors", dir);
	assert_int_equal(symlink(from, to), 0);
	char *config = read_file(fixture("models/%s/text_encoder/config.json", cases[which][0]), NULL);
	char *at = strstr(config, short_encoder[which].layers);
	assert_non_null(at);
	memcpy(at, short_encoder[which].fewer, strlen(short_encoder[which].fewer));
	snprintf(to, sizeof to, "%s/text_encoder/config.json", dir);
	write_file(to, config, strlen(config));
	free(config);
	return dir;
}

/* transformers' hidden_states ends behind the final norm: what it recorded of the longer model, normed. */
static void last_layer_is_wanted(void **state)
{
	const struct spec *s = *state;
	char path[700], png[700];
	struct dtp_st ours, golden, weights;
	size_t n, m, width;
	struct call c;

	snprintf(path, sizeof path, "%s/short.safetensors", temp_dir());
	snprintf(png, sizeof png, "%s/short.png", temp_dir());
	begin_call(&c, cases[s->which], s->degree, false);
	forget(&c, "--model");
	give(&c, "--model", shorten(s->which));
	give(&c, "--dump-stages", path);
	give(&c, "-o", png);
	end_call(&c);
	open_tensors(path, &ours);
	open_tensors(fixture("reference/%s/golden_%s.safetensors", cases[s->which][0], cases[s->which][1]), &golden);
	open_tensors(fixture("models/%s/text_encoder/model.safetensors", cases[s->which][0]), &weights);
	double *is = values(&ours, short_encoder[s->which].state, &n), *raw = values(&golden, short_encoder[s->which].state, &m);
	double *norm = values(&weights, short_encoder[s->which].norm, &width);
	assert_true(n == m && n % width == 0);
	for (size_t row = 0; row < n; row += width) {
		double square = 0;
		for (size_t k = 0; k < width; k++)
			square += raw[row + k] * raw[row + k];
		for (size_t k = 0; k < width; k++)
			assert_true(fabs(is[row + k] - norm[k] * raw[row + k] / sqrt(square / (double)width + short_encoder[s->which].eps)) < 1e-4);
	}
	free(is);
	free(raw);
	free(norm);
	dtp_st_close(&weights);
	dtp_st_close(&golden);
	dtp_st_close(&ours);
}

/* ---- the list */

/* An argument is the name of the one test to run, or a pattern with '*'. */
int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	add(split_input_plan, "split_input_plan", (struct spec){.which = KLEIN, .degree = 1});
	add(split_input_plan, "split_input_plan", (struct spec){.which = KLEIN, .degree = 2});
	add(latent_file, "latent_file", (struct spec){.which = KLEIN_96, .degree = 2});
	add(latent_file, "latent_file", (struct spec){.which = KLEIN_96, .degree = 2, .bf16 = true});
	add(latent_file, "latent_file", (struct spec){.which = DEV, .degree = 2});
	add(decode_of_a_golden, "decode", (struct spec){.which = KLEIN_96, .degree = 1});
	add(decode_of_a_golden, "decode", (struct spec){.which = DEV, .degree = 1});
	add(given_noise, "given_noise", (struct spec){.which = KLEIN_96, .degree = 2});
	add(negative_prompt, "negative_prompt", (struct spec){.which = BASE, .degree = 2});
	add(last_layer_is_wanted, "last_layer", (struct spec){.which = KLEIN, .degree = 2});
	add(last_layer_is_wanted, "last_layer", (struct spec){.which = DEV, .degree = 1});
	add(prompt_embeds, "prompt_embeds", (struct spec){.which = BASE, .degree = 2});
	add(prompt_embeds, "prompt_embeds", (struct spec){.which = DEV, .degree = 4});
	add(images_of_consecutive_seeds, "consecutive_seeds", (struct spec){.which = KLEIN, .degree = 2});
	return _cmocka_run_group_tests("golden_options", tests, ntests, NULL, NULL);
}
