/* SPDX-License-Identifier: Apache-2.0 */
/* Flux2Transformer2DModel: declaration and forward pass.  Formulas: diffusers' transformer_flux2.py. */
#ifndef DTP_TRANSFORMER_H
#define DTP_TRANSFORMER_H

#include "module.h"
#include "ops.h"

#define DTP_TRANSFORMER_CLASS "Flux2Transformer2DModel"
#define DTP_MAX_AXES 4
#define DTP_MAX_TIME_CHANNELS 4096

struct dtp_transformer_config {
	int64_t in_channels, out_channels; /* of a packed token */
	int64_t heads, head_dim, width;    /* width = heads * head_dim */
	int64_t layers, single_layers;
	int64_t joint_dim;                 /* of a text token */
	int64_t time_channels;             /* of the sinusoidal embedding */
	int64_t mlp;                       /* hidden width of the MLPs: int(width * mlp_ratio) */
	int naxes;
	int64_t axes[DTP_MAX_AXES];        /* rotary dimensions per axis (T, H, W, L); their sum is head_dim */
	double rope_theta, eps;
	bool guidance_embeds;
};

struct dtp_double_block {
	struct dtp_layer to_q, to_k, to_v, to_out, add_q, add_k, add_v, add_out;
	struct dtp_layer norm_q, norm_k, norm_added_q, norm_added_k;
	struct dtp_layer ff_in, ff_out, context_in, context_out;
};

struct dtp_single_block {
	struct dtp_layer proj, out, norm_q, norm_k;
};

struct dtp_transformer {
	struct dtp_transformer_config config;
	struct dtp_tree tree;
	struct dtp_layer x_embedder, context_embedder, time_1, time_2, guidance_1, guidance_2;
	struct dtp_layer mod_img, mod_txt, mod_single, norm_out, proj_out;
	struct dtp_double_block *dbl;
	struct dtp_single_block *sgl;
};

/* Reads dir/config.json and declares the modules.  DTP_REFUSED for another class and for values out of range. */
enum dtp_code dtp_transformer_open(const char *dir, struct dtp_transformer *t, struct dtp_err *err);
void dtp_transformer_close(struct dtp_transformer *t);

/* Positions (T, H, W, L) of h x w image tokens; T is 0 for the picture itself. */
void dtp_image_ids(int64_t h, int64_t w, int64_t t, int64_t (*ids)[DTP_MAX_AXES]);

/* What stays the same through all steps of an image: in the scratch arena. */
struct dtp_conditioning {
	int64_t passes;                   /* prompts, B: one prediction for each */
	struct dtp_tensor text;           /* [B * L, width]: the embedded prompts */
	struct dtp_rope_table rope_text, rope_image, rope_all; /* rope_all: text, then image; the others are its parts */
};
/* prompts: [B, L, joint_dim], compute dtype; text position l is (0, 0, 0, l); image_ids [n]. */
void dtp_transformer_condition(struct dtp_ctx *c, const struct dtp_transformer *t, struct dtp_tensor prompts,
			       const int64_t (*image_ids)[DTP_MAX_AXES], int64_t n, struct dtp_conditioning *out);

/* A time and a guidance scale in the model's units (both times 1000, rounded as the caller wants them), as the forward pass takes them:
 * rows of time_channels, of which a model that embeds no guidance has one, else two (MAX_SINUSOIDS). */
#define DTP_MAX_SINUSOIDS 2
int64_t dtp_transformer_sinusoids(const struct dtp_transformer *t); /* rows */
void dtp_transformer_fill_sinusoids(const struct dtp_transformer *t, float time, float guidance, float *out);

/* One prediction per pass: latents [N, in_channels], the same for all, at the time and guidance of sinusoids (F32, as filled above, in the
 * backend's memory) -> [B * N, out_channels], compute dtype.  The passes go through the layers together, as rows; only attention
 * keeps them apart.  N may include reference tokens.  Stages, of pass 0: step0.*. */
struct dtp_tensor dtp_transformer_forward(struct dtp_ctx *c, const struct dtp_transformer *t,
					  const struct dtp_conditioning *cond, struct dtp_tensor latents,
					  struct dtp_tensor sinusoids);
#endif
