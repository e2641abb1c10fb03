/* SPDX-License-Identifier: Apache-2.0 */
/* Running a pipeline on this rank: encode, denoise, decode, each component loaded when its turn comes.  One request is a session
 * of one. */
#include "run.h"
#include "clock.h"
#include "rng.h"
#include "synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- reports */

struct timer {
	double start;
	struct dtp_opstat stat[DTP_NOPS];
};

static struct timer phase_begin(const struct dtp_run *r)
{
	struct timer t = {.start = dtp_seconds()};
	memcpy(t.stat, r->ctx.stat, sizeof t.stat);
	return t;
}

static struct dtp_phase_report *phase_end(struct dtp_run *r, const struct timer *t, const char *name)
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
	double seconds = dtp_seconds() - t->start;
	int keep = (int)(sizeof rep->last_seconds / sizeof *rep->last_seconds);
	rep->last_seconds[rep->calls++ % keep] = seconds;
	rep->seconds += seconds;
	for (int op = 0; op < DTP_NOPS; op++)
		rep->flops += r->ctx.stat[op].flops - t->stat[op].flops;
	const struct dtp_opstat *sum = &r->ctx.stat[DTP_OP_REDUCE], *before = &t->stat[DTP_OP_REDUCE];
	rep->reductions += sum->calls - before->calls;
	rep->reduce_bytes += sum->bytes - before->bytes;
	rep->reduce_seconds = r->ctx.timing ? rep->reduce_seconds + sum->seconds - before->seconds : -1;
	getrusage(RUSAGE_SELF, &use);
	rep->peak_rss = (uint64_t)use.ru_maxrss * 1024;
	return rep;
}

static void stage(const struct dtp_run *r, enum dtp_phase phase, const char *text)
{
	r->ctx.mon->stage(r->ctx.mon->arg, phase, text);
}

/* ---- memory */

/* What was taken since the last call is the present phase's. */
static void count_memory(struct dtp_pipeline *p, struct dtp_backend *be)
{
	struct dtp_memory_use use;

	be->ops->memory(be, &use);
	if (!p->now)
		return;
	p->now->peak = use.peak > p->now->peak ? use.peak : p->now->peak;
	p->now->device = use.device > p->now->device ? use.device : p->now->device;
}

static void keep_most(struct dtp_pipeline *p, const struct dtp_phase_memory memory[DTP_NPHASES])
{
	for (int i = 0; i < DTP_NPHASES; i++)
		if (dtp_phase_backend_bytes(&memory[i]) > dtp_phase_backend_bytes(&p->foreseen[i]))
			p->foreseen[i] = memory[i];
}

/* A phase begins, when what it does without is gone. */
static enum dtp_code enter(struct dtp_run *r, int phase, struct dtp_err *err)
{
	struct dtp_backend *be = r->ctx.be;

	count_memory(r->p, be);
	r->p->now = &r->p->use[phase];
	if (be->ops->reserve(be, r->need.workspace[phase], err))
		return dtp_err_prefix(err, "while making room for what operations take: ");
	return DTP_OK;
}

/* ---- loading */

/* Who reads what of a component for this rank. */
static struct dtp_sharing sharing(const struct dtp_run *r, const struct dtp_component *c)
{
	return (struct dtp_sharing){c->degree > 1 ? r->ctx.sums : NULL, r->copies};
}

/* which: a component, or DTP_REFERENCES for the VAE's encoder. */
static enum dtp_code load(struct dtp_run *r, int which, struct dtp_err *err)
{
	static const char *const names[] = {"load text_encoder", "load transformer", "load vae", "load vae encoder"};
	struct dtp_component *c = &r->p->component[which == DTP_REFERENCES ? DTP_VAE : which];
	const struct dtp_sharing with = sharing(r, c);
	int rank = dtp_component_rank(c, r->tp->rank);

