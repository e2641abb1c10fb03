/* SPDX-License-Identifier: Apache-2.0 */
/* One request on one rank: its state, and what each phase computes.  generate.c runs the phases; predict.c runs them dry, so
 * that what is predicted is what is done. */
#ifndef DTP_RUN_H
#define DTP_RUN_H

#include "pipeline_internal.h"

/* Bytes that a request takes of the backend in each phase beside weights and embeds: in its arena, and what operations take while they run. */
struct dtp_need {
	uint64_t scratch[DTP_NPHASES], workspace[DTP_NPHASES];
};

struct dtp_run {
	struct dtp_pipeline *p;
	const struct dtp_request *req;
	struct dtp_ctx ctx;
	struct dtp_comm *tp;
	struct dtp_comm *copies;          /* of ranks that load what this one loads, and when it does; NULL: none is known to */
	struct dtp_dump dump;
	int passes;                       /* 2 with classifier-free guidance: the prompt's, then the negative prompt's */
	struct dtp_prompt prompt[2];
	struct dtp_schedule schedule;
	int64_t h, w, tokens, channels;   /* of the packed latents */
	int64_t references;               /* tokens of all reference images; they follow the latents' in every step */
	int64_t (*ids)[DTP_MAX_AXES];     /* [tokens + references] */
	struct dtp_need need;
	struct dtp_step_shape shape;
	struct dtp_arena picture;         /* scratch of the VAE, from the first image to the last; the transformer's is the pipeline's */
	struct dtp_tensor told;           /* of the transformer's scratch: all that differs between steps (run.c) */
	float *host;                      /* [tokens * channels]: noise, then final latents; NULL until the first image */
	const float *reference_tokens;    /* [references, channels]: the session's; NULL in a dry run */
	void *embeds;                     /* backend memory: [passes, L, joint_dim], alive from encode to the last step */
	struct dtp_conditioning cond[2];
	uint8_t *rgb;                     /* NULL until the first image */
};

/* The layers of each component get this rank's sizes; comes before everything else. */
void dtp_run_bind(struct dtp_pipeline *p, enum dtp_output output, int rank);
/* On failure dtp_run_free is still to be called. */
enum dtp_code dtp_run_init(struct dtp_run *r, struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_backend *be,
			   struct dtp_comm *tp, const struct dtp_monitor *mon, struct dtp_err *err);
void dtp_run_free(struct dtp_run *r);
enum dtp_code dtp_run_picture(struct dtp_run *r, struct dtp_err *err); /* host and rgb: not held while prompts wait */
uint64_t dtp_run_embeds_bytes(const struct dtp_pipeline *p, const struct dtp_request *req); /* of run.embeds */

/* Tokens of all reference images, and the images -> their values [references, channels] (NULL in a dry run). */
int64_t dtp_run_reference_tokens(const struct dtp_pipeline *p, const struct dtp_request *req);
void dtp_run_references(struct dtp_run *r, float *tokens);
/* The prompts, or a file, -> embeds. */
void dtp_run_encode(struct dtp_run *r);
enum dtp_code dtp_run_save_embeds(struct dtp_run *r, struct dtp_outkeep *keep, struct dtp_err *err); /* embeds -> req->save_embeds */
/* embeds -> cond, in scratch memory that stays to the last step. */
void dtp_run_condition(struct dtp_run *r);
/* What the transformer takes, [tokens + references, channels]; the part of it that is drawn, from host; and step i of that in
 * place. */
struct dtp_tensor dtp_run_new_input(struct dtp_run *r);
struct dtp_tensor dtp_run_latents(const struct dtp_run *r, struct dtp_tensor input);
void dtp_run_step(struct dtp_run *r, struct dtp_tensor input, int i);
/* The final latents in host -> rgb (PNG output), and *latents as the pipeline class returns them, malloc'd (not in a dry run). */
void dtp_run_decode(struct dtp_run *r, void **latents);

int dtp_run_latents_shape(const struct dtp_run *r, int64_t shape[DTP_MAX_DIMS]); /* of these; returns the dimensions */

/* Stages that are known on the host.  noise: [channels, h, w]. */
void dtp_run_dump_ids(struct dtp_run *r, const struct dtp_prompt *p, const char *name);
/* All stages to the file that the request names, with the request in its metadata, for verify. */
enum dtp_code dtp_run_write_stages(const struct dtp_run *r, struct dtp_err *err);
void dtp_run_dump_start(struct dtp_run *r, const float *noise);

/* What each phase takes, for a rank that the layers are then bound for: the very code of the run, on a backend that computes nothing
 * (predict.c). */
enum dtp_code dtp_run_foresee(struct dtp_pipeline *p, const struct dtp_request *req, int rank, struct dtp_need *need,
			      struct dtp_phase_memory memory[DTP_NPHASES], struct dtp_err *err);
#endif
