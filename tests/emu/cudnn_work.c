/* SPDX-License-Identifier: Apache-2.0 */
#include "cudnn_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "tensor.h"

/* ---- from a plan's text to a job */

#define CALL "cudnnBackendExecute"

static struct dtp_json plan;
static const cJSON *tensors;

static void numbers(const cJSON *of, const char *key, int64_t *out, int n)
{
	struct dtp_err err = DTP_ERR_INIT;
	int there;

	if (dtp_json_ints(&plan, of, key, INT64_MIN / 2, INT64_MAX / 2, out, n, &there, &err))
		emu_misuse(CALL ": %s", err.message);
	if (there != n)
		emu_misuse(CALL ": '%s' has %d numbers, expected %d", key, there, n);
}

static const char *text_at(const cJSON *of, const char *key)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *s;

	if (dtp_json_string(&plan, of, key, &s, &err))
		emu_misuse(CALL ": %s", err.message);
	return s;
}

static size_t element(const struct emu_dnn_tensor *t)
{
	return t->bf16 ? 2 : 4;
}

static size_t extent(const struct emu_dnn_tensor *t)
{
	int64_t last = 0;

	for (int i = 0; i < 4; i++)
		last += (t->dims[i] - 1) * t->strides[i];
	return (size_t)(last + 1) * element(t);
}

struct pack {
	const int64_t *ids;
	void *const *pointers;
	int n;
};

/* The tensor that a node names under a key, with its address, which is checked. */
static struct emu_dnn_tensor tensor(const cJSON *node, const char *key, const struct pack *pack)
{
	const char *name = text_at(node, key), *type;
	struct emu_dnn_tensor t = {.p = NULL};
	const cJSON *d;

	cJSON_ArrayForEach(d, tensors) if (!strcmp(text_at(d, "name"), name)) break;
	if (!d)
		emu_misuse(CALL ": the plan names a tensor '%s' that it does not have", name);
	numbers(d, "dim", t.dims, 4);
	numbers(d, "stride", t.strides, 4);
	type = text_at(d, "dataType");
	t.bf16 = !strcmp(type, "CUDNN_DATA_BFLOAT16");
	if (!t.bf16 && strcmp(type, "CUDNN_DATA_FLOAT"))
		emu_misuse(CALL ": tensor %s is %s", name, type);
	t.by_value = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(d, "isByValue"));
	if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(d, "isVirtual")))
		return t;
	for (int i = 0; i < pack->n; i++)
		if (pack->ids[i] == atoll(name))
			t.p = pack->pointers[i];
	if (!t.p)
		emu_misuse(CALL ": tensor %s (%s) was given no address", name, key);
	if (t.by_value) {
		if (emu_find(t.p).kind == EMU_DEVICE)
			emu_misuse(CALL ": the value of tensor %s (%s) is in device memory", name, key);
		return t;
	}
	emu_device_range(t.p, extent(&t), key);
	if ((uintptr_t)t.p % 16)
		emu_misuse(CALL ": tensor %s (%s) at %p is no multiple of 16", name, key, (void *)t.p);
	return t;
}

static void read_attention(const cJSON *node, const struct pack *pack, struct emu_dnn_job *job)
{
	struct emu_dnn_tensor scale = tensor(node, "scale", pack);

	job->attention = true;
	job->q = tensor(node, "Q", pack);
	job->k = tensor(node, "K", pack);
	job->v = tensor(node, "V", pack);
	job->out = tensor(node, "O", pack);
	if (cJSON_GetObjectItemCaseSensitive(node, "stats"))
		job->stats = tensor(node, "stats", pack);
	if (!scale.by_value)
		emu_misuse(CALL ": the scale is no value");
	memcpy(&job->scale, scale.p, sizeof job->scale);
}

static void read_conv(const cJSON *node, const struct pack *pack, struct emu_dnn_job *job)
{
	const cJSON *next = node->next;
	int64_t dilation[2], below[2];

	/* One name where both are the same. */
	bool same = cJSON_GetObjectItemCaseSensitive(node, "pad") != NULL;
	numbers(node, same ? "pad" : "pad_lower", job->pad, 2);
	numbers(node, same ? "pad" : "pad_upper", below, 2);
	numbers(node, "stride", job->stride, 2);
	numbers(node, "dilation", dilation, 2);
	if (dilation[0] != 1 || dilation[1] != 1 || strcmp(text_at(node, "mode"), "CUDNN_CROSS_CORRELATION"))
		emu_misuse(CALL ": a convolution with gaps, or mirrored");
	job->x = tensor(node, "X", pack);
	job->w = tensor(node, "W", pack);
	job->out = tensor(node, "Y", pack);
	for (int i = 0; i < 2; i++)
		if ((job->x.dims[2 + i] + job->pad[i] + below[i] - job->w.dims[2 + i]) / job->stride[i] + 1 != job->out.dims[2 + i])
			emu_misuse(CALL ": a side of the result does not fit picture, filter and padding");
	if (!next)
		return;
	if (strcmp(text_at(next, "operation"), "CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR") ||
	    strcmp(text_at(next, "pointwiseMode"), "CUDNN_POINTWISE_ADD") || strcmp(text_at(next, "X"), text_at(node, "Y")) || next->next)
		emu_misuse(CALL ": what follows the convolution is no bias");
	job->bias = tensor(next, "B", pack);
	job->out = tensor(next, "Y", pack);
}

