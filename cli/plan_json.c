/* SPDX-License-Identifier: Apache-2.0 */
/* `difftp plan --json`.  docs/plans.md lists the keys. */
#include "plan.h"

#include "text.h"

static cJSON *sizes(int n, const uint64_t *v)
{
	cJSON *a = cJSON_CreateArray();

	for (int i = 0; i < n; i++)
		cJSON_AddItemToArray(a, cJSON_CreateNumber((double)v[i]));
	return a;
}

/* ---- modules, one by one */

static cJSON *placed_json(const struct dtp_plan_view *v, const struct dtp_report_part *part, const struct dtp_module *m, int rank)
{
	cJSON *o = cJSON_CreateObject(), *runs;
	struct dtp_split s;
	int64_t shape[DTP_MAX_DIMS];
	uint64_t bytes;

	dtp_report_placed(v->pipeline, part, m, rank, &s, shape, &bytes);
	cJSON_AddItemToObject(o, "shape", dtp_json_numbers(m->ndim, shape));
	if (s.dim >= 0) {
		cJSON_AddNumberToObject(o, "dim", s.dim);
		runs = cJSON_AddArrayToObject(o, "runs");
		for (int i = 0; i < s.nruns; i++)
			cJSON_AddItemToArray(runs, dtp_json_numbers(2, (int64_t[]){s.run[i].begin, s.run[i].end}));
	}
	cJSON_AddNumberToObject(o, "bytes", (double)bytes);
	return o;
}

static cJSON *module_json(const struct dtp_plan_view *v, const struct dtp_report_part *part, const struct dtp_module *m)
{
	static const char *const kinds[] = {"list", "linear", "embedding", "norm", "conv"};
	enum dtp_dtype dtype = dtp_report_dtype(v->pipeline, part, m);
	cJSON *o = cJSON_CreateObject(), *ranks;

	cJSON_AddStringToObject(o, "name", m->name);
	cJSON_AddStringToObject(o, "kind", kinds[m->kind]);
	cJSON_AddItemToObject(o, "shape", dtp_json_numbers(m->ndim, m->shape));
	cJSON_AddBoolToObject(o, "bias", m->bias);
	cJSON_AddBoolToObject(o, "loaded", m->needed);
	if (dtype != DTP_NO_DTYPE)
		cJSON_AddStringToObject(o, "dtype", dtp_dtype_name(dtype));
	cJSON_AddStringToObject(o, "style", dtp_style_name(m->style));
	if (m->nblocks)
		cJSON_AddItemToObject(o, "blocks", dtp_json_numbers(m->nblocks, m->blocks));
	if (m->rule >= 0 && part->plan)
		cJSON_AddStringToObject(o, "key", part->plan->rules[m->rule].key);
	if (!m->needed)
		return o;
	ranks = cJSON_AddArrayToObject(o, "ranks");
	for (int rank = 0; rank < part->degree; rank++)
		cJSON_AddItemToArray(ranks, placed_json(v, part, m, rank));
	return o;
}

static cJSON *part_json(const struct dtp_plan_view *v, const struct dtp_report_part *part)
{
	cJSON *o = cJSON_CreateObject(), *list;

	cJSON_AddStringToObject(o, "name", part->name);
	cJSON_AddItemToObject(o, "plan", part->plan ? cJSON_CreateString(part->plan->source) : cJSON_CreateNull());
	cJSON_AddNumberToObject(o, "degree", part->degree);
	cJSON_AddNumberToObject(o, "weight_bytes", (double)part->whole);
	cJSON_AddItemToObject(o, "rank_bytes", sizes(part->degree, part->sums + (size_t)part->nlines * (size_t)part->degree));
	cJSON_AddNumberToObject(o, "replicated_bytes", (double)part->replicated);
	cJSON_AddNumberToObject(o, "read_bytes", (double)part->read);
	list = cJSON_AddArrayToObject(o, "large_unnamed");
	for (int i = 0; i < part->nlarge; i++) {
		cJSON *l = cJSON_CreateObject();
		cJSON_AddStringToObject(l, "key", part->large[i].key.name);
		cJSON_AddNumberToObject(l, "modules", part->large[i].key.count);
		cJSON_AddNumberToObject(l, "bytes", (double)part->large[i].bytes);
		cJSON_AddItemToArray(list, l);
	}
	list = cJSON_AddArrayToObject(o, "modules");
	for (int i = 0; i < part->tree->n; i++)
		if (part->tree->modules[i].kind != DTP_MODULE_LIST)
			cJSON_AddItemToArray(list, module_json(v, part, &part->tree->modules[i]));
	return o;
}

/* ---- sums, memory, verdict */

static void add_sums(const struct dtp_plan_view *v, cJSON *o)
{
	cJSON *list = cJSON_AddArrayToObject(o, "phases");

	for (int i = 0; i < dtp_request_phases(&v->request); i++) {
		const struct dtp_phase_cost *c = &v->cost[i];
		cJSON *p = cJSON_CreateObject();
		cJSON_AddStringToObject(p, "name", c->name);
		cJSON_AddNumberToObject(p, "flops", c->flops);
		cJSON_AddNumberToObject(p, "reductions", (double)c->reductions);
		cJSON_AddNumberToObject(p, "reduce_bytes", c->reduce_bytes);
		cJSON_AddNumberToObject(p, "ring_bytes", dtp_ring_bytes(c->reduce_bytes, v->options.tp_degree));
		cJSON_AddItemToArray(list, p);
	}
	cJSON_AddNumberToObject(o, "tflops", v->tflops);
	cJSON_AddBoolToObject(o, "tflops_assumed", v->tflops_assumed);
	cJSON_AddNumberToObject(o, "hiding_bytes_per_second", dtp_hiding_rate(v));
}

