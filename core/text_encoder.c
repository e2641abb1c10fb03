/* SPDX-License-Identifier: Apache-2.0 */
#include "text_encoder.h"
#include "json.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dtp_text_family families[] = {
	{"Qwen3ForCausalLM", NULL, {"model."}, true, false, 1e6, 1e-6, {9, 18, 27}, "text", DTP_TEMPLATE_QWEN3},
	{"Mistral3ForConditionalGeneration", "text_config", {"language_model.model.", "model.language_model."}, false, true, 1e4, 1e-6,
	 {10, 20, 30}, "text", DTP_TEMPLATE_MISTRAL},
};
#define NFAMILIES (int)(sizeof families / sizeof *families)

/* What prompts don't need of a checkpoint: the output layer and the parts that see. */
static const char *const unused[] = {"lm_head", "vision_tower", "multi_modal_projector", NULL};

/* ---- forward */

/* cos and sin [L, head_dim / 2] of positions 0..L-1.  The reference computes the angles in f32. */
static struct dtp_rope_table rope(struct dtp_ctx *c, const struct dtp_text_config *cfg, int64_t L)
{
	int64_t half = cfg->head_dim / 2, shape[] = {L, half};
	struct dtp_rope_table r = {.kind = DTP_ROPE_HALF};
	float *host = calloc((size_t)(2 * L * half) + 1, sizeof *host), *sines = host + L * half;

	if (!host) {
		dtp_fail(&c->err, DTP_FAILED, "out of memory for the rotary table of %lld positions", (long long)L);
		return r;
	}
	for (int64_t j = 0; j < half && !c->be->dry; j++) {
		float freq = 1.0f / powf((float)cfg->rope_theta, (float)(2 * j) / (float)cfg->head_dim);
		for (int64_t i = 0; i < L; i++) {
			host[i * half + j] = cosf((float)i * freq);
			sines[i * half + j] = sinf((float)i * freq);
		}
	}
	r.cos = dtp_from_host(c, DTP_F32, 2, shape, host);
	r.sin = dtp_from_host(c, DTP_F32, 2, shape, sines);
	free(host);
	return r;
}

static void attention(struct dtp_ctx *c, const struct dtp_text_encoder *t, const struct dtp_text_layer *l,
		      struct dtp_tensor x, const struct dtp_prompt *prompt, const struct dtp_rope_table *r)
{
	const struct dtp_text_config *cfg = &t->config;
	int64_t dim = cfg->head_dim;
	float eps = (float)cfg->eps;
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor h = dtp_rms_norm(c, &l->input_norm, x, eps);
	struct dtp_tensor q = dtp_as_heads(dtp_linear(c, &l->q, h), dim), k = dtp_as_heads(dtp_linear(c, &l->k, h), dim);
	struct dtp_tensor v = dtp_as_heads(dtp_linear(c, &l->v, h), dim), o = dtp_new2(c, x.shape[0], l->q.out);
	struct dtp_attention a = {.scale = 1.0f / sqrtf((float)dim),
				  .causal = true,
				  .key_begin = prompt->begin,
				  .key_end = prompt->end,
				  .q_head0 = l->q.out_begin / dim,
				  .kv_head0 = l->k.out_begin / dim,
				  .group = cfg->heads / cfg->kv_heads};
	bool normed = t->family->qk_norm;

	dtp_qk_norm_rope(c, q, k, normed ? &l->q_norm : NULL, normed ? &l->k_norm : NULL, eps, r);
	dtp_attend(c, dtp_as_heads(o, dim), q, k, v, &a);
	dtp_residual(c, x, (struct dtp_tensor){0}, dtp_linear_sum(c, &l->o, o));
	dtp_arena_release(&c->scratch, mark);
}

static void mlp(struct dtp_ctx *c, const struct dtp_text_encoder *t, const struct dtp_text_layer *l, struct dtp_tensor x)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor h = dtp_rms_norm(c, &l->post_norm, x, (float)t->config.eps);
	struct dtp_tensor gate = dtp_linear(c, &l->gate, h);
	dtp_swiglu(c, gate, gate, dtp_linear(c, &l->up, h));
	dtp_residual(c, x, (struct dtp_tensor){0}, dtp_linear_sum(c, &l->down, gate));
	dtp_arena_release(&c->scratch, mark);
}

