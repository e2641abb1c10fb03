/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "synthetic.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define REFERENCE_TIME 10 /* between two images, as the model was trained */

/* ---- a run's own memory */

/* Latent output needs no more of the VAE than its batch norm; the references' phase asks for the encoder itself. */
void dtp_run_bind(struct dtp_pipeline *p, enum dtp_output output, int rank)
{
	for (int i = 0; i < DTP_COMPONENTS; i++)
		dtp_plan_bind(p->component[i].tree, dtp_component_rank(&p->component[i], rank), p->component[i].degree);
	dtp_vae_need(&p->vae, false, output == DTP_OUTPUT_PNG);
}

uint64_t dtp_run_embeds_bytes(const struct dtp_pipeline *p, const struct dtp_request *req)
{
	return (uint64_t)(dtp_pipeline_passes(p, req) * req->max_sequence_length * p->transformer.config.joint_dim) *
	       dtp_dtype_size(p->compute);
}

void dtp_run_free(struct dtp_run *r)
{
	for (int i = 0; i < r->passes; i++)
		dtp_prompt_free(&r->prompt[i]);
	dtp_dump_free(&r->dump);
	free(r->ids);
	free(r->host);
	free(r->rgb);
	if (r->embeds && !r->ctx.be->dry)
		r->ctx.be->ops->free(r->ctx.be, r->embeds, dtp_run_embeds_bytes(r->p, r->req));
}

static enum dtp_code make_prompts(struct dtp_run *r, struct dtp_err *err)
{
	const struct dtp_pipeline *p = r->p;
	int64_t length = r->req->max_sequence_length;
	const char *texts[] = {r->req->prompt, r->req->negative_prompt};

	for (int i = 0; i < r->passes && !p->embeds.length; i++) {
		if (p->tokenizer) {
			if (dtp_prompt_make(p->tokenizer, p->text.family->chat, r->req->system_message, texts[i], length, &r->prompt[i], err))
				return err->code;
			continue;
		}
		if (p->synthetic) {
			if (dtp_synthetic_prompt(p->text.config.vocab, length, i, &r->prompt[i], err))
				return err->code;
			continue;
		}
		if (!r->ctx.be->dry)
			return dtp_fail(err, DTP_FAILED, "internal error: the tokenizer was not opened");
		/* A dry run looks at no id. */
		r->prompt[i] = (struct dtp_prompt){.ids = calloc((size_t)length, sizeof(int32_t)), .length = length, .end = length};
		if (!r->prompt[i].ids)
			return dtp_fail(err, DTP_FAILED, "out of memory for a prompt of %lld tokens", (long long)length);
	}
	return DTP_OK;
}

static enum dtp_code no_memory(const struct dtp_request *req, struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "out of memory for an image of %lldx%lld", (long long)req->width, (long long)req->height);
}

enum dtp_code dtp_run_picture(struct dtp_run *r, struct dtp_err *err)
{
	if (!r->host)
		r->host = malloc((size_t)(r->tokens * r->channels) * sizeof *r->host);
	if (!r->rgb)
		r->rgb = malloc((size_t)(3 * r->req->height * r->req->width));
	return r->host && r->rgb ? DTP_OK : no_memory(r->req, err);
}

int64_t dtp_run_reference_tokens(const struct dtp_pipeline *p, const struct dtp_request *req)
{
	int64_t unit = dtp_token_pixels(p), n = 0, h, w;

	for (int i = 0; i < req->nimages; i++) {
		dtp_reference_size(&req->images[i], unit, &h, &w);
		n += h / unit * (w / unit);
	}
	return n;
}

/* The picture's own tokens are at time 0, the references' at 10, 20, ... */
static void make_ids(struct dtp_run *r)
{
	int64_t unit = dtp_token_pixels(r->p), at = r->tokens, h, w;

	dtp_image_ids(r->h, r->w, 0, r->ids);
	for (int i = 0; i < r->req->nimages; i++, at += h / unit * (w / unit)) {
		dtp_reference_size(&r->req->images[i], unit, &h, &w);
		dtp_image_ids(h / unit, w / unit, REFERENCE_TIME * (i + 1), r->ids + at);
	}
}

