/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ops --model DIR [OPTION]...: speed of a backend's operations at the shapes at which a model asks for them, each beside the roofline: the
 * time that the device needs at least, by the peak of a matrix product measured in the same run and by the rate at which it copies
 * memory.  Not a test: `make bench-ops` and scripts/gpu-check.sh run it.
 *
 *   --model DIR       a pipeline folder, of which the configurations are read
 *   --side N          of the picture, pixels (1024)
 *   --tp-degree N     the shapes of rank 0 of so many (1)
 *   --device cpu|cuda, --dtype bf16|fp32, --threads N    (cpu, bf16, 1)
 *   --method native|widen      of the CPU backend's bf16, instead of its own choice
 *   --only PATTERN    operations whose line holds it
 *   --copy-rate GB/s  read and written, instead of measuring it by the backend's own copy
 *   --peak TFLOP/s    instead of measuring it
 *   --nominal TFLOP/s that products, attention and convolutions are compared with too
 *   --cold MB         operands go round through so much memory, so that no cache has them (cuda: 512, cpu: 0)
 *   --json FILE       the same as JSON */
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "asked.h"
#include "cpu/cpu.h"
#include "json.h"

#define BANDWIDTH_AIM 0.85         /* of own kernels that memory bounds */
#define JUDGED_BYTES 16e6          /* those that move less last a few microseconds: starting them counts */
#define ROUNDS 7
#define ROUND_SECONDS 0.005        /* at least: more calls make a round longer */
#define MOST_SECONDS 2
#define MOST_COPIES 64
#define MOST_COPIED 4e9            /* bytes of all copies, gaps included */
#define BLOCK (1 << 22)            /* elements of random numbers */

static struct settings {
	struct dry_run run;
	int threads;
	enum dtp_cpu_method method;
	const char *only, *json;
	double copy_rate, peak, nominal, cold; /* bytes and FLOP/s */
} set = {.run = {.side = 1024, .degree = 1, .t = DTP_BF16}, .threads = 1, .only = "", .cold = -1};
static struct dtp_backend *be;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum dtp_code rc, const struct dtp_err *err)
{
	if (rc) {
		fprintf(stderr, "bench_ops: %s\n", err->message);
		exit(rc);
	}
}
#define MUST(call)                                    \
	do {                                          \
		struct dtp_err e_ = DTP_ERR_INIT, *err = &e_; \
		must(call, err);                      \
	} while (0)

/* ---- operands */

/* BLOCK random values in that type; kept. */
static const void *random_block(enum dtp_dtype t)
{
	static void *blocks[DTP_NDTYPES];
	uint32_t s = 12345;

	if (blocks[t])
		return blocks[t];
	float *v = malloc(BLOCK * sizeof *v);
	blocks[t] = malloc(BLOCK * sizeof *v);
	if (!v || !blocks[t])
		abort();
	for (int i = 0; i < BLOCK; i++) {
		s = s * 1664525u + 1013904223u;
		v[i] = (float)(s >> 8) * 0x1p-23f - 1;
	}
	dtp_from_f32(blocks[t], t, v, BLOCK);
	free(v);
	return blocks[t];
}

/* Elements from the first to the last, gaps included. */
static int64_t extent(const struct dtp_tensor *x)
{
	int64_t last = 0;

	for (int d = 0; d < x->ndim; d++)
		last += (x->shape[d] - 1) * (d == x->ndim - 1 ? 1 : x->stride[d]);
	return x->ndim && dtp_numel(x) ? last + 1 : 0;
}

static double size_of(const struct dtp_tensor *x)
{
	return x->ndim ? (double)dtp_numel(x) * (double)dtp_dtype_size(x->dtype) : 0;
}

static struct dtp_tensor filled(struct dtp_tensor x)
{
	int64_t n = extent(&x), size = (int64_t)dtp_dtype_size(x.dtype);

	x.data = NULL;
	if (!n)
		return x;
	MUST(be->ops->alloc(be, (uint64_t)(n * size), &x.data, err));
	for (int64_t i = 0; i < n; i += BLOCK) {
		int64_t m = n - i < BLOCK ? n - i : BLOCK;
		MUST(be->ops->upload(be, dtp_tensor_make((char *)x.data + i * size, x.dtype, 1, &m), random_block(x.dtype), x.dtype, err));
	}
	return x;
}

