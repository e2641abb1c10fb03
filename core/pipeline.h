/* SPDX-License-Identifier: Apache-2.0 */
/* A diffusers pipeline folder: opened and checked as a whole, then run on this rank. */
#ifndef DTP_PIPELINE_H
#define DTP_PIPELINE_H

#include "backend.h"
#include "comm.h"
#include "err.h"
#include "latents.h"
#include "monitor.h"
#include "reference.h"

#include <stdbool.h>
#include <stdint.h>

struct dtp_pipeline;

/* What stays in memory once it is loaded.  All else makes room for the next component, and is loaded again when it is needed again. */
struct dtp_residency {
	bool pictures; /* transformer and VAE, beside each other, from one image to the next */
	bool text;     /* the text encoder beside both: `pictures` is set too */
	bool again;    /* other prompts follow, and are encoded beside what stays */
	int prompts;   /* encoded before the first of them is drawn, their embeddings held; 0: 1 */
};

#define DTP_MAX_SIDE 16384 /* pixels */

struct dtp_options {
	const char *model;         /* folder */
	const char *transformer;   /* NULL: the folder's; else another folder, or a safetensors file, in its place */
	const char *variant;       /* NULL: none; else "fp16": files of that name are taken where a component has them */
	const char *const *loras;  /* nloras of them: merged into the transformer's weights (lora.h) */
	int nloras;
	const char *tp_plan;       /* NULL: the family's own */
	int tp_degree;             /* 0: what a sharded folder was made for, else 1 */
	bool one_rank;             /* of a sharded folder only the files of `rank` are opened; else all are checked, rank 0's kept */
	int rank;
	enum dtp_dtype compute;    /* BF16 or F32 */
	enum dtp_dtype reduce;     /* of sums over the ranks: F32, or BF16 where that is computed in; 0: the latter on GPUs, else F32 */
	enum dtp_overlap overlap;
	enum dtp_device device;    /* whose memory is predicted: the host's, or that of a GPU for each rank */
	struct dtp_residency stay; /* what stays, until dtp_pipeline_stay says otherwise */
	bool beside_whole;         /* rank 0 computes the whole model too, a layer at a time (verify.h): counts in predictions */
	bool references;           /* requests may have images: the VAE's encoder is checked too */
	const char *prompt_embeds; /* prompts that are encoded already (embeds.h); text encoder and tokenizer may be missing */
	bool encode_only;          /* requests end with their encoding; the weights of transformer and VAE may be missing */
	bool no_tokenizer;         /* it is not read: the pipeline can be predicted, not run */
	bool synthetic;            /* weights and tokens are computed (synthetic.h): of the folder only the configurations are read */
};

enum dtp_output { DTP_OUTPUT_PNG, DTP_OUTPUT_LATENT };

/* One call.  Zero (or negative where zero means something) stands for the model's default; dtp_pipeline_resolve fills in. */
struct dtp_request {
	const char *prompt;         /* UTF-8 */
	const char *negative_prompt;/* NULL: ""; of the second pass, where dtp_pipeline_passes says that there is one */
	const char *system_message; /* NULL: the one that the model was trained with; where dtp_pipeline_has_system says so */
	/* References, as dtp_reference_read gives them; only rank 0 of a run looks at their pixels. */
	const struct dtp_picture *images;
	int nimages;
	int images_id;              /* requests of a session that give the same number have the same references, which are encoded once */
	const struct dtp_latents *noise; /* NULL: drawn from the seed; else [1, in_channels, rows, columns], for the one image */
	int64_t height, width;      /* pixels; 0: that of the noise, of the first reference, else 1024 */
	int steps;                  /* 0: 4 where the model is distilled, else 50 */
	double guidance_scale;      /* negative: 4.0 */
	uint64_t seed;              /* of image 0; image i uses seed + i */
	int num_images;             /* 0: 1 */
	int64_t max_sequence_length;/* 0: 512 */
	enum dtp_output output;
	bool passes_in_turn;        /* of two passes (dtp_pipeline_passes): one after the other, in less memory and more time */
	bool exact_timesteps;       /* do not round timesteps to the compute dtype as diffusers does */
	const char *save_embeds;    /* NULL, or a file for the prompts' embeddings (embeds.h) */
	const char *dump_stages;    /* NULL, or a safetensors file for every stage of image 0 */
	bool replace;               /* these two files, where others have their names */
};

struct dtp_image {
	int index;                  /* 0..num_images-1 */
	uint64_t seed;
	int64_t height, width;
	const uint8_t *rgb;         /* [height, width, 3], or NULL for latent output */
	const void *latents;        /* what the pipeline class returns, dense, in the compute dtype; or NULL */
	enum dtp_dtype latents_dtype;
	int latents_ndim;
	int64_t latents_shape[DTP_MAX_DIMS];
};

