/* SPDX-License-Identifier: Apache-2.0 */
/* Decoder-only language models as text encoders: one forward pass, the differences between models in one table.  Of a model that
 * also sees, only the decoder is declared; the tree's names begin where the decoder's do ("layers.0..."). */
#ifndef DTP_TEXT_ENCODER_H
#define DTP_TEXT_ENCODER_H

#include "module.h"
#include "ops.h"
#include "safetensors.h"
#include "tokenizer.h"

#define DTP_HIDDEN_STATES 3
#define DTP_TEXT_PREFIXES 2

struct dtp_text_family {
	const char *class_name;             /* architectures[0] of config.json */
	const char *config_object;          /* key of the language model's part of config.json; NULL: the root */
	const char *prefix[DTP_TEXT_PREFIXES]; /* what may stand before the decoder's tensors; NULL past the last */
	bool qk_norm;                       /* RMS norm on q and k before the rotation */
	bool always_slides;                 /* `sliding_window` is in force without `use_sliding_window` */
	double rope_theta, rms_norm_eps;    /* where config.json is silent */
	int wanted[DTP_HIDDEN_STATES];      /* hidden states that the transformer is given, ascending */
	const char *plan;                   /* built-in plan */
	enum dtp_template chat;
};

struct dtp_text_config {
	int64_t vocab, hidden, mlp, layers, heads, kv_heads, head_dim;
	int64_t window;                     /* positions that one attends to; 0: all before it */
	double rope_theta, eps;
};

struct dtp_text_layer {
	struct dtp_layer q, k, v, o, q_norm, k_norm, gate, up, down, input_norm, post_norm;
};

struct dtp_text_encoder {
	const struct dtp_text_family *family;
	struct dtp_text_config config;
	struct dtp_tree tree;
	struct dtp_layer embed, final_norm;
	struct dtp_text_layer *layers; /* config.layers; those past the last wanted state are declared but not needed */
};

/* Reads dir/config.json and declares the modules.  DTP_REFUSED for another architecture or an option that changes the
 * result and is not implemented, by name. */
enum dtp_code dtp_text_open(const char *dir, struct dtp_text_encoder *t, struct dtp_err *err);
void dtp_text_close(struct dtp_text_encoder *t);
int64_t dtp_text_width(const struct dtp_text_encoder *t); /* of a prompt embedding: 3 * hidden */
/* What stands before the decoder's names in this checkpoint; where nothing fits, what should. */
const char *dtp_text_prefix(const struct dtp_text_encoder *t, const struct dtp_st *st);

/* out [L, 3 * hidden], compute dtype: the wanted hidden states side by side, the last through the final norm where no layer is behind
 * it.  Stages: NAME.hidden_states.k and
 * NAME.prompt_embeds. */
void dtp_text_forward(struct dtp_ctx *c, const struct dtp_text_encoder *t, const struct dtp_prompt *prompt,
		      struct dtp_tensor out, const char *name);
#endif
