/* SPDX-License-Identifier: Apache-2.0 */
#include "dnn_plan.h"

#include <stdio.h>

#include "footprint.h"

#define MOST 64 /* configurations of one answer; cuDNN has given up to 40 */


/* ---- what is exact enough */

/* NULL, or what a configuration does that the backend's contract forbids. */
static const char *inexact(struct dtp_dnn_build *b, cudnnBackendDescriptor_t config, enum dtp_dtype dtype)
{
	static const struct { cudnnBackendNumericalNote_t note; bool f32_only; const char *what; } forbidden[] = {
		{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, false, "give other bits each time"},
		{CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, false, "sum in less than F32"},
		{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, true, "round F32 to TF32"},
		{CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, true, "round F32 to fewer bits"},
		{CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, true, "lose bits of F32 in large tiles"},
		{CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, true, "lose bits of F32 in large tiles"},
	};
	cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
	cudnnBackendDescriptor_t engine = dtp_dnn_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
	int64_t n;

	dtp_dnn_get(b, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
	n = dtp_dnn_get(b, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
	for (size_t f = 0; f < sizeof forbidden / sizeof *forbidden; f++)
		for (int64_t i = 0; i < n; i++)
			if (notes[i] == forbidden[f].note && (dtype == DTP_F32 || !forbidden[f].f32_only))
				return forbidden[f].what;
	return NULL;
}

/* ---- plans */

static uint64_t workspace_of(struct dtp_dnn_build *b, cudnnBackendDescriptor_t plan)
{
	int64_t n = 0;

	dtp_dnn_get(b, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n);
	return n > 0 ? (uint64_t)n : 0;
}

/* A plan of one configuration, or why there is none. */
static void try_config(const struct dtp_dnn_target *t, cudnnBackendDescriptor_t config, enum dtp_dtype dtype, struct dtp_dnn_made *out,
		       cudnnStatus_t *status)
{
	struct dtp_dnn_build b;
	cudnnBackendDescriptor_t plan;
	const char *fault;

	dtp_dnn_begin(&b, t->api);
	fault = inexact(&b, config, dtype);
	if (!fault) {
		plan = dtp_dnn_make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
		dtp_dnn_set_part(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
		dtp_dnn_set_part(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, t->properties);
		dtp_dnn_finish(&b, plan);
		out->workspace = workspace_of(&b, plan);
		if (out->workspace > DTP_CUDA_DNN_WORKSPACE)
			fault = "take too much workspace";
	}
	if (b.status) {
		snprintf(out->why, sizeof out->why, "%s", b.said);
	} else if (fault) {
		snprintf(out->why, sizeof out->why, "its configurations %s", fault);
	} else {
		dtp_dnn_keep(&b, plan);
		out->plan = plan;
	}
	*status = b.status;
	dtp_dnn_end(&b);
}

static bool out_of_memory(cudnnStatus_t s)
{
	return s == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED || s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

/* The proposals of one mode; b owns them. */
static int64_t propose(const struct dtp_dnn_target *t, struct dtp_dnn_build *b, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
		       cudnnBackendDescriptor_t configs[MOST])
{
	cudnnBackendDescriptor_t h = dtp_dnn_make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	int64_t n;

	dtp_dnn_set_part(b, h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
	dtp_dnn_set(b, h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
	dtp_dnn_set_part(b, h, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, t->properties);
	dtp_dnn_finish(b, h);
	n = dtp_dnn_get(b, h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
	n = n < MOST ? n : MOST;
	for (int64_t i = 0; i < n; i++)
		configs[i] = dtp_dnn_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
	if (n)
		n = dtp_dnn_get(b, h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, configs);
	return n;
}

enum dtp_code dtp_dnn_make_plan(const struct dtp_dnn_target *t, cudnnBackendDescriptor_t graph, enum dtp_dtype dtype,
				struct dtp_dnn_made *out, struct dtp_err *err)
{
	static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
	cudnnBackendDescriptor_t configs[MOST];
	struct dtp_dnn_build b;

	out->plan = NULL;
	out->workspace = 0;
	snprintf(out->why, sizeof out->why, "cuDNN knows no configuration for this shape on this GPU");
	for (size_t m = 0; m < sizeof modes / sizeof *modes && !out->plan; m++) {
		dtp_dnn_begin(&b, t->api);
		int64_t n = propose(t, &b, graph, modes[m], configs);
		cudnnStatus_t status = b.status;
		if (status)
			snprintf(out->why, sizeof out->why, "%s", b.said);
		for (int64_t i = 0; i < n && !out->plan && !out_of_memory(status); i++)
			try_config(t, configs[i], dtype, out, &status);
		dtp_dnn_end(&b);
		if (out_of_memory(status))
			return dtp_fail(err, DTP_FAILED, "while planning: %s", out->why);
	}
	return DTP_OK;
}

char *dtp_dnn_plan_text(const struct dtp_dnn_target *t, cudnnBackendDescriptor_t plan, size_t *len)
{
	struct dtp_dnn_build b;
	char *text;

	dtp_dnn_begin(&b, t->api);
	text = dtp_dnn_get_text(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, len);
	dtp_dnn_end(&b);
	return text;
}

void dtp_dnn_plan_read(const struct dtp_dnn_target *t, const char *text, size_t len, struct dtp_dnn_made *out)
{
	struct dtp_dnn_build b;
	cudnnBackendDescriptor_t plan;

	dtp_dnn_begin(&b, t->api);
	plan = dtp_dnn_make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
	dtp_dnn_set_part(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, t->properties);
	dtp_dnn_set(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)len, text);
	dtp_dnn_finish(&b, plan);
	out->workspace = workspace_of(&b, plan);
	out->plan = b.status || out->workspace > DTP_CUDA_DNN_WORKSPACE ? NULL : plan;
	if (b.status)
		snprintf(out->why, sizeof out->why, "%s", b.said);
	else if (out->plan)
		dtp_dnn_keep(&b, plan);
	dtp_dnn_end(&b);
}
