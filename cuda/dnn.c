/* SPDX-License-Identifier: Apache-2.0 */
#include "dnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dnn_cache.h"
#include "dnn_graph.h"
#include "dnn_plan.h"
#include "json.h"

struct dtp_dnn_plan {
	char *name;               /* the shape in words */
	struct dtp_dnn_made made; /* made.plan NULL: refused */
	bool captured;            /* a graph may have its kernels */
	struct dtp_dnn_plan *next;
};

/* What is to be planned: one of the two shapes. */
struct wanted {
	const struct dtp_dnn_attention *attention;
	const struct dtp_dnn_conv *conv;
};

struct dtp_dnn {
	struct dtp_cudnn api;
	cudnnHandle_t handle;        /* NULL: only plans */
	struct dtp_dnn_target target;
	char version[32], *properties;
	struct dtp_dnn_cache cache;
	const struct dtp_monitor *mon;
	bool told;                   /* that plans are not kept */
	struct dtp_dnn_plan *plans;  /* the one asked for last comes first */
	int nplans;
};

/* ---- the device */

static cudnnBackendDescriptor_t describe(struct dtp_dnn_build *b, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
					 int64_t n, const void *value)
{
	cudnnBackendDescriptor_t d = dtp_dnn_make(b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);

	dtp_dnn_set(b, d, name, type, n, value);
	dtp_dnn_finish(b, d);
	return d;
}

static enum dtp_code read_properties(struct dtp_dnn *d, const char *given, struct dtp_err *err)
{
	struct dtp_dnn_build b;
	size_t len;

	dtp_dnn_begin(&b, &d->api);
	d->target.properties = given ? describe(&b, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(given), given)
				     : describe(&b, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &d->handle);
	d->properties = dtp_dnn_get_text(&b, d->target.properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, &len);
	if (b.status) {
		dtp_dnn_end(&b);
		d->target.properties = NULL;
		return dtp_fail(err, DTP_FAILED, "while asking cuDNN for the GPU's properties: %s", b.said);
	}
	dtp_dnn_keep(&b, d->target.properties);
	dtp_dnn_end(&b);
	return DTP_OK;
}

/* Plans depend on cuDNN and on the device, but not on its number: the ranks of a machine share them. */
static enum dtp_code identify(struct dtp_dnn *d, struct dtp_err *err)
{
	struct dtp_json doc;
	struct dtp_hash h;
	enum dtp_code rc = dtp_json_parse("cuDNN's device properties", d->properties, strlen(d->properties), &doc, err);
	char *kept;

	if (rc)
		return rc;
	cJSON_DeleteItemFromObjectCaseSensitive(doc.root, "cudaDeviceId");
	cJSON_DeleteItemFromObjectCaseSensitive(doc.root, "pciDeviceId");
	kept = cJSON_PrintUnformatted(doc.root);
	dtp_json_free(&doc);
	if (!kept)
		return dtp_fail(err, DTP_FAILED, "out of memory for the GPU's properties");
	dtp_hash_begin(&h);
	dtp_hash_add(&h, d->version, strlen(d->version) + 1);
	dtp_hash_add(&h, kept, strlen(kept));
	dtp_hash_end(&h, &d->cache.made_for);
	cJSON_free(kept);
	return DTP_OK;
}

enum dtp_code dtp_dnn_open(const char *properties, const char *cache, const struct dtp_monitor *mon, struct dtp_dnn **out,
			   struct dtp_err *err)
{
	struct dtp_dnn *d = calloc(1, sizeof *d);
	enum dtp_code rc;

