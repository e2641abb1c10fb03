/* SPDX-License-Identifier: Apache-2.0 */
/* Running a pipeline on this rank: encode, denoise, decode, each component loaded when its turn comes. */
#include "pipeline_internal.h"
#include "rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

struct run {
	struct dtp_pipeline *p;
	const struct dtp_request *req;
	struct dtp_ctx ctx;
	struct dtp_comm *tp;
	struct dtp_dump dump;
	int passes;                       /* 2 with classifier-free guidance: the prompt's, then the negative prompt's */
	struct dtp_prompt prompt[2];
	struct dtp_schedule schedule;
	int64_t h, w, tokens, channels;   /* of the packed latents */
	int64_t (*ids)[DTP_MAX_AXES];     /* [tokens] */
	float *host;                      /* [tokens * channels]: noise, then final latents */
	void *embeds;                     /* backend memory: [passes, L, joint_dim], alive from encode to the last step */
	struct dtp_conditioning cond[2];
	uint8_t *rgb;
	int node_threads;
	dtp_image_fn done;
	void *arg;
};

/* ---- reports */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct timer {
	double start;
	struct dtp_opstat stat[DTP_NOPS];
};

static struct timer phase_begin(const struct run *r)
{
	struct timer t = {.start = now()};
	memcpy(t.stat, r->ctx.stat, sizeof t.stat);
	return t;
}

static struct dtp_phase_report *phase_end(struct run *r, const struct timer *t, const char *name)
{
	struct dtp_pipeline *p = r->p;
	struct dtp_phase_report *rep = NULL;
	struct rusage use;

	for (int i = 0; i < p->nreports; i++)
		if (!strcmp(p->report[i].name, name))
			rep = &p->report[i];
	if (!rep) {
		rep = &p->report[p->nreports++];
		rep->name = name;
	}
	double seconds = now() - t->start;
	int keep = (int)(sizeof rep->last_seconds / sizeof *rep->last_seconds);
	rep->last_seconds[rep->calls++ % keep] = seconds;
	rep->seconds += seconds;
	for (int op = 0; op < DTP_NOPS; op++)
		rep->flops += r->ctx.stat[op].flops - t->stat[op].flops;
	const struct dtp_opstat *sum = &r->ctx.stat[DTP_OP_REDUCE], *before = &t->stat[DTP_OP_REDUCE];
	rep->reductions += sum->calls - before->calls;
	rep->reduce_bytes += sum->bytes - before->bytes;
	rep->reduce_seconds += sum->seconds - before->seconds;
	getrusage(RUSAGE_SELF, &use);
	rep->peak_rss = (uint64_t)use.ru_maxrss * 1024;
	return rep;
}

static void stage(const struct run *r, enum dtp_phase phase, const char *text)
{
	r->ctx.mon->stage(r->ctx.mon->arg, phase, text);
}

/* ---- what the phases compute; also run dry, to know their scratch */

static struct dtp_tensor embeds(const struct run *r, int pass)
{
	int64_t shape[] = {r->passes, r->req->max_sequence_length, r->p->transformer.config.joint_dim};
	struct dtp_tensor all = dtp_tensor_make(r->embeds, r->ctx.be->compute, 3, shape), one = dtp_narrow(all, 0, pass, 1);
	return dtp_tensor_make(one.data, one.dtype, 2, shape + 1);
}

static void encode(struct run *r)
{
	static const char *const names[] = {"text", "neg"};
	for (int i = 0; i < r->passes; i++)
		dtp_text_forward(&r->ctx, &r->p->text, &r->prompt[i], embeds(r, i), names[i]);
}

/* The time that the model is given, in its own units.  The reference hands over t / 1000 in the latents' dtype and
 * multiplies by 1000 in the model's: in bf16 that rounds the time to 8 bits. */
static float model_time(const struct run *r, float t)
{
	enum dtp_dtype type = r->req->exact_timesteps ? DTP_F32 : r->ctx.be->compute;
	return dtp_round_to(type, dtp_round_to(type, dtp_round_to(type, t) / 1000.0f) * 1000.0f);
}

static float model_guidance(const struct run *r)
{
	enum dtp_dtype type = r->req->exact_timesteps ? DTP_F32 : r->ctx.be->compute;
	return dtp_round_to(type, dtp_round_to(type, (float)r->req->guidance_scale) * 1000.0f);
}

