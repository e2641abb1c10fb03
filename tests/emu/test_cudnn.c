/* SPDX-License-Identifier: Apache-2.0 */
/* cuda/dnn.h on the emulated GPU, with cuDNN's stand-in for what runs: results against the CPU backend, wrong use, and the failure of
 * every call.  On a GPU, with cuDNN itself: the results. */
#include "scenes.h"

#include <math.h>

#include <cuda_runtime_api.h>

#include "../../cuda/dnn.h"
#include "backend.h"

#define LONG 300 /* seconds: cuDNN compiles kernels, on machines that do other things too */

static struct dtp_err err;
#define do_(call)                                                \
	do {                                                     \
		if (call) {                                      \
			fprintf(stderr, "%s\n", err.message);    \
			must(!#call);                            \
		}                                                \
	} while (0)

static struct dtp_dnn *dnn;
static cudaStream_t stream;

static void begin(void)
{
	alarm(LONG);
	ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	do_(dtp_dnn_open(NULL, NULL, &dtp_monitor_none, &dnn, &err));
}

static void end(void)
{
	ok(cudaStreamSynchronize(stream));
	dtp_dnn_close(dnn);
	ok(cudaStreamDestroy(stream));
}

static void *device(size_t n)
{
	void *p;

	ok(cudaMalloc(&p, n ? n : 256));
	return p;
}

/* n values of type t, as floats and in device memory. */
static float *values(enum dtp_dtype t, size_t n, void **there)
{
	float *v = malloc(n * sizeof *v);
	void *typed = malloc(n * dtp_dtype_size(t));

	for (size_t i = 0; i < n; i++)
		v[i] = dtp_round_to(t, test_normal());
	dtp_from_f32(typed, t, v, n);
	*there = device(n * dtp_dtype_size(t));
	ok(cudaMemcpy(*there, typed, n * dtp_dtype_size(t), cudaMemcpyHostToDevice));
	free(typed);
	return v;
}

static float *fetch(enum dtp_dtype t, size_t n, const void *there)
{
	float *v = malloc(n * sizeof *v);
	void *typed = malloc(n * dtp_dtype_size(t));

	ok(cudaStreamSynchronize(stream));
	ok(cudaMemcpy(typed, there, n * dtp_dtype_size(t), cudaMemcpyDeviceToHost));
	dtp_to_f32(v, typed, t, n);
	free(typed);
	return v;
}

/* a is of type t and rounded once, by half a unit of its last place at most; b is in F32; both sums have this length.  A result of
 * attention is a mean, whose RMS may be well below that of the values: so allow for sums 16 times as long. */
static void close_to(enum dtp_dtype t, int64_t length, const float *a, const float *b, size_t n)
{
	double squares = 0, sums;

	for (size_t i = 0; i < n; i++)
		squares += (double)b[i] * b[i];
	sums = tolerance(DTP_F32, 16 * length) * sqrt(squares / (double)n);
	for (size_t i = 0; i < n; i++) {
		double allowed = sums + (t == DTP_BF16 ? 0x1p-8 * fabs((double)b[i]) : 0);
		if (!(fabs((double)a[i] - b[i]) <= allowed)) {
			fprintf(stderr, "%zu: %g, expected %g, which differs by %g, allowed are %g\n", i, (double)a[i], (double)b[i],
				fabs((double)a[i] - b[i]), allowed);
			_exit(1);
		}
	}
}

/* ---- attention: groups of query heads, more keys than queries, an odd length, gaps between rows, and the sums */

#define SQ 37
#define SK 51
#define H 6
#define HKV 2
#define D 16
#define GAP 8

static const struct dtp_dnn_attention shape = {.dtype = DTP_BF16, .sq = SQ, .sk = SK, .heads = H, .kv_heads = HKV, .dim = D,
	.q_row = H * D + GAP, .k_row = HKV * D + GAP, .v_row = HKV * D + GAP, .out_row = H * D, .stats = true};

struct operands {
	void *q, *k, *v, *out, *workspace;
	float *lse, *hq, *hk, *hv;
	const struct dtp_dnn_plan *plan;
};

static struct operands plan_attention(void)
{
	struct operands o;
	const char *why = "";

	o.hq = values(DTP_BF16, SQ * (H * D + GAP), &o.q);
	o.hk = values(DTP_BF16, SK * (HKV * D + GAP), &o.k);
	o.hv = values(DTP_BF16, SK * (HKV * D + GAP), &o.v);
	o.out = device(SQ * H * D * 2);
	o.lse = device(SQ * H * sizeof(float));
	do_(dtp_dnn_plan_attention(dnn, &shape, &o.plan, &why, &err));
	if (!o.plan)
		fprintf(stderr, "%s\n", why);
	must(o.plan);
	o.workspace = device(dtp_dnn_workspace(o.plan));
	return o;
}

static void run_attention(const struct operands *o)
{
	do_(dtp_dnn_run_attention(dnn, o->plan, stream, o->out, o->q, o->k, o->v, o->lse, 0.3f, o->workspace, &err));
}

static void drop(struct operands *o)
{
	ok(cudaStreamSynchronize(stream));
	ok(cudaFree(o->q));
	ok(cudaFree(o->k));
	ok(cudaFree(o->v));
	ok(cudaFree(o->out));
	ok(cudaFree(o->lse));
	ok(cudaFree(o->workspace));
	free(o->hq), free(o->hk), free(o->hv);
}

static struct dtp_tensor rows(float *data, int64_t s, int64_t heads, int64_t row)
{
	int64_t dims[3] = {s, heads, D};
	struct dtp_tensor t = dtp_tensor_make(data, DTP_F32, 3, dims);

	t.stride[0] = row;
	return t;
}

/* Against the CPU backend in F32, on the same rounded values; the sums against the formula. */
static void check_attention(const struct operands *o)
{
	const struct dtp_attention a = {.scale = 0.3f, .key_end = SK, .group = H / HKV};
	float *out = fetch(DTP_BF16, SQ * H * D, o->out), *lse = fetch(DTP_F32, SQ * H, o->lse), expected[SQ * H * D], sums[SQ * H];
	struct dtp_backend *cpu;

	do_(dtp_backend_cpu(DTP_F32, 1, &cpu, &err));
	do_(cpu->ops->attention(cpu, rows(expected, SQ, H, H * D), rows(o->hq, SQ, H, H * D + GAP), rows(o->hk, SK, HKV, HKV * D + GAP),
				rows(o->hv, SK, HKV, HKV * D + GAP), &a, &err));
	close_to(DTP_BF16, SK + D, out, expected, SQ * H * D);
	for (int h = 0; h < H; h++)
		for (int i = 0; i < SQ; i++) {
			double sum = 0;
			for (int j = 0; j < SK; j++) {
				double dot = 0;
				for (int c = 0; c < D; c++)
					dot += (double)o->hq[i * (H * D + GAP) + h * D + c] * o->hk[j * (HKV * D + GAP) + h / (H / HKV) * D + c];
				sum += exp(dot * 0.3f);
			}
			sums[h * SQ + i] = (float)log(sum);
		}
	close_to(DTP_F32, SK, lse, sums, SQ * H);
	cpu->ops->destroy(cpu);
	free(out), free(lse);
}

static void attention_is_that_of_the_cpu(void)
{
	begin();
	struct operands o = plan_attention();
	run_attention(&o);
	check_attention(&o);
	drop(&o);
	end();
}

/* In a graph: nothing runs when it is captured, and all of it when the graph does. */
static void attention_in_a_graph(void)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;

	begin();
	struct operands o = plan_attention();
	ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	run_attention(&o);
	ok(cudaStreamEndCapture(stream, &graph));
	ok(cudaGraphInstantiate(&exec, graph, 0));
	dtp_dnn_trim(dnn, 0);
	must(dtp_dnn_plans(dnn) == 1); /* the graph has its kernels */
	for (int i = 0; i < 2; i++) {
		ok(cudaMemsetAsync(o.out, 0xff, SQ * H * D * 2, stream));
		ok(cudaGraphLaunch(exec, stream));
		check_attention(&o);
	}
	ok(cudaGraphExecDestroy(exec));
	ok(cudaGraphDestroy(graph));
	drop(&o);
	end();
}