static void drop(struct dtp_tensor x)
{
	if (x.data)
		be->ops->free(be, x.data, (uint64_t)extent(&x) * dtp_dtype_size(x.dtype));
}

static void write_weight(struct dtp_weight *w)
{
	int64_t row = 1, panel;

	for (int d = 1; d < w->ndim; d++)
		row *= w->shape[d];
	panel = BLOCK / row / w->row_align * w->row_align;
	panel = panel ? panel : w->row_align;
	if (panel * row > BLOCK) {
		fprintf(stderr, "bench_ops: a weight's rows are %lld values long, too many\n", (long long)row);
		exit(1);
	}
	for (int64_t r = 0; r < w->shape[0]; r += panel)
		MUST(be->ops->weight_write(be, w, r, w->shape[0] - r < panel ? w->shape[0] - r : panel, random_block(DTP_BF16), DTP_BF16, err));
}

static struct dtp_weight *weight(enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	struct dtp_weight *w;

	MUST(be->ops->weight_new(be, kind, ndim, shape, &w, err));
	write_weight(w);
	return w;
}

/* ---- one operation, again and again */

struct replay {
	const struct asked *a;
	int copies;
	struct dtp_tensor x[MOST_COPIES][OPERANDS];
	struct dtp_weight *w, *b;
};

static enum dtp_code once(const struct replay *r, int turn, struct dtp_err *err)
{
	const struct dtp_tensor *x = r->x[turn % r->copies];
	const struct dtp_backend_ops *o = be->ops;
	const int *n = r->a->n;

	switch (r->a->what) {
	case LINEAR: return o->linear(be, x[0], x[1], r->w, NULL, err);
	case ATTENTION: return o->attention(be, x[0], x[1], x[2], x[3], &r->a->attention, err);
	case CONV2D: return o->conv2d(be, x[0], x[1], r->w, r->b, n[0], n[1], n[2], err);
	case MODULATED_NORM: return o->modulated_norm(be, x[0], x[1], x[2], x[3], 1e-6f, err);
	case RMS_NORM: return o->rms_norm(be, x[0], x[1], r->w, 1e-6f, err);
	case QK_NORM_ROPE: return o->qk_norm_rope(be, x[0], x[1], r->w, r->w, 1e-6f, (enum dtp_rope)n[0], x[2], x[3], err);
	case SWIGLU: return o->swiglu(be, x[0], x[1], x[2], err);
	case GATED_RESIDUAL: return o->gated_residual(be, x[0], x[1], x[2], err);
	case ADD_BIAS: return o->add_bias(be, x[0], r->w, err);
	case SILU: return o->silu(be, x[0], x[1], err);
	case ADD: return o->add(be, x[0], x[1], x[2], err);
	case COPY: return o->copy(be, x[0], x[1], err);
	case EULER_STEP: return o->euler_step(be, x[0], x[1], x[2], err);
	case GROUP_NORM: return o->group_norm(be, x[0], x[1], r->w, r->b, n[0], 1e-6f, n[1], err);
	case GROUP_MAPS: return o->group_maps(be, x[0], x[1], r->w, r->b, n[0], 1e-6f, err);
	case WINDOW: return o->window(be, x[0], x[1], x[2], 0, err);
	case UPSAMPLE2X: return o->upsample2x(be, x[0], x[1], 0, err);
	case UNPATCHIFY: return o->unpatchify(be, x[0], x[1], r->w, r->b, 1e-4f, err);
	case PATCHIFY: return o->patchify(be, x[0], x[1], r->w, r->b, 1e-4f, err);
	}
	return DTP_FAILED;
}