static int passes_at_once(const struct dtp_run *r)
{
	return r->req->passes_in_turn ? 1 : r->passes;
}

enum dtp_code dtp_run_init(struct dtp_run *r, struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			      struct dtp_comm *tp, const struct dtp_monitor *mon, struct dtp_err *err)
{
	int64_t unit = dtp_token_pixels(p);

	*r = (struct dtp_run){.p = p, .req = req, .tp = tp, .passes = dtp_pipeline_passes(p, req)};
	r->ctx = (struct dtp_ctx){.be = be, .tp = tp, .mon = mon, .reduce = p->reduce, .overlap = p->overlap, .timing = !be->dry && !be->async, .err = DTP_ERR_INIT,
				  .dump = p->stages ? p->stages : req->dump_stages ? &r->dump : NULL,
				  .observer = be->dry ? NULL : p->observer};
	r->h = req->height / unit;
	r->w = req->width / unit;
	r->tokens = r->h * r->w;
	r->channels = p->transformer.config.in_channels;
	r->references = dtp_run_reference_tokens(p, req);
	r->ids = calloc((size_t)(r->tokens + r->references), sizeof *r->ids);
	if (!r->ids)
		return no_memory(req, err);
	make_ids(r);
	r->shape = (struct dtp_step_shape){r->tokens, r->references, req->max_sequence_length, r->passes, passes_at_once(r), r->ctx.dump != NULL};
	dtp_schedule_make(&p->scheduler, r->tokens, req->steps, &r->schedule);
	return make_prompts(r, err);
}

/* ---- stages that are known on the host */

static void not_recorded(struct dtp_run *r, const char *stage)
{
	dtp_fail(&r->ctx.err, DTP_FAILED, "out of memory for recorded stage '%s'", stage);
}

static void dump_host(struct dtp_run *r, const char *name, enum dtp_dtype t, int ndim, const int64_t *shape, const void *data)
{
	if (!r->ctx.dump || r->ctx.be->dry || r->tp->rank != 0)
		return;
	void *p = dtp_dump_add(r->ctx.dump, name, dtp_depth(&r->ctx), t, ndim, shape);
	size_t n = dtp_dtype_size(t);
	for (int d = 0; d < ndim; d++)
		n *= (size_t)shape[d];
	if (!p)
		not_recorded(r, name);
	else
		memcpy(p, data, n);
}

void dtp_run_dump_ids(struct dtp_run *r, const struct dtp_prompt *p, const char *name)
{
	int64_t L = p->length;
	char key[64];

	if (!r->ctx.dump || !p->ids)
		return;
	int64_t *v = calloc((size_t)(4 * L), sizeof *v);
#define KEY(suffix) (snprintf(key, sizeof key, "%s." suffix, name), key)
	if (!v) {
		not_recorded(r, KEY("input_ids"));
		return;
	}
	for (int64_t i = 0; i < L; i++)
		v[i] = p->ids[i];
	dump_host(r, KEY("input_ids"), DTP_I64, 2, (int64_t[]){1, L}, v);
	for (int64_t i = 0; i < L; i++)
		v[i] = i >= p->begin && i < p->end;
	dump_host(r, KEY("attention_mask"), DTP_I64, 2, (int64_t[]){1, L}, v);
	for (int64_t i = 0; i < L; i++)
		memcpy(v + 4 * i, (int64_t[]){0, 0, 0, i}, 4 * sizeof *v);
	dump_host(r, KEY("text_ids"), DTP_I64, 3, (int64_t[]){1, L, 4}, v);
#undef KEY
	free(v);
}

