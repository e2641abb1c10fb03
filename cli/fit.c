/* SPDX-License-Identifier: Apache-2.0 */
#include "fit.h"

#include "units.h"

#include <stdio.h>
#include <string.h>

static uint64_t add(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

uint64_t dtp_phase_bytes(const struct dtp_phase_memory *m)
{
	return add(add(add(m->weights, m->scratch), m->workspace), m->staging);
}

uint64_t dtp_bound_rank(const struct dtp_bound *b, int rank)
{
	uint64_t device = b->device ? dtp_limit(b->device, rank) : UINT64_MAX;
	uint64_t limit = b->limit ? dtp_limit(b->limit, rank) : UINT64_MAX;

	return device < limit ? device : limit;
}

/* ---- prediction */

static enum dtp_code predict_rank(struct dtp_pipeline *p, const struct dtp_request *r, int rank, struct dtp_fit *fit,
				  struct dtp_err *err)
{
	struct dtp_phase_memory m[DTP_NPHASES], peak = {0};

	if (dtp_pipeline_memory(p, r, rank, m, err))
		return err->code;
	for (int i = 0; i < DTP_NPHASES; i++) {
		if (dtp_phase_bytes(&m[i]) >= dtp_phase_bytes(&peak))
			peak = m[i];
	}
	fit->rank[rank] = add(dtp_phase_bytes(&peak), dtp_rank_base_bytes(dtp_pipeline_device(p), fit->degree));
	fit->total = add(fit->total, fit->rank[rank]);
	if (fit->rank[rank] > fit->largest) {
		fit->largest = fit->rank[rank];
		fit->phase = peak;
	}
	return DTP_OK;
}

enum dtp_code dtp_fit_predict(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			      struct dtp_fit *fit, struct dtp_err *err)
{
	*fit = (struct dtp_fit){.degree = o->tp_degree};
	for (int rank = 0; rank < o->tp_degree; rank++)
		if (predict_rank(p, r, rank, fit, err))
			return err->code;
	return DTP_OK;
}

static int replicas(const struct dtp_bound *b)
{
	return b->replicas > 1 ? b->replicas : 1;
}

/* Of all ranks of this host. */
static uint64_t of_all(const struct dtp_fit *fit, const struct dtp_bound *b)
{
	uint64_t n = 0;

	for (int i = 0; b->here && i < b->nhere; i++)
		n = add(n, fit->rank[b->here[i] % fit->degree]);
	if (b->here)
		return n;
	return __builtin_mul_overflow(fit->total, (uint64_t)replicas(b), &n) ? UINT64_MAX : n;
}

/* Among all replicas; -1: none is. */
static int first_over(const struct dtp_fit *fit, int degree, const struct dtp_bound *b)
{
	for (int rank = 0; rank < degree * replicas(b); rank++)
		if (fit->rank[rank % degree] > dtp_bound_rank(b, rank))
			return rank;
	return -1;
}

bool dtp_fits(const struct dtp_fit *fit, int degree, const struct dtp_bound *b)
{
	return (!b->host || of_all(fit, b) <= b->host->available) && first_over(fit, degree, b) < 0;
}

const struct dtp_bound *dtp_fit_over(const struct dtp_fit *fit, const struct dtp_bound *bounds, int n)
{
	for (int i = 0; i < n; i++)
		if (!dtp_fits(fit, fit->degree, &bounds[i]))
			return &bounds[i];
	return NULL;
}

static void take_tighter(struct dtp_room *room, uint64_t need, uint64_t have)
{
	if (have != UINT64_MAX && (double)need / (double)have >= (double)room->need / (double)room->have)
		*room = (struct dtp_room){need, have};
}

struct dtp_room dtp_fit_room(const struct dtp_fit *fit, const struct dtp_bound *bounds, int n)
{
	struct dtp_room room = {fit->largest, UINT64_MAX};

	for (int i = 0; i < n; i++) {
		const struct dtp_bound *b = &bounds[i];
		for (int rank = 0; rank < fit->degree * replicas(b); rank++)
			take_tighter(&room, fit->rank[rank % fit->degree], dtp_bound_rank(b, rank));
		if (b->host)
			take_tighter(&room, of_all(fit, b), b->host->available);
	}
	return room;
}

enum dtp_code dtp_fit_passes(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_request *r,
			     const struct dtp_bound *bounds, int n, struct dtp_err *err)
{
	struct dtp_fit fit;

	r->passes_in_turn = false;
	if (dtp_pipeline_passes(p, r) < 2)
		return DTP_OK;
	if (dtp_fit_predict(p, o, r, &fit, err))
		return err->code;
	r->passes_in_turn = dtp_fit_over(&fit, bounds, n) != NULL;
	return DTP_OK;
}

/* Stops at the first rank that breaks a bound, as a rule the very first. */
static bool fits_at(struct dtp_pipeline *p, const struct dtp_request *r, const struct dtp_bound *b, int degree,
		    struct dtp_fit *fit)
{
	struct dtp_err ignored = DTP_ERR_INIT;

	*fit = (struct dtp_fit){.degree = degree};
	for (int rank = 0; rank < degree; rank++)
		if (predict_rank(p, r, rank, fit, &ignored) || (b->host && of_all(fit, b) > b->host->available) ||
		    fit->rank[rank] > dtp_bound_rank(b, rank))
			return false;
	return dtp_fits(fit, degree, b);
}

int dtp_fit_smallest(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
		     const struct dtp_bound *b, int least, int most, struct dtp_fit *fit)
{
	int found = 0;

	for (int d = least; d <= most && !found; d++)
		if (!dtp_pipeline_set_degree(p, d, NULL) && fits_at(p, r, b, d, fit))
			found = d;
	dtp_pipeline_set_degree(p, o->tp_degree, NULL); /* it was accepted before */
	return found;
}

/* ---- refusal */

/* Of all ranks where the host's memory bounds them together, else of the one that needs most. */
static void add_advice(const char *text, const struct dtp_fit *fit, bool each, const struct dtp_bound *b, struct dtp_err *err)
{
	size_t used = strlen(err->message);

	snprintf(err->message + used, sizeof err->message - used, "\n%s needs %s%s and fits", text,
		 dtp_bytes_text(each ? fit->largest : of_all(fit, b)).s, each ? " a rank" : "");
}

/* Appends "TEXT needs X and fits" as advice if the changed job fits. */
static void advise(const struct dtp_options *o, const struct dtp_request *asked, const struct dtp_bound *b, const char *text,
		   struct dtp_err *err)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_options quick = *o;
	struct dtp_request r = *asked;
	struct dtp_pipeline *p;
	struct dtp_fit fit;

	quick.no_tokenizer = true; /* the prompt was encoded before */
	if (dtp_pipeline_open(&quick, &dtp_monitor_none, &p, &ignored))
		return;
	if (!dtp_pipeline_resolve(p, &r, &ignored) && !dtp_fit_predict(p, o, &r, &fit, &ignored) &&
	    dtp_fits(&fit, o->tp_degree, b))
		add_advice(text, &fit, b->device && o->tp_degree * replicas(b) > 1, b, err);
	dtp_pipeline_close(p);
}