/* The result lies apart from all that is read, and from the workspace. */
static void check_apart(const struct emu_dnn_job *job)
{
	const struct emu_dnn_tensor *read[] = {&job->q, &job->k, &job->v, &job->x, &job->w, &job->bias, &job->stats};

	for (size_t i = 0; i < sizeof read / sizeof *read; i++)
		if (read[i]->p && read[i]->p < job->out.p + extent(&job->out) && job->out.p < read[i]->p + extent(read[i]))
			emu_misuse(CALL ": the result lies over an operand");
}

void emu_dnn_read(const char *text, size_t len, int arch, const int64_t *ids, void *const *pointers, int n, struct emu_dnn_job *job)
{
	const struct pack pack = {ids, pointers, n};
	struct dtp_err err = DTP_ERR_INIT;
	const cJSON *graph, *node;
	int64_t version = 0;

	if (dtp_json_parse("plan", text, len, &plan, &err))
		emu_misuse(CALL ": %s", err.message);
	if (dtp_json_int(&plan, cJSON_GetObjectItemCaseSensitive(plan.root, "engine"), "smVersion", 0, 10000, &version, &err) ||
	    version != arch * 10)
		emu_misuse(CALL ": the plan is for architecture %lld, the device is %d", (long long)version, arch * 10);
	graph = cJSON_GetObjectItemCaseSensitive(plan.root, "operationGraph");
	tensors = cJSON_GetObjectItemCaseSensitive(graph, "tensors");
	node = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(graph, "nodes"), 0);
	if (!strcmp(text_at(node, "operation"), "CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR"))
		read_attention(node, &pack, job);
	else if (!strcmp(text_at(node, "operation"), "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR"))
		read_conv(node, &pack, job);
	else
		emu_misuse(CALL ": the plan's operation is '%s'", text_at(node, "operation"));
	check_apart(job);
	dtp_json_free(&plan);
}

/* ---- the work */

static float *need(size_t n)
{
	float *p = malloc(n * sizeof *p);

	if (!p)
		emu_misuse(CALL ": out of memory for %zu floats", n);
	return p;
}

static char *at(const struct emu_dnn_tensor *t, int64_t a, int64_t b, int64_t c)
{
	return t->p + (a * t->strides[1] + b * t->strides[2] + c * t->strides[3]) * (int64_t)element(t);
}

static enum dtp_dtype dtype(const struct emu_dnn_tensor *t)
{
	return t->bf16 ? DTP_BF16 : DTP_F32;
}

/* softmax(scale q k^T) v of one query, its scores in s. */
static void attend(const struct emu_dnn_job *j, int64_t head, int64_t i, const float *k, const float *v, float *s)
{
	int64_t sk = j->k.dims[2], d = j->q.dims[3], dv = j->v.dims[3];
	float *q = need((size_t)(d + dv)), *out = q + d;
	double sum = 0;
	float most = -INFINITY;

	dtp_to_f32(q, at(&j->q, head, i, 0), dtype(&j->q), (size_t)d);
	for (int64_t n = 0; n < sk; n++) {
		double dot = 0;
		for (int64_t c = 0; c < d; c++)
			dot += (double)q[c] * k[n * d + c];
		s[n] = (float)dot * j->scale;
		most = fmaxf(most, s[n]);
	}
	for (int64_t n = 0; n < sk; n++) {
		s[n] = expf(s[n] - most);
		sum += s[n];
	}
	for (int64_t c = 0; c < dv; c++) {
		double x = 0;
		for (int64_t n = 0; n < sk; n++)
			x += (double)s[n] * v[n * dv + c];
		out[c] = (float)(x / sum);
	}
	dtp_from_f32(at(&j->out, head, i, 0), dtype(&j->out), out, (size_t)dv);
	if (j->stats.p) {
		float lse = most + (float)log(sum);
		memcpy(at(&j->stats, head, i, 0), &lse, sizeof lse);
	}
	free(q);
}

