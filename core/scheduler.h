/* SPDX-License-Identifier: Apache-2.0 */
/* FlowMatchEulerDiscreteScheduler as the Flux2 pipelines use it. */
#ifndef DTP_SCHEDULER_H
#define DTP_SCHEDULER_H

#include "err.h"

#include <stdint.h>

#define DTP_SCHEDULER_CLASS "FlowMatchEulerDiscreteScheduler"
#define DTP_MAX_STEPS 1000

struct dtp_schedule {
	int steps;
	double mu;
	double sigmas_in[DTP_MAX_STEPS];    /* linspace(1, 1/steps, steps) */
	float sigmas[DTP_MAX_STEPS + 1];    /* shifted; the last one is 0 */
	float timesteps[DTP_MAX_STEPS];     /* sigma * num_train_timesteps */
};

/* Reads dir/scheduler_config.json; a class or an option that would change the result and is not implemented
 * (karras, beta, exponential sigmas, shift_terminal, invert_sigmas, stochastic sampling, time_shift_type other than
 * exponential, use_dynamic_shifting false) is DTP_REFUSED by name. */
struct dtp_scheduler {
	double num_train_timesteps;
};
enum dtp_code dtp_scheduler_load(const char *dir, struct dtp_scheduler *s, struct dtp_err *err);
/* image_tokens: generated tokens only (h*w), without references. */
void dtp_schedule_make(const struct dtp_scheduler *s, int64_t image_tokens, int steps, struct dtp_schedule *out);
#endif
