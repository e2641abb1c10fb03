/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"
#include "text.h"
#include "units.h"
#include "cli_verify.h"

#include <math.h>
#include <string.h>

#define SHOWN 20 /* differences named one by one */

static const char *verdict_of(const struct dtp_verify_row *row)
{
	return !row->differ ? "ok" : row->worst.d.broken ? "NOT FINITE" : "DIFFERS";
}

/* What differs, in words: a layer, or what is computed between two. */
static void describe(const struct dtp_finding *f, char *buf, size_t size)
{
	if (f->kind == DTP_POINT_INPUT)
		snprintf(buf, size, "%s: the input of '%s', which is computed after '%s'", f->component, f->module, f->after);
	else if (f->kind == DTP_POINT_STAGE)
		snprintf(buf, size, "%s: '%s', which is computed after '%s'", f->component, f->module, f->after);
	else
		snprintf(buf, size, "%s: '%s'", f->component, f->module);
}

static void measure(const struct dtp_finding *f, char *buf, size_t size)
{
	char values[64] = "";

	if (f->d.broken)
		snprintf(values, sizeof values, "%lld values are not finite, ", (long long)f->d.broken);
	snprintf(buf, size, "%srel. RMS %.2g, max %.2g, tolerance %.2g", values, f->d.rms, f->d.max, f->d.tolerance);
}

static void whole_line(const struct dtp_finding *f, char *buf, size_t size)
{
	char what[640], numbers[160], step[32] = "";

	describe(f, what, sizeof what);
	measure(f, numbers, sizeof numbers);
	if (f->step > 1)
		snprintf(step, sizeof step, " in step %d", f->step);
	snprintf(buf, size, "%s%s%s%s (%s)", what, f->ranks[0] ? ", on " : "", f->ranks, step, numbers);
}

void dtp_verify_verdict(const struct dtp_verify_report *v, char *buf, size_t size)
{
	char line[960];

	whole_line(&v->found[0], line, sizeof line);
	snprintf(buf, size, "the first that diverges is %s", line);
}

static void print_head(const struct dtp_rank *r)
{
	const struct dtp_request *q = &r->request;

	printf("%s, %s, %lldx%lld, %d step%s: tp %d (%s) against ", dtp_pipeline_class(r->pipeline),
	       r->options.compute == DTP_F32 ? "fp32" : "bf16", (long long)q->width, (long long)q->height, q->steps,
	       q->steps == 1 ? "" : "s", r->options.tp_degree, dtp_pipeline_plan(r->pipeline));
	if (r->args->against)
		printf("'%s'\n\n", r->args->against);
	else
		printf("one rank, %s\n\n", r->args->free_run ? "each on its own way" : "every layer on the same input");
}

/* Stages are compared, not layers. */
static bool of_stages(const struct dtp_rank *r)
{
	return r->args->free_run || r->args->against;
}

static void print_row(const struct dtp_verify_row *row, bool stages)
{
	const struct dtp_difference *d = &row->worst.d;

	printf("%-13s %-44s", row->component, row->name);
	if (!stages)
		printf(" %6d", row->modules);
	printf(" %8d %9.2g %9.2g %9.2g  %s", row->compared, d->rms, d->max, d->tolerance, verdict_of(row));
	if (row->differ && strcmp(row->name, row->worst.module))
		printf(" at '%s'", row->worst.module);
	putchar('\n');
}

static void print_unmatched(const struct dtp_verify_report *v)
{
	char clean[sizeof v->theirs];

	if (v->only_ours)
		printf("Not in the recording (%d): %s%s\n", v->only_ours, v->ours,
		       strlen(v->ours) + 1 == sizeof v->ours ? "..." : "");
	if (v->only_theirs)
		printf("Not in this run (%d): %s%s\n", v->only_theirs, dtp_clean(clean, sizeof clean, v->theirs),
		       strlen(v->theirs) + 1 == sizeof v->theirs ? "..." : "");
}

