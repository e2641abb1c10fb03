/* SPDX-License-Identifier: Apache-2.0 */
/* What to do: which kind of parallelism, how much of it, or what stands in its way. */
#include "plan.h"

#include "units.h"

#include <stdarg.h>
#include <string.h>

double dtp_ring_bytes(double bytes, int degree)
{
	return 2.0 * (degree - 1) / degree * bytes;
}

double dtp_hiding_rate(const struct dtp_plan_view *v)
{
	const struct dtp_phase_cost *step = &v->cost[1];
	double seconds = step->flops / (v->tflops * 1e12);

	return seconds > 0 ? dtp_ring_bytes(step->reduce_bytes, v->options.tp_degree) / seconds : 0;
}

static void add(struct dtp_plan_view *v, const char *kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(struct dtp_plan_view *v, const char *kind, const char *fmt, ...)
{
	va_list ap;

	if (v->nadvice == DTP_MAX_ADVICE)
		return;
	struct dtp_advice *a = &v->advice[v->nadvice++];
	a->kind = kind;
	va_start(ap, fmt);
	vsnprintf(a->text, sizeof a->text, fmt, ap);
	va_end(ap);
}

/* A link's rate at another degree than the one that was planned; 0 where there are no sums. */
static double rate_at(struct dtp_plan_view *v, int degree)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_phase_cost cost[DTP_NPHASES];
	double rate = 0;

	if (dtp_pipeline_set_degree(v->pipeline, degree, NULL))
		return 0;
	if (!dtp_pipeline_cost(v->pipeline, &v->request, 0, cost, &ignored) && cost[1].flops > 0)
		rate = dtp_ring_bytes(cost[1].reduce_bytes, degree) / (cost[1].flops / (v->tflops * 1e12));
	dtp_pipeline_set_degree(v->pipeline, v->options.tp_degree, NULL);
	return rate;
}

/* One device holds everything. */
static void advise_whole(struct dtp_plan_view *v)
{
	int degree = v->options.tp_degree, faster = degree > 1 ? degree : v->devices.n;

	if (v->devices.n > 1)
		add(v, "data_parallel", "For many prompts: data parallel, --dp-degree %d at --tp-degree 1. One device holds everything (%s), "
		    "so each draws a part of the images, and nothing has to be summed.", v->devices.n,
		    dtp_bytes_text(v->smallest_fit.largest).s);
	else
		add(v, "data_parallel", "For many prompts: one process that keeps drawing, at --tp-degree 1 (%s).",
		    dtp_bytes_text(v->smallest_fit.largest).s);
	if (faster > 1 && !dtp_pipeline_set_degree(v->pipeline, faster, NULL)) {
		dtp_pipeline_set_degree(v->pipeline, degree, NULL);
		add(v, "tensor_parallel", "For one picture at a time: tensor parallel makes it faster where the link gives every rank "
		    "well over %s/s (at --tp-degree %d).", dtp_bytes_text((uint64_t)rate_at(v, faster)).s, faster);
	}
}

/* Whether the weights alone, with their staging, are too much for the first bound when one rank holds all. */
static bool weights_are_the_cause(struct dtp_plan_view *v)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_phase_memory m[DTP_NPHASES];
	bool over = false;

	if (dtp_pipeline_set_degree(v->pipeline, 1, NULL))
		return true;
	if (!dtp_pipeline_memory(v->pipeline, &v->request, 0, m, &ignored))
		for (int i = 0; i < DTP_NPHASES; i++)
			over = over || m[i].weights + m[i].staging + m[i].workspace + dtp_rank_base_bytes(v->options.device, 1) > dtp_bound_rank(&v->bound, 0);
	dtp_pipeline_set_degree(v->pipeline, v->options.tp_degree, NULL);
	return over;
}

static void advise_split(struct dtp_plan_view *v)
{
	bool weights = weights_are_the_cause(v);
	struct dtp_text rate = dtp_bytes_text((uint64_t)rate_at(v, v->smallest));

	add(v, "tensor_parallel", "%s do not fit %s. Where the link between the ranks is fast, tensor parallel, and the smallest "
	    "degree that fits: --tp-degree %d (%s a rank). Fast means %s/s for every rank.", weights ? "The weights"
	    : "Weights and activations together", v->devices.n ? "one device" : "the limit", v->smallest, dtp_bytes_text(v->smallest_fit.largest).s, rate.s);
	if (v->devices.n && v->smallest > v->devices.n)
		add(v, "more_devices", "That takes %d devices; %d %s %s.", v->smallest, v->devices.n,
		    v->devices.n == 1 ? "is" : "are", v->args->devices ? "given" : "here");
	if (v->devices.n >= 2 * v->smallest)
		add(v, "data_parallel", "For many prompts: --dp-degree %d, groups of %d devices that draw a part of the images each.",
		    v->devices.n / v->smallest, v->smallest);
	add(v, "staged_loading", "Where the link is slow: staged loading, with only the block at work in memory. That is not there yet%s.",
	    v->options.stay.text ? "; with --offload stage the parts are loaded in turn" : "");
}