static void dump_input(struct dtp_run *r)
{
	int64_t n = r->tokens * r->channels, m = r->references * r->channels;

	if (!r->ctx.dump)
		return;
	float *v = malloc((size_t)(n + m) * sizeof *v);
	if (!v) {
		not_recorded(r, "step0.in.hidden_states");
		return;
	}
	memcpy(v, r->host, (size_t)n * sizeof *v);
	if (m)
		memcpy(v + n, r->reference_tokens, (size_t)m * sizeof *v);
	dump_host(r, "step0.in.hidden_states", DTP_F32, 3, (int64_t[]){1, r->tokens + r->references, r->channels}, v);
	free(v);
}

void dtp_run_dump_start(struct dtp_run *r, const float *noise)
{
	const struct dtp_schedule *s = &r->schedule;
	float t = s->timesteps[0] / 1000.0f, guidance = (float)r->req->guidance_scale;
	int64_t n = s->steps;

	dump_host(r, "init.noise", DTP_F32, 4, (int64_t[]){1, r->channels, r->h, r->w}, noise);
	dump_host(r, "init.latents_packed", DTP_F32, 3, (int64_t[]){1, r->tokens, r->channels}, r->host);
	dump_host(r, "init.latent_ids", DTP_I64, 3, (int64_t[]){1, r->tokens, 4}, r->ids);
	dump_host(r, "step0.in.img_ids", DTP_I64, 3, (int64_t[]){1, r->tokens + r->references, 4}, r->ids);
	dump_input(r);
	dump_host(r, "step0.in.timestep", DTP_F32, 1, (int64_t[]){1}, &t);
	if (r->p->transformer.config.guidance_embeds)
		dump_host(r, "step0.in.guidance", DTP_F32, 1, (int64_t[]){1}, &guidance);
	dump_host(r, "sched.mu", DTP_F64, 1, (int64_t[]){1}, &s->mu);
	dump_host(r, "sched.sigmas_in", DTP_F64, 1, &n, s->sigmas_in);
	dump_host(r, "sched.timesteps", DTP_F32, 1, &n, s->timesteps);
	n++;
	dump_host(r, "sched.sigmas", DTP_F32, 1, &n, s->sigmas);
}

enum dtp_code dtp_run_write_stages(const struct dtp_run *r, struct dtp_err *err)
{
	const struct dtp_request *q = r->req;
	char number[6][32];
	const char *metadata[12][2] = {
		{"class", r->p->family->class_name}, {"prompt", q->prompt}, {"seed", number[0]}, {"height", number[1]},
		{"width", number[2]}, {"steps", number[3]}, {"guidance_scale", number[4]}, {"max_sequence_length", number[5]},
		{"dtype", r->p->compute == DTP_F32 ? "fp32" : "bf16"},
	};
	int n = 9;

	snprintf(number[0], sizeof *number, "%llu", (unsigned long long)q->seed);
	snprintf(number[1], sizeof *number, "%lld", (long long)q->height);
	snprintf(number[2], sizeof *number, "%lld", (long long)q->width);
	snprintf(number[3], sizeof *number, "%d", q->steps);
	snprintf(number[4], sizeof *number, "%.17g", q->guidance_scale);
	snprintf(number[5], sizeof *number, "%lld", (long long)q->max_sequence_length);
	if (*q->negative_prompt)
		memcpy(metadata[n++], (const char *[2]){"negative_prompt", q->negative_prompt}, sizeof *metadata);
	if (q->system_message)
		memcpy(metadata[n++], (const char *[2]){"system_message", q->system_message}, sizeof *metadata);
	if (q->exact_timesteps)
		memcpy(metadata[n++], (const char *[2]){"exact_timesteps", "true"}, sizeof *metadata);
	struct dtp_outkeep keep = dtp_outkeep_of(q->dump_stages);
	enum dtp_code rc = dtp_dump_write(&r->dump, q->dump_stages, q->replace ? NULL : &keep, (const char *const(*)[2])metadata, n, err);
	dtp_outkeep_tell(&keep, q->dump_stages, r->ctx.mon);
	dtp_outkeep_free(&keep);
	return rc;
}

