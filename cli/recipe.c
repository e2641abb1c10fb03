/* SPDX-License-Identifier: Apache-2.0 */
#include "recipe.h"

#include "values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the recipe */

/* The options as they turned out: what was left to defaults, to the machine or to chance is filled in, what has no effect or follows
 * from a file is not. */
static struct dtp_args resolve(const struct dtp_rank *rank, const struct dtp_args *args, const struct dtp_request *q, uint64_t seed,
			       int num_images)
{
	bool guided = dtp_pipeline_passes(rank->pipeline, q) > 1;
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_args a = *args;
	struct dtp_suggest near;

	a.model = args->model_name;
	a.seed = seed;
	a.num_images = num_images;
	a.height = q->height;
	a.width = q->width;
	a.steps = q->steps;
	a.guidance_scale = q->guidance_scale;
	a.guidance_passes = !guided ? DTP_ARG_PASSES_AUTO : q->passes_in_turn ? DTP_ARG_IN_TURN : DTP_ARG_TOGETHER;
	a.negative_prompt = guided ? args->negative_prompt : NULL;
	a.max_sequence_length = args->prompt_embeds ? 0 : q->max_sequence_length;
	a.tp_degree = rank->options.tp_degree;
	a.overlap = a.tp_degree > 1 && rank->seated.memory.n && !rank->seated.shared ? args->overlap : DTP_OVERLAP_AUTO;
	a.reduce_dtype = a.tp_degree > 1 ? args->reduce_dtype : DTP_ARG_REDUCE_AUTO; /* what auto is follows from the device */
	dtp_args_set(&a, dtp_option_find(DTP_CMD_RECIPE, "device", &near), rank->backend->ops->name, &ignored);
	return a;
}

static bool names_a_file(const struct dtp_option *o)
{
	return o->kind == DTP_OPT_PATH || o->kind == DTP_OPT_LIST;
}

static void add_option(cJSON *object, const struct dtp_option *o, const struct dtp_args *args)
{
	cJSON *v = dtp_value_json(o, args);
	char key[64];

	if (!v || (cJSON_IsString(v) && o->kind == DTP_OPT_CHOICE && !strcmp(v->valuestring, "auto"))) {
		cJSON_Delete(v); /* nobody has decided it, and it decides nothing */
		return;
	}
	snprintf(key, sizeof key, "%s", o->name);
	for (char *p = key; *p; p++)
		*p = *p == '-' ? '_' : *p;
	cJSON_AddItemToObject(object, key, v);
}

char *dtp_recipe_text(const struct dtp_rank *rank, const struct dtp_sources *sources, const struct dtp_args *args,
		      const struct dtp_request *request, uint64_t seed, int num_images, bool files)
{
	struct dtp_args a = resolve(rank, args, request, seed, num_images);
	cJSON *o = cJSON_CreateObject();
	char *printed, *text;

	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	cJSON_AddStringToObject(o, "class", dtp_pipeline_class(rank->pipeline));
	if (files)
		cJSON_AddStringToObject(o, "plan", dtp_pipeline_plan(rank->pipeline));
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *row = &dtp_options[i];
		if (row->commands & DTP_CMD_RECIPE && (files || !names_a_file(row)) && (row->kind != DTP_OPT_SEED || !request->noise))
			add_option(o, row, &a);
	}
	cJSON_AddItemToObject(o, "sha256", dtp_sources_json(sources));
	printed = cJSON_PrintUnformatted(o);
	cJSON_Delete(o);
	text = printed ? strdup(printed) : NULL;
	cJSON_free(printed);
	return text;
}

/* ---- the same for other programs: the form of AUTOMATIC1111's web UI, which most viewers and catalogues know */

/* The last name in a path. */
static int base_name(const char *path, const char **name)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	const char *slash = memrchr(path, '/', n);
	*name = slash && slash + 1 < path + n ? slash + 1 : path;
	return (int)(path + n - *name);
}

/* Their readers split at commas; a value with one, or with a colon, a quote or a line break, is a JSON string. */
static void put_quoted(FILE *f, const char *text, int len)
{
	char *copy = strndup(text, (size_t)len);
	cJSON *v = copy && strpbrk(copy, ",:\"\n") ? cJSON_CreateString(copy) : NULL;
	char *quoted = v ? cJSON_PrintUnformatted(v) : NULL;

	fprintf(f, "%s", quoted ? quoted : copy ? copy : "");
	cJSON_free(quoted);
	cJSON_Delete(v);
	free(copy);
}

static void put_guidance(FILE *f, const struct dtp_rank *rank, const struct dtp_request *q)
{
	if (dtp_pipeline_passes(rank->pipeline, q) > 1)
		fprintf(f, ", CFG scale: %g", q->guidance_scale);
	else if (dtp_pipeline_embeds_guidance(rank->pipeline))
		fprintf(f, ", CFG scale: 1, Distilled CFG Scale: %g", q->guidance_scale);
	else
		fprintf(f, ", CFG scale: 1");
}

static char *parameters_text(const struct dtp_rank *rank, const struct dtp_args *args, const struct dtp_request *q, uint64_t seed)
{
	char *buf = NULL;
	const char *name;
	size_t len;
	FILE *f = open_memstream(&buf, &len);

	if (!f)
		return NULL;
	fprintf(f, "%s\n", q->prompt);
	if (dtp_pipeline_passes(rank->pipeline, q) > 1 && q->negative_prompt && *q->negative_prompt)
		fprintf(f, "Negative prompt: %s\n", q->negative_prompt);
	fprintf(f, "Steps: %d, Sampler: Euler", q->steps);
	put_guidance(f, rank, q);
	if (!q->noise)
		fprintf(f, ", Seed: %" PRIu64, seed);
	fprintf(f, ", Size: %" PRId64 "x%" PRId64 ", Model: ", q->width, q->height);
	int n = base_name(args->model_name, &name);
	put_quoted(f, name, n);
	fprintf(f, ", Version: difftp " DTP_VERSION);
	if (!fclose(f))
		return buf;
	free(buf);
	return NULL;
}

/* ---- texts */

enum dtp_code dtp_recipe_texts_make(struct dtp_rank *rank, const struct dtp_args *args, const struct dtp_request *request,
				    uint64_t seed, int num_images, struct dtp_recipe_texts *out, struct dtp_err *err)
{
	const struct dtp_sources *sources;

	*out = (struct dtp_recipe_texts){0};
	if (args->no_metadata || args->synthetic) /* of a model that is nowhere, nobody could draw it again */
		return DTP_OK;
	if (dtp_rank_sources(rank, &sources, err))
		return err->code;
	out->recipe = dtp_recipe_text(rank, sources, args, request, seed, num_images, true);
	out->parameters = parameters_text(rank, args, request, seed);
	if (!out->recipe || !out->parameters) {
		dtp_recipe_texts_free(out);
		return dtp_fail(err, DTP_FAILED, "out of memory for an image's record");
	}
	out->text[0] = (struct dtp_png_text){"parameters", out->parameters, true};
	out->text[1] = (struct dtp_png_text){DTP_RECIPE_KEY, out->recipe, false};
	out->text[2] = (struct dtp_png_text){"Software", "difftp " DTP_VERSION, true};
	out->n = DTP_RECIPE_TEXTS;
	return DTP_OK;
}

void dtp_recipe_texts_free(struct dtp_recipe_texts *t)
{
	free(t->recipe);
	free(t->parameters);
	*t = (struct dtp_recipe_texts){0};
}