/* What of a picture a window reads: its rows, not all of x; of one that is enlarged, a quarter. */
static double moved(const struct asked *a)
{
	double bytes = 0;

	if (a->what == WINDOW)
		return size_of(&a->x[0]) * 2;
	if (a->what == UPSAMPLE2X)
		return size_of(&a->x[0]) * 1.25;
	for (int i = 0; i < OPERANDS; i++)
		bytes += size_of(&a->x[i]);
	switch (a->what) {
	case LINEAR: return bytes + (double)(a->x[0].shape[1] * a->x[1].shape[1]) * (double)dtp_dtype_size(be->compute);
	case CONV2D:
		return bytes + (double)(a->x[0].shape[2] * a->x[1].shape[2] * a->n[3] * a->n[3]) * (double)dtp_dtype_size(be->compute);
	case QK_NORM_ROPE: return bytes + size_of(&a->x[0]) + size_of(&a->x[1]); /* read, and written */
	case GATED_RESIDUAL:
	case ADD_BIAS:
	case EULER_STEP: return bytes + size_of(&a->x[0]);
	case GROUP_NORM: return bytes + size_of(&a->x[1]); /* for its statistics, and again */
	default: return bytes;
	}
}

static double computed(const struct asked *a)
{
	const struct dtp_tensor *x = a->x;

	switch (a->what) {
	case LINEAR: return 2.0 * (double)dtp_numel(&x[0]) * (double)x[1].shape[1];
	case ATTENTION:
		return 4.0 * (double)dtp_numel(&x[1]) * (double)(a->attention.key_end - a->attention.key_begin) * (a->attention.causal ? 0.5 : 1);
	case CONV2D: return 2.0 * (double)dtp_numel(&x[0]) * (double)(x[1].shape[2] * a->n[3] * a->n[3]);
	default: return 0;
	}
}

static void prepare_weights(struct replay *r)
{
	const struct asked *a = r->a;
	const struct dtp_tensor *x = a->x;
	int64_t n;

	switch (a->what) {
	case LINEAR: r->w = weight(DTP_WEIGHT_MATRIX, 2, (int64_t[]){x[0].shape[1], x[1].shape[1]}); return;
	case CONV2D:
		n = x[0].shape[2];
		r->w = weight(DTP_WEIGHT_CONV, 4, (int64_t[]){n, x[1].shape[2], a->n[3], a->n[3]});
		r->b = weight(DTP_WEIGHT_VECTOR, 1, &n);
		return;
	case RMS_NORM:
	case ADD_BIAS:
	case QK_NORM_ROPE: r->w = weight(DTP_WEIGHT_VECTOR, 1, &x[0].shape[x[0].ndim - 1]); return;
	case GROUP_NORM:
	case GROUP_MAPS:
	case UNPATCHIFY: n = x[1].shape[x[1].ndim - 1]; break;
	case PATCHIFY: n = x[0].shape[1]; break;
	default: return;
	}
	r->w = weight(DTP_WEIGHT_VECTOR, 1, &n);
	r->b = weight(DTP_WEIGHT_VECTOR, 1, &n);
}

/* So many copies of the operands that going round through them is no use to a cache. */
static void prepare(struct replay *r, const struct asked *a)
{
	double bytes = 0, gaps = 0;

	*r = (struct replay){.a = a};
	for (int i = 0; i < OPERANDS; i++) {
		bytes += size_of(&a->x[i]);
		gaps += (double)extent(&a->x[i]) * (double)dtp_dtype_size(a->x[i].dtype);
	}
	double n = bytes > 0 ? fmin(ceil(set.cold / bytes), floor(MOST_COPIED / gaps)) : 1;
	r->copies = (int)fmin(fmax(n, 1), MOST_COPIES);
	for (int c = 0; c < r->copies; c++)
		for (int i = 0; i < OPERANDS; i++)
			r->x[c][i] = filled(a->x[i]);
	prepare_weights(r);
}

static void end(struct replay *r)
{
	for (int c = 0; c < r->copies; c++)
		for (int i = 0; i < OPERANDS; i++)
			drop(r->x[c][i]);
	if (r->w)
		be->ops->weight_free(be, r->w);
	if (r->b)
		be->ops->weight_free(be, r->b);
}

static double round_of(const struct replay *r, int calls)
{
	double start = now();

	for (int i = 0; i < calls; i++)
		MUST(once(r, i, err));
	MUST(be->ops->sync(be, err));
	return now() - start;
}

