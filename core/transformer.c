/* SPDX-License-Identifier: Apache-2.0 */
#include "transformer.h"

#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dtp_tensor rows(struct dtp_tensor x, int64_t begin, int64_t n)
{
	return dtp_narrow(x, 0, begin, n);
}

static struct dtp_tensor cols(struct dtp_tensor x, int64_t begin, int64_t n)
{
	return dtp_narrow(x, 1, begin, n);
}

/* Shift, scale and gate of one branch: three consecutive chunks of a modulation vector [1, n*width]. */
struct modulation {
	struct dtp_tensor shift, scale, gate; /* [width] */
};

static struct dtp_tensor chunk(struct dtp_tensor m, int i, int64_t width)
{
	return dtp_tensor_make(cols(m, i * width, width).data, m.dtype, 1, &width);
}

static struct modulation branch(struct dtp_tensor m, int i, int64_t width)
{
	return (struct modulation){chunk(m, 3 * i, width), chunk(m, 3 * i + 1, width), chunk(m, 3 * i + 2, width)};
}

/* ---- positions */

void dtp_image_ids(int64_t h, int64_t w, int64_t t, int64_t (*ids)[DTP_MAX_AXES])
{
	for (int64_t i = 0; i < h * w; i++)
		memcpy(ids[i], (int64_t[DTP_MAX_AXES]){t, i / w, i % w, 0}, sizeof ids[i]);
}

/* One row of the rotary table: the axes' frequencies one after the other; angles in f64 as the reference has them. */
static void rope_row(const struct dtp_transformer_config *cfg, const int64_t *id, float *cosines, float *sines)
{
	for (int a = 0; a < cfg->naxes; a++)
		for (int64_t j = 0; j < cfg->axes[a] / 2; j++) {
			double angle = (double)id[a] / pow(cfg->rope_theta, 2.0 * (double)j / (double)cfg->axes[a]);
			*cosines++ = (float)cos(angle);
			*sines++ = (float)sin(angle);
		}
}

static struct dtp_rope_table part(struct dtp_rope_table r, int64_t begin, int64_t n)
{
	return (struct dtp_rope_table){r.kind, rows(r.cos, begin, n), rows(r.sin, begin, n)};
}

/* The reference's table has each frequency twice in a row. */
static void stage_rope(struct dtp_ctx *c, struct dtp_tensor half, const char *name)
{
	if (!c->dump)
		return;
	uint64_t mark = dtp_arena_mark(&c->scratch);
	int64_t n = half.shape[0], d = half.shape[1];
	struct dtp_tensor whole = dtp_new(c, DTP_F32, 3, (int64_t[]){n, d, 2});
	for (int i = 0; i < 2; i++) {
		struct dtp_tensor every_other = {whole.data, DTP_F32, 3, {n, d, 1}, {2 * d, 2, 1}};
		every_other.data = (float *)every_other.data + i;
		dtp_copy(c, every_other, dtp_split_last(half, d, 1));
	}
	dtp_stage_plain(c, dtp_join_last(whole), "%s", name);
	dtp_arena_release(&c->scratch, mark);
}

static void fill_rope(const struct dtp_transformer_config *cfg, int64_t text, const int64_t (*image_ids)[DTP_MAX_AXES], int64_t n,
		      float *cosines, float *sines)
{
	int64_t half = cfg->head_dim / 2;
	for (int64_t i = 0; i < text + n; i++) {
		const int64_t text_id[DTP_MAX_AXES] = {0, 0, 0, i};
		rope_row(cfg, i < text ? text_id : image_ids[i - text], cosines + i * half, sines + i * half);
	}
}

void dtp_transformer_condition(struct dtp_ctx *c, const struct dtp_transformer *t, struct dtp_tensor prompts,
			       const int64_t (*image_ids)[DTP_MAX_AXES], int64_t n, struct dtp_conditioning *out)
{
	int64_t text = prompts.shape[1], shape[] = {text + n, t->config.head_dim / 2};
	struct dtp_rope_table all = {.kind = DTP_ROPE_INTERLEAVED};
	float *host = calloc((size_t)(2 * shape[0] * shape[1]) + 1, sizeof *host), *sines = host + shape[0] * shape[1];

	c->tree = &t->tree;
	if (!host) {
		dtp_fail(&c->err, DTP_FAILED, "out of memory for the rotary table of %lld positions", (long long)shape[0]);
		return;
	}
	if (!c->be->dry)
		fill_rope(&t->config, text, image_ids, n, host, sines);
	all.cos = dtp_from_host(c, DTP_F32, 2, shape, host);
	all.sin = dtp_from_host(c, DTP_F32, 2, shape, sines);
	free(host);
	out->rope_all = all;
	out->rope_text = part(all, 0, text);
	out->rope_image = part(all, text, n);
	stage_rope(c, out->rope_text.cos, "step0.rope.txt.cos");
	stage_rope(c, out->rope_text.sin, "step0.rope.txt.sin");
	stage_rope(c, out->rope_image.cos, "step0.rope.img.cos");
	stage_rope(c, out->rope_image.sin, "step0.rope.img.sin");
	bool dense;
	out->passes = prompts.shape[0];
	out->text = dtp_linear(c, &t->context_embedder, dtp_as_rows(prompts, &dense));
	dtp_stage(c, rows(out->text, 0, text), DTP_WHOLE, NULL, "step0.context_embedder");
}

