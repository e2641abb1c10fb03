/* SPDX-License-Identifier: Apache-2.0 */
#include "vae.h"
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NORM_EPS 1e-6f /* of every group norm of the reference's VAE; no configuration holds it */

/* ---- blocks */

/* x [h, w, C] as tokens [h*w, C]. */
static struct dtp_tensor pixels(struct dtp_tensor x)
{
	return dtp_tensor_make(x.data, x.dtype, 2, (int64_t[]){x.shape[0] * x.shape[1], x.shape[2]});
}

/* Room for two pictures at a time: the one at hand, and the one that is made of it.  Everything else is strips. */
struct maps {
	void *at[2];
	int now; /* which holds the one at hand; it may be elsewhere at first */
};

static struct dtp_tensor other(const struct dtp_ctx *c, const struct maps *m, int64_t h, int64_t w, int64_t channels)
{
	return dtp_tensor_make(m->at[!m->now], c->be->compute, 3, (int64_t[]){h, w, channels});
}

static int64_t most(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* For a half that begins with a picture of h x w and has these channels, level after level, in twice or half the size. */
static struct maps new_maps(struct dtp_ctx *c, const int64_t *channels, int levels, bool up, int64_t h, int64_t w)
{
	int64_t need[2] = {0, 0}, in = channels[0];
	struct maps m = {.now = 0};

	for (int l = 0, now = 0; l < levels; l++) {
		int64_t out = channels[l];
		need[now] = most(need[now], h * w * most(in, out));
		need[!now] = most(need[!now], h * w * out);
		if (l + 1 == levels)
			break;
		h = up ? 2 * h : h / 2;
		w = up ? 2 * w : w / 2;
		need[!now] = most(need[!now], h * w * out);
		now = !now;
		in = out;
	}
	for (int i = 0; i < 2; i++)
		m.at[i] = dtp_new(c, c->be->compute, 1, &need[i]).data;
	return m;
}

/* x + conv2(silu(norm2(conv1(silu(norm1(x)))))), in x's place; m has room for what stands between the two. */
static struct dtp_tensor resnet(struct dtp_ctx *c, const struct dtp_vae *v, const struct dtp_vae_resnet *r, struct dtp_tensor x,
				const struct maps *m)
{
	int groups = (int)v->config.groups;
	struct dtp_tensor h = other(c, m, x.shape[0], x.shape[1], r->conv1.module->shape[0]);

	dtp_norm_conv(c, h, false, &r->norm1, groups, NORM_EPS, &r->conv1, x);
	if (r->has_shortcut)
		x = dtp_conv_over(c, &r->shortcut, x);
	dtp_norm_conv(c, x, true, &r->norm2, groups, NORM_EPS, &r->conv2, h);
	return x;
}

static void attention(struct dtp_ctx *c, const struct dtp_vae *v, const struct dtp_vae_attention *a, struct dtp_tensor x)
{
	int64_t C = x.shape[2], S = x.shape[0] * x.shape[1];
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor n = pixels(dtp_group_norm(c, &a->norm, x, (int)v->config.groups, NORM_EPS));
	struct dtp_tensor q = dtp_linear(c, &a->q, n), k = dtp_linear(c, &a->k, n), u = dtp_linear(c, &a->v, n);
	struct dtp_tensor o = dtp_new2(c, S, C);
	struct dtp_attention one_head = {.scale = 1.0f / sqrtf((float)C), .key_end = S, .group = 1};

	dtp_attend(c, dtp_split_last(o, 1, C), dtp_split_last(q, 1, C), dtp_split_last(k, 1, C), dtp_split_last(u, 1, C),
		   &one_head);
	dtp_residual(c, pixels(x), (struct dtp_tensor){0}, dtp_linear_sum(c, &a->out, o));
	dtp_arena_release(&c->scratch, mark);
}

static void mid_block(struct dtp_ctx *c, const struct dtp_vae *v, const struct dtp_vae_half *d, struct dtp_tensor x, const struct maps *m)
{
	resnet(c, v, &d->mid[0], x, m);
	if (v->config.mid_attention)
		attention(c, v, &d->attention, x);
	resnet(c, v, &d->mid[1], x, m);
}

/* ---- encoder */

static struct dtp_tensor down_block(struct dtp_ctx *c, const struct dtp_vae *v, int level, struct dtp_tensor x, struct maps *m)
{
	const struct dtp_vae_half *e = &v->encoder;

	for (int i = 0; i < v->config.layers_per_block; i++)
		x = resnet(c, v, &e->resnet[level][i], x, m);
	if (level + 1 == v->config.levels)
		return x;
	struct dtp_tensor out = other(c, m, x.shape[0] / 2, x.shape[1] / 2, x.shape[2]);
	dtp_conv_into(c, out, &e->sampler[level], x, 2, 0, 1);
	m->now = !m->now;
	return out;
}

struct dtp_tensor dtp_vae_encode(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor picture, int image)
{
	const struct dtp_vae_config *cfg = &v->config;
	const struct dtp_vae_half *e = &v->encoder;
	int64_t scale = dtp_vae_scale(v);

	c->tree = &v->tree;
	struct dtp_tensor latents = dtp_new3(c, picture.shape[0] / scale, picture.shape[1] / scale, cfg->latent_channels);
	uint64_t mark = dtp_arena_mark(&c->scratch);
	dtp_stage_picture(c, picture, "image.%d.preprocessed", image);
	struct maps m = new_maps(c, cfg->encoder_channels, cfg->levels, false, picture.shape[0], picture.shape[1]);
	struct dtp_tensor x = dtp_tensor_make(m.at[0], c->be->compute, 3, (int64_t[]){picture.shape[0], picture.shape[1], cfg->encoder_channels[0]});
	dtp_conv_into(c, x, &e->conv_in, picture, 1, 1, 1);
	for (int i = 0; i < cfg->levels; i++) {
		x = down_block(c, v, i, x, &m);
		if (image == 0)
			dtp_stage_picture(c, x, "image.0.encoder.down.%d", i);
	}
	mid_block(c, v, e, x, &m);
	if (image == 0)
		dtp_stage_picture(c, x, "image.0.encoder.mid");
	struct dtp_tensor moments = dtp_new3(c, x.shape[0], x.shape[1], 2 * cfg->latent_channels);
	dtp_norm_conv(c, moments, false, &e->conv_norm_out, (int)cfg->groups, NORM_EPS, &e->conv_out, x);
	if (cfg->quant_conv)
		moments = dtp_conv(c, &v->quant, moments, 1, 0, 0);
	dtp_stage_picture(c, moments, "image.%d.moments", image);
	dtp_copy(c, latents, dtp_narrow(moments, 2, 0, cfg->latent_channels)); /* what follows is the logarithm of the variance */
	dtp_arena_release(&c->scratch, mark);
	return latents;
}

struct dtp_tensor dtp_vae_pack(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor latents)
{
	return dtp_patchify(c, &v->bn, latents, (float)v->config.bn_eps);
}

/* ---- decoder */

static struct dtp_tensor up_block(struct dtp_ctx *c, const struct dtp_vae *v, int level, struct dtp_tensor x, struct maps *m)
{
	const struct dtp_vae_half *d = &v->decoder;

	for (int i = 0; i <= v->config.layers_per_block; i++)
		x = resnet(c, v, &d->resnet[level][i], x, m);
	if (level + 1 == v->config.levels)
		return x;
	struct dtp_tensor out = other(c, m, 2 * x.shape[0], 2 * x.shape[1], x.shape[2]);
	dtp_upsample_conv(c, out, &d->sampler[level], x);
	m->now = !m->now;
	return out;
}

/* The part that works in the latents' size, before there is room for larger pictures. */
static void decode_small(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor x, struct dtp_tensor latents)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct maps m = new_maps(c, &x.shape[2], 1, true, x.shape[0], x.shape[1]);

	if (v->config.post_quant_conv) {
		latents = dtp_conv(c, &v->post_quant, latents, 1, 0, 0);
		dtp_stage_picture(c, latents, "vae.post_quant_conv");
	}
	dtp_conv_into(c, x, &v->decoder.conv_in, latents, 1, 1, 1);
	dtp_stage_picture(c, x, "vae.conv_in");
	mid_block(c, v, &v->decoder, x, &m);
	dtp_stage_picture(c, x, "vae.mid");
	dtp_arena_release(&c->scratch, mark);
}

