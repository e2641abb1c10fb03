/* SPDX-License-Identifier: Apache-2.0 */
/* `difftp plan` as text for people. */
#include "plan.h"

#include "text.h"
#include "units.h"

#include <inttypes.h>
#include <string.h>

#define MAX_RANKS_TOLD 8

/* ---- the tree */

/* The local shapes of all ranks: a dimension in which they differ is "least-most". */
static const char *local_text(char *buf, size_t size, const struct dtp_report_line *l)
{
	size_t n = (size_t)snprintf(buf, size, "[");

	for (int i = 0; i < l->module->ndim && n < size; i++) {
		n += (size_t)snprintf(buf + n, size - n, "%s%" PRId64, i ? ", " : "", l->shape_least[i]);
		if (n < size && l->shape_least[i] != l->shape_most[i])
			n += (size_t)snprintf(buf + n, size - n, "-%" PRId64, l->shape_most[i]);
	}
	if (n < size)
		snprintf(buf + n, size - n, "]");
	return buf;
}

static void line_name(char *buf, size_t size, const struct dtp_report_line *l)
{
	if (l->at.count > 1)
		snprintf(buf, size, "%*s%s (%d alike)", 2 * (l->at.depth + 1), "", l->at.name, l->at.count);
	else
		snprintf(buf, size, "%*s%s", 2 * (l->at.depth + 1), "", l->at.name);
}

static const char *style_text(const struct dtp_report_part *part, const struct dtp_report_line *l)
{
	return part->plan ? dtp_style_name(l->module->style) : "whole";
}

/* The line after those that stand below line i. */
static int behind(const struct dtp_report_part *part, int i)
{
	int depth = part->lines[i++].at.depth;

	while (i < part->nlines && part->lines[i].at.depth > depth)
		i++;
	return i;
}

/* What nobody loads is told in one line. */
static int next_line(const struct dtp_report_part *part, int i)
{
	return part->lines[i].whole ? i + 1 : behind(part, i);
}

struct widths {
	int name, style, shape, local;
};

static void widen(int *width, const char *s)
{
	int n = (int)strlen(s);

	*width = n > *width ? n : *width;
}

static struct widths measure(const struct dtp_report_part *part)
{
	struct widths w = {8, 5, 5, 9};
	char buf[DTP_FOLD_NAME + 80];

	for (int i = 0; i < part->nlines; i = next_line(part, i)) {
		const struct dtp_report_line *l = &part->lines[i];
		line_name(buf, sizeof buf, l);
		widen(&w.name, buf);
		if (!l->module || !l->whole)
			continue;
		widen(&w.style, style_text(part, l));
		widen(&w.shape, dtp_shape_text(buf, sizeof buf, l->module->ndim, l->module->shape));
		widen(&w.local, local_text(buf, sizeof buf, l));
	}
	return w;
}

static const char *bytes_range(char *buf, size_t size, uint64_t least, uint64_t most)
{
	struct dtp_text a = dtp_bytes_text(least), b = dtp_bytes_text(most);

	if (strcmp(a.s, b.s))
		snprintf(buf, size, "%s to %s", a.s, b.s);
	else
		snprintf(buf, size, "%s", b.s);
	return buf;
}

/* "rows 0-31, 32-63": what each rank has, where that is not plain from the shapes. */
static void print_ranks(FILE *f, const struct dtp_plan_view *v, const struct dtp_report_part *part, const struct dtp_module *m)
{
	struct dtp_split s;
	int64_t shape[DTP_MAX_DIMS];
	uint64_t bytes;

	for (int rank = 0; rank < part->degree; rank++) {
		dtp_report_placed(v->pipeline, part, m, rank, &s, shape, &bytes);
		if (rank == MAX_RANKS_TOLD) {
			fputs(", ...", f);
			return;
		}
		if (!rank)
			fputs(s.dim == 0 ? "  rows " : "  columns ", f);
		if (s.run[0].begin == s.run[0].end)
			fprintf(f, "%snone", rank ? ", " : "");
		else
			fprintf(f, "%s%" PRId64 "-%" PRId64, rank ? ", " : "", s.run[0].begin, s.run[0].end - 1);
	}
}

static void print_line(FILE *f, const struct dtp_plan_view *v, const struct dtp_report_part *part,
		       const struct dtp_report_line *l, const struct widths *w)
{
	const struct dtp_module *m = l->module;
	char name[DTP_FOLD_NAME + 80], shape[96], local[96], bytes[80];

	line_name(name, sizeof name, l);
	bytes_range(bytes, sizeof bytes, l->least, l->most);
	fprintf(f, "%-*s  ", w->name, name);
	if (!l->whole) {
		fputs("not loaded\n", f);
		return;
	}
	if (!m) {
		fprintf(f, "%-*s  %s\n", w->style + w->shape + w->local + 10, "", bytes);
		return;
	}
	fprintf(f, "%-*s  %-*s  %-*s  %-4s  %s", w->style, style_text(part, l), w->shape,
		dtp_shape_text(shape, sizeof shape, m->ndim, m->shape), w->local, local_text(local, sizeof local, l),
		v->options.synthetic ? "-" : dtp_dtype_name(l->dtype), bytes);
	for (int i = 0; i < m->nblocks; i++)
		fprintf(f, "%s%" PRId64, i ? " + " : "  blocks ", m->blocks[i]);
	if (l->uneven)
		print_ranks(f, v, part, m);
	fputc('\n', f);
}