/* ---- time and guidance */

/* exp as the library under the reference computes it in f32: 2^(k/128) times the exponential series up to r^2, in f64.  A better
 * exp differs from it in the last bit of one or two frequencies, which a time of 1000 turns into an error of 3e-5. */
static float reference_exp(float x)
{
	double k = rint((double)x * 128 / M_LN2), r = (double)x - k * M_LN2 / 128;
	return (float)(exp2(k / 128) * (1 + r + r * r / 2));
}

/* [cos(t f), sin(t f)], f_i = 10000^(-i/half): diffusers' Timesteps(flip_sin_to_cos=True, downscale_freq_shift=0). */
static void fill_sinusoid(float t, int64_t channels, float *out)
{
	int64_t half = channels / 2;
	for (int64_t i = 0; i < half; i++) {
		float angle = t * reference_exp(-9.210340371976184f * (float)i / (float)half);
		out[i] = cosf(angle);
		out[half + i] = sinf(angle);
	}
}

int64_t dtp_transformer_sinusoids(const struct dtp_transformer *t)
{
	return t->config.guidance_embeds ? DTP_MAX_SINUSOIDS : 1;
}

void dtp_transformer_fill_sinusoids(const struct dtp_transformer *t, float time, float guidance, float *out)
{
	fill_sinusoid(time, t->config.time_channels, out);
	if (t->config.guidance_embeds)
		fill_sinusoid(guidance, t->config.time_channels, out + t->config.time_channels);
}

static struct dtp_tensor embed_scalar(struct dtp_ctx *c, struct dtp_tensor sinusoid, const struct dtp_layer *l1,
				      const struct dtp_layer *l2, const char *proj_name, const char *embed_name)
{
	struct dtp_tensor proj = dtp_new2(c, 1, sinusoid.shape[1]);
	dtp_copy(c, proj, sinusoid);
	struct dtp_tensor e = dtp_linear(c, l2, dtp_silu(c, dtp_linear(c, l1, proj)));
	dtp_stage_plain(c, proj, "step0.%s", proj_name);
	dtp_stage_plain(c, e, "step0.%s", embed_name);
	return e;
}

static struct dtp_tensor embed_time(struct dtp_ctx *c, const struct dtp_transformer *t, struct dtp_tensor sinusoids)
{
	struct dtp_tensor temb = embed_scalar(c, rows(sinusoids, 0, 1), &t->time_1, &t->time_2, "time_proj", "timestep_embed");
	if (t->config.guidance_embeds)
		temb = dtp_add(c, temb, embed_scalar(c, rows(sinusoids, 1, 1), &t->guidance_1, &t->guidance_2, "guidance_proj",
						     "guidance_embed"));
	dtp_stage_plain(c, temb, "step0.temb");
	return temb;
}

/* ---- blocks */

static struct dtp_attention joint_attention(const struct dtp_transformer_config *cfg, int64_t keys)
{
	return (struct dtp_attention){.scale = 1.0f / sqrtf((float)cfg->head_dim), .key_end = keys, .group = 1};
}

/* The RMS norms alone: the reference records them before the rotation, which the operation does in the same pass. */
static void norm_only(struct dtp_ctx *c, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_layer *norm_q,
		      const struct dtp_layer *norm_k, double eps)
{
	const struct dtp_rope_table still = {.cos = {.shape = {q.shape[0], q.shape[2] / 2}}};
	dtp_qk_norm_rope(c, q, k, norm_q, norm_k, (float)eps, &still);
}