static void misaligned_operands_are_an_error(void)
{
	begin();
	struct operands o = plan_attention();
	must(dtp_dnn_run_attention(dnn, o.plan, stream, o.out, (char *)o.q + 4, o.k, o.v, o.lse, 1, o.workspace, &err) == DTP_FAILED);
	must(strstr(err.message, "multiple of 16"));
	drop(&o);
	end();
}

static void freed_operand(void)
{
	begin();
	struct operands o = plan_attention();
	ok(cudaFree(o.k));
	run_attention(&o);
}

static void operand_that_is_too_short(void)
{
	begin();
	struct operands o = plan_attention();
	o.k = device(SK * (HKV * D + GAP) * 2 - 2 * GAP - 2);
	run_attention(&o);
}

static void operand_on_the_host(void)
{
	static float host[SQ * H * D] __attribute__((aligned(16)));

	begin();
	struct operands o = plan_attention();
	o.q = host;
	run_attention(&o);
}

static void result_over_an_operand(void)
{
	begin();
	struct operands o = plan_attention();
	o.out = o.q;
	run_attention(&o);
}

static void no_workspace(void)
{
	begin();
	struct operands o = plan_attention();
	must(dtp_dnn_workspace(o.plan) > 0);
	o.workspace = NULL;
	run_attention(&o);
}