	if (c->loaded || c->absent || (r->p->streamed && c != &r->p->component[DTP_VAE]))
		return DTP_OK;
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_LOAD, names[which]);
	if (r->p->synthetic ? dtp_synthetic_load(c->tree, rank, c->degree, r->ctx.be, r->ctx.mon, err)
			    : dtp_weights_load_shared(c->tree, &c->st, c->prefix, rank, c->degree, r->ctx.be, &with, r->ctx.mon, &c->stats,
						      err))
		return err->code;
	c->loaded = true;
	struct dtp_phase_report *rep = phase_end(r, &t, names[which]);
	rep->bytes_read += c->stats.wanted + c->stats.gaps;
	rep->bytes_gaps += c->stats.gaps;
	return DTP_OK;
}

static void end_steps(struct dtp_pipeline *p, struct dtp_backend *be)
{
	dtp_replay_free(be, &p->steps.replay);
	dtp_arena_free(&p->steps.arena);
	p->steps = (struct dtp_steps){.of = NULL};
}

/* What is there for steps makes room unless it is of r's shape: more than r itself needs was not foreseen. */
static void keep_steps(struct dtp_run *r)
{
	struct dtp_steps *s = &r->p->steps;

	if (memcmp(&s->shape, &r->shape, sizeof s->shape))
		end_steps(r->p, r->ctx.be);
	s->shape = r->shape;
	s->of = NULL; /* what comes and goes until r is drawn may take the recording of one rank: begin_steps asks */
}

static void unload(struct dtp_pipeline *p, struct dtp_backend *be, int which)
{
	struct dtp_component *c = &p->component[which];
	if (which == DTP_TRANSFORMER)
		end_steps(p, be);
	if (c->loaded)
		dtp_weights_free(c->tree, be);
	c->loaded = false;
}

/* While this component computes, the next one's slices come into the page cache. */
static void readahead(const struct dtp_run *r, int which)
{
	const struct dtp_component *c = &r->p->component[which];
	const struct dtp_sharing with = sharing(r, c);
	int rank = dtp_component_rank(c, r->tp->rank);

	if (!c->loaded && !c->absent && !r->p->streamed && !r->p->synthetic && (c->degree > 1 || r->tp->rank == 0))
		dtp_weights_readahead(c->tree, &c->st, c->prefix, rank, c->degree, &with);
}

/* ---- phases */

/* Rank 0 encodes with all threads of its replica, with half of the VAE that is then freed. */
static enum dtp_code encode_references(struct dtp_session *s, struct dtp_run *r, struct dtp_err *err)
{
	struct dtp_backend *be = r->ctx.be;

	dtp_vae_need(&r->p->vae, true, false);
	if (enter(r, DTP_REFERENCES, err) || load(r, DTP_REFERENCES, err) ||
	    dtp_arena_init(&r->ctx.scratch, be, r->need.scratch[DTP_REFERENCES], err))
		return err->code;
	readahead(r, DTP_TEXT);
	struct timer t = phase_begin(r);
	int threads = be->ops->set_threads(be, s->node_threads);
	stage(r, DTP_PHASE_ENCODE, "encode the reference images");
	dtp_run_references(r, s->reference_tokens);
	be->ops->set_threads(be, threads);
	phase_end(r, &t, "encode references");
	count_memory(r->p, be);
	dtp_arena_free(&r->ctx.scratch);
	return r->ctx.err.code;
}

/* The session's reference tokens, made for its first request that has these images.  The other ranks sleep until they get them. */
static enum dtp_code take_references(struct dtp_session *s, struct dtp_run *r, struct dtp_err *err)
{
	int64_t bytes = r->references * r->channels * (int64_t)sizeof(float);