static void print_table(const struct dtp_rank *r, const struct dtp_verify_report *v)
{
	char line[960];

	print_head(r);
	printf("%-13s %-44s", "component", of_stages(r) ? "stage" : "block");
	if (!of_stages(r))
		printf(" %6s", "layers");
	printf(" %8s %9s %9s %9s\n", "compared", "rel. RMS", "max", "tolerance");
	for (int i = 0; i < v->nrows; i++)
		print_row(&v->rows[i], of_stages(r));
	printf("\nOf each row the worst tensor: the RMS of its differences over its own (at most 1/%g of the tolerance), and the largest\n"
	       "difference over the value or the RMS.\n", 1 / (of_stages(r) ? DTP_VERIFY_RMS_SHARE_AT : DTP_VERIFY_RMS_SHARE));
	if (r->args->against)
		print_unmatched(v);
	else
		printf("The VAE is not split and not compared.\n"
		       "One rank computed the whole model with at most %s of weights in memory at a time (%s read).\n",
		       dtp_bytes_text(v->whole.peak).s, dtp_bytes_text(v->whole.read).s);
	if (!v->differ)
		printf("All agree%s.\n", r->args->against || r->options.tp_degree > 1 ? ""
			: "; but with --tp-degree 1 nothing is split");
	for (int i = 0; i < v->nfound && i < SHOWN; i++) {
		whole_line(&v->found[i], line, sizeof line);
		printf("%s%s\n", i ? "diverges too: " : "diverges first: ", line);
	}
	if (v->nfound > SHOWN)
		printf("and more: %d tensors in all\n", v->differ);
}

/* ---- JSON */

/* JSON has no infinity: null. */
static void add_number(cJSON *o, const char *key, double x)
{
	cJSON_AddItemToObject(o, key, isfinite(x) ? cJSON_CreateNumber(x) : cJSON_CreateNull());
}

static void add_difference(cJSON *o, const struct dtp_difference *d)
{
	add_number(o, "rms", d->rms);
	add_number(o, "max", d->max);
	add_number(o, "tolerance", d->tolerance);
	add_number(o, "rms_tolerance", d->rms_tolerance);
	add_number(o, "not_finite", (double)d->broken);
}

static cJSON *finding_json(const struct dtp_finding *f)
{
	static const char *const kinds[] = {[DTP_POINT_INPUT] = "input", [DTP_POINT_OUTPUT] = "output", [DTP_POINT_STAGE] = "stage"};
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "component", f->component);
	cJSON_AddStringToObject(o, "module", f->module);
	cJSON_AddStringToObject(o, "kind", kinds[f->kind]);
	cJSON_AddStringToObject(o, "after", f->after);
	cJSON_AddStringToObject(o, "ranks", f->ranks);
	add_number(o, "step", f->step);
	add_difference(o, &f->d);
	return o;
}

static cJSON *row_json(const struct dtp_verify_row *row)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "component", row->component);
	cJSON_AddStringToObject(o, "name", row->name);
	add_number(o, "layers", row->modules);
	add_number(o, "compared", row->compared);
	add_number(o, "differ", row->differ);
	cJSON_AddStringToObject(o, "worst", row->worst.module);
	add_difference(o, &row->worst.d);
	return o;
}

static enum dtp_code print_json(const struct dtp_rank *r, const struct dtp_verify_report *v, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *list;
	char seed[24];

	snprintf(seed, sizeof seed, "%llu", (unsigned long long)r->request.seed);
	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	cJSON_AddStringToObject(o, "model", r->options.model);
	cJSON_AddStringToObject(o, "class", dtp_pipeline_class(r->pipeline));
	cJSON_AddStringToObject(o, "plan", dtp_pipeline_plan(r->pipeline));
	cJSON_AddStringToObject(o, "dtype", r->options.compute == DTP_F32 ? "fp32" : "bf16");
	add_number(o, "tp_degree", r->options.tp_degree);
	add_number(o, "height", (double)r->request.height);
	add_number(o, "width", (double)r->request.width);
	add_number(o, "steps", r->request.steps);
	add_number(o, "max_sequence_length", (double)r->request.max_sequence_length);
	cJSON_AddStringToObject(o, "seed", seed);
	cJSON_AddStringToObject(o, "mode", r->args->against ? "against" : r->args->free_run ? "free_run" : "layers");
	cJSON_AddBoolToObject(o, "agrees", !v->differ);
	add_number(o, "only_in_run", v->only_ours);
	add_number(o, "only_in_recording", v->only_theirs);
	add_number(o, "whole_peak_bytes", (double)v->whole.peak);
	add_number(o, "whole_read_bytes", (double)v->whole.read);
	list = cJSON_AddArrayToObject(o, "rows");
	for (int i = 0; i < v->nrows; i++)
		cJSON_AddItemToArray(list, row_json(&v->rows[i]));
	list = cJSON_AddArrayToObject(o, "diverges");
	for (int i = 0; i < v->nfound; i++)
		cJSON_AddItemToArray(list, finding_json(&v->found[i]));
	return dtp_write_json(stdout, o, err);
}

enum dtp_code dtp_verify_print(const struct dtp_rank *r, const struct dtp_verify_report *v, struct dtp_err *err)
{
	if (dtp_progress_redraws(stdout))
		fputs("\r\033[K", stdout); /* the progress line of the first process may stand there */
	if (!r->args->json)
		print_table(r, v);
	else if (print_json(r, v, err))
		return err->code;
	return dtp_flush(stdout, err);
}