static void condition(struct run *r)
{
	struct dtp_dump *dump = r->ctx.dump;
	for (int i = 0; i < r->passes; i++) {
		dtp_transformer_condition(&r->ctx, &r->p->transformer, embeds(r, i), (const int64_t(*)[DTP_MAX_AXES])r->ids, r->tokens,
					  &r->cond[i]);
		r->ctx.dump = NULL;
	}
	r->ctx.dump = dump;
}

/* One pass; the reference records the inside of the transformer in the first one only. */
static struct dtp_tensor predict(struct run *r, struct dtp_tensor latents, int step, int pass)
{
	struct dtp_dump *dump = r->ctx.dump;
	if (step > 0 || pass > 0)
		r->ctx.dump = NULL;
	struct dtp_tensor noise = dtp_transformer_forward(&r->ctx, &r->p->transformer, &r->cond[pass], latents,
							  model_time(r, r->schedule.timesteps[step]), model_guidance(r));
	r->ctx.dump = dump;
	return noise;
}

/* uncond + scale * (cond - uncond), in uncond's place; cond is used up.  Both sums are rounded as the reference's are. */
static struct dtp_tensor guide(struct run *r, struct dtp_tensor cond, struct dtp_tensor uncond)
{
	dtp_euler(&r->ctx, cond, uncond, -1);
	dtp_euler(&r->ctx, uncond, cond, (float)r->req->guidance_scale);
	return uncond;
}

static void step(struct run *r, struct dtp_tensor latents, int i)
{
	const struct dtp_schedule *s = &r->schedule;
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);
	struct dtp_tensor noise = predict(r, latents, i, 0);

	if (r->passes > 1) {
		struct dtp_tensor uncond = predict(r, latents, i, 1);
		dtp_stage(&r->ctx, noise, DTP_WHOLE, NULL, "step.%d.noise_pred_cond", i);
		dtp_stage(&r->ctx, uncond, DTP_WHOLE, NULL, "step.%d.noise_pred_uncond", i);
		noise = guide(r, noise, uncond);
	}
	dtp_stage(&r->ctx, noise, DTP_WHOLE, NULL, "step.%d.noise_pred", i);
	dtp_euler(&r->ctx, latents, noise, s->sigmas[i + 1] - s->sigmas[i]);
	dtp_stage(&r->ctx, latents, DTP_WHOLE, NULL, "step.%d.latents", i);
	dtp_arena_release(&r->ctx.scratch, mark);
}

static struct dtp_tensor new_latents(struct run *r)
{
	return dtp_from_host(&r->ctx, r->ctx.be->compute, 2, (int64_t[]){r->tokens, r->channels}, r->host);
}

/* ---- stages that are known on the host */

static void dump_host(struct run *r, const char *name, enum dtp_dtype t, int ndim, const int64_t *shape, const void *data)
{
	if (!r->ctx.dump || r->ctx.be->dry || r->tp->rank != 0)
		return;
	void *p = dtp_dump_add(&r->dump, name, t, ndim, shape);
	size_t n = dtp_dtype_size(t);
	for (int d = 0; d < ndim; d++)
		n *= (size_t)shape[d];
	if (!p)
		dtp_fail(&r->ctx.err, DTP_FAILED, "out of memory for recorded stage '%s'", name);
	else
		memcpy(p, data, n);
}