	if (r->req->nimages && !(s->encoded && s->images_id == r->req->images_id)) {
		for (int i = 0; i < DTP_COMPONENTS; i++)
			unload(r->p, r->ctx.be, i);
		free(s->reference_tokens);
		s->encoded = false;
		s->reference_tokens = malloc((size_t)bytes);
		if (!s->reference_tokens)
			return dtp_fail(err, DTP_FAILED, "out of memory for %lld tokens of reference images", (long long)r->references);
		enum dtp_code rc = r->tp->rank == 0 ? encode_references(s, r, err) : DTP_OK;
		unload(r->p, r->ctx.be, DTP_VAE);
		dtp_run_bind(r->p, s->output, r->tp->rank);
		if (rc || dtp_broadcast(r->tp, s->reference_tokens, bytes, 0, err))
			return rc ? rc : err->code;
		s->encoded = true;
		s->images_id = r->req->images_id;
	}
	r->reference_tokens = s->reference_tokens;
	return DTP_OK;
}

static enum dtp_code save_embeds(struct dtp_run *r, struct dtp_err *err)
{
	const char *path = r->req->save_embeds;
	struct dtp_outkeep keep = dtp_outkeep_of(path);
	char text[4352];

	stage(r, DTP_PHASE_WRITE, "write the prompt's embeddings");
	enum dtp_code rc = dtp_run_save_embeds(r, r->req->replace ? NULL : &keep, err);
	if (!rc) {
		dtp_outkeep_tell(&keep, path, r->ctx.mon);
		snprintf(text, sizeof text, "wrote %s (embeddings of %s)", dtp_outkeep_name(&keep, path),
			 r->passes > 1 ? "the prompt and the negative prompt" : "the prompt");
		r->ctx.mon->note(r->ctx.mon->arg, text);
	}
	dtp_outkeep_free(&keep);
	return rc;
}

static enum dtp_code encode(struct dtp_run *r, struct dtp_err *err)
{
	struct dtp_backend *be = r->ctx.be;

	if (!r->p->stay.text) { /* memory beside those of the requests before was not foreseen, loaded or not: it may have become less */
		unload(r->p, be, DTP_TRANSFORMER);
		unload(r->p, be, DTP_VAE);
	}
	if (enter(r, DTP_TEXT, err) || be->ops->alloc(be, dtp_run_embeds_bytes(r->p, r->req), &r->embeds, err) ||
	    load(r, DTP_TEXT, err) || dtp_arena_init(&r->ctx.scratch, be, r->need.scratch[DTP_TEXT], err))
		return err->code;
	readahead(r, DTP_TRANSFORMER);
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_ENCODE, r->p->embeds.length ? "read the prompt's embeddings" : "encode the prompt");
	dtp_run_encode(r);
	dtp_sync(&r->ctx);
	phase_end(r, &t, "encode");
	count_memory(r->p, be);
	dtp_arena_free(&r->ctx.scratch);
	return dtp_ok(&r->ctx) && r->req->save_embeds && r->tp->rank == 0 ? save_embeds(r, err) : r->ctx.err.code;
}

/* noise[c][y][x] as given, or in the order of torch.randn([1, C, h, w]) -> tokens [h*w][C] in r->host. */
static enum dtp_code draw_noise(struct dtp_run *r, int image, struct dtp_err *err)
{
	struct dtp_rng g;
	int64_t n = r->tokens, C = r->channels;
	float *noise = malloc((size_t)(n * C) * sizeof *noise);

	if (!noise)
		return dtp_fail(err, DTP_FAILED, "out of memory for noise of %lld values", (long long)(n * C));
	if (r->req->noise) {
		for (int64_t i = 0; i < n * C; i++)
			noise[i] = dtp_round_to(r->ctx.be->compute, r->req->noise->values[i]);
	} else {
		dtp_rng_seed(&g, r->req->seed + (uint64_t)image);
		dtp_randn(&g, r->ctx.be->compute, n * C, noise);
	}
	for (int64_t c = 0; c < C; c++)
		for (int64_t i = 0; i < n; i++)
			r->host[i * C + c] = noise[c * n + i];
	dtp_run_dump_start(r, noise);
	free(noise);
	return DTP_OK;
}

/* For whoever watches: x - sigma * v, of the latents before and after a step, which are v * (sigma_after - sigma_before) apart.
 * *before becomes what is after. */
