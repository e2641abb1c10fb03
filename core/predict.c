/* SPDX-License-Identifier: Apache-2.0 */
/* What a request will take, before it runs: memory, operations and reductions, from dry runs. */
#include "run.h"

#include <string.h>

/* Adds what the operations have counted since the last call. */
static void take_cost(struct dtp_run *r, struct dtp_phase_cost *cost)
{
	for (int op = 0; op < DTP_NOPS; op++)
		cost->flops += r->ctx.stat[op].flops;
	cost->reductions += r->ctx.stat[DTP_OP_REDUCE].calls;
	cost->reduce_bytes += r->ctx.stat[DTP_OP_REDUCE].bytes;
	memset(r->ctx.stat, 0, sizeof r->ctx.stat);
}

/* Where phases take turns, it is not allocated anew for each.  Rank 0 alone decodes. */
static void share_workspace(const struct dtp_pipeline *p, int rank, struct dtp_need *need)
{
	int first = p->stay.text && p->stay.again ? DTP_TEXT : DTP_TRANSFORMER;
	int last = p->stay.pictures && rank == 0 ? DTP_VAE : DTP_TRANSFORMER;
	uint64_t *w = need->workspace, most = 0;

	for (int i = first; i <= last; i++)
		most = w[i] > most ? w[i] : most;
	for (int i = first; i <= last; i++)
		w[i] = most;
}

static enum dtp_code measure(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_comm *tp, struct dtp_need *need,
			     struct dtp_phase_cost cost[DTP_NPHASES], struct dtp_err *err)
{
	static const char *const names[DTP_NPHASES] = {"encode", "step", "decode", DTP_REFERENCES_NAME};
	struct dtp_memory_use use;
	struct dtp_backend *dry;
	struct dtp_run r;
	void *unused = NULL;

	for (int i = 0; i < DTP_NPHASES; i++)
		cost[i] = (struct dtp_phase_cost){.name = names[i]};
	if (dtp_backend_dry(p->compute, p->device, &dry, err))
		return err->code;
	if (!dtp_run_init(&r, p, req, dry, tp, &dtp_monitor_none, err)) {
		for (int i = 0; i < DTP_NPHASES; i++) {
			dtp_arena_measure(&r.ctx.scratch);
			r.ctx.scratch.be = dry;
			if (i == DTP_TEXT) {
				dtp_run_encode(&r);
			} else if (i == DTP_TRANSFORMER) {
				dtp_run_condition(&r);
				take_cost(&r, &cost[DTP_TEXT]); /* it belongs to the prompt */
				dtp_run_step(&r, dtp_run_new_input(&r), 0);
			} else if (i == DTP_VAE) {
				dtp_run_decode(&r, &unused);
			} else {
				dtp_run_references(&r, NULL);
			}
			take_cost(&r, &cost[i]);
			need->scratch[i] = r.ctx.scratch.peak;
			dry->ops->memory(dry, &use);
			need->workspace[i] = use.operations;
		}
		share_workspace(p, tp->rank, need);
		*err = dtp_ok(&r.ctx) ? *err : r.ctx.err;
	}
	dtp_run_free(&r);
	dry->ops->destroy(dry);
	return err->code;
}

static enum dtp_code run_dry(struct dtp_pipeline *p, const struct dtp_request *req, int rank, struct dtp_need *need,
			     struct dtp_phase_cost cost[DTP_NPHASES], struct dtp_err *err)
{
	/* A communicator that only knows its size: a dry run sends nothing. */
	struct dtp_comm comm = {.rank = rank, .size = p->tp_degree, .mon = &dtp_monitor_none};

	dtp_run_bind(p, req->output, rank);
	return measure(p, req, &comm, need, cost, err);
}

enum dtp_code dtp_pipeline_cost(struct dtp_pipeline *p, const struct dtp_request *req, int rank,
				struct dtp_phase_cost out[DTP_NPHASES], struct dtp_err *err)
{
	struct dtp_need need;
	enum dtp_code rc = run_dry(p, req, rank, &need, out, err);

	for (int i = DTP_VAE; !rc && rank && i < DTP_NPHASES; i++)
		out[i] = (struct dtp_phase_cost){.name = out[i].name}; /* rank 0 decodes, and encodes references */
	return rc;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The largest layer, all its parameters. */
static uint64_t largest_layer(const struct dtp_tree *t, struct dtp_backend *be)
{
	uint64_t largest = 0;
	struct dtp_param param;
	struct dtp_split all;

	for (int i = 0; i < t->n; i++) {
		uint64_t bytes = 0;
		for (int k = 0; t->modules[i].needed && dtp_module_param(&t->modules[i], k, &param); k++) {
			dtp_placement(t, &param, 0, 1, &all);
			bytes += dtp_weights_param_memory(&param, &all, be);
		}
		largest = most(largest, bytes);
	}
	return largest;
}

/* The whole model beside rank 0's part, a layer at a time (whole.h): in every phase, since it enters the next one later. */
static enum dtp_code add_whole(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			       struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err)
{
	struct dtp_phase_cost cost[DTP_NPHASES];
	uint64_t layer = 0, staging = 0;
	struct dtp_need need;
	int degree = p->tp_degree;

