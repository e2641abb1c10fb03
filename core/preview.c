/* SPDX-License-Identifier: Apache-2.0 */
#include "preview.h"

#include "rng.h"
#include "safetensors.h"
#include "vae.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PICTURES 8     /* the encoder's norms are over a whole picture: several plain ones say more than one that has all */
#define SIDE 96        /* pixels; 8 x 144 latent pixels for the 33 unknowns of a colour at 32 channels */
#define RECTANGLES 4
#define SHRINK 1e-3    /* of the mean square: channels that say next to nothing get next to nothing */

struct dtp_preview {
	int64_t channels;    /* of the latents; a token has them for four pixels: channel c * 4 + dy * 2 + dx */
	float *weight;       /* [4][channels + 1][3]; the last row is the constant */
	double error;
};

int64_t dtp_preview_channels(const struct dtp_preview *p)
{
	return 4 * p->channels;
}

double dtp_preview_error(const struct dtp_preview *p)
{
	return p->error;
}

void dtp_preview_close(struct dtp_preview *p)
{
	if (!p)
		return;
	free(p->weight);
	free(p);
}

/* ---- the pictures that it is fitted to, [PICTURES, SIDE, SIDE, 3] in -1..1 */

static float uniform(struct dtp_rng *g)
{
	return (float)dtp_rng_next(g) * (2.0f / 4294967296.0f) - 1;
}

/* From one colour at the top to a near one at the bottom. */
static void add_background(struct dtp_rng *g, float *picture)
{
	float top[3], change[3], grey = uniform(g);

	for (int c = 0; c < 3; c++) {
		top[c] = fmaxf(-1, fminf(1, grey + 0.3f * uniform(g)));
		change[c] = 0.3f * uniform(g);
	}
	for (int i = 0; i < SIDE * SIDE; i++)
		for (int c = 0; c < 3; c++)
			picture[3 * i + c] = fmaxf(-1, fminf(1, top[c] + change[c] * (float)(i / SIDE) / SIDE));
}

static void add_rectangle(struct dtp_rng *g, float *picture)
{
	int h = 16 + (int)(dtp_rng_next(g) % 40), w = 16 + (int)(dtp_rng_next(g) % 40);
	int top = (int)(dtp_rng_next(g) % (uint32_t)(SIDE - h)), left = (int)(dtp_rng_next(g) % (uint32_t)(SIDE - w));
	float colour[3] = {uniform(g), uniform(g), uniform(g)};

	for (int y = top; y < top + h; y++)
		for (int x = left; x < left + w; x++)
			memcpy(picture + 3 * (y * SIDE + x), colour, sizeof colour);
}

static void make_pictures(float *picture)
{
	struct dtp_rng g;

	dtp_rng_seed(&g, 0);
	for (int k = 0; k < PICTURES; k++, picture += 3 * SIDE * SIDE) {
		add_background(&g, picture);
		for (int i = 0; i < RECTANGLES; i++)
			add_rectangle(&g, picture);
	}
}

/* The mean of the square that latent pixel t of all stands for. */
static double mean(const float *picture, int side, int t, int c)
{
	int scale = SIDE / side, row = t / side * scale, column = t % side * scale; /* pictures lie one below the other */
	double sum = 0;

	for (int y = row; y < row + scale; y++)
		for (int x = column; x < column + scale; x++)
			sum += (double)picture[3 * (y * SIDE + x) + c];
	return sum / (scale * scale);
}

/* ---- least squares */

/* a [n, n] symmetric and positive, b [n, 3]: b becomes the solution (Cholesky).  False: a is not positive. */
static bool solve(double *a, double *b, int n)
{
	for (int i = 0; i < n; i++) {
		for (int j = 0; j <= i; j++) {
			double sum = a[i * n + j];
			for (int k = 0; k < j; k++)
				sum -= a[i * n + k] * a[j * n + k];
			if (i == j && !(sum > 0))
				return false;
			a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
		}
	}
	for (int c = 0; c < 3; c++) {
		for (int i = 0; i < n; i++) {
			for (int k = 0; k < i; k++)
				b[3 * i + c] -= a[i * n + k] * b[3 * k + c];
			b[3 * i + c] /= a[i * n + i];
		}
		for (int i = n - 1; i >= 0; i--) {
			for (int k = i + 1; k < n; k++)
				b[3 * i + c] -= a[k * n + i] * b[3 * k + c];
			b[3 * i + c] /= a[i * n + i];
		}
	}
	return true;
}

static float colour(const struct dtp_preview *p, const float *token, int pixel, int c)
{
	const float *w = p->weight + pixel * 3 * (p->channels + 1) + c;
	float sum = w[3 * p->channels];

	for (int64_t i = 0; i < p->channels; i++)
		sum += w[3 * i] * token[4 * i + pixel];
	return sum;
}

/* What the encoder has made of the picture, and the scale and mean of its normalisation, for each channel of a token. */
struct samples {
	int side;            /* latent pixels of a row and of a column */
	float *latents;      /* [PICTURES, side, side, channels] */
	float *zero, *one;   /* [4 * channels]: a token of zeros and one of ones, not normalised: [2, 2, channels] */
};

