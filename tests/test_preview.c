/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "preview.h"
#include "safetensors.h"
#include "vae.h"
#include "weights.h"

#define SIDE 96

/* Halves of two colours, encoded by the model's own encoder -> tokens [m, m, channels], malloc'd. */
static float *encode(const char *model, struct dtp_backend *be, const float left[3], const float right[3], int *m)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_ctx c = {.be = be, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	struct dtp_load_stats stats;
	struct dtp_vae vae;
	struct dtp_st st;
	char dir[512];
	static float picture[SIDE * SIDE * 3];

	for (int i = 0; i < SIDE * SIDE; i++)
		memcpy(picture + 3 * (size_t)i, i % SIDE < SIDE / 2 ? left : right, 3 * sizeof *picture);
	snprintf(dir, sizeof dir, "%s/vae", model);
	if (dtp_vae_open(dir, true, &vae, &err) || dtp_st_open(dir, "diffusion_pytorch_model", &st, &err))
		fail_msg("%s", err.message);
	dtp_vae_need(&vae, true, false);
	dtp_plan_bind(&vae.tree, 0, 1);
	if (dtp_weights_load(&vae.tree, &st, "", 0, 1, be, &dtp_monitor_none, &stats, &err) ||
	    dtp_arena_init(&c.scratch, be, 256u << 20, &err))
		fail_msg("%s", err.message);
	struct dtp_tensor x = dtp_from_host(&c, be->compute, 3, (int64_t[]){SIDE, SIDE, 3}, picture);
	struct dtp_tensor tokens = dtp_vae_pack(&c, &vae, dtp_vae_encode(&c, &vae, x, 0));
	*m = (int)(SIDE / (2 * dtp_vae_scale(&vae)));
	float *out = malloc((size_t)(*m * *m) * 4 * (size_t)vae.config.latent_channels * sizeof *out);
	if (!dtp_ok(&c) || be->ops->download(be, out, DTP_F32, tokens, &c.err))
		fail_msg("%s", c.err.message);
	dtp_arena_free(&c.scratch);
	dtp_weights_free(&vae.tree, be);
	dtp_st_close(&st);
	dtp_vae_close(&vae);
	return out;
}

static void preview_has_the_colours_of_the_picture(void **state)
{
	(void)state;
	static const char *const models[] = {"klein-tiny", "dev-tiny"};
	static const float red[3] = {0.8f, -0.6f, -0.6f}, blue[3] = {-0.6f, -0.6f, 0.8f};

	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_backend *be;
		struct dtp_preview *p;
		char model[256];
		int m;

		snprintf(model, sizeof model, "%s/models/%s", getenv("DTP_TESTS"), models[i]);
		if (dtp_backend_cpu(DTP_F32, 1, &be, &err) || dtp_preview_open(model, NULL, be, DTP_DEVICE_CPU, &dtp_monitor_none, &p, &err))
			fail_msg("%s", err.message);
		float *tokens = encode(model, be, red, blue, &m);
		uint8_t *rgb = malloc((size_t)(12 * m * m));
		dtp_preview_draw(p, tokens, m, m, rgb);
		double sum[2][3] = {{0}};
		for (int y = 0; y < 2 * m; y++)
			for (int x = 0; x < 2 * m; x++)
				for (int c = 0; c < 3; c++)
					sum[x >= m][c] += rgb[3 * (y * 2 * m + x) + c] / (2.0 * m * m);
		/* Weights are random, so the function is poor, but colours are on their sides; the pictures deviate by 70. */
		assert_true(sum[0][0] > sum[1][0] + 20 && sum[1][2] > sum[0][2] + 20);
		assert_true(dtp_preview_error(p) > 0 && dtp_preview_error(p) < 60);
		free(rgb);
		free(tokens);
		dtp_preview_close(p);
		be->ops->destroy(be);
	}
}

static void preview_without_an_encoder_is_refused(void **state)
{
	(void)state;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;
	struct dtp_preview *p;

	if (dtp_backend_cpu(DTP_F32, 1, &be, &err))
		fail_msg("%s", err.message);
	assert_int_equal(dtp_preview_open("nowhere", NULL, be, DTP_DEVICE_CPU, &dtp_monitor_none, &p, &err), DTP_REFUSED);
	assert_null(p);
	assert_message(&err, DTP_REFUSED, "nowhere/vae/config.json", NULL);
	be->ops->destroy(be);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(preview_has_the_colours_of_the_picture),
		cmocka_unit_test(preview_without_an_encoder_is_refused),
	};
	return cmocka_run_group_tests_name("preview", tests, NULL, NULL);
}
