/* SPDX-License-Identifier: Apache-2.0 */
/* What `difftp plan` has found out: made by plan.c, told by plan_print.c and plan_json.c. */
#ifndef DTP_CLI_PLAN_H
#define DTP_CLI_PLAN_H

#include "fit.h"
#include "flags.h"
#include "inputs.h"
#include "offload.h"
#include "report.h"

#include <stdio.h>

struct dtp_advice {
	const char *kind; /* "tensor_parallel": for scripts */
	char text[600];   /* a sentence or two */
};
#define DTP_MAX_ADVICE 8

struct dtp_plan_view {
	const struct dtp_args *args;
	struct dtp_options options;
	struct dtp_request request;        /* resolved */
	struct dtp_pipeline *pipeline;
	struct dtp_report report;
	struct dtp_inputs inputs;
	struct dtp_phase_memory (*memory)[DTP_NPHASES]; /* [tp_degree] */
	struct dtp_phase_cost cost[DTP_NPHASES];        /* of the rank that computes most */

	struct dtp_host_memory host;
	struct dtp_limits devices, limit;
	struct dtp_bound bound;            /* of these */
	struct dtp_offload offload;
	bool enough_devices, fits;         /* fits: into what there is, which includes enough devices */
	int smallest;                      /* degree that fits, more devices than there are allowed; 0: none up to 64 */
	struct dtp_fit smallest_fit;

	double tflops;                     /* of a rank */
	bool tflops_assumed;
	int threads;                       /* of this machine, where its ranks are CPU ranks */
	struct dtp_advice advice[DTP_MAX_ADVICE];
	int nadvice;
};

/* Bytes that a rank sends (and receives) in a ring all-reduce of this many: each goes round twice but for its own part. */
double dtp_ring_bytes(double bytes, int degree);
/* Bytes per second that a link needs to move the sums of a step while its products are computed. */
double dtp_hiding_rate(const struct dtp_plan_view *v);

/* Why it fits or does not, with the numbers. */
void dtp_plan_verdict(const struct dtp_plan_view *v, char *buf, size_t len);
void dtp_plan_advise(struct dtp_plan_view *v);
void dtp_plan_print(const struct dtp_plan_view *v, FILE *f);
enum dtp_code dtp_plan_print_json(const struct dtp_plan_view *v, FILE *f, struct dtp_err *err);
/* `plan --suggest` and `plan --diff`. */
enum dtp_code dtp_plan_suggest(const struct dtp_args *args, struct dtp_err *err);
enum dtp_code dtp_plan_diff(const struct dtp_args *args, struct dtp_err *err);
/* Writes a plan file that appears whole or not at all. */
enum dtp_code dtp_plan_write(const struct dtp_plan *plan, const struct dtp_args *args, struct dtp_err *err);
#endif