struct dtp_tensor dtp_vae_unpack(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor tokens, int64_t h, int64_t w)
{
	return dtp_unpatchify(c, &v->bn, tokens, h, w, (float)v->config.bn_eps);
}

struct dtp_tensor dtp_vae_decode(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor latents)
{
	const struct dtp_vae_config *cfg = &v->config;
	const struct dtp_vae_half *d = &v->decoder;
	int64_t scale = dtp_vae_scale(v);

	c->tree = &v->tree;
	struct dtp_tensor picture = dtp_new3(c, scale * latents.shape[0], scale * latents.shape[1], cfg->out_channels);
	uint64_t mark = dtp_arena_mark(&c->scratch);
	int64_t channels[DTP_VAE_MAX_LEVELS]; /* the deepest first */
	for (int i = 0; i < cfg->levels; i++)
		channels[i] = cfg->decoder_channels[cfg->levels - 1 - i];
	struct dtp_tensor x = dtp_new3(c, latents.shape[0], latents.shape[1], channels[0]);
	decode_small(c, v, x, latents);
	struct maps m = new_maps(c, channels, cfg->levels, true, latents.shape[0], latents.shape[1]);
	for (int i = 0; i < cfg->levels; i++) {
		x = up_block(c, v, i, x, &m);
		dtp_stage_picture(c, x, "vae.up.%d", i);
	}
	if (c->dump) { /* the reference records the norm before its activation */
		uint64_t extra = dtp_arena_mark(&c->scratch);
		dtp_stage_picture(c, dtp_group_norm(c, &d->conv_norm_out, x, (int)cfg->groups, NORM_EPS), "vae.conv_norm_out");
		dtp_arena_release(&c->scratch, extra);
	}
	dtp_norm_conv(c, picture, false, &d->conv_norm_out, (int)cfg->groups, NORM_EPS, &d->conv_out, x);
	dtp_stage_picture(c, picture, "vae.image");
	dtp_arena_release(&c->scratch, mark);
	return picture;
}