/* Reads every JSON file and safetensors header, the plan, the tokenizer; checks all of it for every component.  No weight
 * byte is read.  DTP_REFUSED with the first thing that is wrong. */
enum dtp_code dtp_pipeline_open(const struct dtp_options *o, const struct dtp_monitor *mon, struct dtp_pipeline **p,
				struct dtp_err *err);
void dtp_pipeline_close(struct dtp_pipeline *p);
/* Whether the folder's model_index.json names a pipeline class that dtp_pipeline_open takes.  DTP_REFUSED: it cannot be read. */
enum dtp_code dtp_pipeline_known(const char *model, bool *known, struct dtp_err *err);
/* Fills in defaults and checks the request against the model: sizes, steps, lengths, prompt encoding. */
enum dtp_code dtp_pipeline_resolve(const struct dtp_pipeline *p, struct dtp_request *r, struct dtp_err *err);

enum dtp_device dtp_pipeline_device(const struct dtp_pipeline *p); /* as it was opened for */
enum dtp_dtype dtp_pipeline_reduce(const struct dtp_pipeline *p);  /* what sums over the ranks are made in: F32 or BF16 */
const char *dtp_pipeline_class(const struct dtp_pipeline *p);  /* "Flux2KleinPipeline" */
bool dtp_pipeline_guided(const struct dtp_pipeline *p);        /* false: distilled, guidance_scale has no effect */
/* Forward passes per step: 2 with classifier-free guidance, which an undistilled klein has at scales above 1. */
int dtp_pipeline_passes(const struct dtp_pipeline *p, const struct dtp_request *r);
bool dtp_pipeline_embeds_guidance(const struct dtp_pipeline *p); /* the transformer is told the scale: one pass a step all the same */
bool dtp_pipeline_has_system(const struct dtp_pipeline *p);    /* the prompt's template has a system message */
const char *dtp_pipeline_plan(const struct dtp_pipeline *p);   /* the transformer plan's source */
const char *dtp_pipeline_builtin(const struct dtp_pipeline *p);/* name of the family's own plan: "flux2" */

/* Predicted memory of one rank on its device, in bytes, by phase: the sum of these, from a dry run of the forward passes.  What
 * an earlier phase leaves in memory (a text encoder that is kept) counts in the later ones too. */
struct dtp_phase_memory {
	const char *name;           /* "text_encoder", "transformer", "vae", "references" (zeros where there are none) */
	uint64_t weights, scratch;  /* scratch: activations and the prompts' embeddings */
	uint64_t staging;           /* of the host: buffers of the loader, reference images; a GPU takes none of it */
	uint64_t workspace;         /* of a GPU's operations beside their operands */
};
#define DTP_NPHASES 4
/* What of it the backend takes, by its own count (dtp_memory_use). */
static inline uint64_t dtp_phase_backend_bytes(const struct dtp_phase_memory *m)
{
	return m->weights + m->scratch + m->workspace;
}
/* Phases that a request has: references, the last, which run first, only where it has images. */
int dtp_request_phases(const struct dtp_request *r);
enum dtp_code dtp_pipeline_memory(struct dtp_pipeline *p, const struct dtp_request *r, int rank,
				  struct dtp_phase_memory out[DTP_NPHASES], struct dtp_err *err);
/* What the whole model beside rank 0's part (beside_whole) takes: of host memory, wherever the ranks compute.  On CPUs it is counted in
 * each phase of dtp_pipeline_memory already. */
enum dtp_code dtp_pipeline_whole_memory(struct dtp_pipeline *p, const struct dtp_request *r, struct dtp_phase_memory *out,
					struct dtp_err *err);

/* What the phases of this rank have in fact taken so far, at most; zeros: the phase was none of its. */
struct dtp_phase_use {
	uint64_t peak;              /* to be compared with dtp_phase_backend_bytes */
	uint64_t device;            /* of a GPU, by all who use it, when the phase had computed; 0: it computes on the host */
};
const struct dtp_phase_use *dtp_pipeline_use(const struct dtp_pipeline *p); /* [DTP_NPHASES], the pipeline's */
/* What dtp_pipeline_memory foresees for this rank of the requests so far: of each phase that of the request that takes most. */
const struct dtp_phase_memory *dtp_pipeline_foreseen(const struct dtp_pipeline *p); /* likewise; all have their names */

/* What one rank computes and sums with the others, from the same dry run. */
struct dtp_phase_cost {
	/* "encode": once per prompt; "step": each step; on rank 0 "decode": each picture, "references": once. */
	const char *name;
	double flops;
	uint64_t reductions;        /* sums over the ranks */
	double reduce_bytes;        /* of all of them, as one rank has them */
};
enum dtp_code dtp_pipeline_cost(struct dtp_pipeline *p, const struct dtp_request *r, int rank,
				struct dtp_phase_cost out[DTP_NPHASES], struct dtp_err *err);

