/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped program against what diffusers made of the same folder, prompt and seed: every recorded stage of every
 * case, at every degree.  tests/reference describes the recordings. */
#include "golden.h"

static const int heads[NCASES] = {8, 8, 8, 8, 4, 8, 8, 8, 12}; /* what a degree must divide */
#ifdef DTP_SANITIZE
static const int degrees[] = {1, 2}; /* some ten times slower */
#else
static const int degrees[] = {1, 2, 3, 4, 6, 8, 12};
#endif
#define NDEGREES (sizeof degrees / sizeof degrees[0])

static void every_stage(void **state)
{
	const struct spec *s = *state;
	char path[700];

	result(s, ".safetensors", path);
	compare_all(path, cases[s->which]);
	result(s, ".png", path);
	int n = png_differences(path, fixture("reference/%s/image_%s.png", cases[s->which][0], cases[s->which][1]));
	if (n > 5)
		fail_msg("%d values of the picture differ by 1, at most 5 may", n);
}

/* Whether the runs have this prediction; it differs by at most 1e-5. */
static bool predictions_agree(const struct dtp_st *a, const struct dtp_st *b, int step, const char *suffix)
{
	char name[64];

	snprintf(name, sizeof name, "step.%d.noise_pred%s", step, suffix);
	if (!dtp_st_find(a, name))
		return false;
	double max = differ(a, name, b, name, 0).max;
	if (!(max <= 1e-5))
		fail_msg("%s differs by %g between two degrees", name, max);
	return true;
}

static void degrees_agree(void **state)
{
	struct spec s = *(const struct spec *)*state;
	struct dtp_st st[NDEGREES];
	char path[700];
	size_t n = 0;

	for (size_t d = 0; d < NDEGREES; d++) {
		if (heads[s.which] % degrees[d])
			continue;
		s.degree = degrees[d];
		result(&s, ".safetensors", path);
		open_tensors(path, &st[n++]);
	}
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < i; j++)
			for (int step = 0;; step++) {
				/* Guidance makes up to 2 * 4 - 1 times the difference of its two predictions. */
				bool guided = predictions_agree(&st[i], &st[j], step, "_cond") &&
					      predictions_agree(&st[i], &st[j], step, "_uncond");
				if (!guided && !predictions_agree(&st[i], &st[j], step, ""))
					break;
			}
	for (size_t i = 0; i < n; i++)
		dtp_st_close(&st[i]);
}

/* bf16: how far we are from diffusers' bf16 run, measured by how far arithmetic in bf16 is from fp32. */
static void bf16_error(void **state)
{
	static const char *const stages[][2] = {{"step.0.noise_pred", "noise_pred.0"},
		{"final.output_type_latent", "output_type_latent"}};
	const struct spec *s = *state;
	const char *const *which = cases[s->which];
	struct dtp_st ours, golden, torch;
	char path[700], exact_t[64], own[64];

	result(s, ".safetensors", path);
	open_tensors(path, &ours);
	open_tensors(fixture("reference/%s/golden_%s.safetensors", which[0], which[1]), &golden);
	open_tensors(fixture("reference/%s/bf16_%s.safetensors", which[0], which[1]), &torch);
	for (int i = 0; i < 2; i++) {
		snprintf(exact_t, sizeof exact_t, "exact_t.%s", stages[i][1]);
		snprintf(own, sizeof own, "own_noise.%s", stages[i][1]);
		double unit = differ(&torch, exact_t, &golden, stages[i][0], 0).mean;
		double mean = s->exact ? differ(&ours, stages[i][0], &golden, stages[i][0], 0).mean
				       : differ(&ours, stages[i][0], &torch, own, 0).mean;
		print_message("%s: mean error %.2g, %.2f of exact_t's\n", stages[i][0], mean, mean / unit);
		if (!(mean <= (s->exact ? 1.5 : 2) * unit))
			fail_msg("%s: mean error %g, that of exact_t is %g", stages[i][0], mean, unit);
	}
	dtp_st_close(&ours);
	dtp_st_close(&golden);
	dtp_st_close(&torch);
	unlink(path); /* no other test reads it */
}

/* ---- the list */

/* An argument is the name of the one test to run, or a pattern with '*'. */
int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	for (int which = 0; which < (int)NCASES; which++) {
		for (size_t d = 0; d < NDEGREES; d++) {
			if (heads[which] % degrees[d])
				continue;
			add(every_stage, "stages", (struct spec){.which = which, .degree = degrees[d]});
			if (which == HEADS12)
				continue;
			add(bf16_error, "error", (struct spec){.which = which, .degree = degrees[d], .bf16 = true});
			add(bf16_error, "error", (struct spec){.which = which, .degree = degrees[d], .bf16 = true, .exact = true});
		}
		add(degrees_agree, "degrees_agree", (struct spec){.which = which, .degree = heads[which]});
	}
	for (int degree = 1; degree <= 2; degree++) {
		add(every_stage, "stages", (struct spec){.which = BASE, .degree = degree, .in_turn = true});
		add(bf16_error, "error", (struct spec){.which = BASE, .degree = degree, .bf16 = true, .in_turn = true});
	}
	return _cmocka_run_group_tests("golden", tests, ntests, NULL, NULL);
}