/* x += gate * W_out(silu(g) * u), [g | u] = W_in(norm(x)).  detail: rows that are recorded. */
static void feed_forward(struct dtp_ctx *c, struct dtp_tensor x, const struct dtp_layer *in, const struct dtp_layer *out,
			 struct modulation m, float eps, int64_t detail)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor h = dtp_linear(c, in, dtp_modulated_norm(c, x, m.shift, m.scale, eps));
	struct dtp_tensor act = dtp_new2(c, x.shape[0], h.shape[1] / 2);
	dtp_swiglu(c, act, cols(h, 0, act.shape[1]), cols(h, act.shape[1], act.shape[1]));
	struct dtp_tensor y = dtp_linear_sum(c, out, act);
	if (detail) {
		dtp_stage(c, rows(h, 0, detail), DTP_OUT_OF, in, "step0.double.0.ff.linear_in");
		dtp_stage(c, rows(act, 0, detail), DTP_INTO, out, "step0.double.0.ff.act");
		dtp_stage(c, rows(y, 0, detail), DTP_WHOLE, NULL, "step0.double.0.ff.out");
	}
	dtp_residual(c, x, m.gate, y);
	dtp_arena_release(&c->scratch, mark);
}

/* The three projections of one stream; the names are the reference's, for recorded stages. */
struct projections {
	const struct dtp_layer *q, *k, *v, *norm_q, *norm_k;
	const char *name_q, *name_k, *name_v, *name_norm_q, *name_norm_k;
};

static struct dtp_tensor copied_heads(struct dtp_ctx *c, struct dtp_tensor x, int64_t dim)
{
	struct dtp_tensor copy = dtp_new2(c, x.shape[0], x.shape[1]);
	dtp_copy(c, copy, x);
	return dtp_as_heads(copy, dim);
}

static void stage_norms(struct dtp_ctx *c, struct dtp_tensor q, struct dtp_tensor k, int64_t dim, const struct projections *p, double eps)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor q_copy = copied_heads(c, q, dim), k_copy = copied_heads(c, k, dim);
	norm_only(c, q_copy, k_copy, p->norm_q, p->norm_k, eps);
	dtp_stage(c, q_copy, DTP_OUT_OF, p->q, "step0.double.0.attn.%s", p->name_norm_q);
	dtp_stage(c, k_copy, DTP_OUT_OF, p->k, "step0.double.0.attn.%s", p->name_norm_k);
	dtp_arena_release(&c->scratch, mark);
}

/* Writes one stream's rows of the joint q, k and v, normed and rotated. */
static void project(struct dtp_ctx *c, struct dtp_tensor x, const struct projections *p, struct dtp_tensor q,
		    struct dtp_tensor k, struct dtp_tensor v, const struct dtp_rope_table *rope, double eps, bool detail)
{
	int64_t dim = 2 * rope->cos.shape[1];

	dtp_linear_into(c, q, p->q, x);
	dtp_linear_into(c, k, p->k, x);
	dtp_linear_into(c, v, p->v, x);
	if (detail) {
		dtp_stage(c, q, DTP_OUT_OF, p->q, "step0.double.0.attn.%s", p->name_q);
		dtp_stage(c, k, DTP_OUT_OF, p->k, "step0.double.0.attn.%s", p->name_k);
		dtp_stage(c, v, DTP_OUT_OF, p->v, "step0.double.0.attn.%s", p->name_v);
		stage_norms(c, q, k, dim, p, eps);
	}
	dtp_qk_norm_rope(c, dtp_as_heads(q, dim), dtp_as_heads(k, dim), p->norm_q, p->norm_k, (float)eps, rope);
}

/* Text or image tokens x, what attention reads of them (normed and modulated), and how much of its result is added. */
struct stream {
	struct dtp_tensor x, in, gate;
};

static struct stream norm_stream(struct dtp_ctx *c, struct dtp_tensor x, struct modulation m, float eps)
{
	return (struct stream){x, dtp_modulated_norm(c, x, m.shift, m.scale, eps), m.gate};
}

static struct stream stream_rows(struct stream s, int64_t begin, int64_t n)
{
	return (struct stream){rows(s.x, begin, n), rows(s.in, begin, n), s.gate};
}