/* Places the weights anew for another degree, before anything is loaded.  DTP_REFUSED when the plans forbid the degree (err may
 * be NULL); the pipeline is then as it was. */
enum dtp_code dtp_pipeline_set_degree(struct dtp_pipeline *p, int tp_degree, struct dtp_err *err);

/* What is to stay in memory from the next request on.  It counts in the prediction. */
void dtp_pipeline_stay(struct dtp_pipeline *p, struct dtp_residency stay);

/* What a run did, per phase; kept by the pipeline and reset by nothing. */
struct dtp_phase_report {
	/* "load vae encoder", "encode references", "load text_encoder", "encode", "load transformer", "step", "load vae", "decode",
	 * "write" */
	const char *name;
	int calls;                  /* steps: their number */
	double seconds;             /* sum over calls */
	double flops;               /* of this rank, sum */
	double reduce_seconds, reduce_bytes; /* waiting for and moving sums between ranks; seconds -1: not known (an asynchronous device) */
	uint64_t reductions;
	uint64_t bytes_read, bytes_gaps;
	uint64_t peak_rss;          /* of the process up to the end of the phase */
	double last_seconds[16];    /* of the last calls, in turn: call i (from 0) in i % 16 */
};
/* Phases in the order in which they first ran on this rank; *out is the pipeline's.  Returns their number. */
int dtp_pipeline_reports(const struct dtp_pipeline *p, const struct dtp_phase_report **out);
/* Why the steps of the last image were done operation by operation; "" where the device repeated a recording of one. */
const char *dtp_pipeline_step_refused(const struct dtp_pipeline *p);

/* Gets each finished image on the first rank of the replica (its memory is the pipeline's, valid during the call); a code other
 * than DTP_OK ends the run. */
typedef enum dtp_code (*dtp_image_fn)(void *arg, const struct dtp_image *, struct dtp_err *);

/* Sees a picture come about: on the first rank of each replica, after each step, the latents that the step expects at the end (those
 * at hand without the noise that it believes is left), as packed tokens [h, w, channels]; valid during the call. */
typedef void (*dtp_step_fn)(void *arg, int step, int steps, const float *tokens, int64_t h, int64_t w, int64_t channels);
void dtp_pipeline_watch(struct dtp_pipeline *p, dtp_step_fn fn, void *arg); /* from the next image on; fn NULL: no more */

/* Runs the request on this rank.  All ranks of the mesh call it with the same request; its images are divided over
 * mesh->dim[DTP_MESH_DP].  node_threads: threads that one rank may use while the others of its replica sleep. */
enum dtp_code dtp_pipeline_run(struct dtp_pipeline *p, const struct dtp_request *r, struct dtp_backend *be,
			       struct dtp_mesh *mesh, const struct dtp_monitor *mon, int node_threads, dtp_image_fn done,
			       void *arg, struct dtp_err *err);
static inline int dtp_replica_images(int num_images, int dp) /* the most that one replica draws */
{
	return (num_images + dp - 1) / dp;
}

/* Requests one after the other, of which dtp_pipeline_run is the case of one.  A component is loaded when it is first
 * needed, and stays or makes room for the next as dtp_pipeline_stay says: where the text encoder does not stay, encode all that
 * is known before drawing any of it.  All ranks of the replica make the same calls.  dtp_pipeline_stay may be called between
 * them: what is not to stay any more goes when the next component comes. */
struct dtp_session {
	struct dtp_pipeline *pipeline;
	struct dtp_backend *backend;
	struct dtp_mesh *mesh;
	const struct dtp_monitor *mon;
	int node_threads;       /* as above */
	enum dtp_output output; /* of every request */
	/* The session's own: tokens of the references that it encoded last, and which they were. */
	float *reference_tokens;
	bool encoded;
	int images_id;
};
struct dtp_run; /* a request whose prompt is encoded */
/* The request stays the caller's and must outlive the run.  NULL on failure. */
enum dtp_code dtp_session_encode(struct dtp_session *s, const struct dtp_request *req, struct dtp_run **run,
				 struct dtp_err *err);
/* One image of the request.  label: what stands before "step 1/4" in the stage's text; may be empty. */
enum dtp_code dtp_session_draw(struct dtp_session *s, struct dtp_run *run, int image, const char *label, dtp_image_fn done,
			       void *arg, struct dtp_err *err);
void dtp_session_drop(struct dtp_run *run); /* NULL is allowed */
/* What dtp_pipeline_run does, without freeing what stays.  Ranks of mesh->copies each draw an image of every request: what is loaded for
 * the first of them they read together. */
enum dtp_code dtp_session_run(struct dtp_session *s, const struct dtp_request *r, dtp_image_fn done, void *arg, struct dtp_err *err);
/* All runs are dropped.  Frees every component; the session can go on, and loads them again. */
void dtp_session_end(struct dtp_session *s);
#endif
