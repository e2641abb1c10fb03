/* SPDX-License-Identifier: Apache-2.0 */
/* What a model asks of a backend: its own code, run on the backend that computes nothing, with operations that whoever calls puts in its
 * table to write down what they are asked for. */
#ifndef TEST_DRY_RUN_H
#define TEST_DRY_RUN_H

#include "run.h"

#include <stdio.h>
#include <stdlib.h>

struct dry_run {
	const char *model; /* a pipeline folder; its configurations are enough */
	int64_t side;      /* of the picture, and of the reference image */
	bool reference;    /* there is one */
	int degree;
	enum dtp_dtype t;
	enum dtp_device device;
};

static inline void dry_die(const struct dtp_err *err)
{
	fprintf(stderr, "%s\n", err->message);
	exit(1);
}

/* What a phase of a picture asks for: the text's encoding, one step, the decoding, the reference's encoding. */
static inline void dry_phase(struct dtp_run *r, int phase, bool reference)
{
	void *latents = NULL;

	dtp_arena_measure(&r->ctx.scratch);
	r->ctx.scratch.be = r->ctx.be;
	if (phase == DTP_TEXT)
		dtp_run_encode(r);
	else if (phase == DTP_TRANSFORMER)
		dtp_run_condition(r), dtp_run_step(r, dtp_run_new_input(r), 0);
	else if (phase == DTP_VAE)
		dtp_run_decode(r, &latents);
	else if (reference)
		dtp_run_references(r, NULL);
	free(latents);
	if (!dtp_ok(&r->ctx))
		dry_die(&r->ctx.err);
}

/* A whole run of rank 0.  watch puts operations into the table; *phase (unless NULL) is what asks. */
static inline void dry_run(const struct dry_run *d, void (*watch)(struct dtp_backend_ops *), int *phase)
{
	const struct dtp_options options = {.model = d->model, .tp_degree = d->degree, .compute = d->t, .device = d->device,
					    .references = d->reference, .no_tokenizer = true, .synthetic = true};
	const struct dtp_picture image = {.height = d->side, .width = d->side};
	struct dtp_request req = {.prompt = "", .images = &image, .nimages = d->reference, .height = d->side, .width = d->side,
				  .guidance_scale = -1};
	struct dtp_comm comm = {.rank = 0, .size = d->degree, .mon = &dtp_monitor_none};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend_ops ops;
	struct dtp_backend *be;
	struct dtp_pipeline *p;
	struct dtp_run r;

	if (dtp_pipeline_open(&options, &dtp_monitor_none, &p, &err) || dtp_pipeline_resolve(p, &req, &err) ||
	    dtp_backend_dry(d->t, d->device, &be, &err))
		dry_die(&err);
	ops = *be->ops;
	watch(&ops);
	be->ops = &ops;
	dtp_run_bind(p, DTP_OUTPUT_PNG, 0);
	if (dtp_run_init(&r, p, &req, be, &comm, &dtp_monitor_none, &err))
		dry_die(&err);
	for (int i = 0; i < DTP_NPHASES; i++) {
		if (phase)
			*phase = i;
		dry_phase(&r, i, d->reference);
	}
	dtp_run_free(&r);
	be->ops->destroy(be);
	dtp_pipeline_close(p);
}

/* A dry run has no weights: a filter's side follows from those of the pictures; of the two that a stride of 2 leaves, it is the odd. */
static inline int64_t dry_filter_side(int64_t in, int64_t out, int stride, int pads)
{
	int64_t k = in + pads - (out - 1) * stride;

	return k % 2 ? k : k - 1;
}
#endif