/* Latents before they are un-patchified: packed channel c*4 + dy*2 + dx of token (y, x) is z[2y + dy][2x + dx][c]. */
static void dump_unpacked(struct dtp_run *r, const float *z)
{
	int64_t C = r->channels, h = r->h, w = r->w;

	if (!r->ctx.dump)
		return;
	float *v = calloc((size_t)(r->tokens * C), sizeof *v);
	if (!v) {
		not_recorded(r, "final.latents_bn");
		return;
	}
	for (int64_t k = 0; k < C; k++)
		for (int64_t y = 0; y < h; y++)
			for (int64_t x = 0; x < w; x++)
				v[(k * h + y) * w + x] =
					z[((2 * y + k % 4 / 2) * 2 * w + 2 * x + k % 2) * (C / 4) + k / 4];
	dump_host(r, "final.latents_bn", DTP_F32, 4, (int64_t[]){1, C, h, w}, v);
	free(v);
}

/* ---- what the phases compute */

/* [n, L, width], of n passes. */
static struct dtp_tensor embeds(const struct dtp_run *r, int pass, int n)
{
	int64_t shape[] = {r->passes, r->req->max_sequence_length, r->p->transformer.config.joint_dim};
	return dtp_narrow(dtp_tensor_make(r->embeds, r->ctx.be->compute, 3, shape), 0, pass, n);
}

/* Reference i -> its tokens, into host. */
static void encode_reference(struct dtp_run *r, int i, float *tokens)
{
	const struct dtp_vae *v = &r->p->vae;
	const struct dtp_picture *p = &r->req->images[i];
	int64_t unit = dtp_token_pixels(r->p), h, w;
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);

	dtp_reference_size(p, unit, &h, &w);
	float *values = r->ctx.be->dry ? NULL : malloc((size_t)(3 * h * w) * sizeof *values);
	if (values)
		dtp_reference_values(p, unit, values);
	else if (!r->ctx.be->dry)
		dtp_fail(&r->ctx.err, DTP_FAILED, "out of memory for reference image %d", i);
	struct dtp_tensor x = dtp_from_host(&r->ctx, r->ctx.be->compute, 3, (int64_t[]){h, w, 3}, values);
	struct dtp_tensor z = dtp_vae_pack(&r->ctx, v, dtp_vae_encode(&r->ctx, v, x, i));
	dtp_stage_picture(&r->ctx, dtp_tensor_make(z.data, z.dtype, 3, (int64_t[]){h / unit, w / unit, r->channels}),
			  "image.%d.latents_normalised", i);
	if (dtp_ok(&r->ctx) && !r->ctx.be->dry)
		r->ctx.be->ops->download(r->ctx.be, tokens, DTP_F32, z, &r->ctx.err);
	free(values);
	dtp_arena_release(&r->ctx.scratch, mark);
}

void dtp_run_references(struct dtp_run *r, float *tokens)
{
	float *at = tokens;
	int64_t unit = dtp_token_pixels(r->p), h, w;

	for (int i = 0; i < r->req->nimages && dtp_ok(&r->ctx); i++) {
		encode_reference(r, i, at);
		dtp_reference_size(&r->req->images[i], unit, &h, &w);
		at += tokens ? h / unit * (w / unit) * r->channels : 0;
	}
	dump_host(r, "image.latents_packed", DTP_F32, 3, (int64_t[]){1, r->references, r->channels}, tokens);
	dump_host(r, "image.latent_ids", DTP_I64, 3, (int64_t[]){1, r->references, 4}, r->ids + r->tokens);
}