static int last_wanted(const struct dtp_text_encoder *t)
{
	return t->family->wanted[DTP_HIDDEN_STATES - 1];
}

/* The reference's last hidden state is the one behind the final norm: whether that is the last one wanted. */
static bool is_normed(const struct dtp_text_encoder *t)
{
	return t->config.layers == last_wanted(t);
}

/* Hidden state k: kept as a part of the embedding where it is wanted; recorded where the reference has it. */
static void hidden_state(struct dtp_ctx *c, const struct dtp_text_encoder *t, struct dtp_tensor x, int k,
			 struct dtp_tensor out, const char *name)
{
	bool wanted = false;
	for (int i = 0; i < DTP_HIDDEN_STATES; i++)
		if (t->family->wanted[i] == k) {
			dtp_copy(c, dtp_narrow(out, 1, i * t->config.hidden, t->config.hidden), x);
			wanted = true;
		}
	if (wanted || k < 2)
		dtp_stage(c, x, DTP_WHOLE, NULL, "%s.hidden_states.%d", name, k);
}

void dtp_text_forward(struct dtp_ctx *c, const struct dtp_text_encoder *t, const struct dtp_prompt *prompt,
		      struct dtp_tensor out, const char *name)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);

	c->tree = &t->tree;
	struct dtp_rope_table r = rope(c, &t->config, prompt->length);
	struct dtp_tensor x = dtp_embed(c, &t->embed, prompt->ids, prompt->length);
	hidden_state(c, t, x, 0, out, name);
	for (int i = 0, last = last_wanted(t); i < last; i++) {
		attention(c, t, &t->layers[i], x, prompt, &r);
		mlp(c, t, &t->layers[i], x);
		if (i + 1 == last && is_normed(t))
			x = dtp_rms_norm(c, &t->final_norm, x, (float)t->config.eps);
		hidden_state(c, t, x, i + 1, out, name);
	}
	dtp_stage(c, out, DTP_WHOLE, NULL, "%s.prompt_embeds", name);
	dtp_arena_release(&c->scratch, mark);
}

/* ---- declaration */

static void declare_layer(struct dtp_text_encoder *t, int i)
{
	const struct dtp_text_config *cfg = &t->config;
	struct dtp_text_layer *l = &t->layers[i];
	struct dtp_tree *tree = &t->tree;
	int64_t H = cfg->hidden, dim = cfg->head_dim;
	int first = tree->n;

	int q = dtp_tree_linear(tree, &l->q, cfg->heads * dim, H, false, "layers.%d.self_attn.q_proj", i);
	int k = dtp_tree_linear(tree, &l->k, cfg->kv_heads * dim, H, false, "layers.%d.self_attn.k_proj", i);
	int v = dtp_tree_linear(tree, &l->v, cfg->kv_heads * dim, H, false, "layers.%d.self_attn.v_proj", i);
	int o = dtp_tree_linear(tree, &l->o, H, cfg->heads * dim, false, "layers.%d.self_attn.o_proj", i);
	int gate = dtp_tree_linear(tree, &l->gate, cfg->mlp, H, false, "layers.%d.mlp.gate_proj", i);
	int up = dtp_tree_linear(tree, &l->up, cfg->mlp, H, false, "layers.%d.mlp.up_proj", i);
	int down = dtp_tree_linear(tree, &l->down, H, cfg->mlp, false, "layers.%d.mlp.down_proj", i);
	tree->modules[q].out_unit = tree->modules[k].out_unit = tree->modules[v].out_unit = dim;
	tree->modules[o].in_unit = dim;
	tree->modules[k].follows = tree->modules[v].follows = q;
	tree->modules[k].group = tree->modules[v].group = cfg->heads / cfg->kv_heads;
	dtp_tree_reads(tree, o, 3, (int[]){q, k, v});
	dtp_tree_reads(tree, down, 2, (int[]){gate, up});
	if (t->family->qk_norm) {
		dtp_tree_norm(tree, &l->q_norm, dim, false, "layers.%d.self_attn.q_norm", i);
		dtp_tree_norm(tree, &l->k_norm, dim, false, "layers.%d.self_attn.k_norm", i);
	}
	dtp_tree_norm(tree, &l->input_norm, H, false, "layers.%d.input_layernorm", i);
	dtp_tree_norm(tree, &l->post_norm, H, false, "layers.%d.post_attention_layernorm", i);
	for (int m = first; m < tree->n; m++)
		tree->modules[m].needed = i < last_wanted(t);
}

