/* SPDX-License-Identifier: Apache-2.0 */
/* From an operation graph to a plan that can be run, and from a plan's text. */
#ifndef DTP_CUDA_DNN_PLAN_H
#define DTP_CUDA_DNN_PLAN_H

#include "dnn_api.h"

/* What plans are made for. */
struct dtp_dnn_target {
	const struct dtp_cudnn *api;
	cudnnBackendDescriptor_t properties; /* DEVICEPROP */
};

struct dtp_dnn_made {
	cudnnBackendDescriptor_t plan; /* EXECUTION_PLAN, the caller's; NULL: there is none */
	uint64_t workspace;
	char why[600];                 /* there is none */
};

/* The first of the configurations that cuDNN proposes, best first, which is exact enough for dtype and can be made into a plan.
 * DTP_FAILED: memory is out. */
enum dtp_code dtp_dnn_make_plan(const struct dtp_dnn_target *t, cudnnBackendDescriptor_t graph, enum dtp_dtype dtype,
				struct dtp_dnn_made *out, struct dtp_err *err);

/* A finished plan as text and back.  text NULL, and plan NULL: it could not be done, and not having it does no harm. */
char *dtp_dnn_plan_text(const struct dtp_dnn_target *t, cudnnBackendDescriptor_t plan, size_t *len);
void dtp_dnn_plan_read(const struct dtp_dnn_target *t, const char *text, size_t len, struct dtp_dnn_made *out);
#endif