static void dump_ids(struct run *r, const struct dtp_prompt *p, const char *name)
{
	int64_t L = p->length;
	int64_t *v = r->ctx.dump ? calloc((size_t)(4 * L), sizeof *v) : NULL;
	char key[64];
#define KEY(suffix) (snprintf(key, sizeof key, "%s." suffix, name), key)
	if (!v)
		return;
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

static void dump_start(struct run *r, const float *noise)
{
	const struct dtp_schedule *s = &r->schedule;
	float t = s->timesteps[0] / 1000.0f;
	int64_t n = s->steps;

	dump_host(r, "init.noise", DTP_F32, 4, (int64_t[]){1, r->channels, r->h, r->w}, noise);
	dump_host(r, "init.latents_packed", DTP_F32, 3, (int64_t[]){1, r->tokens, r->channels}, r->host);
	dump_host(r, "init.latent_ids", DTP_I64, 3, (int64_t[]){1, r->tokens, 4}, r->ids);
	dump_host(r, "step0.in.img_ids", DTP_I64, 3, (int64_t[]){1, r->tokens, 4}, r->ids);
	dump_host(r, "step0.in.hidden_states", DTP_F32, 3, (int64_t[]){1, r->tokens, r->channels}, r->host);
	dump_host(r, "step0.in.timestep", DTP_F32, 1, (int64_t[]){1}, &t);
	dump_host(r, "sched.mu", DTP_F64, 1, (int64_t[]){1}, &s->mu);
	dump_host(r, "sched.sigmas_in", DTP_F64, 1, &n, s->sigmas_in);
	dump_host(r, "sched.timesteps", DTP_F32, 1, &n, s->timesteps);
	n++;
	dump_host(r, "sched.sigmas", DTP_F32, 1, &n, s->sigmas);
}

/* Latents before they are un-patchified: packed channel c*4 + dy*2 + dx of token (y, x) is z[2y + dy][2x + dx][c]. */
static void dump_unpacked(struct run *r, const float *z)
{
	int64_t C = r->channels, h = r->h, w = r->w;
	float *v = r->ctx.dump ? calloc((size_t)(r->tokens * C), sizeof *v) : NULL;
	if (!v)
		return;
	for (int64_t k = 0; k < C; k++)
		for (int64_t y = 0; y < h; y++)
			for (int64_t x = 0; x < w; x++)
				v[(k * h + y) * w + x] =
					z[((2 * y + k % 4 / 2) * 2 * w + 2 * x + k % 2) * (C / 4) + k / 4];
	dump_host(r, "final.latents_bn", DTP_F32, 4, (int64_t[]){1, C, h, w}, v);
	free(v);
}

/* ---- loading */

static enum dtp_code load(struct run *r, int which, struct dtp_err *err)
{
	static const char *const names[] = {"load text_encoder", "load transformer", "load vae"};
	struct dtp_component *c = &r->p->component[which];
	int rank = c->degree > 1 ? r->tp->rank : 0;

	if (c->loaded)
		return DTP_OK;
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_LOAD, names[which]);
	dtp_plan_bind(c->tree, rank, c->degree);
	if (dtp_weights_load(c->tree, &c->st, "", rank, c->degree, r->ctx.be, r->ctx.mon, &c->stats, err))
		return err->code;
	c->loaded = true;
	struct dtp_phase_report *rep = phase_end(r, &t, names[which]);
	rep->bytes_read += c->stats.wanted + c->stats.gaps;
	rep->bytes_gaps += c->stats.gaps;
	return DTP_OK;
}

static void unload(struct run *r, int which)
{
	struct dtp_component *c = &r->p->component[which];
	if (c->loaded)
		dtp_weights_free(c->tree, r->ctx.be);
	c->loaded = false;
}

/* While this component computes, the next one's slices come into the page cache. */
static void readahead(const struct run *r, int which)
{
	const struct dtp_component *c = &r->p->component[which];
	int rank = c->degree > 1 ? r->tp->rank : 0;
	if (!c->loaded && (c->degree > 1 || r->tp->rank == 0))
		dtp_weights_readahead(c->tree, &c->st, "", rank, c->degree, UINT64_MAX);
}

/* ---- phases */

static enum dtp_code run_encode(struct run *r, uint64_t scratch, struct dtp_err *err)
{
	if (load(r, DTP_TEXT, err) || dtp_arena_init(&r->ctx.scratch, r->ctx.be, scratch, err))
		return err->code;
	readahead(r, DTP_TRANSFORMER);
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_ENCODE, "encode the prompt");
	encode(r);
	r->ctx.be->ops->sync(r->ctx.be, &r->ctx.err);
	phase_end(r, &t, "encode");
	dtp_arena_free(&r->ctx.scratch);
	if (!r->p->keep_text_encoder)
		unload(r, DTP_TEXT);
	return r->ctx.err.code;
}

/* noise[c][y][x] in the order of torch.randn([1, C, h, w]) -> tokens [h*w][C] in r->host. */
static enum dtp_code draw_noise(struct run *r, int image, struct dtp_err *err)
{
	struct dtp_rng g;
	int64_t n = r->tokens, C = r->channels;
	float *noise = malloc((size_t)(n * C) * sizeof *noise);