static void declare(struct dtp_text_encoder *t)
{
	struct dtp_tree *tree = &t->tree;

	tree->unused = unused;
	dtp_tree_embedding(tree, &t->embed, t->config.vocab, t->config.hidden, "embed_tokens");
	dtp_tree_list(tree, "layers");
	for (int i = 0; i < t->config.layers; i++)
		declare_layer(t, i);
	int norm = dtp_tree_norm(tree, &t->final_norm, t->config.hidden, false, "norm");
	tree->modules[norm].needed = is_normed(t);
}

/* ---- config.json */

static enum dtp_code find_family(const struct dtp_json *doc, struct dtp_text_encoder *t, struct dtp_err *err)
{
	const cJSON *arch = cJSON_GetObjectItemCaseSensitive(doc->root, "architectures");
	const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(arch, 0));

	for (int i = 0; name && i < NFAMILIES; i++)
		if (!strcmp(families[i].class_name, name)) {
			t->family = &families[i];
			return DTP_OK;
		}
	char known[256] = "";
	for (int i = 0; i < NFAMILIES; i++)
		snprintf(known + strlen(known), sizeof known - strlen(known), "%s'%s'", i ? ", " : "", families[i].class_name);
	return dtp_fail(err, DTP_REFUSED, "%s: 'architectures' is '%s', supported is %s", doc->path, name ? name : "missing", known);
}

/* Options that would change the result. */
static enum dtp_code refuse_options(const struct dtp_json *doc, const cJSON *obj, struct dtp_err *err)
{
	bool bias = false;
	const char *act = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(obj, "hidden_act"));
	const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(obj, "rope_scaling");
	const cJSON *params = cJSON_GetObjectItemCaseSensitive(obj, "rope_parameters");
	const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(params ? params : scaling, "rope_type"));

	if (dtp_json_bool_or(doc, obj, "attention_bias", &bias, err))
		return err->code;
	if (bias)
		return dtp_fail(err, DTP_REFUSED, "%s: 'attention_bias' is true, supported is false", doc->path);
	if (act && strcmp(act, "silu"))
		return dtp_fail(err, DTP_REFUSED, "%s: 'hidden_act' is '%s', supported is 'silu'", doc->path, act);
	if (type ? strcmp(type, "default") != 0 : cJSON_IsObject(scaling))
		return dtp_fail(err, DTP_REFUSED, "%s: rotary scaling '%s' is not supported, only 'default'", doc->path,
				type ? type : "rope_scaling");
	return DTP_OK;
}

/* A window matters to prompts that are longer; the key is also there, without effect, where it is switched off. */
static enum dtp_code read_window(const struct dtp_json *doc, const cJSON *obj, struct dtp_text_encoder *t, struct dtp_err *err)
{
	bool slides = t->family->always_slides;

	if (dtp_json_bool_or(doc, obj, "use_sliding_window", &slides, err))
		return err->code;
	return slides ? dtp_json_int_or(doc, obj, "sliding_window", 1, INT32_MAX, &t->config.window, err) : DTP_OK;
}

static enum dtp_code read_config(const struct dtp_json *doc, struct dtp_text_encoder *t, struct dtp_err *err)
{
	struct dtp_text_config *cfg = &t->config;
	const cJSON *obj = doc->root;