/* ---- declaration */

static void declare_resnet(struct dtp_tree *t, struct dtp_vae_resnet *r, int64_t in, int64_t out, const char *name)
{
	dtp_tree_norm(t, &r->norm1, in, true, "%s.norm1", name);
	dtp_tree_conv(t, &r->conv1, out, in, 3, true, "%s.conv1", name);
	dtp_tree_norm(t, &r->norm2, out, true, "%s.norm2", name);
	dtp_tree_conv(t, &r->conv2, out, out, 3, true, "%s.conv2", name);
	r->has_shortcut = in != out;
	if (r->has_shortcut)
		dtp_tree_conv(t, &r->shortcut, out, in, 1, true, "%s.conv_shortcut", name);
}

static void declare_mid(struct dtp_vae *v, struct dtp_vae_half *d, int64_t C, const char *half)
{
	struct dtp_tree *t = &v->tree;
	char name[128];

	for (int i = 0; i < 2; i++) {
		snprintf(name, sizeof name, "%s.mid_block.resnets.%d", half, i);
		declare_resnet(t, &d->mid[i], C, C, name);
	}
	if (!v->config.mid_attention)
		return;
	dtp_tree_norm(t, &d->attention.norm, C, true, "%s.mid_block.attentions.0.group_norm", half);
	dtp_tree_linear(t, &d->attention.q, C, C, true, "%s.mid_block.attentions.0.to_q", half);
	dtp_tree_linear(t, &d->attention.k, C, C, true, "%s.mid_block.attentions.0.to_k", half);
	dtp_tree_linear(t, &d->attention.v, C, C, true, "%s.mid_block.attentions.0.to_v", half);
	dtp_tree_linear(t, &d->attention.out, C, C, true, "%s.mid_block.attentions.0.to_out.0", half);
}

static void declare_encoder(struct dtp_vae *v)
{
	const struct dtp_vae_config *cfg = &v->config;
	struct dtp_vae_half *e = &v->encoder;
	struct dtp_tree *t = &v->tree;
	int64_t in = cfg->encoder_channels[0], last = cfg->encoder_channels[cfg->levels - 1];
	char name[128];

	dtp_tree_conv(t, &e->conv_in, in, cfg->in_channels, 3, true, "encoder.conv_in");
	for (int l = 0; l < cfg->levels; l++) {
		int64_t out = cfg->encoder_channels[l];
		for (int i = 0; i < cfg->layers_per_block; i++) {
			snprintf(name, sizeof name, "encoder.down_blocks.%d.resnets.%d", l, i);
			declare_resnet(t, &e->resnet[l][i], i ? out : in, out, name);
		}
		if (l + 1 < cfg->levels)
			dtp_tree_conv(t, &e->sampler[l], out, out, 3, true, "encoder.down_blocks.%d.downsamplers.0.conv", l);
		in = out;
	}
	declare_mid(v, e, last, "encoder");
	dtp_tree_norm(t, &e->conv_norm_out, last, true, "encoder.conv_norm_out");
	dtp_tree_conv(t, &e->conv_out, 2 * cfg->latent_channels, last, 3, true, "encoder.conv_out");
	if (cfg->quant_conv)
		dtp_tree_conv(t, &v->quant, 2 * cfg->latent_channels, 2 * cfg->latent_channels, 1, true, "quant_conv");
}