	if (!noise)
		return dtp_fail(err, DTP_FAILED, "out of memory for noise of %lld values", (long long)(n * C));
	dtp_rng_seed(&g, r->req->seed + (uint64_t)image);
	dtp_randn(&g, r->ctx.be->compute, n * C, noise);
	for (int64_t c = 0; c < C; c++)
		for (int64_t i = 0; i < n; i++)
			r->host[i * C + c] = noise[c * n + i];
	dump_start(r, noise);
	free(noise);
	return DTP_OK;
}

/* All steps of one image; the final latents [tokens, channels] end in r->host. */
static enum dtp_code denoise(struct run *r, int image, struct dtp_err *err)
{
	const struct dtp_monitor *mon = r->ctx.mon;
	char text[64];
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);

	if (draw_noise(r, image, err))
		return err->code;
	struct dtp_tensor latents = new_latents(r);
	for (int i = 0; i < r->schedule.steps && dtp_ok(&r->ctx); i++) {
		struct timer t = phase_begin(r);
		if (r->req->num_images > 1)
			snprintf(text, sizeof text, "image %d/%d step %d/%d", image + 1, r->req->num_images, i + 1, r->schedule.steps);
		else
			snprintf(text, sizeof text, "step %d/%d", i + 1, r->schedule.steps);
		stage(r, DTP_PHASE_STEP, text);
		step(r, latents, i);
		r->ctx.be->ops->sync(r->ctx.be, &r->ctx.err);
		phase_end(r, &t, "step");
		mon->progress(mon->arg, (uint64_t)i + 1, (uint64_t)r->schedule.steps);
	}
	if (dtp_ok(&r->ctx))
		r->ctx.be->ops->download(r->ctx.be, r->host, DTP_F32, latents, &r->ctx.err);
	dtp_arena_release(&r->ctx.scratch, mark);
	return r->ctx.err.code;
}

/* Un-patchified latents [1, C/4, 2h, 2w] in the compute dtype, as the pipeline class returns them; malloc'd. */
static void *latents_chw(struct run *r, struct dtp_tensor z)
{
	int64_t C = z.shape[2], pixels = z.shape[0] * z.shape[1];
	size_t n = (size_t)(C * pixels), size = dtp_dtype_size(z.dtype);
	float *hwc = malloc(n * sizeof *hwc), *chw = malloc(n * sizeof *chw);
	void *out = malloc(n * size);

	if (!hwc || !chw || !out)
		dtp_fail(&r->ctx.err, DTP_FAILED, "out of memory for %zu latents", n);
	else if (!r->ctx.be->ops->download(r->ctx.be, hwc, DTP_F32, z, &r->ctx.err)) {
		for (int64_t c = 0; c < C; c++)
			for (int64_t i = 0; i < pixels; i++)
				chw[c * pixels + i] = hwc[i * C + c];
		dtp_from_f32(out, z.dtype, chw, n);
		dump_unpacked(r, hwc);
		dump_host(r, "final.output_type_latent", DTP_F32, 4, (int64_t[]){1, C, z.shape[0], z.shape[1]}, chw);
	}
	free(hwc);
	free(chw);
	if (dtp_ok(&r->ctx))
		return out;
	free(out);
	return NULL;
}

/* The final latents in r->host -> r->rgb (PNG output) and *latents as the pipeline class returns them (not in a dry run). */
static void decode(struct run *r, void **latents)
{
	const struct dtp_vae *v = &r->p->vae;
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);
	struct dtp_tensor tokens = new_latents(r), z = dtp_vae_unpack(&r->ctx, v, tokens, r->h, r->w);

	dtp_stage_picture(&r->ctx, dtp_tensor_make(tokens.data, tokens.dtype, 3, (int64_t[]){r->h, r->w, r->channels}),
			  "final.latents_unpacked");
	dtp_stage_picture(&r->ctx, z, "final.latents_unpatchified");
	if (dtp_ok(&r->ctx) && !r->ctx.be->dry)
		*latents = latents_chw(r, z);
	if (r->req->output == DTP_OUTPUT_PNG) {
		dtp_quantise(&r->ctx, r->rgb, dtp_vae_decode(&r->ctx, v, z));
		dump_host(r, "final.image_u8", DTP_U8, 3, (int64_t[]){r->req->height, r->req->width, 3}, r->rgb);
	}
	dtp_arena_release(&r->ctx.scratch, mark);
}

