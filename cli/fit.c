/* SPDX-License-Identifier: Apache-2.0 */
#include "fit.h"

#include "units.h"

#include <stdio.h>
#include <string.h>

static uint64_t add(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t phase_bytes(const struct dtp_phase_memory *m)
{
	return add(add(m->weights, m->scratch), m->staging);
}

enum dtp_code dtp_fit_predict(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			      struct dtp_fit *fit, struct dtp_err *err)
{
	*fit = (struct dtp_fit){0};
	for (int rank = 0; rank < o->tp_degree; rank++) {
		struct dtp_phase_memory m[DTP_NPHASES], peak = {0};
		if (dtp_pipeline_memory(p, r, rank, m, err))
			return err->code;
		for (int i = 0; i < DTP_NPHASES; i++) {
			if (phase_bytes(&m[i]) >= phase_bytes(&peak))
				peak = m[i];
		}
		uint64_t bytes = add(phase_bytes(&peak), DTP_RANK_BASE_BYTES);
		fit->total = add(fit->total, bytes);
		if (bytes > fit->largest) {
			fit->largest = bytes;
			fit->phase = peak;
		}
	}
	return DTP_OK;
}

/* Appends " TEXT would need X" as advice if the changed job fits. */
static void advise(const struct dtp_options *o, const struct dtp_request *asked, uint64_t available, const char *text,
		   struct dtp_err *err)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_request r = *asked;
	struct dtp_pipeline *p;
	struct dtp_fit fit;

	if (dtp_pipeline_open(o, &dtp_monitor_none, &p, &ignored))
		return;
	if (!dtp_pipeline_resolve(p, &r, &ignored) && !dtp_fit_predict(p, o, &r, &fit, &ignored) && fit.total <= available) {
		size_t used = strlen(err->message);
		snprintf(err->message + used, sizeof err->message - used, "\n%s needs %s and fits", text,
			 dtp_bytes_text(fit.total).s);
	}
	dtp_pipeline_close(p);
}

enum dtp_code dtp_fit_check(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			    const struct dtp_host_memory *memory, struct dtp_err *err)
{
	struct dtp_fit fit;
	struct dtp_options other = *o;
	struct dtp_request smaller = *r;
	char text[80];

	if (dtp_fit_predict(p, o, r, &fit, err))
		return err->code;
	if (fit.total <= memory->available)
		return DTP_OK;
	dtp_fail(err, DTP_REFUSED,
		 "not enough memory: %d rank%s need%s %s at the peak, %s are available (%s)\n"
		 "the largest rank needs %s: in phase '%s' weights %s, scratch %s, staging %s, and %s for the program",
		 o->tp_degree, o->tp_degree == 1 ? "" : "s", o->tp_degree == 1 ? "s" : "", dtp_bytes_text(fit.total).s,
		 dtp_bytes_text(memory->available).s, memory->cgroup < memory->machine ? "control group's limit" : "MemAvailable",
		 dtp_bytes_text(fit.largest).s, fit.phase.name, dtp_bytes_text(fit.phase.weights).s,
		 dtp_bytes_text(fit.phase.scratch).s, dtp_bytes_text(fit.phase.staging).s,
		 dtp_bytes_text(DTP_RANK_BASE_BYTES).s);
	if (o->compute == DTP_F32) {
		other.compute = DTP_BF16;
		advise(&other, r, memory->available, "--dtype bf16", err);
		other = *o;
	}
	if (o->keep_text_encoder) {
		other.keep_text_encoder = false;
		advise(&other, r, memory->available, "without --keep-text-encoder it", err);
		other = *o;
	}
	/* All ranks are on this machine: fewer hold fewer copies of what is replicated. */
	if (o->tp_degree > 1) {
		other.tp_degree = 1;
		advise(&other, r, memory->available, "--tp-degree 1", err);
		other = *o;
	}
	while (smaller.height > 64 || smaller.width > 64) {
		/* Multiples of 64 are sizes that any model of the family draws. */
		smaller.height = smaller.height > 128 ? smaller.height / 128 * 64 : 64;
		smaller.width = smaller.width > 128 ? smaller.width / 128 * 64 : 64;
		struct dtp_err before = *err;
		snprintf(text, sizeof text, "--height %lld --width %lld", (long long)smaller.height, (long long)smaller.width);
		advise(o, &smaller, memory->available, text, err);
		if (strcmp(before.message, err->message))
			break;
	}
	return err->code;
}
