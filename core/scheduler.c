/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Options that are false in every Flux2 folder and change the result when they are not. */
static const char *const unsupported[] = {
	"invert_sigmas", "stochastic_sampling", "use_beta_sigmas", "use_exponential_sigmas", "use_flow_sigmas",
	"use_karras_sigmas",
};

static enum dtp_code check_class(const struct dtp_json *doc, struct dtp_err *err)
{
	const char *class, *shift = "exponential";

	enum dtp_code rc = dtp_json_string(doc, NULL, "_class_name", &class, err);
	if (rc)
		return rc;
	if (strcmp(class, DTP_SCHEDULER_CLASS))
		return dtp_fail(err, DTP_REFUSED, "%s: the scheduler '%.200s' is not supported, only '"
				DTP_SCHEDULER_CLASS "' is", doc->path, class);
	if (cJSON_GetObjectItemCaseSensitive(doc->root, "time_shift_type"))
		rc = dtp_json_string(doc, NULL, "time_shift_type", &shift, err);
	if (rc)
		return rc;
	if (strcmp(shift, "exponential"))
		return dtp_fail(err, DTP_REFUSED, "%s: 'time_shift_type' is \"%.200s\", only \"exponential\" is supported",
				doc->path, shift);
	return DTP_OK;
}

static enum dtp_code check_options(const struct dtp_json *doc, struct dtp_err *err)
{
	bool dynamic = false; /* the class's default */
	double terminal = 0;

	for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
		bool on = false;
		enum dtp_code rc = dtp_json_bool_or(doc, NULL, unsupported[i], &on, err);
		if (rc)
			return rc;
		if (on)
			return dtp_fail(err, DTP_REFUSED, "%s: '%s' is true, only false is supported", doc->path,
					unsupported[i]);
	}
	enum dtp_code rc = dtp_json_bool_or(doc, NULL, "use_dynamic_shifting", &dynamic, err);
	if (rc)
		return rc;
	if (!dynamic)
		return dtp_fail(err, DTP_REFUSED, "%s: 'use_dynamic_shifting' is false (its default), only true is supported",
				doc->path);
	rc = dtp_json_double_or(doc, NULL, "shift_terminal", -INFINITY, INFINITY, &terminal, err);
	if (rc)
		return rc;
	if (terminal != 0) /* 0 means none, as null does */
		return dtp_fail(err, DTP_REFUSED, "%s: 'shift_terminal' is %g, only null is supported", doc->path, terminal);
	return DTP_OK;
}

enum dtp_code dtp_scheduler_load(const char *dir, struct dtp_scheduler *s, struct dtp_err *err)
{
	struct dtp_json doc;
	char *path;
	int64_t train = 1000;

	if (asprintf(&path, "%s/scheduler_config.json", dir) < 0)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code rc = dtp_json_load(path, 0, &doc, err);
	free(path);
	if (rc)
		return rc;
	rc = check_class(&doc, err);
	if (rc == DTP_OK)
		rc = check_options(&doc, err);
	if (rc == DTP_OK)
		rc = dtp_json_int_or(&doc, NULL, "num_train_timesteps", 1, 1000000, &train, err);
	if (rc == DTP_OK)
		s->num_train_timesteps = (double)train;
	dtp_json_free(&doc);
	return rc;
}

/* A fit to how far the noise must be shifted for a picture of n tokens: one line for 10 steps, one for 200, and what lies
 * between and beyond by the line through both. */
static double empirical_mu(int64_t n, int steps)
{
	double tokens = (double)n, m200 = 0.00016927 * tokens + 0.45666666, m10 = 8.73809524e-05 * tokens + 1.89833333;
	if (n > 4300)
		return m200;
	double a = (m200 - m10) / 190, b = m200 - 200 * a;
	return a * steps + b;
}

/* The order and the precision of every operation are those of numpy and torch in the reference: the values are the same to
 * the bit. */
void dtp_schedule_make(const struct dtp_scheduler *s, int64_t image_tokens, int steps, struct dtp_schedule *out)
{
	double last = 1.0 / steps, delta = steps > 1 ? (last - 1) / (steps - 1) : 0;

	out->steps = steps;
	out->mu = empirical_mu(image_tokens, steps);
	float shift = (float)exp(out->mu);
	for (int i = 0; i < steps; i++) {
		double in = i && i == steps - 1 ? last : i * delta + 1;
		out->sigmas_in[i] = in;
		float rest = 1 / (float)in - 1;
		out->sigmas[i] = shift / (shift + rest);
		out->timesteps[i] = out->sigmas[i] * (float)s->num_train_timesteps;
	}
	out->sigmas[steps] = 0;
}