/* Of one pass. */
static void attend_jointly(struct dtp_ctx *c, const struct dtp_transformer *t, const struct dtp_double_block *b,
			   const struct dtp_conditioning *cond, struct stream img, struct stream txt, bool detail)
{
	const struct dtp_transformer_config *cfg = &t->config;
	int64_t L = txt.x.shape[0], N = img.x.shape[0], w = b->to_q.out;
	uint64_t mark = dtp_arena_mark(&c->scratch);

	/* Text first, then image: joint attention without a copy. */
	struct dtp_tensor q = dtp_new2(c, L + N, w), k = dtp_new2(c, L + N, w), v = dtp_new2(c, L + N, w);
	struct dtp_tensor o = dtp_new2(c, L + N, w);
	struct projections image = {&b->to_q, &b->to_k, &b->to_v, &b->norm_q, &b->norm_k, "to_q", "to_k", "to_v",
				    "norm_q", "norm_k"};
	struct projections text = {&b->add_q, &b->add_k, &b->add_v, &b->norm_added_q, &b->norm_added_k, "add_q_proj", "add_k_proj",
				   "add_v_proj", "norm_added_q", "norm_added_k"};
	project(c, img.in, &image, rows(q, L, N), rows(k, L, N), rows(v, L, N), &cond->rope_image, cfg->eps, detail);
	project(c, txt.in, &text, rows(q, 0, L), rows(k, 0, L), rows(v, 0, L), &cond->rope_text, cfg->eps, detail);
	struct dtp_attention a = joint_attention(cfg, L + N);
	dtp_attend(c, dtp_as_heads(o, cfg->head_dim), dtp_as_heads(q, cfg->head_dim), dtp_as_heads(k, cfg->head_dim),
		   dtp_as_heads(v, cfg->head_dim), &a);
	struct dtp_tensor y_img = dtp_linear_sum(c, &b->to_out, rows(o, L, N));
	struct dtp_tensor y_txt = dtp_linear_sum(c, &b->add_out, rows(o, 0, L));
	if (detail) {
		dtp_stage(c, rows(o, L, N), DTP_INTO, &b->to_out, "step0.double.0.attn.heads_img");
		dtp_stage(c, y_img, DTP_WHOLE, NULL, "step0.double.0.attn.to_out");
		dtp_stage(c, y_txt, DTP_WHOLE, NULL, "step0.double.0.attn.to_add_out");
	}
	dtp_residual(c, img.x, img.gate, y_img);
	dtp_residual(c, txt.x, txt.gate, y_txt);
	dtp_arena_release(&c->scratch, mark);
}

static void double_block(struct dtp_ctx *c, const struct dtp_transformer *t, const struct dtp_double_block *b,
			 const struct dtp_conditioning *cond, struct dtp_tensor img, struct dtp_tensor txt,
			 struct dtp_tensor mod_img, struct dtp_tensor mod_txt, bool detail)
{
	const struct dtp_transformer_config *cfg = &t->config;
	float eps = (float)cfg->eps;
	int64_t L = txt.shape[0] / cond->passes, N = img.shape[0] / cond->passes;
	uint64_t mark = dtp_arena_mark(&c->scratch);

	struct stream image = norm_stream(c, img, branch(mod_img, 0, cfg->width), eps);
	struct stream text = norm_stream(c, txt, branch(mod_txt, 0, cfg->width), eps);
	for (int64_t p = 0; p < cond->passes; p++)
		attend_jointly(c, t, b, cond, stream_rows(image, p * N, N), stream_rows(text, p * L, L), detail && p == 0);
	dtp_arena_release(&c->scratch, mark);
	feed_forward(c, img, &b->ff_in, &b->ff_out, branch(mod_img, 1, cfg->width), eps, detail ? N : 0);
	feed_forward(c, txt, &b->context_in, &b->context_out, branch(mod_txt, 1, cfg->width), eps, 0);
}

/* The q and k part of a packed projection, normed but not rotated. */
static void stage_single(struct dtp_ctx *c, const struct dtp_single_block *b, struct dtp_tensor p, int64_t D,
			 const struct dtp_transformer_config *cfg)
{
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor copy = dtp_new2(c, p.shape[0], p.shape[1]);
	dtp_copy(c, copy, p);
	norm_only(c, dtp_as_heads(cols(copy, 0, D), cfg->head_dim), dtp_as_heads(cols(copy, D, D), cfg->head_dim), &b->norm_q, &b->norm_k,
		  cfg->eps);
	dtp_stage(c, p, DTP_OUT_OF, &b->proj, "step0.single.0.attn.to_qkv_mlp_proj");
	dtp_stage_heads(c, copy, &b->proj, 0, cfg->width, cfg->head_dim, "step0.single.0.attn.norm_q");
	dtp_stage_heads(c, copy, &b->proj, cfg->width, cfg->width, cfg->head_dim, "step0.single.0.attn.norm_k");
	dtp_arena_release(&c->scratch, mark);
}