/* Of one pass, as the file has them. */
static void read_embeds(struct dtp_run *r, int pass, struct dtp_tensor out, const char *name)
{
	const struct dtp_st_entry *e = r->p->embeds.pass[pass];
	struct dtp_ctx *c = &r->ctx;

	if (c->be->dry || !dtp_ok(c))
		return;
	void *host = malloc((size_t)e->nbytes);
	if (!host)
		dtp_fail(&c->err, DTP_FAILED, "out of memory for embeddings of %lld tokens", (long long)e->shape[1]);
	else if (!dtp_st_read(&r->p->embeds.st, e, 0, e->nbytes, host, &c->err))
		c->be->ops->upload(c->be, out, host, e->dtype, &c->err);
	free(host);
	dtp_stage(c, out, DTP_WHOLE, NULL, "%s.prompt_embeds", name);
}

void dtp_run_encode(struct dtp_run *r)
{
	static const char *const names[] = {"text", "neg"};
	bool dense;
	for (int i = 0; i < r->passes; i++) {
		struct dtp_tensor out = dtp_as_rows(embeds(r, i, 1), &dense);
		if (r->p->embeds.length)
			read_embeds(r, i, out, names[i]);
		else
			dtp_text_forward(&r->ctx, &r->p->text, &r->prompt[i], out, names[i]);
	}
}

enum dtp_code dtp_run_save_embeds(struct dtp_run *r, struct dtp_outkeep *keep, struct dtp_err *err)
{
	struct dtp_tensor all = embeds(r, 0, r->passes);
	void *host = malloc((size_t)dtp_run_embeds_bytes(r->p, r->req));
	enum dtp_code rc;

	if (!host)
		return dtp_fail(err, DTP_FAILED, "out of memory for embeddings of %lld tokens", (long long)all.shape[1]);
	rc = r->ctx.be->ops->download(r->ctx.be, host, all.dtype, all, err);
	if (!rc)
		rc = dtp_embeds_write(r->req->save_embeds, keep, r->p->family->class_name, host, all.dtype, r->passes,
				      all.shape[1], all.shape[2], err);
	free(host);
	return rc;
}

/* The time that the model is given, in its own units.  The reference hands over t / 1000 in the latents' dtype and
 * multiplies by 1000 in the model's: in bf16 that rounds the time to 8 bits. */
static float model_time(const struct dtp_run *r, float t)
{
	enum dtp_dtype type = r->req->exact_timesteps ? DTP_F32 : r->ctx.be->compute;
	return dtp_round_to(type, dtp_round_to(type, dtp_round_to(type, t) / 1000.0f) * 1000.0f);
}

static float model_guidance(const struct dtp_run *r)
{
	enum dtp_dtype type = r->req->exact_timesteps ? DTP_F32 : r->ctx.be->compute;
	return dtp_round_to(type, dtp_round_to(type, (float)r->req->guidance_scale) * 1000.0f);
}

void dtp_run_condition(struct dtp_run *r)
{
	struct dtp_dump *dump = r->ctx.dump;
	int at_once = passes_at_once(r);
	for (int i = 0; i < r->passes; i += at_once) {
		dtp_transformer_condition(&r->ctx, &r->p->transformer, embeds(r, i, at_once), (const int64_t(*)[DTP_MAX_AXES])r->ids,
					  r->tokens + r->references, &r->cond[i]);
		r->ctx.dump = NULL;
	}
	r->ctx.dump = dump;
}

/* What the operations of a step are told, F32: the transformer's sinusoids, then single numbers.  They read it where it lies, so that
 * all steps are the same work. */
enum { TOLD_DT, TOLD_MINUS, TOLD_SCALE, TOLD };

static int64_t told_sinusoids(const struct dtp_run *r)
{
	return dtp_transformer_sinusoids(&r->p->transformer) * r->p->transformer.config.time_channels;
}

static struct dtp_tensor told(const struct dtp_run *r, int number)
{
	return dtp_narrow(r->told, 0, told_sinusoids(r) + number, 1);
}