/* Rank 0 decodes with all threads of the node while the others sleep in the barrier that follows. */
static enum dtp_code decode_image(struct run *r, int image, struct dtp_err *err)
{
	struct dtp_image out = {.index = image, .seed = r->req->seed + (uint64_t)image, .height = r->req->height,
				.width = r->req->width, .latents_dtype = r->ctx.be->compute, .latents_ndim = 4,
				.latents_shape = {1, r->channels / 4, 2 * r->h, 2 * r->w}};
	void *latents = NULL;
	struct timer t = phase_begin(r);
	int threads = r->ctx.be->ops->set_threads(r->ctx.be, r->node_threads);

	stage(r, DTP_PHASE_DECODE, "decode the latents");
	decode(r, &latents);
	r->ctx.be->ops->set_threads(r->ctx.be, threads);
	phase_end(r, &t, "decode");
	out.latents = latents;
	out.rgb = r->req->output == DTP_OUTPUT_PNG ? r->rgb : NULL;
	if (dtp_ok(&r->ctx)) {
		t = phase_begin(r);
		stage(r, DTP_PHASE_WRITE, "write the image");
		if (r->done(r->arg, &out, &r->ctx.err) && dtp_ok(&r->ctx))
			dtp_fail(&r->ctx.err, DTP_FAILED, "the image could not be written");
		phase_end(r, &t, "write");
	}
	free(latents);
	if (!dtp_ok(&r->ctx))
		*err = r->ctx.err;
	return r->ctx.err.code;
}

/* With one image the transformer makes room for the VAE; with several both stay. */
static enum dtp_code run_images(struct run *r, const uint64_t scratch[DTP_COMPONENTS], struct dtp_err *err)
{
	struct dtp_arena picture_scratch = {0}, step_scratch;
	bool several = r->req->num_images > 1;
	enum dtp_code rc = DTP_OK;

	if (load(r, DTP_TRANSFORMER, err) || dtp_arena_init(&r->ctx.scratch, r->ctx.be, scratch[DTP_TRANSFORMER], err))
		return err->code;
	readahead(r, DTP_VAE);
	condition(r);
	for (int i = 0; !rc && i < r->req->num_images; i++) {
		if (i > 0)
			r->ctx.dump = NULL;
		rc = denoise(r, i, err);
		step_scratch = r->ctx.scratch;
		if (!rc && !several) {
			dtp_arena_free(&step_scratch);
			unload(r, DTP_TRANSFORMER);
		}
		if (!rc && r->tp->rank == 0) {
			rc = load(r, DTP_VAE, err);
			if (!rc && !picture_scratch.base)
				rc = dtp_arena_init(&picture_scratch, r->ctx.be, scratch[DTP_VAE], err);
			r->ctx.scratch = picture_scratch;
			if (!rc)
				rc = decode_image(r, i, err);
			picture_scratch = r->ctx.scratch;
		}
		r->ctx.scratch = step_scratch;
		if (!rc)
			rc = dtp_barrier(r->tp, err);
	}
	dtp_arena_free(&picture_scratch);
	dtp_arena_free(&r->ctx.scratch);
	return rc;
}

/* ---- a run's own memory, and the dry run */

static uint64_t embeds_bytes(const struct dtp_pipeline *p, const struct dtp_request *req)
{
	return (uint64_t)(dtp_pipeline_passes(p, req) * req->max_sequence_length * p->transformer.config.joint_dim) *
	       dtp_dtype_size(p->compute);
}

static void run_free(struct run *r)
{
	for (int i = 0; i < r->passes; i++)
		dtp_prompt_free(&r->prompt[i]);
	dtp_dump_free(&r->dump);
	free(r->ids);
	free(r->host);
	free(r->rgb);
	if (r->embeds && !r->ctx.be->dry)
		r->ctx.be->ops->free(r->ctx.be, r->embeds, embeds_bytes(r->p, r->req));
}

static enum dtp_code make_prompts(struct run *r, struct dtp_err *err)
{
	const struct dtp_pipeline *p = r->p;
	int64_t length = r->req->max_sequence_length;
	const char *texts[] = {r->req->prompt, r->req->negative_prompt};