static void single_block(struct dtp_ctx *c, const struct dtp_transformer *t, const struct dtp_single_block *b,
			 const struct dtp_conditioning *cond, struct dtp_tensor x, struct dtp_tensor mod, bool detail)
{
	const struct dtp_transformer_config *cfg = &t->config;
	struct modulation m = branch(mod, 0, cfg->width);
	int64_t S = x.shape[0] / cond->passes, dim = cfg->head_dim; /* tokens of a pass */
	/* proj rows are [q | k | v | gate | up], out columns [attention | mlp]; D and M are the local widths. */
	int64_t D = b->proj.out - 2 * b->out.in, M = b->out.in - D;
	uint64_t mark = dtp_arena_mark(&c->scratch);

	struct dtp_tensor p = dtp_linear(c, &b->proj, dtp_modulated_norm(c, x, m.shift, m.scale, (float)cfg->eps));
	struct dtp_tensor joined = dtp_new2(c, x.shape[0], D + M);
	struct dtp_attention a = joint_attention(cfg, S);
	if (detail)
		stage_single(c, b, rows(p, 0, S), D, cfg);
	for (int64_t i = 0; i < cond->passes; i++) {
		struct dtp_tensor own = rows(p, i * S, S), o = dtp_as_heads(cols(rows(joined, i * S, S), 0, D), dim);
		struct dtp_tensor q = dtp_as_heads(cols(own, 0, D), dim), k = dtp_as_heads(cols(own, D, D), dim);
		dtp_qk_norm_rope(c, q, k, &b->norm_q, &b->norm_k, (float)cfg->eps, &cond->rope_all);
		dtp_attend(c, o, q, k, dtp_as_heads(cols(own, 2 * D, D), dim), &a);
	}
	dtp_swiglu(c, cols(joined, D, M), cols(p, 3 * D, M), cols(p, 3 * D + M, M));
	struct dtp_tensor y = dtp_linear_sum(c, &b->out, joined);
	if (detail) {
		dtp_stage(c, rows(joined, 0, S), DTP_INTO, &b->out, "step0.single.0.attn.to_out_in");
		dtp_stage(c, rows(y, 0, S), DTP_WHOLE, NULL, "step0.single.0.attn.out");
	}
	dtp_residual(c, x, m.gate, y);
	dtp_arena_release(&c->scratch, mark);
}

/* The first blocks, on two streams of all passes' tokens; then x gets each pass's text and image as one sequence. */
static void double_blocks(struct dtp_ctx *c, const struct dtp_transformer *t, const struct dtp_conditioning *cond,
			  struct dtp_tensor latents, struct dtp_tensor silu, struct dtp_tensor x)
{
	int64_t B = cond->passes, N = latents.shape[0], L = cond->text.shape[0] / B;
	bool detail = c->dump != NULL;
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor mod_img = dtp_linear(c, &t->mod_img, silu), mod_txt = dtp_linear(c, &t->mod_txt, silu);
	struct dtp_tensor img = dtp_new2(c, B * N, t->config.width), txt = dtp_new2(c, B * L, t->config.width);

	dtp_stage_plain(c, mod_img, "step0.mod_double_img");
	dtp_stage_plain(c, mod_txt, "step0.mod_double_txt");
	dtp_linear_into(c, rows(img, 0, N), &t->x_embedder, latents);
	for (int64_t p = 1; p < B; p++)
		dtp_copy(c, rows(img, p * N, N), rows(img, 0, N));
	dtp_copy(c, txt, cond->text);
	dtp_stage(c, rows(img, 0, N), DTP_WHOLE, NULL, "step0.x_embedder");
	for (int64_t i = 0; i < t->config.layers; i++) {
		double_block(c, t, &t->dbl[i], cond, img, txt, mod_img, mod_txt, detail && i == 0);
		dtp_stage(c, rows(img, 0, N), DTP_WHOLE, NULL, "step0.double.%lld.img", (long long)i);
		dtp_stage(c, rows(txt, 0, L), DTP_WHOLE, NULL, "step0.double.%lld.txt", (long long)i);
	}
	for (int64_t p = 0; p < B; p++) {
		dtp_copy(c, rows(x, p * (L + N), L), rows(txt, p * L, L));
		dtp_copy(c, rows(x, p * (L + N) + L, N), rows(img, p * N, N));
	}
	dtp_arena_release(&c->scratch, mark);
}