static void tell_step(struct dtp_run *r, int i)
{
	const struct dtp_schedule *s = &r->schedule;
	float v[DTP_MAX_SINUSOIDS * DTP_MAX_TIME_CHANNELS + TOLD], *numbers = v + told_sinusoids(r);

	dtp_transformer_fill_sinusoids(&r->p->transformer, model_time(r, s->timesteps[i]), model_guidance(r), v);
	numbers[TOLD_DT] = s->sigmas[i + 1] - s->sigmas[i];
	numbers[TOLD_MINUS] = -1;
	numbers[TOLD_SCALE] = (float)r->req->guidance_scale;
	if (dtp_ok(&r->ctx))
		r->ctx.be->ops->upload(r->ctx.be, r->told, v, DTP_F32, &r->ctx.err);
}

/* One pass, or both at once; the reference records the inside of the transformer in the first one only. */
static struct dtp_tensor predict(struct dtp_run *r, struct dtp_tensor input, int step, int pass)
{
	const struct dtp_transformer *t = &r->p->transformer;
	int64_t shape[] = {dtp_transformer_sinusoids(t), t->config.time_channels};
	struct dtp_dump *dump = r->ctx.dump;
	if (step > 0 || pass > 0)
		r->ctx.dump = NULL;
	struct dtp_tensor noise = dtp_transformer_forward(&r->ctx, t, &r->cond[pass], input,
							  dtp_tensor_make(r->told.data, DTP_F32, 2, shape));
	r->ctx.dump = dump;
	return noise;
}

/* uncond + scale * (cond - uncond), in uncond's place; cond is used up.  Both sums are rounded as the reference's are. */
static struct dtp_tensor guide(struct dtp_run *r, struct dtp_tensor cond, struct dtp_tensor uncond)
{
	dtp_euler(&r->ctx, cond, uncond, told(r, TOLD_MINUS));
	dtp_euler(&r->ctx, uncond, cond, told(r, TOLD_SCALE));
	return uncond;
}

struct dtp_tensor dtp_run_latents(const struct dtp_run *r, struct dtp_tensor input)
{
	return dtp_narrow(input, 0, 0, r->tokens);
}

struct dtp_tensor dtp_run_new_input(struct dtp_run *r)
{
	struct dtp_ctx *c = &r->ctx;
	struct dtp_tensor input = dtp_new2(c, r->tokens + r->references, r->channels);
	int64_t ntold = told_sinusoids(r) + TOLD;

	r->told = dtp_new(c, DTP_F32, 1, &ntold);
	if (dtp_ok(c))
		c->be->ops->upload(c->be, dtp_run_latents(r, input), r->host, DTP_F32, &c->err);
	if (dtp_ok(c) && r->references)
		c->be->ops->upload(c->be, dtp_narrow(input, 0, r->tokens, r->references), r->reference_tokens, DTP_F32, &c->err);
	return input;
}

struct step {
	struct dtp_run *r;
	struct dtp_tensor input;
	int i; /* for the names of stages alone */
};

static void take_step(void *arg)
{
	struct dtp_run *r = ((struct step *)arg)->r;
	struct dtp_tensor input = ((struct step *)arg)->input;
	int i = ((struct step *)arg)->i;
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);
	struct dtp_tensor latents = dtp_run_latents(r, input), noise = predict(r, input, i, 0);

	if (r->passes > 1) {
		bool both = passes_at_once(r) > 1;
		int64_t n = input.shape[0];
		struct dtp_tensor uncond = both ? dtp_narrow(noise, 0, n, n) : predict(r, input, i, 1);
		noise = dtp_narrow(noise, 0, 0, n);
		dtp_stage(&r->ctx, noise, DTP_WHOLE, NULL, "step.%d.noise_pred_cond", i);
		dtp_stage(&r->ctx, uncond, DTP_WHOLE, NULL, "step.%d.noise_pred_uncond", i);
		noise = guide(r, noise, uncond);
	}
	noise = dtp_run_latents(r, noise); /* what is said of the references is dropped */
	dtp_stage(&r->ctx, noise, DTP_WHOLE, NULL, "step.%d.noise_pred", i);
	dtp_euler(&r->ctx, latents, noise, told(r, TOLD_DT));
	dtp_stage(&r->ctx, latents, DTP_WHOLE, NULL, "step.%d.latents", i);
	dtp_arena_release(&r->ctx.scratch, mark);
}