	if (find_family(doc, t, err))
		return err->code;
	if (t->family->config_object && !cJSON_IsObject(obj = cJSON_GetObjectItemCaseSensitive(obj, t->family->config_object)))
		return dtp_fail(err, DTP_REFUSED, "%s: '%s' is missing", doc->path, t->family->config_object);
	if (refuse_options(doc, obj, err))
		return err->code;
	cfg->rope_theta = t->family->rope_theta;
	cfg->eps = t->family->rms_norm_eps;
	if (dtp_json_int(doc, obj, "vocab_size", 1, 1 << 24, &cfg->vocab, err) ||
	    dtp_json_int(doc, obj, "hidden_size", 1, 1 << 20, &cfg->hidden, err) ||
	    dtp_json_int(doc, obj, "intermediate_size", 1, 1 << 20, &cfg->mlp, err) ||
	    dtp_json_int(doc, obj, "num_hidden_layers", 1, DTP_MAX_LAYERS, &cfg->layers, err) ||
	    dtp_json_int(doc, obj, "num_attention_heads", 1, 4096, &cfg->heads, err))
		return err->code;
	cfg->kv_heads = cfg->heads;
	cfg->head_dim = cfg->hidden / cfg->heads;
	if (dtp_json_int_or(doc, obj, "num_key_value_heads", 1, 4096, &cfg->kv_heads, err) ||
	    dtp_json_int_or(doc, obj, "head_dim", 2, 4096, &cfg->head_dim, err) ||
	    dtp_json_double_or(doc, obj, "rms_norm_eps", 0, 1, &cfg->eps, err) ||
	    dtp_json_double_or(doc, obj, "rope_theta", 1, 1e12, &cfg->rope_theta, err) || read_window(doc, obj, t, err))
		return err->code;
	const cJSON *params = cJSON_GetObjectItemCaseSensitive(obj, "rope_parameters"); /* transformers 5 */
	if (cJSON_IsObject(params) && dtp_json_double_or(doc, params, "rope_theta", 1, 1e12, &cfg->rope_theta, err))
		return err->code;
	if (cfg->heads % cfg->kv_heads || cfg->head_dim % 2)
		return dtp_fail(err, DTP_REFUSED, "%s: %lld heads of %lld with %lld key-value heads: no such model", doc->path,
				(long long)cfg->heads, (long long)cfg->head_dim, (long long)cfg->kv_heads);
	if (cfg->layers < last_wanted(t))
		return dtp_fail(err, DTP_REFUSED, "%s: 'num_hidden_layers' is %lld, hidden state %d is needed", doc->path,
				(long long)cfg->layers, last_wanted(t));
	return DTP_OK;
}

enum dtp_code dtp_text_open(const char *dir, struct dtp_text_encoder *t, struct dtp_err *err)
{
	struct dtp_json doc;

	memset(t, 0, sizeof *t);
	if (dtp_json_load_config(dir, &doc, err))
		return err->code;
	enum dtp_code rc = read_config(&doc, t, err);
	dtp_json_free(&doc);
	if (rc)
		return rc;
	t->layers = calloc((size_t)t->config.layers, sizeof *t->layers);
	if (!t->layers)
		return dtp_fail(err, DTP_FAILED, "out of memory for %lld layers", (long long)t->config.layers);
	dtp_tree_init(&t->tree, "text_encoder");
	t->tree.heads = t->config.heads;
	declare(t);
	return DTP_OK;
}

void dtp_text_close(struct dtp_text_encoder *t)
{
	dtp_tree_free(&t->tree);
	free(t->layers);
	memset(t, 0, sizeof *t);
}

int64_t dtp_text_width(const struct dtp_text_encoder *t)
{
	return DTP_HIDDEN_STATES * t->config.hidden;
}

const char *dtp_text_prefix(const struct dtp_text_encoder *t, const struct dtp_st *st)
{
	const char *const *prefix = t->family->prefix;
	struct dtp_param p;

	dtp_module_param(&t->tree.modules[0], 0, &p); /* the embedding, which is there whatever else is */
	for (int i = 0; i < DTP_TEXT_PREFIXES && prefix[i]; i++)
		if (dtp_weights_entry(st, prefix[i], &p))
			return prefix[i];
	return prefix[0];
}