struct dtp_tensor dtp_transformer_forward(struct dtp_ctx *c, const struct dtp_transformer *t,
					  const struct dtp_conditioning *cond, struct dtp_tensor latents,
					  struct dtp_tensor sinusoids)
{
	const struct dtp_transformer_config *cfg = &t->config;
	int64_t B = cond->passes, N = latents.shape[0], L = cond->text.shape[0] / B, S = L + N;
	bool detail = c->dump != NULL;

	c->tree = &t->tree;
	struct dtp_tensor out = dtp_new2(c, B * N, cfg->out_channels);
	uint64_t mark = dtp_arena_mark(&c->scratch);
	struct dtp_tensor temb = embed_time(c, t, sinusoids), silu = dtp_silu(c, temb), x = dtp_new2(c, B * S, cfg->width);
	double_blocks(c, t, cond, latents, silu, x);

	struct dtp_tensor mod_single = dtp_linear(c, &t->mod_single, silu), mod_out = dtp_linear(c, &t->norm_out, silu);
	dtp_stage_plain(c, mod_single, "step0.mod_single");
	for (int64_t i = 0; i < cfg->single_layers; i++) {
		single_block(c, t, &t->sgl[i], cond, x, mod_single, detail && i == 0);
		dtp_stage(c, rows(x, 0, S), DTP_WHOLE, NULL, "step0.single.%lld", (long long)i);
	}
	/* AdaLayerNormContinuous: scale comes first here. */
	struct dtp_tensor scale = chunk(mod_out, 0, cfg->width), shift = chunk(mod_out, 1, cfg->width);
	for (int64_t p = 0; p < B; p++) {
		struct dtp_tensor y = dtp_modulated_norm(c, rows(x, p * S + L, N), shift, scale, (float)cfg->eps);
		dtp_linear_into(c, rows(out, p * N, N), &t->proj_out, y);
		if (p == 0)
			dtp_stage(c, y, DTP_WHOLE, NULL, "step0.norm_out");
	}
	dtp_stage(c, rows(out, 0, N), DTP_WHOLE, NULL, "step0.transformer_out");
	dtp_arena_release(&c->scratch, mark);
	return out;
}

/* ---- declaration */

static int projection(struct dtp_transformer *t, struct dtp_layer *l, const char *prefix, int i, const char *name)
{
	int m = dtp_tree_linear(&t->tree, l, t->config.width, t->config.width, false, "%s.%d.attn.%s", prefix, i, name);
	t->tree.modules[m].out_unit = t->config.head_dim;
	return m;
}

static void declare_mlp(struct dtp_transformer *t, struct dtp_layer *in, struct dtp_layer *out, int i, const char *name)
{
	int64_t D = t->config.width, M = t->config.mlp;
	int a = dtp_tree_linear(&t->tree, in, 2 * M, D, false, "transformer_blocks.%d.%s.linear_in", i, name);
	int b = dtp_tree_linear(&t->tree, out, D, M, false, "transformer_blocks.%d.%s.linear_out", i, name);
	dtp_tree_out_blocks(&t->tree, a, 2, (int64_t[]){M, M});
	dtp_tree_reads(&t->tree, b, 1, &a);
}

static void declare_double(struct dtp_transformer *t, int i)
{
	struct dtp_double_block *b = &t->dbl[i];
	struct dtp_tree *tree = &t->tree;
	const char *blocks = "transformer_blocks";
	int64_t D = t->config.width, dim = t->config.head_dim;
	int qkv[] = {
		projection(t, &b->to_q, blocks, i, "to_q"), projection(t, &b->to_k, blocks, i, "to_k"),
		projection(t, &b->to_v, blocks, i, "to_v"), projection(t, &b->add_q, blocks, i, "add_q_proj"),
		projection(t, &b->add_k, blocks, i, "add_k_proj"), projection(t, &b->add_v, blocks, i, "add_v_proj"),
	};
	int outs[] = {dtp_tree_linear(tree, &b->to_out, D, D, false, "%s.%d.attn.to_out.0", blocks, i),
		      dtp_tree_linear(tree, &b->add_out, D, D, false, "%s.%d.attn.to_add_out", blocks, i)};
	for (int k = 0; k < 2; k++) {
		tree->modules[outs[k]].in_unit = dim;
		dtp_tree_reads(tree, outs[k], 6, qkv);
	}
	dtp_tree_norm(tree, &b->norm_q, dim, false, "%s.%d.attn.norm_q", blocks, i);
	dtp_tree_norm(tree, &b->norm_k, dim, false, "%s.%d.attn.norm_k", blocks, i);
	dtp_tree_norm(tree, &b->norm_added_q, dim, false, "%s.%d.attn.norm_added_q", blocks, i);
	dtp_tree_norm(tree, &b->norm_added_k, dim, false, "%s.%d.attn.norm_added_k", blocks, i);
	declare_mlp(t, &b->ff_in, &b->ff_out, i, "ff");
	declare_mlp(t, &b->context_in, &b->context_out, i, "ff_context");
}