/* Seconds of a call in the best round. */
static double measure(const struct replay *r)
{
	double begin = now(), best;
	int calls = 1;

	round_of(r, r->copies); /* plans are made, memory is touched */
	while ((best = round_of(r, calls)) < ROUND_SECONDS)
		calls *= 2;
	for (int i = 1; i < ROUNDS && now() - begin < MOST_SECONDS; i++)
		best = fmin(best, round_of(r, calls));
	return best / calls;
}

/* ---- the two roofs */

static void measure_peak(void)
{
	if (!set.peak)
		MUST(be->ops->measure_peak(be, &set.peak, err));
}

/* Bytes a second, read and written, of large copies. */
static void measure_copy(void)
{
	const struct dtp_tensor large = dtp_tensor_make(NULL, DTP_F32, 2, (int64_t[]){1 << 13, 1 << 13});
	const struct asked a = {.what = COPY, .x = {large, large}};
	struct replay r;

	if (set.copy_rate)
		return;
	prepare(&r, &a);
	set.copy_rate = 2 * size_of(&large) / measure(&r);
	end(&r);
}

/* ---- what is told */

struct told {
	cJSON *rows;
	double seconds[DTP_NPHASES];
	int judged, below;
};
static const char *const phase_names[DTP_NPHASES] = {[DTP_TEXT] = "encode", [DTP_TRANSFORMER] = "step", [DTP_VAE] = "decode"};

static void describe(const struct asked *a, char *buf, size_t size)
{
	bool operand = a->what == LINEAR || a->what == ATTENTION || a->what == CONV2D || a->what == COPY || a->what == UPSAMPLE2X || a->what == GROUP_MAPS;
	const struct dtp_tensor *x = &a->x[operand]; /* what says more than the result */
	char shape[80], more[80] = "";

	if (a->what == LINEAR)
		snprintf(more, sizeof more, " to %lld%s", (long long)a->x[0].shape[1], a->x[0].dtype != be->compute ? " in F32" : "");
	else if (a->what == ATTENTION)
		snprintf(more, sizeof more, " with %lld keys of %lld heads%s", (long long)(a->attention.key_end - a->attention.key_begin),
			 (long long)a->x[2].shape[1], a->attention.causal ? ", causal" : "");
	else if (a->what == QK_NORM_ROPE)
		snprintf(more, sizeof more, " and %lld heads of keys", (long long)a->x[1].shape[1]);
	else if (a->what == CONV2D)
		snprintf(more, sizeof more, " to %lld, %dx%d%s", (long long)a->x[0].shape[2], a->n[3], a->n[3], a->n[0] > 1 ? ", by 2" : "");
	else if (a->what == COPY)
		snprintf(more, sizeof more, " %s to %s", dtp_dtype_name(a->x[1].dtype), dtp_dtype_name(a->x[0].dtype));
	snprintf(buf, size, "%s %s%s", what_names[a->what], dtp_shape_text(shape, sizeof shape, x->ndim, x->shape), more);
}

/* One operation's line, and what goes into the sums. */
static void tell(struct told *t, const struct asked *a, const char *name, double seconds)
{
	double flops = computed(a), bytes = moved(a), by_flops = flops / set.peak, by_bytes = bytes / set.copy_rate;
	double roof = fmax(by_flops, by_bytes) / seconds;
	bool memory = by_bytes > by_flops, judged = memory && a->what > CONV2D && bytes >= JUDGED_BYTES, below = judged && roof < BANDWIDTH_AIM;
	cJSON *o = cJSON_CreateObject();

	t->seconds[a->phase] += (double)a->calls * seconds;
	t->judged += judged;
	t->below += below;
	printf("%-7s %-58s %5lld %9.3f ms", phase_names[a->phase], name, (long long)a->calls, seconds * 1e3);
	if (flops > 0)
		printf(" %9.1f GFLOP/s", flops / seconds * 1e-9);
	else
		printf(" %9.1f GB/s   ", bytes / seconds * 1e-9);
	printf(" %.3f of %s", roof, memory ? "memory" : "peak");
	if (flops > 0 && set.nominal)
		printf(", %.3f of nominal", flops / seconds / set.nominal);
	printf("%s\n", below ? "  below the aim" : "");
	fflush(stdout);
	cJSON_AddStringToObject(o, "phase", phase_names[a->phase]);
	cJSON_AddStringToObject(o, "operation", name);
	cJSON_AddNumberToObject(o, "calls", (double)a->calls);
	cJSON_AddNumberToObject(o, "seconds", seconds);
	cJSON_AddNumberToObject(o, "flops", flops);
	cJSON_AddNumberToObject(o, "bytes", bytes);
	cJSON_AddStringToObject(o, "bound_by", memory ? "memory" : "peak");
	cJSON_AddNumberToObject(o, "roofline", roof);
	cJSON_AddBoolToObject(o, "judged", judged);
	cJSON_AddItemToArray(t->rows, o);
}