static void declare_decoder(struct dtp_vae *v)
{
	const struct dtp_vae_config *cfg = &v->config;
	struct dtp_vae_half *d = &v->decoder;
	struct dtp_tree *t = &v->tree;
	int64_t in = cfg->decoder_channels[cfg->levels - 1]; /* up_blocks.0 is the deepest */
	char name[128];

	if (cfg->post_quant_conv)
		dtp_tree_conv(t, &v->post_quant, cfg->latent_channels, cfg->latent_channels, 1, true, "post_quant_conv");
	dtp_tree_conv(t, &d->conv_in, in, cfg->latent_channels, 3, true, "decoder.conv_in");
	declare_mid(v, d, in, "decoder");
	for (int l = 0; l < cfg->levels; l++) {
		int64_t out = cfg->decoder_channels[cfg->levels - 1 - l];
		for (int i = 0; i <= cfg->layers_per_block; i++) {
			snprintf(name, sizeof name, "decoder.up_blocks.%d.resnets.%d", l, i);
			declare_resnet(t, &d->resnet[l][i], i ? out : in, out, name);
		}
		if (l + 1 < cfg->levels)
			dtp_tree_conv(t, &d->sampler[l], out, out, 3, true, "decoder.up_blocks.%d.upsamplers.0.conv", l);
		in = out;
	}
	dtp_tree_norm(t, &d->conv_norm_out, in, true, "decoder.conv_norm_out");
	dtp_tree_conv(t, &d->conv_out, cfg->out_channels, in, 3, true, "decoder.conv_out");
}

/* ---- config.json */

static enum dtp_code read_channels(const struct dtp_json *doc, struct dtp_vae_config *cfg, struct dtp_err *err)
{
	int n;

	if (dtp_json_ints(doc, NULL, "block_out_channels", 1, 1 << 16, cfg->encoder_channels, DTP_VAE_MAX_LEVELS, &cfg->levels, err))
		return err->code;
	memcpy(cfg->decoder_channels, cfg->encoder_channels, sizeof cfg->decoder_channels);
	const cJSON *own = cJSON_GetObjectItemCaseSensitive(doc->root, "decoder_block_out_channels");
	if (own && !cJSON_IsNull(own)) {
		if (dtp_json_ints(doc, NULL, "decoder_block_out_channels", 1, 1 << 16, cfg->decoder_channels, DTP_VAE_MAX_LEVELS, &n, err))
			return err->code;
		if (n != cfg->levels)
			return dtp_fail(err, DTP_REFUSED, "%s: 'decoder_block_out_channels' has %d levels, 'block_out_channels' %d",
					doc->path, n, cfg->levels);
	}
	for (int i = 0; i < cfg->levels; i++)
		if (cfg->encoder_channels[i] % cfg->groups || cfg->decoder_channels[i] % cfg->groups)
			return dtp_fail(err, DTP_REFUSED, "%s: 'norm_num_groups' %lld does not divide the channels of level %d",
					doc->path, (long long)cfg->groups, i);
	return DTP_OK;
}

/* What the code computes whatever these keys say: a string, or one for each level.  Silence means the same, of so many levels. */
#define SILENT_LEVELS 4
static const struct fixed {
	const char *key, *value;
	bool per_level;
} fixed[] = {
	{"act_fn", "silu", false}, {"down_block_types", "DownEncoderBlock2D", true}, {"up_block_types", "UpDecoderBlock2D", true},
};

static enum dtp_code refuse_value(const struct dtp_json *doc, const struct fixed *f, const cJSON *v, struct dtp_err *err)
{
	const char *is = cJSON_GetStringValue(v);

	return dtp_fail(err, DTP_REFUSED, "%s: '%s' %s '%.64s', supported is '%s'", doc->path, f->key, f->per_level ? "holds" : "is",
			is ? is : "no string", f->value);
}