static cJSON *rank_json(const struct dtp_plan_view *v, int rank)
{
	cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "phases");
	uint64_t bound = dtp_bound_rank(&v->bound, rank);

	for (int i = 0; i < dtp_request_phases(&v->request); i++) {
		const struct dtp_phase_memory *m = &v->memory[rank][i];
		cJSON *p = cJSON_CreateObject();
		cJSON_AddStringToObject(p, "name", m->name);
		cJSON_AddNumberToObject(p, "weights", (double)m->weights);
		cJSON_AddNumberToObject(p, "activations", (double)m->scratch);
		cJSON_AddNumberToObject(p, "workspace", (double)m->workspace);
		cJSON_AddNumberToObject(p, "staging", (double)m->staging);
		cJSON_AddItemToArray(list, p);
	}
	cJSON_AddNumberToObject(o, "program", (double)dtp_rank_base_bytes(v->options.device, v->options.tp_degree));
	cJSON_AddNumberToObject(o, "peak", (double)v->offload.fit.rank[rank]);
	cJSON_AddItemToObject(o, "allowed", bound == UINT64_MAX ? cJSON_CreateNull() : cJSON_CreateNumber((double)bound));
	return o;
}

static void add_offload(const struct dtp_plan_view *v, cJSON *o)
{
	static const char *const choices[] = {"auto", "none", "stage"};
	cJSON *f = cJSON_AddObjectToObject(o, "offload"), *list;

	cJSON_AddStringToObject(f, "asked", choices[dtp_offload_asked(v->args)]);
	list = cJSON_AddArrayToObject(f, "components");
	for (int i = v->options.prompt_embeds ? 1 : 0; i < DTP_OFFLOAD_PARTS; i++) {
		struct dtp_offload_part part;
		cJSON *p = cJSON_CreateObject();
		dtp_offload_part(&v->offload, i, v->options.tp_degree, &part);
		cJSON_AddStringToObject(p, "name", part.name);
		cJSON_AddNumberToObject(p, "held_by", part.ranks);
		cJSON_AddBoolToObject(p, "resident", part.resident);
		cJSON_AddStringToObject(p, "from", part.from);
		cJSON_AddStringToObject(p, "to", part.to);
		cJSON_AddStringToObject(p, "why", part.why);
		cJSON_AddItemToArray(list, p);
	}
}

static void add_memory(const struct dtp_plan_view *v, cJSON *o)
{
	cJSON *list = cJSON_AddArrayToObject(o, "ranks");
	bool host = v->bound.host && v->host.available != UINT64_MAX;

	for (int rank = 0; rank < v->options.tp_degree; rank++)
		cJSON_AddItemToArray(list, rank_json(v, rank));
	cJSON_AddNumberToObject(o, "peak_bytes", (double)v->offload.fit.total);
	cJSON_AddItemToObject(o, "available_bytes", host ? cJSON_CreateNumber((double)v->host.available) : cJSON_CreateNull());
	cJSON_AddStringToObject(o, "device", v->options.device == DTP_DEVICE_CUDA ? "cuda" : "cpu");
	cJSON_AddItemToObject(o, "devices", v->devices.n ? sizes(v->devices.n, v->devices.bytes) : cJSON_CreateNull());
	cJSON_AddBoolToObject(o, "fits", v->fits);
	cJSON_AddItemToObject(o, "smallest_degree", v->smallest ? cJSON_CreateNumber(v->smallest) : cJSON_CreateNull());
}

enum dtp_code dtp_plan_print_json(const struct dtp_plan_view *v, FILE *f, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *list;

	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	cJSON_AddStringToObject(o, "model", v->options.model);
	cJSON_AddStringToObject(o, "class", dtp_pipeline_class(v->pipeline));
	cJSON_AddStringToObject(o, "dtype", v->options.compute == DTP_F32 ? "fp32" : "bf16");
	cJSON_AddNumberToObject(o, "tp_degree", v->options.tp_degree);
	cJSON_AddNumberToObject(o, "height", (double)v->request.height);
	cJSON_AddNumberToObject(o, "width", (double)v->request.width);
	cJSON_AddNumberToObject(o, "steps", v->request.steps);
	cJSON_AddNumberToObject(o, "passes", dtp_pipeline_passes(v->pipeline, &v->request));
	cJSON_AddBoolToObject(o, "passes_in_turn", v->request.passes_in_turn);
	cJSON_AddNumberToObject(o, "num_images", v->request.num_images);
	cJSON_AddNumberToObject(o, "reference_images", v->request.nimages);
	cJSON_AddNumberToObject(o, "max_sequence_length", (double)v->request.max_sequence_length);
	list = cJSON_AddArrayToObject(o, "components");
	for (int i = 0; i < DTP_REPORT_PARTS; i++)
		cJSON_AddItemToArray(list, part_json(v, &v->report.part[i]));
	add_sums(v, o);
	add_offload(v, o);
	add_memory(v, o);
	list = cJSON_AddArrayToObject(o, "advice");
	for (int i = 0; i < v->nadvice; i++) {
		cJSON *a = cJSON_CreateObject();
		cJSON_AddStringToObject(a, "kind", v->advice[i].kind);
		cJSON_AddStringToObject(a, "text", v->advice[i].text);
		cJSON_AddItemToArray(list, a);
	}
	return dtp_write_json(f, o, err);
}