	*out = NULL;
	if (!d)
		return dtp_fail(err, DTP_FAILED, "out of memory for cuDNN's plans");
	d->mon = mon;
	d->target.api = &d->api;
	d->cache.dir = cache ? strdup(cache) : NULL;
	rc = cache && !d->cache.dir ? dtp_fail(err, DTP_FAILED, "out of memory for '%s'", cache) : dtp_cudnn_load(&d->api, err);
	if (!rc && !properties)
		rc = DTP_CUDNN(&d->api, cudnnCreate(&d->handle), err);
	if (!rc) {
		size_t v = d->api.cudnnGetVersion();
		snprintf(d->version, sizeof d->version, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
		rc = read_properties(d, properties, err);
	}
	if (!rc)
		rc = identify(d, err);
	if (rc) {
		dtp_dnn_close(d);
		return rc;
	}
	*out = d;
	return DTP_OK;
}

int dtp_dnn_plans(const struct dtp_dnn *d)
{
	return d->nplans;
}

void dtp_dnn_trim(struct dtp_dnn *d, int keep)
{
	struct dtp_dnn_plan **at = &d->plans;

	while (*at) {
		struct dtp_dnn_plan *p = *at;
		if (keep-- > 0 || p->captured) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		if (p->made.plan)
			d->api.cudnnBackendDestroyDescriptor(p->made.plan);
		free(p->name);
		free(p);
		d->nplans--;
	}
}

void dtp_dnn_close(struct dtp_dnn *d)
{
	if (!d)
		return;
	for (struct dtp_dnn_plan *p = d->plans; p; p = p->next)
		p->captured = false;
	dtp_dnn_trim(d, 0);
	if (d->target.properties)
		d->api.cudnnBackendDestroyDescriptor(d->target.properties);
	if (d->handle)
		d->api.cudnnDestroy(d->handle);
	free(d->cache.dir);
	free(d->properties);
	free(d);
}

const char *dtp_dnn_version(const struct dtp_dnn *d)
{
	return d->version;
}

const char *dtp_dnn_properties(const struct dtp_dnn *d)
{
	return d->properties;
}

/* ---- plans */

/* By what a plan is found, in memory and in the folder. */
static void name_of(struct wanted w, char *buf, size_t size)
{
	const struct dtp_dnn_attention *a = w.attention;
	const struct dtp_dnn_conv *c = w.conv;

	if (a)
		snprintf(buf, size, "attention %s %lldx%lld tokens %lld/%lld heads of %lld rows %lld %lld %lld %lld%s%s",
			 dtp_dtype_name(a->dtype), (long long)a->sq, (long long)a->sk, (long long)a->heads, (long long)a->kv_heads,
			 (long long)a->dim, (long long)a->q_row, (long long)a->k_row, (long long)a->v_row, (long long)a->out_row,
			 a->causal ? " causal" : "", a->stats ? " stats" : "");
	else
		snprintf(buf, size, "convolution %s %lldx%lldx%lld filter %lldx%lldx%lld stride %d padding %d %d%s", dtp_dtype_name(c->dtype),
			 (long long)c->h, (long long)c->w, (long long)c->c, (long long)c->n, (long long)c->kh, (long long)c->kw, c->stride,
			 c->pad_top_left, c->pad_bottom_right, c->bias ? " bias" : "");
}

/* The plan goes to the folder; where it cannot, the user is told once. */
static void keep(struct dtp_dnn *d, const struct dtp_dnn_plan *p)
{
	struct dtp_err err = DTP_ERR_INIT;
	size_t len;
	char *text = d->cache.dir ? dtp_dnn_plan_text(&d->target, p->made.plan, &len) : NULL;

	if (text && dtp_dnn_cache_write(&d->cache, p->name, text, len, &err) && !d->told) {
		char note[sizeof err.message + 64];
		d->told = true;
		snprintf(note, sizeof note, "cuDNN's plans are made anew in every run: %s", err.message);
		d->mon->note(d->mon->arg, note);
	}
	free(text);
}

static bool read_kept(struct dtp_dnn *d, struct dtp_dnn_plan *p)
{
	size_t len;
	char *text = dtp_dnn_cache_read(&d->cache, p->name, &len);

	if (text)
		dtp_dnn_plan_read(&d->target, text, len, &p->made);
	free(text);
	return p->made.plan != NULL;
}

static enum dtp_code make(struct dtp_dnn *d, struct wanted w, struct dtp_dnn_made *made, struct dtp_err *err)
{
	struct dtp_dnn_build b;
	enum dtp_code rc = DTP_OK;

	dtp_dnn_begin(&b, &d->api);
	cudnnBackendDescriptor_t graph = w.attention ? dtp_dnn_attention_graph(&b, w.attention) : dtp_dnn_conv_graph(&b, w.conv);
	if (graph)
		rc = dtp_dnn_make_plan(&d->target, graph, w.attention ? w.attention->dtype : w.conv->dtype, made, err);
	else
		snprintf(made->why, sizeof made->why, "%s", b.said);
	dtp_dnn_end(&b);
	return rc;
}

/* Fills in p->made, from wherever it comes. */
static enum dtp_code find_or_make(struct dtp_dnn *d, struct wanted w, struct dtp_dnn_plan *p, struct dtp_err *err)
{
	char buf[sizeof p->made.why];
	const char *refused = w.attention ? dtp_dnn_attention_refused(w.attention, buf, sizeof buf) : dtp_dnn_conv_refused(w.conv, buf, sizeof buf);
	enum dtp_code rc;

	if (refused) {
		snprintf(p->made.why, sizeof p->made.why, "%s", refused);
		return DTP_OK;
	}
	if (read_kept(d, p))
		return DTP_OK;
	rc = make(d, w, &p->made, err);
	if (rc)
		return dtp_err_prefix(err, "%s: ", p->name);
	if (p->made.plan)
		keep(d, p);
	return DTP_OK;
}

static enum dtp_code plan_for(struct dtp_dnn *d, struct wanted w, const struct dtp_dnn_plan **plan, const char **why, struct dtp_err *err)
{
	struct dtp_dnn_plan **at = &d->plans, *p;
	char name[400];
	enum dtp_code rc;

