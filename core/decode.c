/* SPDX-License-Identifier: Apache-2.0 */
#include "decode.h"
#include "pipeline.h"
#include "vae.h"
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct dtp_decoder {
	struct dtp_vae vae;
	struct dtp_st st;
	const struct dtp_latents *latents;
	enum dtp_dtype compute;
	enum dtp_device device;
	bool packed;
	int64_t h, w;       /* of the latents, as the decoder takes them */
	uint64_t scratch, weights, workspace, fixed; /* fixed: what a backend takes of a GPU whatever it does */
};

/* ---- the latents' size */

static enum dtp_code wrong_size(const struct dtp_latents *l, int64_t height, int64_t width, const char *is, struct dtp_err *err)
{
	return dtp_fail(err, DTP_REFUSED, "'%s' %s, not of %lldx%lld pixels", l->path, is, (long long)width, (long long)height);
}

static enum dtp_code take_plain(struct dtp_decoder *d, int64_t height, int64_t width, struct dtp_err *err)
{
	const struct dtp_latents *l = d->latents;
	int64_t scale = dtp_vae_scale(&d->vae);
	char is[100];

	d->h = l->shape[2];
	d->w = l->shape[3];
	snprintf(is, sizeof is, "holds the latents of %lldx%lld pixels", (long long)(scale * d->w), (long long)(scale * d->h));
	return (height && height != scale * d->h) || (width && width != scale * d->w)
		? wrong_size(l, height ? height : scale * d->h, width ? width : scale * d->w, is, err) : DTP_OK;
}

static enum dtp_code take_packed(struct dtp_decoder *d, int64_t height, int64_t width, struct dtp_err *err)
{
	const struct dtp_latents *l = d->latents;
	int64_t unit = 2 * dtp_vae_scale(&d->vae), tokens = l->shape[1];
	char is[100];

	height = height ? height : l->height;
	width = width ? width : l->width;
	if (!height || !width)
		return dtp_fail(err, DTP_REFUSED, "'%s' holds %lld packed tokens and its metadata name no height and width: give --height and "
				"--width, which are %lld times the tokens of a column and of a row", l->path, (long long)tokens, (long long)unit);
	snprintf(is, sizeof is, "holds %lld packed tokens of %lldx%lld pixels", (long long)tokens, (long long)unit, (long long)unit);
	if (height % unit || width % unit || height / unit > tokens || tokens % (height / unit) || tokens / (height / unit) != width / unit)
		return wrong_size(l, height, width, is, err);
	d->packed = true;
	d->h = height / unit * 2;
	d->w = width / unit * 2;
	return DTP_OK;
}


static enum dtp_code take_size(struct dtp_decoder *d, int64_t height, int64_t width, struct dtp_err *err)
{
	const struct dtp_latents *l = d->latents;
	int64_t C = d->vae.config.latent_channels;
	char shape[200];

	if (l->ndim == 4 ? l->shape[1] != C : l->shape[2] != 4 * C)
		return dtp_fail(err, DTP_REFUSED, "'%s' has the shape %s; the VAE takes [1, %lld, rows, columns], or packed [1, tokens, %lld]", l->path,
				dtp_shape_text(shape, sizeof shape, l->ndim, l->shape), (long long)C, (long long)(4 * C));
	if (l->ndim == 4 ? take_plain(d, height, width, err) : take_packed(d, height, width, err))
		return err->code;
	if (d->h > DTP_MAX_SIDE / dtp_vae_scale(&d->vae) || d->w > DTP_MAX_SIDE / dtp_vae_scale(&d->vae))
		return dtp_fail(err, DTP_REFUSED, "'%s' holds the latents of %lldx%lld pixels, at most %d on a side are decoded", l->path,
				(long long)(dtp_vae_scale(&d->vae) * d->w), (long long)(dtp_vae_scale(&d->vae) * d->h), DTP_MAX_SIDE);
	return DTP_OK;
}

/* ---- computing */

/* values [C, pixels] as a tensor of [pixels, C]; NULL in a dry run. */
static float *channels_last(const struct dtp_decoder *d, struct dtp_ctx *c)
{
	int64_t C = d->vae.config.latent_channels, n = d->h * d->w;
	float *v = c->be->dry ? NULL : malloc((size_t)(C * n) * sizeof *v);

	if (v)
		dtp_hwc_to_chw(v, d->latents->values, C, n);
	else if (!c->be->dry)
		dtp_fail(&c->err, DTP_FAILED, "out of memory for %lld latents", (long long)(C * n));
	return v;
}