static void declare_single(struct dtp_transformer *t, int i)
{
	struct dtp_single_block *b = &t->sgl[i];
	struct dtp_tree *tree = &t->tree;
	const char *blocks = "single_transformer_blocks";
	int64_t D = t->config.width, M = t->config.mlp, dim = t->config.head_dim;
	int proj = dtp_tree_linear(tree, &b->proj, 3 * D + 2 * M, D, false, "%s.%d.attn.to_qkv_mlp_proj", blocks, i);
	int out = dtp_tree_linear(tree, &b->out, D, D + M, false, "%s.%d.attn.to_out", blocks, i);
	dtp_tree_out_blocks(tree, proj, 5, (int64_t[]){D, D, D, M, M});
	dtp_tree_in_blocks(tree, out, 2, (int64_t[]){D, M});
	dtp_tree_reads(tree, out, 1, &proj);
	dtp_tree_norm(tree, &b->norm_q, dim, false, "%s.%d.attn.norm_q", blocks, i);
	dtp_tree_norm(tree, &b->norm_k, dim, false, "%s.%d.attn.norm_k", blocks, i);
}

static void declare(struct dtp_transformer *t)
{
	const struct dtp_transformer_config *cfg = &t->config;
	struct dtp_tree *tree = &t->tree;
	int64_t D = cfg->width;

	dtp_tree_linear(tree, &t->x_embedder, D, cfg->in_channels, false, "x_embedder");
	dtp_tree_linear(tree, &t->context_embedder, D, cfg->joint_dim, false, "context_embedder");
	dtp_tree_linear(tree, &t->time_1, D, cfg->time_channels, false, "time_guidance_embed.timestep_embedder.linear_1");
	dtp_tree_linear(tree, &t->time_2, D, D, false, "time_guidance_embed.timestep_embedder.linear_2");
	if (cfg->guidance_embeds) {
		dtp_tree_linear(tree, &t->guidance_1, D, cfg->time_channels, false,
				"time_guidance_embed.guidance_embedder.linear_1");
		dtp_tree_linear(tree, &t->guidance_2, D, D, false, "time_guidance_embed.guidance_embedder.linear_2");
	}
	dtp_tree_linear(tree, &t->mod_img, 6 * D, D, false, "double_stream_modulation_img.linear");
	dtp_tree_linear(tree, &t->mod_txt, 6 * D, D, false, "double_stream_modulation_txt.linear");
	dtp_tree_linear(tree, &t->mod_single, 3 * D, D, false, "single_stream_modulation.linear");
	dtp_tree_list(tree, "transformer_blocks");
	for (int i = 0; i < cfg->layers; i++)
		declare_double(t, i);
	dtp_tree_list(tree, "single_transformer_blocks");
	for (int i = 0; i < cfg->single_layers; i++)
		declare_single(t, i);
	dtp_tree_linear(tree, &t->norm_out, 2 * D, D, false, "norm_out.linear");
	dtp_tree_linear(tree, &t->proj_out, cfg->out_channels, D, false, "proj_out");
}

/* ---- config.json */

#define MAX_WIDTH (1 << 20) /* far above any model, far below overflow of a product of three */

static enum dtp_code read_axes(const struct dtp_json *doc, struct dtp_transformer_config *cfg, struct dtp_err *err)
{
	int64_t sum = 0;
	if (dtp_json_ints(doc, NULL, "axes_dims_rope", 2, MAX_WIDTH, cfg->axes, DTP_MAX_AXES, &cfg->naxes, err))
		return err->code;
	for (int i = 0; i < cfg->naxes; i++) {
		if (cfg->axes[i] % 2)
			return dtp_fail(err, DTP_REFUSED, "%s: 'axes_dims_rope' holds %lld: rotary dimensions come in pairs",
					doc->path, (long long)cfg->axes[i]);
		sum += cfg->axes[i];
	}
	if (cfg->naxes != DTP_MAX_AXES || sum != cfg->head_dim)
		return dtp_fail(err, DTP_REFUSED,
				"%s: 'axes_dims_rope' has %d axes that sum to %lld, expected 4 that sum to attention_head_dim %lld",
				doc->path, cfg->naxes, (long long)sum, (long long)cfg->head_dim);
	return DTP_OK;
}

