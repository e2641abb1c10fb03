/* SPDX-License-Identifier: Apache-2.0 */
/* Module trees as the models declare them, of any size, for the tests of plans, placement and loading. */
#ifndef TEST_TREES_H
#define TEST_TREES_H

#include "module.h"

struct flux2_size {
	int64_t heads, head_dim, mlp, in, context; /* width = heads * head_dim */
	int ndouble, nsingle;
};
/* tests/models/klein-tiny */
static const struct flux2_size klein_tiny = {8, 16, 384, 128, 120, 2, 3};

/* Handles: one per module, enough for the trees of the tests. */
#define MAX_LAYERS 512
struct layers {
	struct dtp_layer l[MAX_LAYERS];
	int n;
};

static inline struct dtp_layer *next_layer(struct layers *ls)
{
	if (ls->n == MAX_LAYERS)
		abort();
	return &ls->l[ls->n++];
}

static inline void flux2_double(struct dtp_tree *t, struct layers *ls, const struct flux2_size *z, int i)
{
	static const char *const qkv[] = {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"};
	static const char *const norms[] = {"norm_q", "norm_k", "norm_added_q", "norm_added_k"};
	static const char *const outs[] = {"to_out.0", "to_add_out"}, *const ffs[] = {"ff", "ff_context"};
	int64_t d = z->heads * z->head_dim;
	int heads[6];

	for (int j = 0; j < 6; j++) {
		heads[j] = dtp_tree_linear(t, next_layer(ls), d, d, false, "transformer_blocks.%d.attn.%s", i, qkv[j]);
		t->modules[heads[j]].out_unit = z->head_dim;
	}
	for (int j = 0; j < 4; j++)
		dtp_tree_norm(t, next_layer(ls), z->head_dim, false, "transformer_blocks.%d.attn.%s", i, norms[j]);
	for (int j = 0; j < 2; j++) {
		int m = dtp_tree_linear(t, next_layer(ls), d, d, false, "transformer_blocks.%d.attn.%s", i, outs[j]);
		t->modules[m].in_unit = z->head_dim;
		dtp_tree_reads(t, m, 6, heads);
	}
	for (int j = 0; j < 2; j++) {
		int in = dtp_tree_linear(t, next_layer(ls), 2 * z->mlp, d, false, "transformer_blocks.%d.%s.linear_in", i, ffs[j]);
		dtp_tree_out_blocks(t, in, 2, (int64_t[]){z->mlp, z->mlp});
		int out = dtp_tree_linear(t, next_layer(ls), d, z->mlp, false, "transformer_blocks.%d.%s.linear_out", i, ffs[j]);
		dtp_tree_reads(t, out, 1, &in);
	}
}

static inline void flux2_single(struct dtp_tree *t, struct layers *ls, const struct flux2_size *z, int i)
{
	int64_t d = z->heads * z->head_dim, m = z->mlp;
	int in = dtp_tree_linear(t, next_layer(ls), 3 * d + 2 * m, d, false, "single_transformer_blocks.%d.attn.to_qkv_mlp_proj", i);

	dtp_tree_out_blocks(t, in, 5, (int64_t[]){d, d, d, m, m});
	dtp_tree_norm(t, next_layer(ls), z->head_dim, false, "single_transformer_blocks.%d.attn.norm_q", i);
	dtp_tree_norm(t, next_layer(ls), z->head_dim, false, "single_transformer_blocks.%d.attn.norm_k", i);
	int out = dtp_tree_linear(t, next_layer(ls), d, d + m, false, "single_transformer_blocks.%d.attn.to_out", i);
	dtp_tree_in_blocks(t, out, 2, (int64_t[]){d, m});
	dtp_tree_reads(t, out, 1, &in);
}

static inline void flux2_tree(struct dtp_tree *t, struct layers *ls, const struct flux2_size *z)
{
	int64_t d = z->heads * z->head_dim;

	ls->n = 0;
	dtp_tree_init(t, "transformer");
	t->even = true;
	t->heads = z->heads;
	dtp_tree_linear(t, next_layer(ls), d, z->in, false, "x_embedder");
	dtp_tree_linear(t, next_layer(ls), d, z->context, false, "context_embedder");
	dtp_tree_linear(t, next_layer(ls), d, 256, false, "time_guidance_embed.timestep_embedder.linear_1");
	dtp_tree_linear(t, next_layer(ls), d, d, false, "time_guidance_embed.timestep_embedder.linear_2");
	dtp_tree_linear(t, next_layer(ls), 6 * d, d, false, "double_stream_modulation_img.linear");
	dtp_tree_linear(t, next_layer(ls), 6 * d, d, false, "double_stream_modulation_txt.linear");
	dtp_tree_linear(t, next_layer(ls), 3 * d, d, false, "single_stream_modulation.linear");
	dtp_tree_list(t, "transformer_blocks");
	for (int i = 0; i < z->ndouble; i++)
		flux2_double(t, ls, z, i);
	dtp_tree_list(t, "single_transformer_blocks");
	for (int i = 0; i < z->nsingle; i++)
		flux2_single(t, ls, z, i);
	dtp_tree_linear(t, next_layer(ls), 2 * d, d, false, "norm_out.linear");
	dtp_tree_linear(t, next_layer(ls), z->in, d, false, "proj_out");
}

struct qwen3_size {
	int64_t heads, kv_heads, head_dim, hidden, mlp, vocab;
	int layers, needed;
};
static const struct qwen3_size qwen3_tiny = {4, 2, 16, 40, 96, 1824, 28, 27};

static inline void qwen3_layer(struct dtp_tree *t, struct layers *ls, const struct qwen3_size *z, int i)
{
	int64_t rows = z->heads * z->head_dim, kv = z->kv_heads * z->head_dim;
	int first = t->n, qkv[3], mlp[2];

	dtp_tree_norm(t, next_layer(ls), z->hidden, false, "layers.%d.input_layernorm", i);
	qkv[0] = dtp_tree_linear(t, next_layer(ls), rows, z->hidden, false, "layers.%d.self_attn.q_proj", i);
	qkv[1] = dtp_tree_linear(t, next_layer(ls), kv, z->hidden, false, "layers.%d.self_attn.k_proj", i);
	qkv[2] = dtp_tree_linear(t, next_layer(ls), kv, z->hidden, false, "layers.%d.self_attn.v_proj", i);
	for (int j = 0; j < 3; j++)
		t->modules[qkv[j]].out_unit = z->head_dim;
	for (int j = 1; j < 3; j++) {
		t->modules[qkv[j]].follows = qkv[0];
		t->modules[qkv[j]].group = z->heads / z->kv_heads;
	}
	dtp_tree_norm(t, next_layer(ls), z->head_dim, false, "layers.%d.self_attn.q_norm", i);
	dtp_tree_norm(t, next_layer(ls), z->head_dim, false, "layers.%d.self_attn.k_norm", i);
	int o = dtp_tree_linear(t, next_layer(ls), z->hidden, rows, false, "layers.%d.self_attn.o_proj", i);
	t->modules[o].in_unit = z->head_dim;
	dtp_tree_reads(t, o, 3, qkv);
	dtp_tree_norm(t, next_layer(ls), z->hidden, false, "layers.%d.post_attention_layernorm", i);
	mlp[0] = dtp_tree_linear(t, next_layer(ls), z->mlp, z->hidden, false, "layers.%d.mlp.gate_proj", i);
	mlp[1] = dtp_tree_linear(t, next_layer(ls), z->mlp, z->hidden, false, "layers.%d.mlp.up_proj", i);
	int down = dtp_tree_linear(t, next_layer(ls), z->hidden, z->mlp, false, "layers.%d.mlp.down_proj", i);
	dtp_tree_reads(t, down, 2, mlp);
	for (int j = first; j < t->n; j++)
		t->modules[j].needed = i < z->needed;
}

static inline void qwen3_tree(struct dtp_tree *t, struct layers *ls, const struct qwen3_size *z)
{
	ls->n = 0;
	dtp_tree_init(t, "text_encoder");
	t->heads = z->heads;
	dtp_tree_embedding(t, next_layer(ls), z->vocab, z->hidden, "embed_tokens");
	dtp_tree_list(t, "layers");
	for (int i = 0; i < z->layers; i++)
		qwen3_layer(t, ls, z, i);
	int norm = dtp_tree_norm(t, next_layer(ls), z->hidden, false, "norm");
	t->modules[norm].needed = false;
}
#endif