/* Ranks of a replica that have a device each, or as many as are tried. */
static int most_ranks(const struct dtp_bound *b)
{
	int n = b->device ? b->device->n / replicas(b) : b->limit && b->limit->n ? DTP_MAX_DEGREE_TRIED : 0;

	return n < DTP_MAX_DEGREE_TRIED ? n : DTP_MAX_DEGREE_TRIED;
}

static void advise_degree(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			  const struct dtp_bound *b, struct dtp_err *err)
{
	struct dtp_fit fit;
	char text[32];
	int degree = 0;

	/* A list of limits is for the present number of ranks. */
	if ((b->limit && b->limit->n > 1) || b->here) /* and a list of ranks too */
		return;
	/* All ranks are on this machine: fewer hold fewer copies of what is replicated. */
	if (o->tp_degree > 1)
		degree = dtp_fit_smallest(p, o, r, b, 1, 1, &fit);
	/* More of them have less each. */
	if (!degree)
		degree = dtp_fit_smallest(p, o, r, b, o->tp_degree + 1, most_ranks(b), &fit);
	if (!degree)
		return;
	snprintf(text, sizeof text, "--tp-degree %d", degree);
	add_advice(text, &fit, b->device || (b->limit && b->limit->n), b, err);
}

static void advise_size(const struct dtp_options *o, const struct dtp_request *r, const struct dtp_bound *b,
			struct dtp_err *err)
{
	struct dtp_request smaller = *r;
	char text[80];

	while (smaller.height > 64 || smaller.width > 64) {
		/* Multiples of 64 are sizes that any model of the family draws. */
		smaller.height = smaller.height > 128 ? smaller.height / 128 * 64 : 64;
		smaller.width = smaller.width > 128 ? smaller.width / 128 * 64 : 64;
		struct dtp_err before = *err;
		snprintf(text, sizeof text, "--height %lld --width %lld", (long long)smaller.height, (long long)smaller.width);
		advise(o, &smaller, b, text, err);
		if (strcmp(before.message, err->message))
			return;
	}
}

static void advise_fewer_replicas(const struct dtp_options *o, const struct dtp_request *r, const struct dtp_bound *b,
				  struct dtp_err *err)
{
	struct dtp_bound fewer = *b;
	struct dtp_err before = *err;
	char text[32];

	for (fewer.replicas = replicas(b) - 1; fewer.replicas && !strcmp(before.message, err->message); fewer.replicas--) {
		snprintf(text, sizeof text, "--dp-degree %d", fewer.replicas);
		advise(o, r, &fewer, text, err);
	}
}

