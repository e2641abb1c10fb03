/* SPDX-License-Identifier: Apache-2.0 */
/* AutoencoderKLFlux2: declaration, encoder and decoder.  Formulas: diffusers' autoencoder_kl_flux2.py and vae.py. */
#ifndef DTP_VAE_H
#define DTP_VAE_H

#include "module.h"
#include "ops.h"

#define DTP_VAE_CLASS "AutoencoderKLFlux2"
#define DTP_VAE_MAX_LEVELS 8
#define DTP_VAE_MAX_RESNETS 8

struct dtp_vae_config {
	int64_t latent_channels, in_channels, out_channels, layers_per_block, groups;
	int levels;
	int64_t encoder_channels[DTP_VAE_MAX_LEVELS], decoder_channels[DTP_VAE_MAX_LEVELS];
	bool mid_attention, quant_conv, post_quant_conv;
	double bn_eps;
};

struct dtp_vae_resnet {
	struct dtp_layer norm1, conv1, norm2, conv2, shortcut;
	bool has_shortcut;
};

struct dtp_vae_attention {
	struct dtp_layer norm, q, k, v, out;
};

struct dtp_vae_half { /* encoder or decoder */
	struct dtp_layer conv_in, conv_norm_out, conv_out;
	struct dtp_vae_resnet mid[2];
	struct dtp_vae_attention attention;
	struct dtp_vae_resnet resnet[DTP_VAE_MAX_LEVELS][DTP_VAE_MAX_RESNETS];
	struct dtp_layer sampler[DTP_VAE_MAX_LEVELS]; /* between levels */
};

struct dtp_vae {
	struct dtp_vae_config config;
	struct dtp_tree tree;
	struct dtp_layer bn, quant, post_quant;
	struct dtp_vae_half encoder, decoder;
	int first_decoder_module; /* index into tree: the encoder's come before it */
};

/* Reads dir/config.json and declares the modules; the encoder's are needed only with `encode`, the decoder's always. */
enum dtp_code dtp_vae_open(const char *dir, bool encode, struct dtp_vae *v, struct dtp_err *err);
void dtp_vae_close(struct dtp_vae *v);
/* Which halves are to be loaded.  dtp_vae_pack and dtp_vae_unpack work with neither. */
void dtp_vae_need(struct dtp_vae *v, bool encoder, bool decoder);
int64_t dtp_vae_scale(const struct dtp_vae *v); /* pixels per latent: 2^(levels - 1) */

/* Packed tokens [h*w, 4 * latent_channels] -> latents [2h, 2w, latent_channels]. */
struct dtp_tensor dtp_vae_unpack(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor tokens, int64_t h, int64_t w);
/* The inverse: latents [2h, 2w, latent_channels] -> tokens [h*w, 4 * latent_channels]. */
struct dtp_tensor dtp_vae_pack(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor latents);
/* Picture [scale*h, scale*w, in_channels] in -1..1 -> latents [h, w, latent_channels]: the mean of the distribution that the encoder
 * gives.  Stages: image.I.*, the blocks' of image 0 only. */
struct dtp_tensor dtp_vae_encode(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor picture, int image);
/* Latents [h, w, latent_channels] -> picture [scale*h, scale*w, out_channels], about -1..1.  Stages: vae.*. */
struct dtp_tensor dtp_vae_decode(struct dtp_ctx *c, const struct dtp_vae *v, struct dtp_tensor latents);
#endif