static void print_large(FILE *f, const struct dtp_report_part *part)
{
	uint64_t sum = 0;
	bool alone = true;

	if (!part->nlarge)
		return;
	for (int i = 0; i < part->nlarge; i++) {
		sum += part->large[i].bytes;
		alone = alone && part->large[i].alone;
	}
	fprintf(f, "  warning: no key names these large modules, so every rank holds all of them (%s of its %s):\n",
		dtp_bytes_text(sum).s, dtp_bytes_text(part->most).s);
	for (int i = 0; i < part->nlarge; i++) {
		const struct dtp_report_large *l = &part->large[i];
		fprintf(f, "    %s: %s", l->key.name, dtp_bytes_text(l->bytes).s);
		if (l->key.count > 1)
			fprintf(f, " (%d modules)", l->key.count);
		fputs(l->alone ? "; 'rowwise_split_input' would split it\n" : "; see 'difftp plan --suggest'\n", f);
	}
	if (alone)
		fputs("    each that is split costs one more sum over the ranks whenever it runs\n", f);
}

static void print_part(FILE *f, const struct dtp_plan_view *v, const struct dtp_report_part *part)
{
	struct widths w = measure(part);
	char range[80];

	if (!part->tree->n) {
		fprintf(f, "\n%s: not needed, the prompt is encoded already\n", part->name);
		return;
	}
	fprintf(f, "\n%s: %s, ", part->name, part->plan ? part->plan->source : "not split, rank 0 has it");
	if (part->degree > 1)
		fprintf(f, "%s of weights, %s a rank, of which %s are replicated; ",
			dtp_bytes_text(part->whole).s, bytes_range(range, sizeof range, part->least, part->most),
			dtp_bytes_text(part->replicated).s);
	else
		fprintf(f, "%s of weights; ", dtp_bytes_text(part->whole).s);
	if (v->options.synthetic)
		fputs("they are computed, no file is read\n", f);
	else if (part->degree > 1)
		fprintf(f, "a rank reads up to %s\n", dtp_bytes_text(part->read).s);
	else
		fprintf(f, "%s are read\n", dtp_bytes_text(part->read).s);
	fprintf(f, "%-*s  %-*s  %-*s  %-*s  %-4s  %s\n", w.name, "  module", w.style, "style", w.shape, "shape", w.local,
		"of a rank", "file", part->degree > 1 ? "memory of a rank" : "memory");
	for (int i = 0; i < part->nlines; i = next_line(part, i))
		print_line(f, v, part, &part->lines[i], &w);
	print_large(f, part);
}

/* ---- sums */

/* Three digits and a prefix: "35.3 T", "558 u". */
static const char *with_prefix(char *buf, size_t size, double x)
{
	static const char *const prefixes[] = {"u", "m", "", "k", "M", "G", "T", "P"};
	int i = 0;

	for (x *= 1e6; x >= 999.5 && i < 7; i++)
		x /= 1000;
	snprintf(buf, size, x < 999.5 ? "%.3g %s" : "%.0f %s", x, prefixes[i]);
	return buf;
}

static void print_sums(FILE *f, const struct dtp_plan_view *v)
{
	const struct dtp_phase_cost *encode = &v->cost[0], *step = &v->cost[1];
	int degree = v->options.tp_degree;
	char seconds[32], work[32];

	fputs("\nsums over the ranks\n", f);
	if (degree == 1 || !(encode->reductions + step->reductions)) {
		fputs("  none\n", f);
		return;
	}
	fprintf(f, "  once per prompt: %" PRIu64 " sums, %s together\n", encode->reductions,
		dtp_bytes_text((uint64_t)encode->reduce_bytes).s);
	fprintf(f, "  each step:       %" PRIu64 " sums, %s together (in %d bits); in a ring of %d each rank sends and receives %s\n",
		step->reductions, dtp_bytes_text((uint64_t)step->reduce_bytes).s, dtp_pipeline_reduce(v->pipeline) == DTP_BF16 ? 16 : 32, degree,
		dtp_bytes_text((uint64_t)dtp_ring_bytes(step->reduce_bytes, degree)).s);
	fprintf(f, "  a link of %s/s for each rank hides them: assumed are %g TFLOP/s of a rank%s, so %ss for its %sFLOP\n"
		"  of a step, and sums that all overlap with products\n",
		dtp_bytes_text((uint64_t)dtp_hiding_rate(v)).s, v->tflops, v->tflops_assumed ? " (see --tflops)" : "",
		with_prefix(seconds, sizeof seconds, step->flops / v->tflops * 1e-12),
		with_prefix(work, sizeof work, step->flops));
}

/* ---- memory */