static void watch_step(struct dtp_run *r, struct dtp_tensor input, int i, float *before)
{
	int64_t n = r->tokens * r->channels;
	float *after = malloc((size_t)n * sizeof *after), s0 = r->schedule.sigmas[i], s1 = r->schedule.sigmas[i + 1];

	if (!after || r->ctx.be->ops->download(r->ctx.be, after, DTP_F32, dtp_run_latents(r, input), &r->ctx.err)) {
		free(after);
		return;
	}
	for (int64_t k = 0; k < n; k++) {
		float expected = s1 > 0 ? after[k] - s1 * (after[k] - before[k]) / (s1 - s0) : after[k];
		before[k] = after[k];
		after[k] = expected;
	}
	r->p->watch(r->p->watch_arg, i, r->schedule.steps, after, r->h, r->w, r->channels);
	free(after);
}

/* All steps of one image; the final latents [tokens, channels] end in r->host. */
static enum dtp_code denoise(struct dtp_run *r, int image, const char *label, struct dtp_err *err)
{
	const struct dtp_monitor *mon = r->ctx.mon;
	char text[96];
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);

	if (draw_noise(r, image, err))
		return err->code;
	struct dtp_tensor input = dtp_run_new_input(r);
	bool watched = r->p->watch && r->tp->rank == 0;
	for (int i = 0; i < r->schedule.steps && dtp_ok(&r->ctx); i++) {
		struct timer t = phase_begin(r);
		snprintf(text, sizeof text, "%s%sstep %d/%d", label, *label ? " " : "", i + 1, r->schedule.steps);
		stage(r, DTP_PHASE_STEP, text);
		dtp_run_step(r, input, i);
		dtp_sync(&r->ctx);
		phase_end(r, &t, "step");
		if (watched && dtp_ok(&r->ctx))
			watch_step(r, input, i, r->host);
		mon->progress(mon->arg, (uint64_t)i + 1, (uint64_t)r->schedule.steps);
	}
	const char *refused = dtp_replay_refused(&r->ctx, &r->p->steps.replay);
	snprintf(r->p->step_refused, sizeof r->p->step_refused, "%s", refused ? refused : "");
	if (dtp_ok(&r->ctx))
		r->ctx.be->ops->download(r->ctx.be, r->host, DTP_F32, dtp_run_latents(r, input), &r->ctx.err);
	count_memory(r->p, r->ctx.be);
	dtp_arena_release(&r->ctx.scratch, mark);
	return r->ctx.err.code;
}

/* Rank 0 decodes with all threads of its replica while the others sleep in the barrier that follows. */
static enum dtp_code decode_image(struct dtp_session *s, struct dtp_run *r, int image, dtp_image_fn done, void *arg)
{
	struct dtp_image out = {.index = image, .seed = r->req->seed + (uint64_t)image, .height = r->req->height,
				.width = r->req->width, .latents_dtype = r->ctx.be->compute};
	void *latents = NULL;
	struct timer t = phase_begin(r);
	int threads = r->ctx.be->ops->set_threads(r->ctx.be, s->node_threads);

	out.latents_ndim = dtp_run_latents_shape(r, out.latents_shape);
	stage(r, DTP_PHASE_DECODE, "decode the latents");
	dtp_run_decode(r, &latents);
	r->ctx.be->ops->set_threads(r->ctx.be, threads);
	phase_end(r, &t, "decode");
	count_memory(r->p, r->ctx.be);
	out.latents = latents;
	out.rgb = r->req->output == DTP_OUTPUT_PNG ? r->rgb : NULL;
	if (dtp_ok(&r->ctx)) {
		t = phase_begin(r);
		stage(r, DTP_PHASE_WRITE, "write the image");
		if (done(arg, &out, &r->ctx.err) && dtp_ok(&r->ctx))
			dtp_fail(&r->ctx.err, DTP_FAILED, "the image could not be written");
		phase_end(r, &t, "write");
	}
	free(latents);
	return r->ctx.err.code;
}

/* What all images of a request share. */
static enum dtp_code begin_steps(struct dtp_run *r, struct dtp_err *err)
{
	struct dtp_steps *s = &r->p->steps;