void dtp_run_step(struct dtp_run *r, struct dtp_tensor input, int i)
{
	struct step s = {r, input, i};

	tell_step(r, i);
	dtp_replay(&r->ctx, &r->p->steps.replay, take_step, &s);
}

int dtp_run_latents_shape(const struct dtp_run *r, int64_t shape[DTP_MAX_DIMS])
{
	if (r->p->family->packed_latents) {
		memcpy(shape, (int64_t[]){1, r->tokens, r->channels}, 3 * sizeof *shape);
		return 3;
	}
	memcpy(shape, (int64_t[]){1, r->channels / 4, 2 * r->h, 2 * r->w}, 4 * sizeof *shape);
	return 4;
}

/* The latents as the pipeline class returns them: r->host, or un-patchified as z is, in the compute dtype; malloc'd. */
static void *returned_latents(struct dtp_run *r, struct dtp_tensor z)
{
	int64_t C = z.shape[2], pixels = z.shape[0] * z.shape[1], shape[DTP_MAX_DIMS];
	int ndim = dtp_run_latents_shape(r, shape);
	size_t n = (size_t)(C * pixels), size = dtp_dtype_size(z.dtype);
	float *hwc = malloc(n * sizeof *hwc), *chw = malloc(n * sizeof *chw);
	void *out = malloc(n * size);

	if (!hwc || !chw || !out)
		dtp_fail(&r->ctx.err, DTP_FAILED, "out of memory for %zu latents", n);
	else if (!r->ctx.be->ops->download(r->ctx.be, hwc, DTP_F32, z, &r->ctx.err)) {
		dtp_hwc_to_chw(chw, hwc, pixels, C);
		const float *values = r->p->family->packed_latents ? r->host : chw;
		dtp_from_f32(out, z.dtype, values, n);
		dump_unpacked(r, hwc);
		dump_host(r, "final.output_type_latent", DTP_F32, ndim, shape, values);
	}
	free(hwc);
	free(chw);
	if (dtp_ok(&r->ctx))
		return out;
	free(out);
	return NULL;
}

/* The final latents in r->host -> r->rgb (PNG output) and *latents as the pipeline class returns them (not in a dry run). */
void dtp_run_decode(struct dtp_run *r, void **latents)
{
	const struct dtp_vae *v = &r->p->vae;
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);
	struct dtp_tensor tokens = dtp_from_host(&r->ctx, r->ctx.be->compute, 2, (int64_t[]){r->tokens, r->channels}, r->host);
	struct dtp_tensor z = dtp_vae_unpack(&r->ctx, v, tokens, r->h, r->w);

	dtp_stage_picture(&r->ctx, dtp_tensor_make(tokens.data, tokens.dtype, 3, (int64_t[]){r->h, r->w, r->channels}),
			  "final.latents_unpacked");
	dtp_stage_picture(&r->ctx, z, "final.latents_unpatchified");
	if (dtp_ok(&r->ctx) && !r->ctx.be->dry)
		*latents = returned_latents(r, z);
	if (r->req->output == DTP_OUTPUT_PNG) {
		dtp_quantise(&r->ctx, r->rgb, dtp_vae_decode(&r->ctx, v, z));
		dump_host(r, "final.image_u8", DTP_U8, 3, (int64_t[]){r->req->height, r->req->width, 3}, r->rgb);
	}
	dtp_arena_release(&r->ctx.scratch, mark);
}

