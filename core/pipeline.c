/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a pipeline folder and checking all of it before any weight is read. */
#include "infile.h"
#include "json.h"
#include "lora.h"
#include "pipeline_internal.h"
#include "plan_internal.h"
#include "plan_make.h"
#include "suggest.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct dtp_family families[] = {
	{"Flux2KleinPipeline", "flux2", .classifier_free = true},
	{"Flux2Pipeline", "flux2", .packed_latents = true},
};
#define NFAMILIES (int)(sizeof families / sizeof *families)

#define MAX_TOKENS 32768 /* of a prompt */

static bool is_pipeline(const char *folder)
{
	char path[4096];

	return snprintf(path, sizeof path, "%s/model_index.json", folder) < (int)sizeof path && dtp_path_exists(path);
}

/* The folder above a path: "." of a name alone. */
static void folder_above(const char *path, char *buf, size_t size)
{
	size_t n = strlen(path);

	while (n && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	while (n > 1 && path[n - 1] == '/')
		n--;
	snprintf(buf, size, "%.*s", n ? (int)n : 1, n ? path : ".");
}

/* "; did you mean 'x'?" of the pipeline folder whose name beside the model's is nearest to it, or nothing.  Returns buf. */
static const char *near_folder(const char *model, char *buf, size_t size)
{
	char above[2048], path[sizeof above + 260];
	const char *slash = strrchr(model, '/'), *name = slash ? slash + 1 : model;
	struct dtp_suggest near = dtp_suggest_begin(name);
	DIR *d;

	buf[0] = '\0';
	folder_above(model, above, sizeof above);
	if (!(d = opendir(above)))
		return buf;
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "%s/%s", above, e->d_name);
		if (is_pipeline(path))
			dtp_suggest_try(&near, e->d_name);
	}
	closedir(d);
	if (near.best[0])
		snprintf(buf, size, "; did you mean '%.*s%s'?", (int)(name - model), model, near.best);
	return buf;
}

static enum dtp_code check_folder(const char *model, struct dtp_err *err)
{
	char above[2048], hint[512];
	struct stat st;

	if (stat(model, &st))
		return dtp_fail(err, DTP_REFUSED, "model folder '%s' does not exist%s", model, near_folder(model, hint, sizeof hint));
	if (!S_ISDIR(st.st_mode))
		return dtp_fail(err, DTP_REFUSED, "'%s' is no folder; --model takes a pipeline folder in the diffusers layout", model);
	if (is_pipeline(model))
		return DTP_OK;
	folder_above(model, above, sizeof above);
	if (is_pipeline(above))
		return dtp_fail(err, DTP_REFUSED, "'%s' is a part of a pipeline folder; did you mean the whole, '%s'?", model, above);
	return dtp_fail(err, DTP_REFUSED,
			"'%s' has no model_index.json: a pipeline folder in the diffusers layout is needed (model_index.json, "
			"transformer/, text_encoder/, tokenizer/, vae/, scheduler/)", model);
}

/* model_index.json and the row of its class, NULL for a class that is not supported; the caller frees doc. */
static enum dtp_code load_index(const char *model, struct dtp_json *doc, const char **class_name,
				const struct dtp_family **family, struct dtp_err *err)
{
	char path[4096];

	*family = NULL;
	snprintf(path, sizeof path, "%s/model_index.json", model);
	if (dtp_json_load(path, 0, doc, err))
		return err->code;
	if (dtp_json_string(doc, NULL, "_class_name", class_name, err)) {
		dtp_json_free(doc);
		return err->code;
	}
	for (int i = 0; i < NFAMILIES; i++)
		if (!strcmp(families[i].class_name, *class_name))
			*family = &families[i];
	return DTP_OK;
}

static enum dtp_code read_index(struct dtp_pipeline *p, struct dtp_err *err)
{
	struct dtp_json doc;
	const char *name;
	char known[256] = "";
	enum dtp_code rc;

