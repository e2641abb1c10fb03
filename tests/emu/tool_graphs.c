/* SPDX-License-Identifier: Apache-2.0 */
/* Whether cuDNN has plans for all that a model asks of it: tool_graphs DIR SIDE REFERENCES DEGREES ARCHITECTURES
 * DIR: a pipeline folder, of which the configurations are read.  SIDE: of the picture, and of REFERENCES (0 or 1) images.
 * DEGREES and ARCHITECTURES: "1,2,4" ranks and "80,90" compute capabilities.  The model's own code runs on the backend that computes nothing, which
 * is told to write down shapes; each is then planned for GPUs that are not here.  A line per architecture; exits 1 with the shapes that
 * have no plan, but for attention that cuDNN is not meant for: in F32, causal, or with heads beyond 256. */
#include "../dry_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../cuda/dnn.h"
#include "library.h"
#include "properties.h"

#define MOST 512

static struct {
	struct dtp_dnn_attention attention[MOST];
	struct dtp_dnn_conv conv[MOST];
	int nattention, nconv;
} seen;

static void die(const char *what)
{
	fprintf(stderr, "tool_graphs: %s\n", what);
	exit(1);
}

/* ---- what is asked */

static bool same_attention(const struct dtp_dnn_attention *a, const struct dtp_dnn_attention *b)
{
	return a->dtype == b->dtype && a->sq == b->sq && a->sk == b->sk && a->heads == b->heads && a->kv_heads == b->kv_heads &&
	       a->dim == b->dim && a->q_row == b->q_row && a->k_row == b->k_row && a->v_row == b->v_row && a->out_row == b->out_row &&
	       a->causal == b->causal;
}

static bool same_conv(const struct dtp_dnn_conv *a, const struct dtp_dnn_conv *b)
{
	return a->dtype == b->dtype && a->h == b->h && a->w == b->w && a->c == b->c && a->n == b->n && a->kh == b->kh && a->kw == b->kw &&
	       a->stride == b->stride && a->pad_top_left == b->pad_top_left && a->pad_bottom_right == b->pad_bottom_right && a->bias == b->bias;
}

static enum dtp_code attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
			       const struct dtp_attention *a, struct dtp_err *err)
{
	const struct dtp_dnn_attention s = {
		.dtype = q.dtype, .sq = q.shape[0], .sk = a->key_end - a->key_begin, .heads = q.shape[1], .kv_heads = k.shape[1],
		.dim = q.shape[2], .q_row = q.stride[0], .k_row = k.stride[0], .v_row = v.stride[0], .out_row = out.stride[0], .causal = a->causal,
	};
	int i = 0;

	(void)be, (void)err;
	while (i < seen.nattention && !same_attention(&seen.attention[i], &s))
		i++;
	if (i == MOST)
		die("too many shapes");
	if (i == seen.nattention)
		seen.attention[seen.nattention++] = s;
	return DTP_OK;
}

static enum dtp_code conv2d(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			    const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right, struct dtp_err *err)
{
	const struct dtp_dnn_conv s = {
		.dtype = x.dtype, .h = x.shape[0], .w = x.shape[1], .c = x.shape[2], .n = out.shape[2],
		.kh = dry_filter_side(x.shape[0], out.shape[0], stride, pad_top_left + pad_bottom_right),
		.kw = dry_filter_side(x.shape[1], out.shape[1], stride, pad_top_left + pad_bottom_right),
		.stride = stride, .pad_top_left = pad_top_left, .pad_bottom_right = pad_bottom_right, .bias = true,
	};
	int i = 0;

	(void)be, (void)w, (void)bias, (void)err;
	while (i < seen.nconv && !same_conv(&seen.conv[i], &s))
		i++;
	if (i == MOST)
		die("too many shapes");
	if (i == seen.nconv)
		seen.conv[seen.nconv++] = s;
	return DTP_OK;
}

static void watch(struct dtp_backend_ops *ops)
{
	ops->attention = attention;
	ops->conv2d = conv2d;
}

/* ---- what is answered */

struct answer {
	int attentions, convs, refused;
	uint64_t workspace; /* the largest */
};

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void plan_all(struct dtp_dnn *d, int sm, struct answer *a)
{
	const struct dtp_dnn_plan *plan;
	struct dtp_err err = DTP_ERR_INIT;
	const char *why = "";

	for (int i = 0; i < seen.nattention; i++) {
		const struct dtp_dnn_attention *s = &seen.attention[i];
		bool meant = s->dtype == DTP_BF16 && !s->causal && s->dim <= DTP_CUDA_DNN_HEAD;
		if (dtp_dnn_plan_attention(d, s, &plan, &why, &err))
			die(err.message);
		if (!plan && meant) {
			printf("sm_%d: attention %lldx%lld heads %lld of %lld: %s\n", sm, (long long)s->sq, (long long)s->sk, (long long)s->heads,
			       (long long)s->dim, why);
			a->refused++;
		}
		a->attentions += plan != NULL;
		a->workspace = plan ? larger(a->workspace, dtp_dnn_workspace(plan)) : a->workspace;
	}
	for (int i = 0; i < seen.nconv; i++) {
		const struct dtp_dnn_conv *s = &seen.conv[i];
		if (dtp_dnn_plan_conv(d, s, &plan, &why, &err))
			die(err.message);
		if (!plan) {
			printf("sm_%d: convolution %s %lldx%lldx%lld to %lld: %s\n", sm, dtp_dtype_name(s->dtype), (long long)s->h, (long long)s->w,
			       (long long)s->c, (long long)s->n, why);
			a->refused++;
		}
		a->convs += plan != NULL;
		a->workspace = plan ? larger(a->workspace, dtp_dnn_workspace(plan)) : a->workspace;
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The next number of a list; false at its end. */
static bool next(const char **list, int *n)
{
	char *end;

	*n = (int)strtol(*list, &end, 10);
	if (end == *list)
		return false;
	*list = *end == ',' ? end + 1 : end;
	return true;
}

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	char properties[2048];
	int failed = 0, n;

	if (argc != 6)
		die("usage: tool_graphs DIR SIDE REFERENCES DEGREES ARCHITECTURES");
	for (const char *list = argv[4]; next(&list, &n);) {
		struct dry_run d = {.model = argv[1], .side = atoll(argv[2]), .reference = atoi(argv[3]) > 0, .degree = n, .t = DTP_BF16,
				    .device = DTP_DEVICE_CUDA};
		dry_run(&d, watch, NULL);
		d.t = DTP_F32;
		dry_run(&d, watch, NULL);
	}
	for (const char *list = argv[5]; next(&list, &n);) {
		struct answer a = {.workspace = 0};
		struct dtp_dnn *d;
		double begin = now();
		if (!emu_properties(n, 0, properties, sizeof properties))
			die("an architecture that is not in properties.c");
		if (dtp_dnn_open(properties, NULL, &dtp_monitor_none, &d, &err))
			die(err.message);
		plan_all(d, n, &a);
		dtp_dnn_close(d);
		printf("sm_%d: %d attentions, %d convolutions planned, %d refused, %.1f MB of workspace, %.1f s\n", n, a.attentions, a.convs,
		       a.refused, (double)a.workspace / 1e6, now() - begin);
		failed |= a.refused || !a.attentions || !a.convs;
	}
	return failed;
}