	for (int i = 0; i < r->passes; i++) {
		if (p->tokenizer) {
			if (dtp_prompt_make(p->tokenizer, p->text.family->chat, NULL, texts[i], length, &r->prompt[i], err))
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

static enum dtp_code run_init(struct run *r, struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			      struct dtp_comm *tp, const struct dtp_monitor *mon, struct dtp_err *err)
{
	int64_t unit = dtp_token_pixels(p);

	*r = (struct run){.p = p, .req = req, .tp = tp, .passes = dtp_pipeline_passes(p, req)};
	r->ctx = (struct dtp_ctx){.be = be, .tp = tp, .mon = mon, .timing = !be->dry, .err = DTP_ERR_INIT,
				  .dump = req->dump_stages ? &r->dump : NULL};
	r->h = req->height / unit;
	r->w = req->width / unit;
	r->tokens = r->h * r->w;
	r->channels = p->transformer.config.in_channels;
	r->ids = calloc((size_t)r->tokens, sizeof *r->ids);
	r->host = calloc((size_t)(r->tokens * r->channels), sizeof *r->host);
	r->rgb = be->dry ? NULL : malloc((size_t)(3 * req->height * req->width));
	if (!r->ids || !r->host || (!r->rgb && !be->dry))
		return dtp_fail(err, DTP_FAILED, "out of memory for an image of %lldx%lld", (long long)req->width, (long long)req->height);
	dtp_image_ids(r->h, r->w, 0, r->ids);
	dtp_schedule_make(&p->scheduler, r->tokens, req->steps, &r->schedule);
	return make_prompts(r, err);
}

/* Adds what the operations have counted since the last call. */
static void take_cost(struct run *r, struct dtp_phase_cost *cost)
{
	for (int op = 0; op < DTP_NOPS; op++)
		cost->flops += r->ctx.stat[op].flops;
	cost->reductions += r->ctx.stat[DTP_OP_REDUCE].calls;
	cost->reduce_bytes += r->ctx.stat[DTP_OP_REDUCE].bytes;
	memset(r->ctx.stat, 0, sizeof r->ctx.stat);
}

/* The scratch and the cost of each phase for this rank (its layers are bound already): the very code of the run, on a
 * backend that computes nothing. */
static enum dtp_code measure(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_comm *tp,
			     uint64_t scratch[DTP_COMPONENTS], struct dtp_phase_cost cost[DTP_COMPONENTS], struct dtp_err *err)
{
	static const char *const names[] = {"encode", "step", "decode"};
	struct dtp_backend *dry;
	struct run r;
	void *unused = NULL;

	for (int i = 0; i < DTP_COMPONENTS; i++)
		cost[i] = (struct dtp_phase_cost){.name = names[i]};
	if (dtp_backend_dry(p->compute, &dry, err))
		return err->code;
	if (!run_init(&r, p, req, dry, tp, &dtp_monitor_none, err)) {
		for (int i = 0; i < DTP_COMPONENTS; i++) {
			dtp_arena_measure(&r.ctx.scratch);
			r.ctx.scratch.be = dry;
			if (i == DTP_TEXT) {
				encode(&r);
			} else if (i == DTP_TRANSFORMER) {
				condition(&r);
				take_cost(&r, &cost[DTP_TEXT]); /* it belongs to the prompt */
				step(&r, new_latents(&r), 0);
			} else {
				decode(&r, &unused);
			}
			take_cost(&r, &cost[i]);
			scratch[i] = r.ctx.scratch.peak;
		}
		*err = dtp_ok(&r.ctx) ? *err : r.ctx.err;
	}
	run_free(&r);
	dry->ops->destroy(dry);
	return err->code;
}

/* Latent output needs no more of the VAE than its batch norm. */
static void bind(struct dtp_pipeline *p, const struct dtp_request *req, int rank)
{
	for (int i = 0; i < DTP_COMPONENTS; i++)
		dtp_plan_bind(p->component[i].tree, p->component[i].degree > 1 ? rank : 0, p->component[i].degree);
	dtp_vae_need_decoder(&p->vae, req->output == DTP_OUTPUT_PNG);
}

static enum dtp_code run_dry(struct dtp_pipeline *p, const struct dtp_request *req, int rank,
			     uint64_t scratch[DTP_COMPONENTS], struct dtp_phase_cost cost[DTP_COMPONENTS], struct dtp_err *err)
{
	/* A communicator that only knows its size: a dry run sends nothing. */
	struct dtp_comm comm = {.rank = rank, .size = p->tp_degree, .mon = &dtp_monitor_none};

	bind(p, req, rank);
	return measure(p, req, &comm, scratch, cost, err);
}

enum dtp_code dtp_pipeline_cost(struct dtp_pipeline *p, const struct dtp_request *req, int rank,
				struct dtp_phase_cost out[DTP_NPHASES], struct dtp_err *err)
{
	uint64_t scratch[DTP_COMPONENTS];
	enum dtp_code rc = run_dry(p, req, rank, scratch, out, err);

	if (!rc && rank)
		out[DTP_VAE] = (struct dtp_phase_cost){.name = out[DTP_VAE].name}; /* rank 0 decodes */
	return rc;
}

enum dtp_code dtp_pipeline_memory(struct dtp_pipeline *p, const struct dtp_request *req, int rank,
				  struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err)
{
	uint64_t scratch[DTP_COMPONENTS];
	struct dtp_phase_cost cost[DTP_COMPONENTS];
	struct dtp_backend *dry;

	if (run_dry(p, req, rank, scratch, cost, err) || dtp_backend_dry(p->compute, &dry, err))
		return err->code;
	for (int i = 0; i < DTP_COMPONENTS; i++) {
		const struct dtp_component *c = &p->component[i];
		bool here = c->degree > 1 || rank == 0 || i != DTP_VAE;
		out[i] = (struct dtp_phase_memory){c->name, 0, 0, 0};
		if (!here)
			continue;
		out[i].weights = dtp_weights_memory(c->tree, rank, c->degree, dry);
		out[i].scratch = scratch[i] + embeds_bytes(p, req);
		out[i].staging = DTP_STAGING_BYTES;
	}
	if (p->keep_text_encoder)
		for (int i = DTP_TRANSFORMER; i < DTP_COMPONENTS; i++)
			out[i].weights += out[DTP_TEXT].weights;
	if (req->num_images > 1) { /* both stay */
		out[DTP_VAE].weights += out[DTP_TRANSFORMER].weights;
		out[DTP_VAE].scratch += out[DTP_TRANSFORMER].scratch;
	}
	dry->ops->destroy(dry);
	return DTP_OK;
}

static void warn_cut(const struct run *r)
{
	char text[1024];
	if (!r->prompt[0].cut || r->tp->rank != 0)
		return;
	snprintf(text, sizeof text, "the prompt is longer than %lld tokens; this part was cut off: '%s'",
		 (long long)r->req->max_sequence_length, r->prompt[0].cut);
	r->ctx.mon->warn(r->ctx.mon->arg, text);
}

enum dtp_code dtp_pipeline_run(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			       struct dtp_mesh *mesh, const struct dtp_monitor *mon, int node_threads, dtp_image_fn done,
			       void *arg, struct dtp_err *err)
{
	struct run r;
	uint64_t scratch[DTP_COMPONENTS];
	struct dtp_phase_cost cost[DTP_COMPONENTS];
	struct dtp_comm *tp = mesh->dim[DTP_MESH_TP];
	enum dtp_code rc;

	bind(p, req, tp->rank);
	rc = measure(p, req, tp, scratch, cost, err);
	if (rc)
		return rc;
	rc = run_init(&r, p, req, be, tp, mon, err);
	r.node_threads = node_threads;
	r.done = done;
	r.arg = arg;
	if (!rc)
		rc = be->ops->alloc(be, embeds_bytes(p, req), &r.embeds, err);
	if (!rc) {
		warn_cut(&r);
		dump_ids(&r, &r.prompt[0], "text");
		if (r.passes > 1)
			dump_ids(&r, &r.prompt[1], "neg");
		rc = run_encode(&r, scratch[DTP_TEXT], err);
	}
	if (!rc)
		rc = run_images(&r, scratch, err);
	if (!rc && !dtp_ok(&r.ctx))
		rc = r.ctx.err.code;
	if (rc && !dtp_ok(&r.ctx) && !err->code)
		*err = r.ctx.err;
	if (!rc && req->dump_stages && tp->rank == 0)
		rc = dtp_dump_write(&r.dump, req->dump_stages, err);
	for (int i = 0; i < DTP_COMPONENTS; i++)
		unload(&r, i);
	run_free(&r);
	return rc;
}
