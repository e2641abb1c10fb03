/* SPDX-License-Identifier: Apache-2.0 */
/* Running a pipeline on this rank: encode, denoise, decode, each component loaded when its turn comes. */
#include "run.h"
#include "clock.h"
#include "rng.h"

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
	rep->reduce_seconds += sum->seconds - before->seconds;
	getrusage(RUSAGE_SELF, &use);
	rep->peak_rss = (uint64_t)use.ru_maxrss * 1024;
	return rep;
}

static void stage(const struct dtp_run *r, enum dtp_phase phase, const char *text)
{
	r->ctx.mon->stage(r->ctx.mon->arg, phase, text);
}

/* ---- loading */

static enum dtp_code load(struct dtp_run *r, int which, struct dtp_err *err)
{
	static const char *const names[] = {"load text_encoder", "load transformer", "load vae"};
	struct dtp_component *c = &r->p->component[which];
	int rank = dtp_component_rank(c, r->tp->rank);

	if (c->loaded)
		return DTP_OK;
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_LOAD, names[which]);
	if (dtp_weights_load(c->tree, &c->st, "", rank, c->degree, r->ctx.be, r->ctx.mon, &c->stats, err))
		return err->code;
	c->loaded = true;
	struct dtp_phase_report *rep = phase_end(r, &t, names[which]);
	rep->bytes_read += c->stats.wanted + c->stats.gaps;
	rep->bytes_gaps += c->stats.gaps;
	return DTP_OK;
}

static void unload(struct dtp_run *r, int which)
{
	struct dtp_component *c = &r->p->component[which];
	if (c->loaded)
		dtp_weights_free(c->tree, r->ctx.be);
	c->loaded = false;
}

/* While this component computes, the next one's slices come into the page cache. */
static void readahead(const struct dtp_run *r, int which)
{
	const struct dtp_component *c = &r->p->component[which];
	int rank = dtp_component_rank(c, r->tp->rank);
	if (!c->loaded && (c->degree > 1 || r->tp->rank == 0))
		dtp_weights_readahead(c->tree, &c->st, "", rank, c->degree, UINT64_MAX);
}

/* ---- phases */

static enum dtp_code run_encode(struct dtp_run *r, uint64_t scratch, struct dtp_err *err)
{
	if (load(r, DTP_TEXT, err) || dtp_arena_init(&r->ctx.scratch, r->ctx.be, scratch, err))
		return err->code;
	readahead(r, DTP_TRANSFORMER);
	struct timer t = phase_begin(r);
	stage(r, DTP_PHASE_ENCODE, "encode the prompt");
	dtp_run_encode(r);
	r->ctx.be->ops->sync(r->ctx.be, &r->ctx.err);
	phase_end(r, &t, "encode");
	dtp_arena_free(&r->ctx.scratch);
	if (!r->p->keep_text_encoder)
		unload(r, DTP_TEXT);
	return r->ctx.err.code;
}

/* noise[c][y][x] in the order of torch.randn([1, C, h, w]) -> tokens [h*w][C] in r->host. */
static enum dtp_code draw_noise(struct dtp_run *r, int image, struct dtp_err *err)
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
	dtp_run_dump_start(r, noise);
	free(noise);
	return DTP_OK;
}

/* All steps of one image; the final latents [tokens, channels] end in r->host. */
static enum dtp_code denoise(struct dtp_run *r, int image, struct dtp_err *err)
{
	const struct dtp_monitor *mon = r->ctx.mon;
	char text[64];
	uint64_t mark = dtp_arena_mark(&r->ctx.scratch);

	if (draw_noise(r, image, err))
		return err->code;
	struct dtp_tensor latents = dtp_run_new_latents(r);
	for (int i = 0; i < r->schedule.steps && dtp_ok(&r->ctx); i++) {
		struct timer t = phase_begin(r);
		if (r->req->num_images > 1)
			snprintf(text, sizeof text, "image %d/%d step %d/%d", image + 1, r->req->num_images, i + 1, r->schedule.steps);
		else
			snprintf(text, sizeof text, "step %d/%d", i + 1, r->schedule.steps);
		stage(r, DTP_PHASE_STEP, text);
		dtp_run_step(r, latents, i);
		r->ctx.be->ops->sync(r->ctx.be, &r->ctx.err);
		phase_end(r, &t, "step");
		mon->progress(mon->arg, (uint64_t)i + 1, (uint64_t)r->schedule.steps);
	}
	if (dtp_ok(&r->ctx))
		r->ctx.be->ops->download(r->ctx.be, r->host, DTP_F32, latents, &r->ctx.err);
	dtp_arena_release(&r->ctx.scratch, mark);
	return r->ctx.err.code;
}

/* Rank 0 decodes with all threads of the node while the others sleep in the barrier that follows. */
static enum dtp_code decode_image(struct dtp_run *r, int image, struct dtp_err *err)
{
	struct dtp_image out = {.index = image, .seed = r->req->seed + (uint64_t)image, .height = r->req->height,
				.width = r->req->width, .latents_dtype = r->ctx.be->compute, .latents_ndim = 4,
				.latents_shape = {1, r->channels / 4, 2 * r->h, 2 * r->w}};
	void *latents = NULL;
	struct timer t = phase_begin(r);
	int threads = r->ctx.be->ops->set_threads(r->ctx.be, r->node_threads);

	stage(r, DTP_PHASE_DECODE, "decode the latents");
	dtp_run_decode(r, &latents);
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
static enum dtp_code run_images(struct dtp_run *r, const uint64_t scratch[DTP_COMPONENTS], struct dtp_err *err)
{
	struct dtp_arena picture_scratch = {0}, step_scratch;
	bool several = r->req->num_images > 1;
	enum dtp_code rc = DTP_OK;

	if (load(r, DTP_TRANSFORMER, err) || dtp_arena_init(&r->ctx.scratch, r->ctx.be, scratch[DTP_TRANSFORMER], err))
		return err->code;
	readahead(r, DTP_VAE);
	dtp_run_condition(r);
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

static void warn_cut(const struct dtp_run *r)
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
	struct dtp_run r;
	uint64_t scratch[DTP_COMPONENTS];
	struct dtp_phase_cost cost[DTP_COMPONENTS];
	struct dtp_comm *tp = mesh->dim[DTP_MESH_TP];
	enum dtp_code rc;

	dtp_run_bind(p, req, tp->rank);
	rc = dtp_run_measure(p, req, tp, scratch, cost, err);
	if (rc)
		return rc;
	rc = dtp_run_init(&r, p, req, be, tp, mon, err);
	r.node_threads = node_threads;
	r.done = done;
	r.arg = arg;
	if (!rc)
		rc = be->ops->alloc(be, dtp_run_embeds_bytes(p, req), &r.embeds, err);
	if (!rc) {
		warn_cut(&r);
		dtp_run_dump_ids(&r, &r.prompt[0], "text");
		if (r.passes > 1)
			dtp_run_dump_ids(&r, &r.prompt[1], "neg");
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
	dtp_run_free(&r);
	return rc;
}