	if (load_index(p->model, &doc, &name, &p->family, err))
		return err->code;
	if (p->family) {
		rc = dtp_json_bool_or(&doc, NULL, "is_distilled", &p->distilled, err);
	} else {
		for (int i = 0; i < NFAMILIES; i++)
			snprintf(known + strlen(known), sizeof known - strlen(known), "%s'%s'", i ? ", " : "", families[i].class_name);
		rc = dtp_fail(err, DTP_REFUSED, "%s: pipeline class '%s' is not supported; supported: %s (not their KV and inpainting "
			      "pipelines)", doc.path, name, known);
	}
	dtp_json_free(&doc);
	return rc;
}

enum dtp_code dtp_pipeline_known(const char *model, bool *known, struct dtp_err *err)
{
	const struct dtp_family *family;
	struct dtp_json doc;
	const char *name;

	*known = false;
	if (load_index(model, &doc, &name, &family, err))
		return err->code;
	*known = family != NULL;
	dtp_json_free(&doc);
	return DTP_OK;
}

/* The source of embeddings: a text encoder, or a file. */
static enum dtp_code open_text(struct dtp_pipeline *p, const char *embeds, struct dtp_err *err)
{
	char dir[4096];

	if (embeds) {
		dtp_tree_init(&p->text.tree, "text_encoder");
		p->component[DTP_TEXT].absent = true;
		return dtp_embeds_open(embeds, p->transformer.config.joint_dim, MAX_TOKENS, &p->embeds, err);
	}
	snprintf(dir, sizeof dir, "%s/text_encoder", p->model);
	if (dtp_text_open(dir, &p->text, err))
		return err->code;
	if (dtp_text_width(&p->text) != p->transformer.config.joint_dim)
		return dtp_fail(err, DTP_REFUSED,
				"'%s': the text encoder gives embeddings of width %lld (3 x %lld), the transformer's joint_attention_dim is %lld",
				p->model, (long long)dtp_text_width(&p->text), (long long)p->text.config.hidden,
				(long long)p->transformer.config.joint_dim);
	return DTP_OK;
}

static enum dtp_code open_models(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_err *err)
{
	char dir[4096];
#define DIR(name) (snprintf(dir, sizeof dir, "%s/%s", p->model, name), dir)
	if (dtp_scheduler_load(DIR("scheduler"), &p->scheduler, err) ||
	    dtp_transformer_open(p->transformer_config, &p->transformer, err) || dtp_vae_open(DIR("vae"), o->references, &p->vae, err))
		return err->code;
#undef DIR
	p->component[DTP_TEXT] = (struct dtp_component){"text_encoder", "model", "", &p->text.tree, .degree = p->tp_degree};
	p->component[DTP_TRANSFORMER] = (struct dtp_component){"transformer", "diffusion_pytorch_model", "", &p->transformer.tree,
							       .degree = p->tp_degree};
	p->component[DTP_VAE] = (struct dtp_component){"vae", "diffusion_pytorch_model", "", &p->vae.tree, .degree = 1};
	p->component[DTP_TRANSFORMER].absent = p->component[DTP_VAE].absent = o->encode_only;
	for (int i = 0; i < DTP_NPHASES; i++)
		p->foreseen[i].name = i == DTP_REFERENCES ? DTP_REFERENCES_NAME : p->component[i].name;
	if (4 * p->vae.config.latent_channels != p->transformer.config.in_channels ||
	    p->transformer.config.out_channels != p->transformer.config.in_channels)
		return dtp_fail(err, DTP_REFUSED,
				"'%s': the VAE has %lld latent channels (packed: %lld), the transformer takes %lld and gives %lld",
				p->model, (long long)p->vae.config.latent_channels, (long long)(4 * p->vae.config.latent_channels),
				(long long)p->transformer.config.in_channels, (long long)p->transformer.config.out_channels);
	return open_text(p, o->prompt_embeds, err);
}