static enum dtp_code check_fixed(const struct dtp_json *doc, const struct fixed *f, int levels, struct dtp_err *err)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(doc->root, f->key), *c;
	bool silent = !v || cJSON_IsNull(v);
	int n = silent ? SILENT_LEVELS : cJSON_GetArraySize(v);

	if (!f->per_level)
		return silent || (cJSON_IsString(v) && !strcmp(v->valuestring, f->value)) ? DTP_OK : refuse_value(doc, f, v, err);
	cJSON_ArrayForEach(c, v)
		if (!cJSON_IsString(c) || strcmp(c->valuestring, f->value))
			return refuse_value(doc, f, c, err);
	if (n != levels)
		return dtp_fail(err, DTP_REFUSED, "%s: 'block_out_channels' has %d levels, '%s' %d", doc->path, levels, f->key, n);
	return DTP_OK;
}

static enum dtp_code read_config(const struct dtp_json *doc, struct dtp_vae_config *cfg, struct dtp_err *err)
{
	const char *class_name;
	int64_t patch[2] = {2, 2};
	int npatch = 2;

	/* What the class takes where its config.json says nothing. */
	*cfg = (struct dtp_vae_config){.latent_channels = 32, .in_channels = 3, .out_channels = 3, .layers_per_block = 2, .groups = 32,
				       .mid_attention = true, .quant_conv = true, .post_quant_conv = true, .bn_eps = 1e-4};
	if (dtp_json_string(doc, NULL, "_class_name", &class_name, err))
		return err->code;
	if (strcmp(class_name, DTP_VAE_CLASS))
		return dtp_fail(err, DTP_REFUSED, "%s: '_class_name' is '%s', supported is '" DTP_VAE_CLASS "'", doc->path, class_name);
	if (cJSON_GetObjectItemCaseSensitive(doc->root, "patch_size") &&
	    dtp_json_ints(doc, NULL, "patch_size", 2, 2, patch, 2, &npatch, err))
		return err->code;
	if (dtp_json_int_or(doc, NULL, "latent_channels", 1, 4096, &cfg->latent_channels, err) ||
	    dtp_json_int_or(doc, NULL, "in_channels", 3, 3, &cfg->in_channels, err) ||
	    dtp_json_int_or(doc, NULL, "out_channels", 3, 3, &cfg->out_channels, err) ||
	    dtp_json_int_or(doc, NULL, "layers_per_block", 1, DTP_VAE_MAX_RESNETS - 1, &cfg->layers_per_block, err) ||
	    dtp_json_int_or(doc, NULL, "norm_num_groups", 1, 1 << 16, &cfg->groups, err) ||
	    dtp_json_double_or(doc, NULL, "batch_norm_eps", 0, 1, &cfg->bn_eps, err) ||
	    dtp_json_bool_or(doc, NULL, "mid_block_add_attention", &cfg->mid_attention, err) ||
	    dtp_json_bool_or(doc, NULL, "use_quant_conv", &cfg->quant_conv, err) ||
	    dtp_json_bool_or(doc, NULL, "use_post_quant_conv", &cfg->post_quant_conv, err))
		return err->code;
	enum dtp_code rc = read_channels(doc, cfg, err);
	for (size_t i = 0; !rc && i < sizeof fixed / sizeof *fixed; i++)
		rc = check_fixed(doc, &fixed[i], cfg->levels, err);
	return rc;
}

enum dtp_code dtp_vae_open(const char *dir, bool encode, struct dtp_vae *v, struct dtp_err *err)
{
	struct dtp_json doc;

	memset(v, 0, sizeof *v);
	if (dtp_json_load_config(dir, &doc, err))
		return err->code;
	enum dtp_code rc = read_config(&doc, &v->config, err);
	dtp_json_free(&doc);
	if (rc)
		return rc;
	dtp_tree_init(&v->tree, "vae");
	declare_encoder(v);
	for (int i = 0; i < v->tree.n; i++)
		v->tree.modules[i].needed = encode;
	v->first_decoder_module = v->tree.n;
	declare_decoder(v);
	int bn = dtp_tree_norm(&v->tree, &v->bn, 4 * v->config.latent_channels, true, "bn");
	v->tree.modules[bn].param[0] = "running_mean";
	v->tree.modules[bn].param[1] = "running_var";
	return DTP_OK;
}

void dtp_vae_close(struct dtp_vae *v)
{
	dtp_tree_free(&v->tree);
	memset(v, 0, sizeof *v);
}

void dtp_vae_need(struct dtp_vae *v, bool encoder, bool decoder)
{
	for (int i = 0; i < v->tree.n; i++)
		if (v->tree.modules[i].layer != &v->bn)
			v->tree.modules[i].needed = i < v->first_decoder_module ? encoder : decoder;
}

int64_t dtp_vae_scale(const struct dtp_vae *v)
{
	return INT64_C(1) << (v->config.levels - 1);
}