	keep_steps(r);
	if (!r->p->stay.text)
		unload(r->p, r->ctx.be, DTP_TEXT);
	if (!r->p->stay.pictures)
		unload(r->p, r->ctx.be, DTP_VAE);
	if (dtp_run_picture(r, err) || enter(r, DTP_TRANSFORMER, err) || load(r, DTP_TRANSFORMER, err) ||
	    (!s->arena.base && dtp_arena_init_for_sums(&s->arena, r->ctx.be, r->ctx.sums, r->need.scratch[DTP_TRANSFORMER], err)) ||
	    dtp_replay_agree(&r->ctx, &s->replay, err))
		return err->code;
	readahead(r, DTP_VAE);
	dtp_arena_release(&s->arena, 0);
	r->ctx.scratch = s->arena;
	dtp_run_condition(r);
	s->arena = r->ctx.scratch;
	s->of = dtp_ok(&r->ctx) ? r : NULL;
	return r->ctx.err.code;
}

static enum dtp_code picture(struct dtp_session *s, struct dtp_run *r, int image, dtp_image_fn done, void *arg,
			     struct dtp_err *err)
{
	if (enter(r, DTP_VAE, err) || load(r, DTP_VAE, err) ||
	    (!r->picture.base && dtp_arena_init(&r->picture, r->ctx.be, r->need.scratch[DTP_VAE], err)))
		return err->code;
	r->ctx.scratch = r->picture;
	enum dtp_code rc = decode_image(s, r, image, done, arg);
	if (!r->p->stay.pictures) /* the transformer of the next image takes its place */
		dtp_arena_free(&r->picture);
	return rc;
}

static void warn_cut(const struct dtp_run *r)
{
	static const char *const names[] = {"prompt", "negative prompt"};
	char text[1024];

	for (int i = 0; i < r->passes && r->tp->rank == 0; i++) {
		if (!r->prompt[i].cut)
			continue;
		snprintf(text, sizeof text, "the %s is longer than %lld tokens; this part was cut off: '%s'", names[i],
			 (long long)r->req->max_sequence_length, r->prompt[i].cut);
		r->ctx.mon->warn(r->ctx.mon->arg, text);
	}
}

/* ---- sessions */

void dtp_session_end(struct dtp_session *s)
{
	for (int i = 0; i < DTP_COMPONENTS; i++)
		unload(s->pipeline, s->backend, i);
	free(s->reference_tokens);
	s->reference_tokens = NULL;
	s->encoded = false;
}

/* An error may lie in the context of the operations. */
static enum dtp_code outcome(const struct dtp_run *r, enum dtp_code rc, struct dtp_err *err)
{
	if (dtp_ok(&r->ctx))
		return rc;
	if (!rc || !err->code)
		*err = r->ctx.err;
	return err->code;
}

/* copies: what the prompt, and later the images, load is loaded by all ranks of it at this time; else NULL. */
static enum dtp_code begin_request(struct dtp_session *s, const struct dtp_request *req, struct dtp_comm *copies, struct dtp_run **out,
				   struct dtp_err *err)
{
	struct dtp_comm *tp = s->mesh->dim[DTP_MESH_TP];
	struct dtp_phase_memory memory[DTP_NPHASES];
	struct dtp_need need;
	struct dtp_run *r = *out = malloc(sizeof *r);

	if (!r)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	dtp_run_bind(s->pipeline, s->output, tp->rank); /* a prediction may have bound the layers for another rank */
	enum dtp_code rc = dtp_run_init(r, s->pipeline, req, s->backend, tp, s->mon, err);
	r->ctx.sums = s->mesh->sums;
	r->copies = copies;
	if (!rc)
		rc = dtp_run_foresee(s->pipeline, req, tp->rank, &need, memory, err);
	if (!rc) {
		r->need = need;
		keep_steps(r);
		keep_most(s->pipeline, memory);
		rc = outcome(r, take_references(s, r, err), err);
	}
	if (!rc) {
		warn_cut(r);
		dtp_run_dump_ids(r, &r->prompt[0], "text");
		if (r->passes > 1)
			dtp_run_dump_ids(r, &r->prompt[1], "neg");
		rc = outcome(r, encode(r, err), err);
	}
	if (rc) {
		dtp_session_drop(r);
		*out = NULL;
	}
	return rc;
}