static enum dtp_code read_config(const struct dtp_json *doc, struct dtp_transformer_config *cfg, struct dtp_err *err)
{
	const char *class_name;
	int64_t patch = 1;
	double ratio = 3.0;

	/* What the class takes where its config.json says nothing. */
	*cfg = (struct dtp_transformer_config){.in_channels = 128, .layers = 8, .single_layers = 48, .head_dim = 128,
					       .heads = 48, .joint_dim = 15360, .time_channels = 256, .rope_theta = 2000,
					       .eps = 1e-6, .guidance_embeds = true};
	if (dtp_json_string(doc, NULL, "_class_name", &class_name, err))
		return err->code;
	if (strcmp(class_name, DTP_TRANSFORMER_CLASS))
		return dtp_fail(err, DTP_REFUSED, "%s: '_class_name' is '%s', supported is '" DTP_TRANSFORMER_CLASS "'", doc->path,
				class_name);
	if (dtp_json_int_or(doc, NULL, "patch_size", 1, 1, &patch, err) ||
	    dtp_json_int_or(doc, NULL, "in_channels", 4, MAX_WIDTH, &cfg->in_channels, err))
		return err->code;
	cfg->out_channels = cfg->in_channels;
	if (dtp_json_int_or(doc, NULL, "out_channels", 4, MAX_WIDTH, &cfg->out_channels, err) ||
	    dtp_json_int_or(doc, NULL, "num_layers", 0, DTP_MAX_LAYERS, &cfg->layers, err) ||
	    dtp_json_int_or(doc, NULL, "num_single_layers", 0, DTP_MAX_LAYERS, &cfg->single_layers, err) ||
	    dtp_json_int_or(doc, NULL, "attention_head_dim", 2, 4096, &cfg->head_dim, err) ||
	    dtp_json_int_or(doc, NULL, "num_attention_heads", 1, 4096, &cfg->heads, err) ||
	    dtp_json_int_or(doc, NULL, "joint_attention_dim", 1, MAX_WIDTH, &cfg->joint_dim, err) ||
	    dtp_json_int_or(doc, NULL, "timestep_guidance_channels", 2, DTP_MAX_TIME_CHANNELS, &cfg->time_channels, err) ||
	    dtp_json_double_or(doc, NULL, "mlp_ratio", 1e-3, 64, &ratio, err) ||
	    dtp_json_double_or(doc, NULL, "rope_theta", 1, 1e12, &cfg->rope_theta, err) ||
	    dtp_json_double_or(doc, NULL, "eps", 0, 1, &cfg->eps, err) ||
	    dtp_json_bool_or(doc, NULL, "guidance_embeds", &cfg->guidance_embeds, err))
		return err->code;
	cfg->width = cfg->heads * cfg->head_dim;
	cfg->mlp = (int64_t)((double)cfg->width * ratio);
	if (cfg->width > MAX_WIDTH || cfg->mlp < 1 || cfg->time_channels % 2)
		return dtp_fail(err, DTP_REFUSED, "%s: %lld heads of %lld with mlp_ratio %g and %lld time channels: no such model",
				doc->path, (long long)cfg->heads, (long long)cfg->head_dim, ratio,
				(long long)cfg->time_channels);
	return read_axes(doc, cfg, err);
}

enum dtp_code dtp_transformer_open(const char *dir, struct dtp_transformer *t, struct dtp_err *err)
{
	struct dtp_json doc;

	memset(t, 0, sizeof *t);
	if (dtp_json_load_config(dir, &doc, err))
		return err->code;
	enum dtp_code rc = read_config(&doc, &t->config, err);
	dtp_json_free(&doc);
	if (rc)
		return rc;
	t->dbl = calloc((size_t)t->config.layers + 1, sizeof *t->dbl);
	t->sgl = calloc((size_t)t->config.single_layers + 1, sizeof *t->sgl);
	if (!t->dbl || !t->sgl)
		return dtp_fail(err, DTP_FAILED, "out of memory for %lld blocks",
				(long long)(t->config.layers + t->config.single_layers));
	dtp_tree_init(&t->tree, "transformer");
	t->tree.even = true;
	t->tree.heads = t->config.heads;
	declare(t);
	return DTP_OK;
}

void dtp_transformer_close(struct dtp_transformer *t)
{
	dtp_tree_free(&t->tree);
	free(t->dbl);
	free(t->sgl);
	memset(t, 0, sizeof *t);
}