/* A head's keys or values, dense. */
static float *rows(const struct emu_dnn_tensor *t, int64_t head)
{
	float *p = need((size_t)(t->dims[2] * t->dims[3]));

	for (int64_t i = 0; i < t->dims[2]; i++)
		dtp_to_f32(p + i * t->dims[3], at(t, head, i, 0), dtype(t), (size_t)t->dims[3]);
	return p;
}

static void attention(const struct emu_dnn_job *j)
{
	int64_t heads = j->q.dims[1], group = heads / j->k.dims[1];
	float *s = need((size_t)j->k.dims[2]);

	for (int64_t h = 0; h < heads; h++) {
		float *k = rows(&j->k, h / group), *v = rows(&j->v, h / group);
		for (int64_t i = 0; i < j->q.dims[2]; i++)
			attend(j, h, i, k, v, s);
		free(k);
		free(v);
	}
	free(s);
}

/* [n][h][w][c] of a tensor with dims [n,c,h,w], whose channels lie next to each other. */
static float *channels_last(const struct emu_dnn_tensor *t)
{
	int64_t n = t->dims[0], c = t->dims[1], h = t->dims[2], w = t->dims[3];
	float *p = need((size_t)(n * c * h * w));

	if (c > 1 && t->strides[1] != 1)
		emu_misuse(CALL ": channels are %lld apart, expected 1", (long long)t->strides[1]);
	for (int64_t i = 0; i < n * h * w; i++) {
		int64_t from = i / (h * w) * t->strides[0] + i / w % h * t->strides[2] + i % w * t->strides[3];
		dtp_to_f32(p + i * c, t->p + from * (int64_t)element(t), dtype(t), (size_t)c);
	}
	return p;
}

static float pixel(const struct emu_dnn_job *j, const float *x, const float *w, int64_t oy, int64_t ox)
{
	int64_t c = j->x.dims[1], kh = j->w.dims[2], kw = j->w.dims[3];
	double sum = 0;

	for (int64_t ky = 0; ky < kh; ky++)
		for (int64_t kx = 0; kx < kw; kx++) {
			int64_t y = oy * j->stride[0] + ky - j->pad[0], xx = ox * j->stride[1] + kx - j->pad[1];
			if (y < 0 || y >= j->x.dims[2] || xx < 0 || xx >= j->x.dims[3])
				continue;
			const float *a = x + (y * j->x.dims[3] + xx) * c, *b = w + (ky * kw + kx) * c;
			for (int64_t i = 0; i < c; i++)
				sum += (double)a[i] * b[i];
		}
	return (float)sum;
}

static void convolution(const struct emu_dnn_job *j)
{
	int64_t n = j->out.dims[1], filter = j->w.dims[1] * j->w.dims[2] * j->w.dims[3];
	float *x = channels_last(&j->x), *w = channels_last(&j->w), *bias = j->bias.p ? channels_last(&j->bias) : NULL;
	float *out = need((size_t)n);

	for (int64_t y = 0; y < j->out.dims[2]; y++)
		for (int64_t col = 0; col < j->out.dims[3]; col++) {
			for (int64_t i = 0; i < n; i++)
				out[i] = pixel(j, x, w + i * filter, y, col) + (bias ? bias[i] : 0);
			dtp_from_f32(at(&j->out, 0, y, col), dtype(&j->out), out, (size_t)n);
		}
	free(out);
	free(bias);
	free(w);
	free(x);
}

/* What lies between the rows of a tensor with gaps is another's: of such a one the first element counts. */
static void uses(const struct emu_dnn_tensor *t, bool write)
{
	size_t n = element(t);

	for (int i = 0; i < 4; i++)
		n *= (size_t)t->dims[i];
	if (t->p && !t->by_value)
		emu_uses(t->p, n == extent(t) ? n : element(t), write);
}

bool emu_dnn_compute(void *arg)
{
	const struct emu_dnn_job *j = arg;
	const struct emu_dnn_tensor *const read[] = {&j->q, &j->k, &j->v, &j->x, &j->w, &j->bias};

	for (size_t i = 0; i < sizeof read / sizeof *read; i++)
		uses(read[i], false);
	uses(&j->out, true);
	uses(&j->stats, true);
	emu_uses(j->workspace, j->workspace_size, true);
	if (j->workspace_size) /* whoever keeps something in it loses it */
		memset(j->workspace, 0xff, j->workspace_size);
	if (j->attention)
		attention(j);
	else
		convolution(j);
	return true;
}