static void plans_that_stay(void)
{
	begin();
	ok(cudaStreamDestroy(stream));
}

/* ---- convolution */

struct picture {
	enum dtp_dtype t;
	int64_t h, w, c, n, k;
	int stride, tl, br;
	bool bias;
};

static void convolve(const struct picture *s)
{
	const struct dtp_dnn_conv conv = {.dtype = s->t, .h = s->h, .w = s->w, .c = s->c, .n = s->n, .kh = s->k, .kw = s->k, .stride = s->stride,
					  .pad_top_left = s->tl, .pad_bottom_right = s->br, .bias = s->bias};
	int64_t oh = (s->h + s->tl + s->br - s->k) / s->stride + 1, ow = (s->w + s->tl + s->br - s->k) / s->stride + 1, taps = s->k * s->k;
	int64_t filter[4] = {s->n, s->c, s->k, s->k}, in[3] = {s->h, s->w, s->c}, size[3] = {oh, ow, s->n};
	size_t nw = (size_t)(s->n * taps * s->c), nout = (size_t)(oh * ow * s->n);
	const struct dtp_dnn_plan *plan;
	struct dtp_weight *cw, *cb = NULL;
	struct dtp_backend *cpu;
	const char *why = "";
	void *x, *w, *b, *out = device(nout * 4);
	float *hx = values(s->t, (size_t)(s->h * s->w * s->c), &x), *hw = values(s->t, nw, &w), *hb = values(s->t, (size_t)s->n, &b);
	float *turned = malloc(nw * sizeof *turned), *expected = malloc(nout * sizeof *expected);

	do_(dtp_dnn_plan_conv(dnn, &conv, &plan, &why, &err));
	if (!plan)
		fprintf(stderr, "%s\n", why);
	must(plan);
	void *workspace = device(dtp_dnn_workspace(plan));
	do_(dtp_dnn_run_conv(dnn, plan, stream, out, x, w, s->bias ? b : NULL, workspace, &err));
	float *got = fetch(s->t, nout, out);

	/* The CPU has filters as they are in files. */
	for (int64_t i = 0; i < (int64_t)nw; i++)
		turned[(i / s->c / taps * s->c + i % s->c) * taps + i / s->c % taps] = hw[i];
	do_(dtp_backend_cpu(DTP_F32, 1, &cpu, &err));
	do_(cpu->ops->weight_new(cpu, DTP_WEIGHT_CONV, 4, filter, &cw, &err));
	do_(cpu->ops->weight_write(cpu, cw, 0, s->n, turned, DTP_F32, &err));
	if (s->bias) {
		do_(cpu->ops->weight_new(cpu, DTP_WEIGHT_VECTOR, 1, &s->n, &cb, &err));
		do_(cpu->ops->weight_write(cpu, cb, 0, s->n, hb, DTP_F32, &err));
	}
	do_(cpu->ops->conv2d(cpu, dtp_tensor_make(expected, DTP_F32, 3, size), dtp_tensor_make(hx, DTP_F32, 3, in), cw, cb, s->stride, s->tl,
			     s->br, &err));
	close_to(s->t, s->c * taps, got, expected, nout);
	cpu->ops->weight_free(cpu, cw);
	if (cb)
		cpu->ops->weight_free(cpu, cb);
	cpu->ops->destroy(cpu);
	ok(cudaFree(x));
	ok(cudaFree(w));
	ok(cudaFree(b));
	ok(cudaFree(out));
	ok(cudaFree(workspace));
	free(hx), free(hw), free(hb), free(turned), free(expected), free(got);
}