	if (dtp_pipeline_set_degree(p, 1, err))
		return err->code;
	enum dtp_code rc = run_dry(p, req, 0, &need, cost, err);
	for (int i = 0; i < DTP_VAE; i++) {
		layer = most(layer, largest_layer(p->component[i].tree, be));
		staging = most(staging, dtp_weights_staging(p->component[i].tree, 0, 1));
	}
	dtp_pipeline_set_degree(p, degree, NULL);
	for (int i = 0; i < DTP_COMPONENTS && !rc; i++) {
		out[i].weights += layer;
		out[i].scratch += most(need.scratch[DTP_TEXT], need.scratch[DTP_TRANSFORMER]) + dtp_run_embeds_bytes(p, req);
		out[i].staging += staging;
	}
	return rc;
}

enum dtp_code dtp_pipeline_whole_memory(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_phase_memory *out,
					struct dtp_err *err)
{
	struct dtp_phase_memory added[DTP_NPHASES] = {{0}};
	enum dtp_device device = p->device;
	struct dtp_backend *dry;

	if (dtp_backend_dry(p->compute, DTP_DEVICE_CPU, &dry, err))
		return err->code;
	p->device = DTP_DEVICE_CPU;
	enum dtp_code rc = add_whole(p, req, dry, added, err);
	p->device = device;
	dry->ops->destroy(dry);
	*out = added[0];
	out->name = "whole model";
	return rc;
}

/* What the references take on the host: their pixels on rank 0, and their tokens. */
static uint64_t references_bytes(const struct dtp_pipeline *p, const struct dtp_request *req, int rank)
{
	int64_t bytes = dtp_run_reference_tokens(p, req) * p->transformer.config.in_channels * (int64_t)sizeof(float);

	for (int i = 0; i < req->nimages && rank == 0; i++)
		bytes += 3 * req->images[i].height * req->images[i].width;
	return (uint64_t)bytes;
}

/* What stays of a phase is there in those that follow, steps with the transformer: its scratch. */
static void add_residents(const struct dtp_pipeline *p, uint64_t steps, struct dtp_phase_memory out[DTP_NPHASES])
{
	struct dtp_phase_memory *text = &out[DTP_TEXT], *transformer = &out[DTP_TRANSFORMER], *vae = &out[DTP_VAE];

	if (p->stay.text)
		transformer->weights += text->weights;
	if (p->stay.pictures) {
		vae->weights += transformer->weights;
		vae->scratch += steps;
	}
	/* The next prompt is encoded, and drawn, beside all that stays. */
	if (p->stay.pictures && p->stay.again)
		transformer->weights = vae->weights;
	if (p->stay.text && p->stay.again) {
		text->weights = vae->weights;
		text->scratch += steps;
	}
}

static enum dtp_code predict(struct dtp_pipeline *p, const struct dtp_request *req, int rank, struct dtp_backend *dry,
			     struct dtp_need *need, struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err)
{
	uint64_t embeds = dtp_run_embeds_bytes(p, req) * (uint64_t)(p->stay.prompts > 1 ? p->stay.prompts : 1);
	struct dtp_phase_cost cost[DTP_NPHASES];
	struct dtp_memory_use use;

	out[DTP_REFERENCES] = (struct dtp_phase_memory){.name = DTP_REFERENCES_NAME};
	if (run_dry(p, req, rank, need, cost, err))
		return err->code;
	dry->ops->memory(dry, &use);
	uint64_t host = references_bytes(p, req, rank);
	for (int i = 0; i < DTP_COMPONENTS; i++) {
		const struct dtp_component *c = &p->component[i];
		bool here = c->degree > 1 || rank == 0 || i != DTP_VAE;
		out[i] = (struct dtp_phase_memory){.name = c->name};
		if (here && (!c->absent || i == DTP_TEXT)) /* embeddings take room, whoever made them */
			out[i] = (struct dtp_phase_memory){
				c->name, dtp_weights_memory(c->tree, rank, c->degree, dry), need->scratch[i] + embeds,
				(c->absent ? 0 : dtp_weights_staging(c->tree, rank, c->degree)) + host,
				need->workspace[i] + use.in_use,
			};
	}
	if (req->nimages && rank == 0) {
		dtp_vae_need(&p->vae, true, false);
		out[DTP_REFERENCES] = (struct dtp_phase_memory){
			DTP_REFERENCES_NAME, dtp_weights_memory(&p->vae.tree, rank, 1, dry), need->scratch[DTP_REFERENCES],
			DTP_STAGING_BYTES + host, need->workspace[DTP_REFERENCES] + use.in_use,
		};
		dtp_run_bind(p, req->output, rank);
	}
	add_residents(p, p->encode_only ? 0 : need->scratch[DTP_TRANSFORMER], out);
	return DTP_OK;
}

enum dtp_code dtp_run_foresee(struct dtp_pipeline *p, const struct dtp_request *req, int rank, struct dtp_need *need,
			      struct dtp_phase_memory memory[DTP_NPHASES], struct dtp_err *err)
{
	struct dtp_backend *dry;

	if (dtp_backend_dry(p->compute, p->device, &dry, err))
		return err->code;
	enum dtp_code rc = predict(p, req, rank, dry, need, memory, err);
	dry->ops->destroy(dry);
	return rc;
}

enum dtp_code dtp_pipeline_memory(struct dtp_pipeline *p, const struct dtp_request *req, int rank,
				  struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err)
{
	bool on_host = p->device == DTP_DEVICE_CPU; /* else a GPU's memory is asked about */
	struct dtp_backend *dry;
	struct dtp_need need;

	if (dtp_backend_dry(p->compute, p->device, &dry, err))
		return err->code;
	enum dtp_code rc = predict(p, req, rank, dry, &need, out, err);
	for (int i = 0; i < DTP_NPHASES && !on_host; i++)
		out[i].staging = 0;
	if (!rc && p->beside_whole && rank == 0 && on_host)
		rc = add_whole(p, req, dry, out, err);
	dry->ops->destroy(dry);
	return rc;
}