/* The normal equations a [n, n], b [n, 3] of all latent pixels. */
static void accumulate(const struct samples *s, int C, const float *picture, double *a, double *b)
{
	int n = C + 1;

	for (int t = 0; t < PICTURES * s->side * s->side; t++) {
		const float *z = s->latents + (size_t)t * (size_t)C;
		for (int i = 0; i < n; i++) {
			double v = i < C ? (double)z[i] : 1;
			for (int j = 0; j <= i; j++)
				a[i * n + j] += v * (j < C ? (double)z[j] : 1);
			for (int c = 0; c < 3; c++)
				b[3 * i + c] += v * mean(picture, s->side, t, c);
		}
	}
	double square = 0;
	for (int i = 0; i < C; i++)
		square += a[i * n + i] / C;
	for (int i = 0; i < C; i++)
		a[i * n + i] += SHRINK * square + 1e-12;
}

static double residue(const struct samples *s, int C, const float *picture, const double *b)
{
	int n = PICTURES * s->side * s->side;
	double sum = 0;

	for (int t = 0; t < n; t++)
		for (int c = 0; c < 3; c++) {
			double d = b[3 * C + c] - mean(picture, s->side, t, c);
			for (int i = 0; i < C; i++)
				d += b[3 * i + c] * (double)s->latents[t * C + i];
			sum += d * d;
		}
	return 127.5 * sqrt(sum / (3.0 * n));
}

/* Of tokens, which are normalised channel by channel. */
static void take_weights(struct dtp_preview *p, const struct samples *s, const double *b)
{
	int C = (int)p->channels;

	for (int pixel = 0; pixel < 4; pixel++)
		for (int c = 0; c < 3; c++) {
			float *w = p->weight + pixel * 3 * (C + 1) + c;
			double constant = b[3 * C + c];
			for (int i = 0; i < C; i++) {
				double at_zero = (double)s->zero[pixel * C + i], at_one = (double)s->one[pixel * C + i];
				w[3 * i] = (float)(b[3 * i + c] * (at_one - at_zero));
				constant += b[3 * i + c] * at_zero;
			}
			w[3 * C] = (float)constant;
		}
}

static enum dtp_code fit(struct dtp_preview *p, const struct samples *s, const float *picture, struct dtp_err *err)
{
	int C = (int)p->channels, n = C + 1;
	double *a = calloc((size_t)(n * (n + 3)), sizeof *a), *b = a + n * n;

	if (!a)
		return dtp_fail(err, DTP_FAILED, "out of memory for a preview of %d channels", C);
	accumulate(s, C, picture, a, b);
	bool ok = solve(a, b, n);
	if (ok) {
		p->error = residue(s, C, picture, b);
		take_weights(p, s, b);
	}
	free(a);
	return ok ? DTP_OK : dtp_fail(err, DTP_REFUSED, "the VAE's encoder gives values that are not finite: no preview can be made of its latents");
}

/* ---- encoding */

struct encoder {
	struct dtp_vae vae;
	struct dtp_st st;
	struct dtp_backend *be;
	enum dtp_device device; /* of be */
	const struct dtp_monitor *mon;
	uint64_t scratch, workspace;
};

static void download(struct dtp_ctx *c, float *to, struct dtp_tensor t)
{
	if (dtp_ok(c) && !c->be->dry)
		c->be->ops->download(c->be, to, DTP_F32, t, &c->err);
}

/* picture and s: NULL in a dry run. */
static void sample(const struct encoder *e, struct dtp_ctx *c, const float *picture, const struct samples *s)
{
	int64_t C = 4 * e->vae.config.latent_channels;
	float *one = picture ? calloc((size_t)C, sizeof *one) : NULL;

	if (picture && !one)
		dtp_fail(&c->err, DTP_FAILED, "out of memory for a preview");
	for (int k = 0; k < 2; k++) {
		for (int64_t i = 0; one && i < C; i++)
			one[i] = (float)k;
		struct dtp_tensor token = dtp_from_host(c, c->be->compute, 2, (int64_t[]){1, C}, one);
		download(c, s ? k ? s->one : s->zero : NULL, dtp_vae_unpack(c, &e->vae, token, 1, 1));
	}
	free(one);
	for (int k = 0; k < (picture ? PICTURES : 1); k++) {
		uint64_t mark = dtp_arena_mark(&c->scratch);
		const float *one_picture = picture ? picture + 3 * SIDE * SIDE * k : NULL;
		struct dtp_tensor x = dtp_from_host(c, c->be->compute, 3, (int64_t[]){SIDE, SIDE, 3}, one_picture);
		float *to = s ? s->latents + (int64_t)k * s->side * s->side * C / 4 : NULL;
		download(c, to, dtp_vae_encode(c, &e->vae, x, 0));
		dtp_arena_release(&c->scratch, mark);
	}
}

static enum dtp_code measure(struct encoder *e, struct dtp_err *err)
{
	struct dtp_ctx c = {.mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	struct dtp_memory_use use;