/* Both types, sides that differ, from and to 3 channels, the encoder's uneven padding, 1 x 1, no bias. */
static void convolutions_are_those_of_the_cpu(void)
{
	static const struct picture pictures[] = {
		{DTP_F32, 9, 7, 16, 8, 3, 1, 1, 1, true},  {DTP_BF16, 9, 7, 16, 8, 3, 1, 1, 1, true},
		{DTP_F32, 8, 10, 3, 16, 3, 1, 1, 1, true}, {DTP_BF16, 8, 10, 3, 16, 3, 1, 1, 1, true},
		{DTP_F32, 5, 6, 32, 3, 3, 1, 1, 1, true},  {DTP_BF16, 5, 6, 32, 3, 3, 1, 1, 1, true},
		{DTP_F32, 8, 6, 16, 16, 3, 2, 0, 1, true}, {DTP_BF16, 8, 6, 16, 16, 3, 2, 0, 1, true},
		{DTP_F32, 5, 6, 32, 16, 1, 1, 0, 0, true}, {DTP_BF16, 5, 6, 32, 16, 1, 1, 0, 0, false},
	};

	begin();
	for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++)
		convolve(&pictures[i]);
	end();
}

/* ---- the failure of any call: said with the call's name, or the shape refused with it; nothing leaks, whatever was done before */

static const struct dtp_dnn_conv small = {.dtype = DTP_F32, .h = 8, .w = 8, .c = 8, .n = 8, .kh = 3, .kw = 3, .stride = 1, .pad_top_left = 1,
	.pad_bottom_right = 1, .bias = true};

static bool told(const char *text, const char *call)
{
	return strstr(text, call) && strlen(text) > strlen(call) + 10;
}

/* 0: nothing failed; 1: as it should. */
static int with_a_fault(const char *call)
{
	const struct dtp_dnn_plan *plan;
	const char *why = "";
	int failed = 0;

	ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	enum dtp_code rc = dtp_dnn_open(NULL, NULL, &dtp_monitor_none, &dnn, &err);
	if (!rc)
		rc = dtp_dnn_plan_conv(dnn, &small, &plan, &why, &err);
	if (!rc && plan) {
		void *x = device(8 * 8 * 8 * 4), *w = device(8 * 8 * 9 * 4), *b = device(8 * 4), *out = device(8 * 8 * 8 * 4);
		void *workspace = device(dtp_dnn_workspace(plan));
		ok(cudaMemsetAsync(x, 0, 8 * 8 * 8 * 4, stream));
		ok(cudaMemsetAsync(w, 0, 8 * 8 * 9 * 4, stream));
		ok(cudaMemsetAsync(b, 0, 8 * 4, stream));
		rc = dtp_dnn_run_conv(dnn, plan, stream, out, x, w, b, workspace, &err);
		ok(cudaStreamSynchronize(stream));
		ok(cudaFree(x));
		ok(cudaFree(w));
		ok(cudaFree(b));
		ok(cudaFree(out));
		ok(cudaFree(workspace));
	}
	if (rc || *why) {
		must(told(rc ? err.message : why, call));
		failed = 1;
	}
	dtp_dnn_close(dnn);
	ok(cudaStreamDestroy(stream));
	return failed;
}