/* The parts are what model_index.json says; one that it doesn't list is not asked about. */
static enum dtp_code check_classes(struct dtp_pipeline *p, struct dtp_err *err)
{
	const char *const classes[][2] = {{"scheduler", DTP_SCHEDULER_CLASS}, {"transformer", DTP_TRANSFORMER_CLASS},
					  {"vae", DTP_VAE_CLASS},
					  {"text_encoder", p->text.family ? p->text.family->class_name : NULL}};
	const struct dtp_family *unused;
	struct dtp_json doc;
	const char *name;

	if (load_index(p->model, &doc, &name, &unused, err))
		return err->code;
	for (size_t i = 0; i < sizeof classes / sizeof classes[0] && !err->code; i++) {
		const cJSON *listed = cJSON_GetObjectItemCaseSensitive(doc.root, classes[i][0]);
		name = cJSON_GetStringValue(cJSON_GetArrayItem(listed, 1));
		if (name && classes[i][1] && strcmp(name, classes[i][1]))
			dtp_fail(err, DTP_REFUSED, "%s: '%s' is of the class '%s', but its folder holds '%s'", doc.path, classes[i][0],
				 name, classes[i][1]);
	}
	dtp_json_free(&doc);
	return err->code;
}

static enum dtp_code open_shards(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_err *err)
{
	if (!o->synthetic && dtp_shards_load(p->model, &p->shards, err))
		return err->code;
	int degree = p->shards ? p->shards->degree : 1;
	p->tp_degree = o->tp_degree ? o->tp_degree : degree;
	if (p->shards && p->tp_degree != degree)
		return dtp_fail(err, DTP_REFUSED, "'%s' is sharded for --tp-degree %d ('%s'), not for %d: use %d, or the folder that it was "
				"made from ('difftp unshard' restores it)", p->model, degree, p->shards->path, p->tp_degree, degree);
	return DTP_OK;
}

/* The plan that the weights of a part are split by already. */
static enum dtp_code sharded_plan(struct dtp_pipeline *p, const char *component, struct dtp_plan *plan, struct dtp_err *err)
{
	const struct dtp_shards_part *part = dtp_shards_part(p->shards, component);

	if (!part)
		return dtp_fail(err, DTP_REFUSED, "%s: no component '%s'", p->shards->path, component);
	return dtp_plan_copy(&part->plan, plan, err);
}

/* A plan is welcome if it splits what is split already, as it is. */
static enum dtp_code check_same_plan(struct dtp_pipeline *p, const char *file, struct dtp_err *err)
{
	struct dtp_plan_change *changes;
	struct dtp_plan asked;
	int n;

	if (dtp_plan_load(file, &asked, err))
		return err->code;
	enum dtp_code rc = dtp_plan_compare(&p->plan, &asked, &p->transformer.tree, p->tp_degree, &changes, &n, err);
	if (!rc && n)
		rc = dtp_fail(err, DTP_REFUSED, "'%s' is sharded by another plan than '%s': '%s' is %s there, %s here (%d key%s differ%s); "
			      "leave --tp-plan out, or use the folder that it was made from", p->model, file, changes[0].key.name,
			      dtp_style_name(changes[0].a.style), dtp_style_name(changes[0].b.style), n, n == 1 ? "" : "s",
			      n == 1 ? "s" : "");
	free(changes);
	dtp_plan_free(&asked);
	return rc;
}

static enum dtp_code choose_plans(struct dtp_pipeline *p, const char *file, struct dtp_err *err)
{
	if (p->shards) {
		if (sharded_plan(p, "transformer", &p->plan, err) ||
		    (p->text.family && sharded_plan(p, "text_encoder", &p->text_plan, err)))
			return err->code;
		return file ? check_same_plan(p, file, err) : DTP_OK;
	}
	if (file ? dtp_plan_load(file, &p->plan, err) : dtp_plan_builtin(p->family->plan, &p->plan, err))
		return err->code;
	return p->text.family ? dtp_plan_builtin(p->text.family->plan, &p->text_plan, err) : DTP_OK;
}