static void decode(const struct dtp_decoder *d, struct dtp_ctx *c, uint8_t *rgb)
{
	int64_t C = d->vae.config.latent_channels;
	struct dtp_tensor z;

	if (d->packed) {
		int64_t shape[2] = {d->h / 2 * (d->w / 2), 4 * C};
		z = dtp_vae_unpack(c, &d->vae, dtp_from_host(c, d->compute, 2, shape, d->latents->values), d->h / 2, d->w / 2);
	} else {
		float *values = channels_last(d, c);
		z = dtp_from_host(c, d->compute, 3, (int64_t[]){d->h, d->w, C}, values);
		free(values);
	}
	dtp_quantise(c, rgb, dtp_vae_decode(c, &d->vae, z));
}

static enum dtp_code measure(struct dtp_decoder *d, struct dtp_err *err)
{
	struct dtp_ctx c = {.mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	struct dtp_memory_use use;

	if (dtp_backend_dry(d->compute, d->device, &c.be, err))
		return err->code;
	dtp_plan_bind(&d->vae.tree, 0, 1);
	dtp_arena_measure(&c.scratch);
	c.scratch.be = c.be;
	decode(d, &c, NULL);
	d->scratch = c.scratch.peak;
	d->weights = dtp_weights_memory(&d->vae.tree, 0, 1, c.be);
	c.be->ops->memory(c.be, &use);
	d->workspace = use.operations;
	d->fixed = use.in_use;
	c.be->ops->destroy(c.be);
	if (!dtp_ok(&c))
		*err = c.err;
	return c.err.code;
}

/* ---- a decoder */

static enum dtp_code open_vae(struct dtp_decoder *d, const char *model, const struct dtp_monitor *mon, struct dtp_err *err)
{
	char dir[4096];
	struct stat st;

	snprintf(dir, sizeof dir, "%s/vae", model);
	if (stat(dir, &st))
		return dtp_fail(err, DTP_REFUSED, "'%s' has no folder 'vae'; --model takes a pipeline folder in the diffusers layout", model);
	return dtp_vae_open(dir, false, &d->vae, err) || dtp_st_open(dir, "diffusion_pytorch_model", &d->st, err) ||
		dtp_weights_check(&d->vae.tree, &d->st, "", mon, err) ? err->code : DTP_OK;
}

enum dtp_code dtp_decoder_open(const char *model, enum dtp_dtype compute, enum dtp_device device, const struct dtp_latents *l,
			       int64_t height, int64_t width, const struct dtp_monitor *mon, struct dtp_decoder **out,
			       struct dtp_err *err)
{
	struct dtp_decoder *d = calloc(1, sizeof *d);

	*out = d;
	if (!d)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	d->latents = l;
	d->compute = compute;
	d->device = device;
	if (open_vae(d, model, mon, err) || take_size(d, height, width, err) || measure(d, err)) {
		dtp_decoder_close(d);
		*out = NULL;
		return err->code;
	}
	return DTP_OK;
}

void dtp_decoder_close(struct dtp_decoder *d)
{
	if (!d)
		return;
	dtp_st_close(&d->st);
	dtp_vae_close(&d->vae);
	free(d);
}

void dtp_decoder_size(const struct dtp_decoder *d, int64_t *height, int64_t *width)
{
	*height = dtp_vae_scale(&d->vae) * d->h;
	*width = dtp_vae_scale(&d->vae) * d->w;
}

uint64_t dtp_decoder_memory(const struct dtp_decoder *d)
{
	return d->weights + d->scratch + d->workspace + d->fixed + (d->device == DTP_DEVICE_CPU ? DTP_STAGING_BYTES : 0);
}

enum dtp_code dtp_decoder_run(struct dtp_decoder *d, struct dtp_backend *be, const struct dtp_monitor *mon, uint8_t *rgb,
			      struct dtp_err *err)
{
	struct dtp_ctx c = {.be = be, .mon = mon, .err = DTP_ERR_INIT};
	struct dtp_load_stats stats;

	mon->stage(mon->arg, DTP_PHASE_LOAD, "load vae");
	if (be->ops->reserve(be, d->workspace, err) || dtp_weights_load(&d->vae.tree, &d->st, "", 0, 1, be, mon, &stats, err))
		return err->code;
	mon->stage(mon->arg, DTP_PHASE_DECODE, "decode the latents");
	enum dtp_code rc = dtp_arena_init(&c.scratch, be, d->scratch, err);
	if (!rc) {
		decode(d, &c, rgb);
		rc = c.err.code;
		if (rc)
			*err = c.err;
	}
	dtp_arena_free(&c.scratch);
	dtp_weights_free(&d->vae.tree, be);
	return rc;
}