static void write_json(const struct told *t)
{
	cJSON *o = cJSON_CreateObject(), *phases;
	char *text;
	FILE *f;

	cJSON_AddStringToObject(o, "model", set.run.model);
	cJSON_AddStringToObject(o, "device", be->ops->name);
	cJSON_AddStringToObject(o, "dtype", be->compute == DTP_F32 ? "fp32" : "bf16");
	cJSON_AddNumberToObject(o, "side", (double)set.run.side);
	cJSON_AddNumberToObject(o, "tp_degree", set.run.degree);
	cJSON_AddNumberToObject(o, "peak_flops", set.peak);
	cJSON_AddNumberToObject(o, "copy_bytes_per_second", set.copy_rate);
	cJSON_AddNumberToObject(o, "nominal_flops", set.nominal);
	cJSON_AddNumberToObject(o, "bandwidth_aim", BANDWIDTH_AIM);
	cJSON_AddNumberToObject(o, "judged", t->judged);
	cJSON_AddNumberToObject(o, "below_aim", t->below);
	phases = cJSON_AddObjectToObject(o, "seconds");
	for (int i = 0; i < DTP_NPHASES; i++)
		if (phase_names[i])
			cJSON_AddNumberToObject(phases, phase_names[i], t->seconds[i]);
	cJSON_AddItemToObject(o, "operations", t->rows);
	text = cJSON_Print(o);
	f = fopen(set.json, "w");
	if (!text || !f || fprintf(f, "%s\n", text) < 0 || fclose(f)) {
		fprintf(stderr, "bench_ops: '%s' cannot be written\n", set.json);
		exit(1);
	}
	cJSON_free(text);
	cJSON_Delete(o);
}

/* Whether a product before the ith has a matrix of the same shape. */
static bool written_before(int i)
{
	for (int j = 0; j < i; j++)
		if (asked[j].what == LINEAR && asked[j].x[0].shape[1] == asked[i].x[0].shape[1] && asked[j].x[1].shape[1] == asked[i].x[1].shape[1])
			return true;
	return false;
}

/* A matrix's way from host memory into the layout that it is multiplied in. */
static void bench_writes(void)
{
	for (int i = 0; i < nasked; i++) {
		const struct asked *a = &asked[i];
		char name[160];
		if (a->what != LINEAR || written_before(i))
			continue;
		int64_t shape[] = {a->x[0].shape[1], a->x[1].shape[1]};
		snprintf(name, sizeof name, "write [%lld, %lld]", (long long)shape[0], (long long)shape[1]);
		if (!strstr(name, set.only))
			continue;
		double best = INFINITY;
		for (int r = 0; r < 3; r++) {
			struct dtp_weight *w;
			MUST(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, shape, &w, err));
			double start = now();
			write_weight(w);
			MUST(be->ops->sync(be, err));
			best = fmin(best, now() - start);
			be->ops->weight_free(be, w);
		}
		printf("%-7s %-58s %5s %9.3f ms %9.1f GB/s\n", "load", name, "", best * 1e3, 2.0 * (double)(shape[0] * shape[1]) / best * 1e-9);
	}
}