static enum dtp_code apply_plans(struct dtp_pipeline *p, const char *file, struct dtp_err *err)
{
	if (choose_plans(p, file, err))
		return err->code;
	if (dtp_plan_apply(&p->plan, &p->transformer.tree, p->tp_degree, err))
		return err->code;
	return p->text.family ? dtp_plan_apply(&p->text_plan, &p->text.tree, p->tp_degree, err) : DTP_OK;
}

static enum dtp_code open_tokenizer(struct dtp_pipeline *p, struct dtp_err *err)
{
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/tokenizer", p->model);
	if (dtp_tokenizer_open(dir, &p->tokenizer, err))
		return err->code;
	if ((int64_t)dtp_tokenizer_vocab(p->tokenizer) > p->text.config.vocab)
		return dtp_fail(err, DTP_REFUSED, "'%s': the tokenizer has ids up to %zu, the text encoder's vocabulary %lld rows",
				p->model, dtp_tokenizer_vocab(p->tokenizer) - 1, (long long)p->text.config.vocab);
	return DTP_OK;
}

static enum dtp_code check_reduce(const struct dtp_options *o, struct dtp_err *err)
{
	if (o->reduce != DTP_BF16 || o->compute == DTP_BF16)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "--reduce-dtype bf16 goes with --dtype bf16 only: fp32 would lose by the sums what it computes");
}

enum dtp_code dtp_pipeline_open(const struct dtp_options *o, const struct dtp_monitor *mon, struct dtp_pipeline **out,
				struct dtp_err *err)
{
	struct dtp_pipeline *p = calloc(1, sizeof *p);

	*out = NULL;
	if (!p || !(p->model = strdup(o->model))) {
		free(p);
		return dtp_fail(err, DTP_FAILED, "out of memory");
	}
	p->compute = o->compute;
	p->reduce = o->reduce ? o->reduce : o->device == DTP_DEVICE_CUDA ? o->compute : DTP_F32;
	p->overlap = o->overlap;
	p->device = o->device;
	p->stay = o->stay;
	p->beside_whole = o->beside_whole;
	p->encode_only = o->encode_only;
	p->synthetic = o->synthetic;
	p->mon = mon;
	if (check_reduce(o, err) || check_folder(p->model, err) || read_index(p, err) || open_shards(p, o, err) ||
	    dtp_pipeline_find_transformer(p, o->transformer, err) || open_models(p, o, err) ||
	    check_classes(p, err) || apply_plans(p, o->tp_plan, err) ||
	    (!o->synthetic && dtp_pipeline_open_weights(p, o, err)) ||
	    (!o->no_tokenizer && !o->synthetic && !o->prompt_embeds && open_tokenizer(p, err))) {
		dtp_pipeline_close(p);
		return err->code;
	}
	*out = p;
	return DTP_OK;
}

enum dtp_code dtp_pipeline_set_degree(struct dtp_pipeline *p, int tp_degree, struct dtp_err *err)
{
	enum dtp_code rc = dtp_plan_check_degree(&p->plan, &p->transformer.tree, tp_degree, err);

	if (!rc && p->text.family)
		rc = dtp_plan_check_degree(&p->text_plan, &p->text.tree, tp_degree, err);
	if (rc)
		return rc;
	p->tp_degree = p->component[DTP_TEXT].degree = p->component[DTP_TRANSFORMER].degree = tp_degree;
	return DTP_OK;
}

void dtp_pipeline_stay(struct dtp_pipeline *p, struct dtp_residency stay)
{
	p->stay = stay;
}

void dtp_pipeline_close(struct dtp_pipeline *p)
{
	if (!p)
		return;
	for (int i = 0; i < DTP_COMPONENTS; i++)
		dtp_st_close(&p->component[i].st);
	dtp_plan_free(&p->plan);
	dtp_plan_free(&p->text_plan);
	dtp_shards_free(p->shards);
	dtp_tokenizer_free(p->tokenizer);
	dtp_embeds_close(&p->embeds);
	dtp_vae_close(&p->vae);
	dtp_text_close(&p->text);
	dtp_transformer_close(&p->transformer);
	dtp_lora_close(p->lora);
	free(p->variant);
	free(p->transformer_config);
	free(p->transformer_weights);
	free(p->model);
	free(p);
}