static int largest_rank(const struct dtp_plan_view *v, int phase)
{
	int most = 0;

	for (int rank = 1; rank < v->options.tp_degree; rank++)
		if (dtp_phase_bytes(&v->memory[rank][phase]) > dtp_phase_bytes(&v->memory[most][phase]))
			most = rank;
	return most;
}

static void print_memory(FILE *f, const struct dtp_plan_view *v)
{
	bool gpu = v->options.device == DTP_DEVICE_CUDA;
	uint64_t base = dtp_rank_base_bytes(v->options.device, v->options.tp_degree);

	fprintf(f, "\nmemory of the rank that needs most, in each phase\n  %-14s %4s %9s %12s %9s %9s %9s\n", "phase", "rank", "weights",
		"activations", gpu ? "workspace" : "staging", gpu ? "context" : "program", "together");
	for (int i = 0; i < dtp_request_phases(&v->request); i++) {
		int rank = largest_rank(v, i);
		const struct dtp_phase_memory *m = &v->memory[rank][i];
		fprintf(f, "  %-14s %4d %9s %12s %9s %9s %9s\n", m->name, rank, dtp_bytes_text(m->weights).s,
			dtp_bytes_text(m->scratch).s, dtp_bytes_text(gpu ? m->workspace : m->staging).s, dtp_bytes_text(base).s,
			dtp_bytes_text(dtp_phase_bytes(m) + base).s);
	}
}

static void print_offload(FILE *f, const struct dtp_plan_view *v)
{
	char text[400];

	fputs("\nwhat is where, and when\n", f);
	for (int i = v->options.prompt_embeds ? 1 : 0; i < DTP_OFFLOAD_PARTS; i++) {
		dtp_offload_text(&v->offload, i, v->options.tp_degree, 1, v->options.device, text, sizeof text);
		fprintf(f, "  %s\n", text);
	}
}

static void print_devices(FILE *f, const struct dtp_limits *l, enum dtp_device device)
{
	fputs("  devices:", f);
	for (int i = 0, n; i < l->n; i += n) {
		for (n = 1; i + n < l->n && l->bytes[i + n] == l->bytes[i]; n++)
			;
		fprintf(f, "%s %d x %s", i ? "," : "", n, dtp_bytes_text(l->bytes[i]).s);
	}
	fprintf(f, "; memory is counted as ranks on %s take it\n", device == DTP_DEVICE_CUDA ? "GPUs" : "CPUs");
}

/* "fits", or what does not. */
static void print_verdict(FILE *f, const struct dtp_plan_view *v)
{
	int degree = v->options.tp_degree;
	char text[300];

	if (v->devices.n)
		print_devices(f, &v->devices, v->options.device);
	dtp_plan_verdict(v, text, sizeof text);
	fprintf(f, "  %s: %s\n", v->fits ? "fits" : "does not fit", text);
	if (v->smallest && v->smallest != degree)
		fprintf(f, "  smallest degree that fits: %d (%s a rank)\n", v->smallest, dtp_bytes_text(v->smallest_fit.largest).s);
	else if (v->smallest)
		fprintf(f, "  smallest degree that fits: %d\n", v->smallest);
	else
		fprintf(f, "  smallest degree that fits: none up to %d\n", DTP_MAX_DEGREE_TRIED);
}

/* Words of s, wrapped, every line behind the first indented. */
static void print_wrapped(FILE *f, const char *s, int indent, int width)
{
	int column = indent;

	for (size_t n; *s; s += n + strspn(s + n, " ")) {
		n = strcspn(s, " ");
		if (column > indent && column + 1 + (int)n > width) {
			fprintf(f, "\n%*s", indent, "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', f);
			column++;
		}
		fprintf(f, "%.*s", (int)n, s);
		column += (int)n;
	}
	fputc('\n', f);
}

static const char *passes_text(const struct dtp_plan_view *v)
{
	if (dtp_pipeline_passes(v->pipeline, &v->request) < 2)
		return "";
	return v->request.passes_in_turn ? ", 2 passes a step in turn" : ", 2 passes a step together";
}

void dtp_plan_print(const struct dtp_plan_view *v, FILE *f)
{
	const struct dtp_request *q = &v->request;
	char references[48] = "";

	if (q->nimages)
		snprintf(references, sizeof references, ", %d reference image%s", q->nimages, q->nimages == 1 ? "" : "s");
	fprintf(f, "%s: %s, tp %d, %s, %" PRId64 "x%" PRId64 ", %d step%s, %" PRId64 " text tokens%s%s\n", v->options.model,
		dtp_pipeline_class(v->pipeline), v->options.tp_degree, v->options.compute == DTP_F32 ? "fp32" : "bf16", q->width,
		q->height, q->steps, q->steps == 1 ? "" : "s", q->max_sequence_length, passes_text(v), references);
	for (int i = 0; i < DTP_REPORT_PARTS; i++)
		print_part(f, v, &v->report.part[i]);
	print_sums(f, v);
	print_offload(f, v);
	print_memory(f, v);
	print_verdict(f, v);
	fputs("\nadvice\n", f);
	for (int i = 0; i < v->nadvice; i++) {
		fputs("  - ", f);
		print_wrapped(f, v->advice[i].text, 4, 100);
	}
}