	*plan = NULL;
	name_of(w, name, sizeof name);
	while (*at && strcmp((*at)->name, name) != 0)
		at = &(*at)->next;
	p = *at;
	if (p) {
		*at = p->next;
	} else {
		p = calloc(1, sizeof *p);
		if (p)
			p->name = strdup(name);
		rc = p && p->name ? find_or_make(d, w, p, err) : dtp_fail(err, DTP_FAILED, "out of memory for cuDNN's plan of %s", name);
		if (rc) {
			free(p ? p->name : NULL);
			free(p);
			return rc;
		}
		d->nplans++;
	}
	p->next = d->plans;
	d->plans = p;
	if (p->made.plan)
		*plan = p;
	else
		*why = p->made.why;
	return DTP_OK;
}

enum dtp_code dtp_dnn_plan_attention(struct dtp_dnn *d, const struct dtp_dnn_attention *shape, const struct dtp_dnn_plan **plan,
				     const char **why, struct dtp_err *err)
{
	return plan_for(d, (struct wanted){.attention = shape}, plan, why, err);
}

enum dtp_code dtp_dnn_plan_conv(struct dtp_dnn *d, const struct dtp_dnn_conv *shape, const struct dtp_dnn_plan **plan, const char **why,
				struct dtp_err *err)
{
	return plan_for(d, (struct wanted){.conv = shape}, plan, why, err);
}

uint64_t dtp_dnn_workspace(const struct dtp_dnn_plan *plan)
{
	return plan->made.workspace;
}

/* ---- runs */

struct operand {
	enum dtp_dnn_tensor id;
	const void *p; /* NULL: the graph has none */
};
#define MOST_OPERANDS 6

/* Of a plan that its dnn owns. */
static enum dtp_code note_capture(const struct dtp_dnn_plan *plan, cudaStream_t stream, struct dtp_err *err)
{
	enum cudaStreamCaptureStatus status;
	enum dtp_code rc = DTP_CUDA(cudaStreamIsCapturing(stream, &status), err);

	if (!rc && status != cudaStreamCaptureStatusNone)
		((struct dtp_dnn_plan *)(uintptr_t)plan)->captured = true;
	return rc;
}

static enum dtp_code run(struct dtp_dnn *d, const struct dtp_dnn_plan *plan, cudaStream_t stream, const struct operand *operands, int n,
			 void *workspace, struct dtp_err *err)
{
	int64_t ids[MOST_OPERANDS];
	const void *pointers[MOST_OPERANDS];
	struct dtp_dnn_build b;
	enum dtp_code rc;
	int used = 0;

	if (!d->handle)
		return dtp_fail(err, DTP_REFUSED, "%s: planned for a GPU that is not here", plan->name);
	for (int i = 0; i < n; i++) {
		if (!operands[i].p)
			continue;
		if (operands[i].id != DTP_DNN_SCALE && (uintptr_t)operands[i].p % DTP_DNN_ALIGN)
			return dtp_fail(err, DTP_FAILED, "%s: operand %d at %p is not at a multiple of %d bytes", plan->name, operands[i].id,
					operands[i].p, DTP_DNN_ALIGN);
		ids[used] = operands[i].id;
		pointers[used++] = operands[i].p;
	}
	dtp_dnn_begin(&b, &d->api);
	cudnnBackendDescriptor_t pack = dtp_dnn_make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
	dtp_dnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, used, ids);
	dtp_dnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, used, pointers);
	dtp_dnn_set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
	dtp_dnn_finish(&b, pack);
	rc = b.status ? dtp_fail(err, DTP_FAILED, "%s", b.said) : DTP_OK;
	if (!rc)
		rc = note_capture(plan, stream, err);
	if (!rc)
		rc = DTP_CUDNN(&d->api, cudnnSetStream(d->handle, stream), err);
	if (!rc)
		rc = DTP_CUDNN(&d->api, cudnnBackendExecute(d->handle, plan->made.plan, pack), err);
	dtp_dnn_end(&b);
	return rc ? dtp_err_prefix(err, "%s: ", plan->name) : DTP_OK;
}

enum dtp_code dtp_dnn_run_attention(struct dtp_dnn *d, const struct dtp_dnn_plan *plan, cudaStream_t stream, void *out, const void *q,
				    const void *k, const void *v, float *lse, float scale, void *workspace, struct dtp_err *err)
{
	const struct operand operands[MOST_OPERANDS] = {
		{DTP_DNN_Q, q}, {DTP_DNN_K, k}, {DTP_DNN_V, v}, {DTP_DNN_OUT, out}, {DTP_DNN_STATS, lse}, {DTP_DNN_SCALE, &scale},
	};

	return run(d, plan, stream, operands, 6, workspace, err);
}

enum dtp_code dtp_dnn_run_conv(struct dtp_dnn *d, const struct dtp_dnn_plan *plan, cudaStream_t stream, void *out, const void *x,
			       const void *w, const void *bias, void *workspace, struct dtp_err *err)
{
	const struct operand operands[] = {{DTP_DNN_X, x}, {DTP_DNN_W, w}, {DTP_DNN_BIAS, bias}, {DTP_DNN_Y, out}};

	return run(d, plan, stream, operands, 4, workspace, err);
}