enum dtp_code dtp_session_encode(struct dtp_session *s, const struct dtp_request *req, struct dtp_run **out,
				 struct dtp_err *err)
{
	return begin_request(s, req, NULL, out, err);
}

void dtp_session_drop(struct dtp_run *r)
{
	if (!r)
		return;
	if (r->p->steps.of == r)
		r->p->steps.of = NULL;
	dtp_arena_free(&r->picture);
	dtp_run_free(r);
	free(r);
}

enum dtp_code dtp_session_draw(struct dtp_session *s, struct dtp_run *r, int image, const char *label, dtp_image_fn done,
			       void *arg, struct dtp_err *err)
{
	enum dtp_code rc;

	dtp_run_bind(s->pipeline, s->output, r->tp->rank);
	rc = s->pipeline->steps.of == r ? DTP_OK : begin_steps(r, err);
	if (image > 0)
		r->ctx.dump = NULL;
	r->ctx.scratch = s->pipeline->steps.arena;
	if (!rc)
		rc = denoise(r, image, label, err);
	if (!rc && !s->pipeline->stay.pictures) /* the transformer makes room for the VAE */
		unload(s->pipeline, s->backend, DTP_TRANSFORMER);
	if (!rc && r->tp->rank == 0)
		rc = picture(s, r, image, done, arg, err);
	r->ctx.scratch = (struct dtp_arena){0};
	rc = outcome(r, rc, err);
	if (!rc)
		rc = dtp_barrier(r->tp, err);
	if (!rc && r->ctx.dump == &r->dump && r->tp->rank == 0)
		rc = dtp_run_write_stages(r, err);
	return rc;
}

/* ---- one request */

/* The replica's images of one request: every dp-th. */
static enum dtp_code draw_share(struct dtp_session *s, const struct dtp_request *req, dtp_image_fn done, void *arg,
				struct dtp_err *err)
{
	const struct dtp_comm *dp = s->mesh->dim[DTP_MESH_DP];
	struct dtp_run *r;
	char label[48] = "";
	enum dtp_code rc = begin_request(s, req, s->mesh->copies, &r, err);

	for (int i = dp->rank; i < req->num_images && !rc && !s->pipeline->encode_only; i += dp->size) {
		if (req->num_images > 1)
			snprintf(label, sizeof label, "image %d/%d", i + 1, req->num_images);
		rc = dtp_session_draw(s, r, i, label, done, arg, err);
		r->copies = NULL; /* replicas have each loaded what they need for one image, and draw different numbers of them */
	}
	dtp_session_drop(r);
	return rc;
}

enum dtp_code dtp_session_run(struct dtp_session *s, const struct dtp_request *req, dtp_image_fn done, void *arg, struct dtp_err *err)
{
	const struct dtp_comm *dp = s->mesh->dim[DTP_MESH_DP];
	struct dtp_request own = *req;

	if (dp->rank) /* image 0 is another's, and so is what is written of the prompt */
		own.dump_stages = own.save_embeds = NULL;
	return dp->rank >= req->num_images ? DTP_OK : draw_share(s, &own, done, arg, err);
}

enum dtp_code dtp_pipeline_run(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			       struct dtp_mesh *mesh, const struct dtp_monitor *mon, int node_threads, dtp_image_fn done,
			       void *arg, struct dtp_err *err)
{
	struct dtp_session s = {.pipeline = p, .backend = be, .mesh = mesh, .mon = mon, .node_threads = node_threads, .output = req->output};
	enum dtp_code rc = dtp_session_run(&s, req, done, arg, err);

	dtp_session_end(&s);
	return rc;
}
