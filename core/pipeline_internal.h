/* SPDX-License-Identifier: Apache-2.0 */
/* What pipeline.c (opening, checking) and generate.c (running) share. */
#ifndef DTP_PIPELINE_INTERNAL_H
#define DTP_PIPELINE_INTERNAL_H

#include "dump.h"
#include "embeds.h"
#include "pipeline.h"
#include "plan.h"
#include "replay.h"
#include "safetensors.h"
#include "scheduler.h"
#include "shards.h"
#include "text_encoder.h"
#include "transformer.h"
#include "vae.h"
#include "weights.h"

/* One row per pipeline class. */
struct dtp_family {
	const char *class_name;
	const char *plan;           /* built-in plan of the transformer */
	bool classifier_free;       /* guided by a second, unconditional pass, unless the model is distilled */
	bool packed_latents;        /* latents are returned as tokens [1, h * w, C], not as [1, C / 4, 2h, 2w] */
};

enum { DTP_TEXT, DTP_TRANSFORMER, DTP_VAE, DTP_COMPONENTS,
	DTP_REFERENCES = DTP_COMPONENTS /* the phase in which the VAE encodes them; the other phases are called as their component */ };

#define DTP_REFERENCES_NAME "references"

/* A part of the pipeline that has weights. */
struct dtp_component {
	const char *name;           /* folder in the pipeline's folder */
	const char *base;           /* of its weight files */
	const char *prefix;         /* before every name of the tree in these files; "" as a rule */
	struct dtp_tree *tree;
	struct dtp_st st;
	bool absent;                /* not needed for what the pipeline was opened for: its weights were not looked for */
	int degree;                 /* ranks that its weights are split over */
	bool loaded;
	struct dtp_load_stats stats;
};

#define DTP_MAX_REPORTS 16

struct dtp_run;

/* All that the operations of a step depend on and that may differ between requests; integers alone, to be compared as bytes. */
struct dtp_step_shape {
	int64_t tokens, references, text; /* text: of each pass */
	int64_t passes, at_once;
	int64_t staged;             /* stages take room beside */
};

/* The memory of steps and the recording of one, for the requests of one shape: a step finds all that it reads where the first one did. */
struct dtp_steps {
	struct dtp_step_shape shape;
	struct dtp_arena arena;     /* the transformer's scratch; below its mark the conditioning */
	struct dtp_replay replay;
	const struct dtp_run *of;   /* whose conditioning that is; NULL: nobody's */
};

struct dtp_pipeline {
	char *model;
	char *transformer_config, *transformer_weights; /* folder of config.json; folder or file of the weights */
	char *variant;              /* of the weight files; NULL: none */
	bool renamed;               /* the transformer's weights have other names in their files (names.h) */
	int tp_degree;
	enum dtp_dtype compute, reduce;
	enum dtp_overlap overlap;
	enum dtp_device device;
	bool beside_whole;
	struct dtp_residency stay;
	const struct dtp_monitor *mon;
	const struct dtp_family *family;
	bool distilled;
	struct dtp_text_encoder text; /* without modules, family NULL, where embeddings are given */
	struct dtp_embeds embeds;   /* length 0 where they are not */
	bool encode_only, synthetic;
	struct dtp_transformer transformer;
	struct dtp_vae vae;
	struct dtp_scheduler scheduler;
	struct dtp_tokenizer *tokenizer;
	struct dtp_plan plan, text_plan;
	struct dtp_lora *lora;      /* NULL: the weights are as they are */
	struct dtp_shards *shards;  /* NULL: the weights are whole */
	struct dtp_component component[DTP_COMPONENTS];
	struct dtp_steps steps;     /* last as long as the transformer is loaded, or until a request of another shape comes */
	/* For verify: who watches the passes, whether it brings the weights of all but the VAE itself, and where stages are kept
	 * (NULL: where the request says). */
	const struct dtp_observer *observer;
	bool streamed;
	struct dtp_dump *stages;
	dtp_step_fn watch;          /* NULL: nobody does */
	void *watch_arg;
	char step_refused[256];     /* see dtp_pipeline_step_refused */
	struct dtp_phase_report report[DTP_MAX_REPORTS];
	int nreports;
	struct dtp_phase_memory foreseen[DTP_NPHASES];
	struct dtp_phase_use use[DTP_NPHASES];
	struct dtp_phase_use *now;  /* of the phase that runs; NULL before the first */
};

/* pipeline_weights.c: where the transformer is, before its configuration is read; then all checkpoints, against the trees. */
enum dtp_code dtp_pipeline_find_transformer(struct dtp_pipeline *p, const char *given, struct dtp_err *err);
enum dtp_code dtp_pipeline_open_weights(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_err *err);

/* Whose slices rank holds of a component: its own, or all where nothing is split. */
static inline int dtp_component_rank(const struct dtp_component *c, int rank)
{
	return c->degree > 1 ? rank : 0;
}

/* Pixels per packed token: 16 for FLUX.2. */
static inline int64_t dtp_token_pixels(const struct dtp_pipeline *p)
{
	return 2 * dtp_vae_scale(&p->vae);
}

#endif
