/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that a model asks of a backend, with the shapes and strides of all operands: written down by a dry run.  Left out:
 * embedding and quantise, which move data between host and device. */
#ifndef TEST_ASKED_H
#define TEST_ASKED_H

#include "dry_run.h"

#include <string.h>

enum what {
	LINEAR, ATTENTION, CONV2D, MODULATED_NORM, RMS_NORM, QK_NORM_ROPE, SWIGLU, GATED_RESIDUAL, ADD_BIAS, SILU, ADD, COPY, EULER_STEP,
	GROUP_NORM, GROUP_MAPS, WINDOW, UPSAMPLE2X, UNPATCHIFY, PATCHIFY
};
static const char *const what_names[] = {
	"linear", "attention", "conv2d", "modulated_norm", "rms_norm", "qk_norm_rope", "swiglu", "gated_residual", "add_bias", "silu", "add",
	"copy", "euler_step", "group_norm", "group_maps", "window", "upsample2x", "unpatchify", "patchify"};

#define OPERANDS 4
struct asked {
	enum what what;
	int phase;                     /* DTP_TEXT, ... */
	int64_t calls;                 /* with these shapes, in one run of the phase */
	struct dtp_tensor x[OPERANDS]; /* the result first, or what is changed in place; ndim 0: none */
	struct dtp_attention attention;
	int n[4];                      /* CONV2D: stride, pads, side; QK_NORM_ROPE: kind; GROUP_*: groups, silu */
};

#define MOST_ASKED 1024
static struct asked asked[MOST_ASKED];
static int nasked, asking_phase;

static inline bool same_operand(const struct dtp_tensor *a, const struct dtp_tensor *b)
{
	size_t n = (size_t)a->ndim * sizeof a->shape[0];

	return a->ndim == b->ndim && a->dtype == b->dtype && !memcmp(a->shape, b->shape, n) && !memcmp(a->stride, b->stride, n);
}

static inline bool same_asked(const struct asked *a, const struct asked *b)
{
	const struct dtp_attention *p = &a->attention, *q = &b->attention;
	bool same = a->what == b->what && a->phase == b->phase && !memcmp(a->n, b->n, sizeof a->n);

	for (int i = 0; i < OPERANDS && same; i++)
		same = same_operand(&a->x[i], &b->x[i]);
	return same && p->causal == q->causal && p->key_begin == q->key_begin && p->key_end == q->key_end && p->group == q->group;
}

static inline enum dtp_code ask(struct asked a)
{
	int i = 0;

	a.phase = asking_phase;
	while (i < nasked && !same_asked(&asked[i], &a))
		i++;
	if (i == MOST_ASKED) {
		fprintf(stderr, "more than %d operations of different shapes\n", MOST_ASKED);
		exit(1);
	}
	if (i == nasked)
		asked[nasked++] = a;
	asked[i].calls++;
	return DTP_OK;
}

#define BE struct dtp_backend *be
#define T struct dtp_tensor
#define W const struct dtp_weight *
#define ERR struct dtp_err *err