	if (dtp_backend_dry(e->be->compute, e->device, &c.be, err))
		return err->code;
	dtp_arena_measure(&c.scratch);
	c.scratch.be = c.be;
	sample(e, &c, NULL, NULL);
	e->scratch = c.scratch.peak;
	c.be->ops->memory(c.be, &use);
	e->workspace = use.operations;
	c.be->ops->destroy(c.be);
	if (!dtp_ok(&c))
		*err = c.err;
	return c.err.code;
}

static enum dtp_code run(struct encoder *e, const float *picture, const struct samples *s, struct dtp_err *err)
{
	struct dtp_ctx c = {.be = e->be, .mon = e->mon, .err = DTP_ERR_INIT};
	struct dtp_load_stats stats;

	dtp_plan_bind(&e->vae.tree, 0, 1);
	if (measure(e, err))
		return err->code;
	e->mon->stage(e->mon->arg, DTP_PHASE_LOAD, "load vae encoder");
	if (e->be->ops->reserve(e->be, e->workspace, err) ||
	    dtp_weights_load(&e->vae.tree, &e->st, "", 0, 1, e->be, e->mon, &stats, err))
		return err->code;
	e->mon->stage(e->mon->arg, DTP_PHASE_ENCODE, "fit the preview");
	enum dtp_code rc = dtp_arena_init(&c.scratch, e->be, e->scratch, err);
	if (!rc) {
		sample(e, &c, picture, s);
		rc = c.err.code;
		if (rc)
			*err = c.err;
	}
	dtp_arena_free(&c.scratch);
	dtp_weights_free(&e->vae.tree, e->be);
	return rc;
}

static enum dtp_code open_encoder(struct encoder *e, const char *model, const char *variant, struct dtp_err *err)
{
	static const char base[] = "diffusion_pytorch_model";
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/vae", model);
	if (dtp_vae_open(dir, true, &e->vae, err))
		return err->code;
	dtp_vae_need(&e->vae, true, false);
	if (dtp_st_open_variant(dir, base, variant && dtp_st_exists(dir, base, variant) ? variant : NULL, &e->st, err))
		return err->code;
	return dtp_weights_check(&e->vae.tree, &e->st, "", &dtp_monitor_none, err);
}

/* The fit itself; p->channels and p->weight are there. */
static enum dtp_code make(struct dtp_preview *p, struct encoder *e, struct dtp_err *err)
{
	size_t C = (size_t)p->channels;
	struct samples s = {.side = SIDE / (int)dtp_vae_scale(&e->vae)};
	float *picture = malloc((PICTURES * (3 * SIDE * SIDE + C * (size_t)(s.side * s.side)) + 8 * C) * sizeof *picture);

	if (!picture)
		return dtp_fail(err, DTP_FAILED, "out of memory for a preview");
	s.latents = picture + PICTURES * 3 * SIDE * SIDE;
	s.zero = s.latents + PICTURES * C * (size_t)(s.side * s.side);
	s.one = s.zero + 4 * C;
	make_pictures(picture);
	enum dtp_code rc = run(e, picture, &s, err);
	if (!rc)
		rc = fit(p, &s, picture, err);
	free(picture);
	return rc;
}

enum dtp_code dtp_preview_open(const char *model, const char *variant, struct dtp_backend *be, enum dtp_device device,
			       const struct dtp_monitor *mon, struct dtp_preview **out, struct dtp_err *err)
{
	struct encoder e = {.be = be, .device = device, .mon = mon};
	struct dtp_preview *p = *out = NULL;
	enum dtp_code rc = open_encoder(&e, model, variant, err);

	if (!rc && SIDE % dtp_vae_scale(&e.vae))
		rc = dtp_fail(err, DTP_REFUSED, "a preview of latents of %lldx%lld pixels cannot be fitted", (long long)dtp_vae_scale(&e.vae),
			      (long long)dtp_vae_scale(&e.vae));
	if (!rc) {
		p = calloc(1, sizeof *p);
		if (p) {
			p->channels = e.vae.config.latent_channels;
			p->weight = malloc((size_t)(12 * (p->channels + 1)) * sizeof *p->weight);
		}
		rc = p && p->weight ? make(p, &e, err) : dtp_fail(err, DTP_FAILED, "out of memory for a preview");
	}
	if (rc)
		dtp_preview_close(p);
	else
		*out = p;
	dtp_st_close(&e.st);
	dtp_vae_close(&e.vae);
	return rc;
}

/* ---- drawing */

void dtp_preview_draw(const struct dtp_preview *p, const float *tokens, int64_t h, int64_t w, uint8_t *rgb)
{
	for (int64_t y = 0; y < 2 * h; y++)
		for (int64_t x = 0; x < 2 * w; x++)
			for (int c = 0; c < 3; c++) {
				const float *token = tokens + (y / 2 * w + x / 2) * 4 * p->channels;
				float v = 127.5f * (colour(p, token, (int)(y % 2 * 2 + x % 2), c) + 1);
				rgb[3 * (y * 2 * w + x) + c] = (uint8_t)(v > 0 ? v < 255 ? v + 0.5f : 255 : 0); /* what is no number is black */
			}
}