static void advise_all(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
		       const struct dtp_bound *b, struct dtp_err *err)
{
	struct dtp_options other = *o;

	if (o->compute == DTP_F32) {
		other.compute = DTP_BF16;
		advise(&other, r, b, "--dtype bf16", err);
		other = *o;
	}
	if (o->stay.pictures) {
		other.stay = (struct dtp_residency){0};
		advise(&other, r, b, "--offload stage", err);
	}
	if (dtp_pipeline_passes(p, r) > 1 && !r->passes_in_turn) {
		struct dtp_request in_turn = *r;
		in_turn.passes_in_turn = true;
		advise(o, &in_turn, b, "--guidance-passes in-turn", err);
	}
	if (r->output == DTP_OUTPUT_PNG) {
		struct dtp_request latents = *r;
		latents.output = DTP_OUTPUT_LATENT;
		advise(o, &latents, b, "--output-type latent, for difftp decode elsewhere,", err);
	}
	if (replicas(b) > 1 && !b->here)
		advise_fewer_replicas(o, r, b, err);
	advise_degree(p, o, r, b, err);
	advise_size(o, r, b, err);
}

void dtp_fit_advise(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r, const struct dtp_bound *b,
		    struct dtp_err *err)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_fit fit;

	if (!dtp_fit_predict(p, o, r, &fit, &ignored) && !dtp_fits(&fit, o->tp_degree, b))
		advise_all(p, o, r, b, err);
}

/* The peak of one rank, as a message's second line. */
static void tell_phase(const struct dtp_phase_memory *m, const struct dtp_options *o, char *buf, size_t len)
{
	bool gpu = o->device == DTP_DEVICE_CUDA;

	snprintf(buf, len, "in phase '%s' weights %s, scratch %s, %s %s, and %s for the %s", m->name, dtp_bytes_text(m->weights).s,
		 dtp_bytes_text(m->scratch).s, gpu ? "workspace" : "staging", dtp_bytes_text(gpu ? m->workspace : m->staging).s,
		 dtp_bytes_text(dtp_rank_base_bytes(o->device, o->tp_degree)).s, gpu ? "context" : "program");
}

/* What takes more than it must. */
static const char *asked(const struct dtp_options *o)
{
	return o->stay.text ? " for --offload none" : "";
}

static enum dtp_code over_limit(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
				const struct dtp_bound *b, int rank, struct dtp_err *err)
{
	struct dtp_fit one = {.degree = o->tp_degree};
	char phase[256];
	uint64_t device = b->device ? dtp_limit(b->device, rank) : UINT64_MAX, allowed = dtp_bound_rank(b, rank);

	if (predict_rank(p, r, rank % o->tp_degree, &one, err))
		return err->code;
	struct dtp_text_pair sizes = dtp_bytes_apart(one.largest, allowed);
	tell_phase(&one.phase, o, phase, sizeof phase);
	dtp_fail(err, DTP_REFUSED, "not enough memory%s: rank %d needs %s at the peak, %s allows %s\n%s", asked(o), rank, sizes.a.s,
		 device == allowed ? b->device->option : b->limit->option, sizes.b.s, phase);
	advise_all(p, o, r, b, err);
	return err->code;
}

enum dtp_code dtp_fit_check_whole(struct dtp_pipeline *p, const struct dtp_request *r, const struct dtp_host_memory *host,
				  struct dtp_err *err)
{
	struct dtp_phase_memory m;

	if (dtp_pipeline_whole_memory(p, r, &m, err))
		return err->code;
	if (dtp_phase_bytes(&m) <= host->available)
		return DTP_OK;
	struct dtp_text_pair sizes = dtp_bytes_apart(dtp_phase_bytes(&m), host->available);
	return dtp_fail(err, DTP_REFUSED, "not enough memory: rank 0 computes the whole model on the host, beside its part on the GPU, which takes "
			"%s, %s are available\nthe largest layer %s, scratch %s, staging %s; a smaller picture takes less", sizes.a.s, sizes.b.s,
			dtp_bytes_text(m.weights).s, dtp_bytes_text(m.scratch).s, dtp_bytes_text(m.staging).s);
}

enum dtp_code dtp_fit_check(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			    const struct dtp_bound *b, struct dtp_err *err)
{
	const struct dtp_host_memory *host = b->host;
	struct dtp_fit fit;
	char phase[256];

	if (dtp_fit_predict(p, o, r, &fit, err))
		return err->code;
	int over = first_over(&fit, o->tp_degree, b);
	if (over >= 0)
		return over_limit(p, o, r, b, over, err);
	if (!host || of_all(&fit, b) <= host->available)
		return DTP_OK;
	int ranks = b->here ? b->nhere : o->tp_degree * replicas(b);
	struct dtp_text_pair sizes = dtp_bytes_apart(of_all(&fit, b), host->available);
	tell_phase(&fit.phase, o, phase, sizeof phase);
	dtp_fail(err, DTP_REFUSED,
		 "not enough memory%s: %d rank%s need%s %s at the peak, %s are available (%s)\nthe largest rank needs %s: %s",
		 asked(o), ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", sizes.a.s,
		 sizes.b.s, host->cgroup < host->machine ? "control group's limit" : "MemAvailable",
		 dtp_bytes_text(fit.largest).s, phase);
	advise_all(p, o, r, b, err);
	return err->code;
}