static inline enum dtp_code ask_linear(BE, T out, T x, W w, W bias, ERR)
{
	(void)be, (void)err, (void)w, (void)bias;
	return ask((struct asked){.what = LINEAR, .x = {out, x}});
}
static inline enum dtp_code ask_attention(BE, T out, T q, T k, T v, const struct dtp_attention *a, ERR)
{
	(void)be, (void)err;
	return ask((struct asked){.what = ATTENTION, .x = {out, q, k, v}, .attention = *a});
}
static inline enum dtp_code ask_conv2d(BE, T out, T x, W w, W bias, int stride, int tl, int br, ERR)
{
	(void)be, (void)err, (void)w, (void)bias;
	return ask((struct asked){.what = CONV2D, .x = {out, x},
		.n = {stride, tl, br, (int)dry_filter_side(x.shape[0], out.shape[0], stride, tl + br)}});
}
static inline enum dtp_code ask_modulated_norm(BE, T out, T x, T shift, T scale, float eps, ERR)
{
	(void)be, (void)err, (void)eps;
	return ask((struct asked){.what = MODULATED_NORM, .x = {out, x, shift, scale}});
}
static inline enum dtp_code ask_rms_norm(BE, T out, T x, W w, float eps, ERR)
{
	(void)be, (void)err, (void)w, (void)eps;
	return ask((struct asked){.what = RMS_NORM, .x = {out, x}});
}
static inline enum dtp_code ask_qk_norm_rope(BE, T q, T k, W wq, W wk, float eps, enum dtp_rope kind, T cos, T sin, ERR)
{
	(void)be, (void)err, (void)wq, (void)wk, (void)eps;
	return ask((struct asked){.what = QK_NORM_ROPE, .x = {q, k, cos, sin}, .n = {kind}});
}
static inline enum dtp_code ask_add_bias(BE, T x, W bias, ERR)
{
	(void)be, (void)err, (void)bias;
	return ask((struct asked){.what = ADD_BIAS, .x = {x}});
}
static inline enum dtp_code ask_group_norm(BE, T out, T x, W w, W b, int groups, float eps, bool silu, ERR)
{
	(void)be, (void)err, (void)w, (void)b, (void)eps;
	return ask((struct asked){.what = GROUP_NORM, .x = {out, x}, .n = {groups, silu}});
}
static inline enum dtp_code ask_group_maps(BE, T maps, T x, W w, W b, int groups, float eps, ERR)
{
	(void)be, (void)err, (void)w, (void)b, (void)eps;
	return ask((struct asked){.what = GROUP_MAPS, .x = {maps, x}, .n = {groups}});
}
static inline enum dtp_code ask_window(BE, T out, T x, T maps, int64_t first, ERR)
{
	(void)be, (void)err, (void)first; /* which rows does not matter */
	return ask((struct asked){.what = WINDOW, .x = {out, x, maps}});
}
static inline enum dtp_code ask_upsample2x(BE, T out, T x, int64_t first, ERR)
{
	(void)be, (void)err, (void)first; /* nor here */
	return ask((struct asked){.what = UPSAMPLE2X, .x = {out, x}});
}
#define ASK_THREE(name, kind)                                                                                          \
	static inline enum dtp_code ask_##name(BE, T a, T b, T c, ERR)                                                 \
	{                                                                                                              \
		(void)be, (void)err;                                                                                  \
		return ask((struct asked){.what = kind, .x = {a, b, c}});                                              \
	}
ASK_THREE(swiglu, SWIGLU)
ASK_THREE(gated_residual, GATED_RESIDUAL)
ASK_THREE(add, ADD)
ASK_THREE(euler_step, EULER_STEP)
#define ASK_TWO(name, kind)                                                                                            \
	static inline enum dtp_code ask_##name(BE, T a, T b, ERR)                                                      \
	{                                                                                                              \
		(void)be, (void)err;                                                                                  \
		return ask((struct asked){.what = kind, .x = {a, b}});                                                 \
	}
ASK_TWO(silu, SILU)
ASK_TWO(copy, COPY)
#define ASK_PATCHES(name, kind)                                                                                        \
	static inline enum dtp_code ask_##name(BE, T a, T b, W mean, W var, float eps, ERR)                            \
	{                                                                                                              \
		(void)be, (void)err, (void)mean, (void)var, (void)eps;                                                              \
		return ask((struct asked){.what = kind, .x = {a, b}});                                                 \
	}
ASK_PATCHES(unpatchify, UNPATCHIFY)
ASK_PATCHES(patchify, PATCHIFY)
#undef BE
#undef T
#undef W
#undef ERR

/* For dry_run, with asking_phase. */
static inline void ask_all(struct dtp_backend_ops *o)
{
	o->linear = ask_linear;
	o->attention = ask_attention;
	o->conv2d = ask_conv2d;
	o->modulated_norm = ask_modulated_norm;
	o->rms_norm = ask_rms_norm;
	o->qk_norm_rope = ask_qk_norm_rope;
	o->swiglu = ask_swiglu;
	o->gated_residual = ask_gated_residual;
	o->add_bias = ask_add_bias;
	o->silu = ask_silu;
	o->add = ask_add;
	o->copy = ask_copy;
	o->euler_step = ask_euler_step;
	o->group_norm = ask_group_norm;
	o->group_maps = ask_group_maps;
	o->window = ask_window;
	o->upsample2x = ask_upsample2x;
	o->unpatchify = ask_unpatchify;
	o->patchify = ask_patchify;
}
#endif