static enum dtp_code check_side(const struct dtp_pipeline *p, const char *name, int64_t n, struct dtp_err *err)
{
	int64_t unit = dtp_token_pixels(p), below = n / unit * unit;

	if (n < unit || n > DTP_MAX_SIDE)
		return dtp_fail(err, DTP_REFUSED, "%s %lld is out of range: %lld to %d", name, (long long)n, (long long)unit, DTP_MAX_SIDE);
	if (n % unit)
		return dtp_fail(err, DTP_REFUSED, "%s %lld is not a multiple of %lld; the nearest that are: %lld and %lld", name,
				(long long)n, (long long)unit, (long long)below, (long long)(below + unit));
	return DTP_OK;
}

/* Given noise has a size, and is of one image. */
static enum dtp_code check_noise(const struct dtp_pipeline *p, struct dtp_request *r, struct dtp_err *err)
{
	const struct dtp_latents *l = r->noise;
	int64_t unit = dtp_token_pixels(p), C = p->transformer.config.in_channels;
	char shape[200];

	if (!l)
		return DTP_OK;
	if (l->ndim != 4 || l->shape[1] != C)
		return dtp_fail(err, DTP_REFUSED, "'%s' has the shape %s; the noise that the model takes is [1, %lld, rows, columns]", l->path,
				dtp_shape_text(shape, sizeof shape, l->ndim, l->shape), (long long)C);
	if (l->shape[2] > DTP_MAX_SIDE / unit || l->shape[3] > DTP_MAX_SIDE / unit)
		return dtp_fail(err, DTP_REFUSED, "'%s' is noise of %lldx%lld tokens, at most %lldx%lld are drawn", l->path, (long long)l->shape[3],
				(long long)l->shape[2], (long long)(DTP_MAX_SIDE / unit), (long long)(DTP_MAX_SIDE / unit));
	int64_t h = l->shape[2] * unit, w = l->shape[3] * unit;
	if ((r->height && r->height != h) || (r->width && r->width != w))
		return dtp_fail(err, DTP_REFUSED, "'%s' is noise for a picture of %lldx%lld, not %lldx%lld; its size need not be given", l->path,
				(long long)w, (long long)h, (long long)(r->width ? r->width : w), (long long)(r->height ? r->height : h));
	if (r->num_images > 1)
		return dtp_fail(err, DTP_REFUSED, "'%s' is noise for one picture, %d are to be drawn", l->path, r->num_images);
	r->height = h;
	r->width = w;
	return DTP_OK;
}

/* The references' sizes; the first is the picture's where none is given. */
static enum dtp_code check_references(const struct dtp_pipeline *p, struct dtp_request *r, struct dtp_err *err)
{
	int64_t unit = dtp_token_pixels(p), h, w;

	if (r->nimages > DTP_MAX_REFERENCES)
		return dtp_fail(err, DTP_REFUSED, "%d reference images are given, at most %d are taken", r->nimages, DTP_MAX_REFERENCES);
	for (int i = 0; i < r->nimages; i++) {
		dtp_reference_size(&r->images[i], unit, &h, &w);
		if (h < unit || w < unit)
			return dtp_fail(err, DTP_REFUSED, "reference image %d has %lldx%lld pixels, the model needs %lld on each side",
					i, (long long)r->images[i].width, (long long)r->images[i].height, (long long)unit);
		r->height = r->height ? r->height : h;
		r->width = r->width ? r->width : w;
	}
	return DTP_OK;
}

int dtp_request_phases(const struct dtp_request *r)
{
	return DTP_NPHASES - (r->nimages == 0);
}

enum dtp_code dtp_pipeline_resolve(const struct dtp_pipeline *p, struct dtp_request *r, struct dtp_err *err)
{
	struct dtp_prompt prompt;