/* The phase that takes most of rank 0 at a degree; name NULL: the degree is none. */
static struct dtp_phase_memory worst_phase(struct dtp_plan_view *v, int degree)
{
	struct dtp_err ignored = DTP_ERR_INIT;
	struct dtp_phase_memory m[DTP_NPHASES], worst = {0};

	if (dtp_pipeline_set_degree(v->pipeline, degree, NULL))
		return worst;
	if (!dtp_pipeline_memory(v->pipeline, &v->request, 0, m, &ignored))
		for (int i = 0; i < DTP_NPHASES; i++)
			if (!worst.name || dtp_phase_bytes(&m[i]) > dtp_phase_bytes(&worst))
				worst = m[i];
	dtp_pipeline_set_degree(v->pipeline, v->options.tp_degree, NULL);
	return worst;
}

/* At no degree: what is in the way? */
static void advise_nothing(struct dtp_plan_view *v, int most)
{
	struct dtp_phase_memory worst = {0};
	int degree = most;

	while (degree > 0 && !(worst = worst_phase(v, degree)).name)
		degree--;
	if (!worst.name)
		return;
	uint64_t fixed = worst.staging + worst.workspace + dtp_rank_base_bytes(v->options.device, degree);
	if (fixed > dtp_bound_rank(&v->bound, 0) || (v->bound.host && fixed > v->host.available))
		add(v, "more_memory", "Whatever the model, a rank takes %s for %s.", dtp_bytes_text(fixed).s,
		    v->options.device == DTP_DEVICE_CUDA ? "its context and workspace on the GPU" : "the program and its staging buffer");
	else if (worst.scratch >= worst.weights)
		add(v, strcmp(worst.name, "transformer") ? "smaller_picture" : "context_parallel", "The activations are too large: %s in phase '%s' at --tp-degree %d, where the weights are %s. A "
		    "smaller picture has smaller ones.%s", dtp_bytes_text(worst.scratch).s, worst.name, degree,
		    dtp_bytes_text(worst.weights).s, strcmp(worst.name, "transformer") ? ""
		    : " Context parallel, which divides the tokens among the ranks, is not there yet.");
	else
		add(v, "more_memory", "The weights are too large: %s in phase '%s' at --tp-degree %d, with activations of %s. Devices with "
		    "more memory are needed, or more of them: see --devices.", dtp_bytes_text(worst.weights).s, worst.name, degree,
		    dtp_bytes_text(worst.scratch).s);
}

/* All ranks share the memory of this machine. */
static void advise_host(struct dtp_plan_view *v)
{
	if (v->fits && v->options.tp_degree == 1)
		add(v, "data_parallel", "For many prompts: one process that keeps drawing (--num-images), or data parallel (--dp-degree), "
		    "replicas with a part of the threads each, as long as the memory holds %s for each.",
		    dtp_bytes_text(v->offload.fit.total).s);
	else if (v->fits)
		add(v, "fewer_ranks", "The ranks share this machine's memory and processors: --tp-degree 1 with all threads is about as fast "
		    "and holds what is replicated once. More ranks pay on several devices: see --devices.");
	else if (v->smallest)
		add(v, "fewer_ranks", "--tp-degree %d fits: all ranks are on this machine, and fewer hold fewer copies of what is replicated "
		    "(%s together).", v->smallest, dtp_bytes_text(v->smallest_fit.total).s);
	if (!v->fits && v->options.stay.text)
		add(v, "staged_loading", "With --offload stage the parts are loaded in turn.");
	if (!v->fits && v->options.compute == DTP_F32)
		add(v, "dtype", "--dtype bf16 halves weights and activations.");
	if (!v->fits && !v->smallest) /* all ranks are on this machine: one takes least */
		advise_nothing(v, 1);
}

void dtp_plan_advise(struct dtp_plan_view *v)
{
	v->nadvice = 0;
	if (!v->devices.n && (!v->limit.n || v->smallest == 1))
		advise_host(v);
	else if (v->smallest == 1)
		advise_whole(v);
	else if (v->smallest)
		advise_split(v);
	else
		advise_nothing(v, DTP_MAX_DEGREE_TRIED);
}