/* The Nth call, for N = 1, 2, 4, ... */
static void fail_each(const char *call, int least)
{
	int found = 0;

	for (int n = 1; n < 2048; n *= 2) {
		int status, enough;
		pid_t pid = fork();
		must(pid >= 0);
		if (pid == 0) {
			char fault[100];
			snprintf(fault, sizeof fault, "%s:%d", call, n);
			setenv("DIFFTP_EMU_FAIL", fault, 1);
			alarm(LONG);
			exit(with_a_fault(call) ? 17 : 0);
		}
		must(waitpid(pid, &status, 0) == pid);
		enough = WIFEXITED(status) && WEXITSTATUS(status) == 17;
		must(WIFEXITED(status) && (enough || WEXITSTATUS(status) == 0));
		found += enough;
	}
	if (found < least) {
		fprintf(stderr, "%s: %d failures told, expected %d or more\n", call, found, least);
		_exit(1);
	}
}

static void every_call_fails(void)
{
	alarm(LONG);
	fail_each("cudnnCreate", 1);
	fail_each("cudnnSetStream", 1);
	fail_each("cudnnBackendExecute", 1);
	fail_each("cudnnBackendCreateDescriptor", 4);
	fail_each("cudnnBackendSetAttribute", 6);
	fail_each("cudnnBackendGetAttribute", 1);
	fail_each("cudnnBackendFinalize", 4);
	fail_each("cudnnBackendDestroyDescriptor", 0);
	fail_each("cudnnDestroy", 0);
}

/* Pictures of one size after the other: what is kept of them has an end. */
static void sizes_without_end(void)
{
	const struct dtp_cuda_options options = {.attention = DTP_ATTENTION_AUTO, .mon = &dtp_monitor_none};
	struct dtp_weight *w, *bias;
	struct dtp_backend *be;
	void *x, *out;

	alarm(LONG);
	do_(dtp_backend_cuda(DTP_F32, &options, &be, &err));
	do_(be->ops->weight_new(be, DTP_WEIGHT_CONV, 4, (int64_t[]){8, 8, 3, 3}, &w, &err));
	do_(be->ops->weight_new(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){8}, &bias, &err));
	for (int64_t h = 1; h <= DTP_DNN_PLANS + 64; h++) {
		const int64_t sides[] = {h, 2, 8};
		do_(be->ops->alloc(be, (uint64_t)h * 2 * 8 * 4, &x, &err));
		do_(be->ops->alloc(be, (uint64_t)h * 2 * 8 * 4, &out, &err));
		do_(be->ops->conv2d(be, dtp_tensor_make(out, DTP_F32, 3, sides), dtp_tensor_make(x, DTP_F32, 3, sides), w, bias, 1, 1, 1, &err));
		be->ops->free(be, out, (uint64_t)h * 2 * 8 * 4);
		be->ops->free(be, x, (uint64_t)h * 2 * 8 * 4);
	}
	be->ops->weight_free(be, w);
	be->ops->weight_free(be, bias);
	be->ops->destroy(be);
}

int main(void)
{
	static const struct scene scenes[] = {
		RIGHT(attention_is_that_of_the_cpu, ALL),
		RIGHT(attention_in_a_graph, ALL),
		RIGHT(convolutions_are_those_of_the_cpu, ALL),
		RIGHT(misaligned_operands_are_an_error, E),
		WRONG(freed_operand, E, "K"),
		WRONG(operand_that_is_too_short, E, "K"),
		WRONG(operand_on_the_host, E, "Q"),
		WRONG(result_over_an_operand, E, "the result lies over an operand"),
		WRONG(no_workspace, E, "workspace"),
		WRONG(plans_that_stay, E, "1 cuDNN handles"),
		RIGHT(every_call_fails, E | ONLY_EMULATED),
		RIGHT(sizes_without_end, D | ONLY_EMULATED, "DIFFTP_EMU_MOST=160"),
	};

	return play_all("cudnn", scenes, sizeof scenes / sizeof *scenes);
}