	if (check_noise(p, r, err) || check_references(p, r, err))
		return err->code;
	if (!r->height)
		r->height = 1024;
	if (!r->width)
		r->width = 1024;
	if (!r->steps)
		r->steps = p->distilled ? 4 : 50;
	if (r->guidance_scale < 0)
		r->guidance_scale = 4.0;
	if (!r->num_images)
		r->num_images = 1;
	if (p->embeds.length)
		r->max_sequence_length = p->embeds.length;
	if (!r->max_sequence_length)
		r->max_sequence_length = 512;
	if (check_side(p, "height", r->height, err) || check_side(p, "width", r->width, err))
		return err->code;
	if (r->steps < 1 || r->steps > DTP_MAX_STEPS)
		return dtp_fail(err, DTP_REFUSED, "steps %d is out of range: 1 to %d", r->steps, DTP_MAX_STEPS);
	if (r->num_images < 1 || r->num_images > 100000)
		return dtp_fail(err, DTP_REFUSED, "number of images %d is out of range: 1 to 100000", r->num_images);
	int64_t window = p->text.config.window, most = window && window < MAX_TOKENS ? window : MAX_TOKENS;
	if (r->max_sequence_length < 1 || r->max_sequence_length > most)
		return dtp_fail(err, DTP_REFUSED, "max sequence length %lld is out of range: 1 to %lld%s",
				(long long)r->max_sequence_length, (long long)most,
				most == window ? ", the text encoder's sliding window" : "");
	if (p->embeds.length && dtp_pipeline_passes(p, r) > 1 && !p->embeds.pass[1])
		return dtp_fail(err, DTP_REFUSED, "'%s' has no 'negative_prompt_embeds', and at guidance %g there are two passes a step; "
				"--guidance-scale 1 needs none", p->embeds.st.files[0].path, r->guidance_scale);
	if (!r->negative_prompt)
		r->negative_prompt = "";
	const char *texts[] = {r->prompt, r->negative_prompt};
	for (int i = 0; p->tokenizer && i < dtp_pipeline_passes(p, r); i++) {
		if (dtp_prompt_make(p->tokenizer, p->text.family->chat, r->system_message, texts[i], r->max_sequence_length, &prompt, err))
			return err->code;
		dtp_prompt_free(&prompt);
	}
	return DTP_OK;
}

int dtp_pipeline_passes(const struct dtp_pipeline *p, const struct dtp_request *r)
{
	return p->family->classifier_free && !p->distilled && r->guidance_scale > 1 ? 2 : 1;
}

enum dtp_dtype dtp_pipeline_reduce(const struct dtp_pipeline *p)
{
	return p->reduce;
}

const struct dtp_phase_use *dtp_pipeline_use(const struct dtp_pipeline *p)
{
	return p->use;
}

const struct dtp_phase_memory *dtp_pipeline_foreseen(const struct dtp_pipeline *p)
{
	return p->foreseen;
}

enum dtp_device dtp_pipeline_device(const struct dtp_pipeline *p)
{
	return p->device;
}

const char *dtp_pipeline_class(const struct dtp_pipeline *p)
{
	return p->family->class_name;
}

bool dtp_pipeline_guided(const struct dtp_pipeline *p)
{
	return !p->distilled;
}

bool dtp_pipeline_embeds_guidance(const struct dtp_pipeline *p)
{
	return p->transformer.config.guidance_embeds;
}

bool dtp_pipeline_has_system(const struct dtp_pipeline *p)
{
	return p->text.family && dtp_prompt_has_system(p->text.family->chat);
}

const char *dtp_pipeline_plan(const struct dtp_pipeline *p)
{
	return p->plan.source;
}

const char *dtp_pipeline_builtin(const struct dtp_pipeline *p)
{
	return p->family->plan;
}

const char *dtp_pipeline_step_refused(const struct dtp_pipeline *p)
{
	return p->step_refused;
}

int dtp_pipeline_reports(const struct dtp_pipeline *p, const struct dtp_phase_report **out)
{
	*out = p->report;
	return p->nreports;
}

void dtp_pipeline_watch(struct dtp_pipeline *p, dtp_step_fn fn, void *arg)
{
	p->watch = fn;
	p->watch_arg = arg;
}