static void bench_all(void)
{
	struct told t = {.rows = cJSON_CreateArray()};

	printf("%s, %lldx%lld, tp %d, %s on %s: peak %.1f GFLOP/s, copies %.1f GB/s\n", set.run.model, (long long)set.run.side,
	       (long long)set.run.side, set.run.degree, be->compute == DTP_F32 ? "fp32" : "bf16", be->ops->name, set.peak * 1e-9,
	       set.copy_rate * 1e-9);
	for (int i = 0; i < nasked; i++) {
		struct replay r;
		char name[160];
		describe(&asked[i], name, sizeof name);
		if (!strstr(name, set.only))
			continue;
		prepare(&r, &asked[i]);
		tell(&t, &asked[i], name, measure(&r));
		end(&r);
	}
	bench_writes();
	for (int i = 0; i < DTP_NPHASES; i++)
		if (phase_names[i])
			printf("%s: %.3f ms in these operations\n", phase_names[i], t.seconds[i] * 1e3);
	printf("%d operations that memory bounds and that move %.0f MB or more, %d of them below %.2f of its rate\n", t.judged, JUDGED_BYTES * 1e-6,
	       t.below, BANDWIDTH_AIM);
	if (set.json)
		write_json(&t);
	else
		cJSON_Delete(t.rows);
}

/* ---- options */

static void usage(void)
{
	fprintf(stderr, "usage: bench_ops --model DIR [OPTION]... (the head of tests/bench_ops.c lists them)\n");
	exit(2);
}

static bool choice(const char *given, const char *yes, const char *no)
{
	if (strcmp(given, yes) && strcmp(given, no))
		usage();
	return !strcmp(given, yes);
}

static double number(const char *given)
{
	char *end;
	double x = strtod(given, &end);

	if (*end || end == given || !(x >= 0))
		usage();
	return x;
}

static void read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"model", 1, NULL, 'm'}, {"side", 1, NULL, 's'}, {"tp-degree", 1, NULL, 'd'}, {"device", 1, NULL, 'D'}, {"dtype", 1, NULL, 't'},
		{"threads", 1, NULL, 'n'}, {"method", 1, NULL, 'M'}, {"only", 1, NULL, 'o'}, {"copy-rate", 1, NULL, 'c'}, {"peak", 1, NULL, 'p'},
		{"nominal", 1, NULL, 'N'}, {"cold", 1, NULL, 'C'}, {"json", 1, NULL, 'j'}, {NULL, 0, NULL, 0}};

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
		switch (c) {
		case 'm': set.run.model = optarg; break;
		case 's': set.run.side = (int64_t)number(optarg); break;
		case 'd': set.run.degree = (int)number(optarg); break;
		case 'D': set.run.device = choice(optarg, "cuda", "cpu") ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU; break;
		case 't': set.run.t = choice(optarg, "bf16", "fp32") ? DTP_BF16 : DTP_F32; break;
		case 'n': set.threads = (int)number(optarg); break;
		case 'M': set.method = choice(optarg, "native", "widen") ? DTP_CPU_NATIVE : DTP_CPU_WIDEN; break;
		case 'o': set.only = optarg; break;
		case 'c': set.copy_rate = number(optarg) * 1e9; break;
		case 'p': set.peak = number(optarg) * 1e12; break;
		case 'N': set.nominal = number(optarg) * 1e12; break;
		case 'C': set.cold = number(optarg) * 1e6; break;
		case 'j': set.json = optarg; break;
		default: usage();
		}
	if (optind != argc || !set.run.model)
		usage();
	if (set.cold < 0)
		set.cold = set.run.device == DTP_DEVICE_CUDA ? 512e6 : 0;
}

int main(int argc, char **argv)
{
	const struct dtp_cuda_options gpu = {.mon = &dtp_monitor_none};

	read_options(argc, argv);
	dry_run(&set.run, ask_all, &asking_phase);
	if (set.run.device == DTP_DEVICE_CUDA)
		MUST(dtp_backend_cuda(set.run.t, &gpu, &be, err));
	else
		MUST(dtp_cpu_create(set.run.t, set.threads, set.method, &be, err));
	measure_peak();
	measure_copy();
	bench_all();
	be->ops->destroy(be);
	return 0;
}
