/* SPDX-License-Identifier: Apache-2.0 */
/* Is the split run right?  Every layer of an N-rank run against the same layer of the whole model, which rank 0 computes beside
 * it (whole.h): what the layer is given, what it gives, and the stages between blocks.
 *
 * As a rule both sides of every event are then made equal: the ranks go on with the whole model's values.  So each layer is
 * judged by itself, on the same input, however long the model is and whatever went wrong before it; and a difference has no
 * other cause than the one layer, or what is computed between two.  A free run leaves them: differences add up. */
#ifndef DTP_VERIFY_H
#define DTP_VERIFY_H

#include "dump.h"
#include "pipeline.h"
#include "whole.h"

/* How far two computations of one value in t may lie apart when sums of n products are added in another order: the largest
 * difference, in units of the value or of the RMS of the whole tensor, whichever is larger. */
double dtp_verify_tolerance(enum dtp_dtype t, int64_t n);
/* The same after `depth` layers one after the other, each of which adds its own. */
double dtp_verify_tolerance_at(enum dtp_dtype t, int64_t n, uint64_t depth);
/* The RMS of the differences, over the RMS of the tensor, may be this part of the above: of one layer, of many. */
#define DTP_VERIFY_RMS_SHARE 0.25
#define DTP_VERIFY_RMS_SHARE_AT 0.0625

struct dtp_difference {
	double rms, max;         /* relative, as above; infinite where a value is not finite on one side only */
	double tolerance;        /* of max */
	double rms_tolerance;
	int64_t broken;          /* values that are not finite in the run that is checked, or in both */
};
static inline bool dtp_differs(const struct dtp_difference *d)
{
	return d->broken || !(d->max <= d->tolerance) || !(d->rms <= d->rms_tolerance);
}

/* One event that diverged, or the worst of a row. */
#define DTP_VERIFY_NAME 200
struct dtp_finding {
	char component[32];
	char module[DTP_VERIFY_NAME]; /* the layer, or the stage */
	char after[DTP_VERIFY_NAME];  /* the event before it: between the two lies the fault where kind is no output */
	enum dtp_point_kind kind;
	int step;                     /* from 1; what comes before the steps is in the first */
	char ranks[64];               /* "all ranks", "rank 1", "ranks 1, 3" */
	struct dtp_difference d;      /* of the worst rank */
};

/* A block, or a module that stands in none; in a free run a stage, or a step. */
struct dtp_verify_row {
	char component[32], name[DTP_VERIFY_NAME];
	int compared, differ;         /* events; those beyond the tolerance */
	int modules;                  /* layers among them whose output was compared (every step counts) */
	struct dtp_finding worst;     /* relative to its tolerance */
};

#define DTP_VERIFY_FINDINGS 64
struct dtp_verify_report {
	struct dtp_verify_row *rows;
	int nrows, cap;
	struct dtp_finding found[DTP_VERIFY_FINDINGS]; /* one per module and kind, in the order of the model */
	int nfound;
	int differ;                   /* events that diverged, in all */
	struct dtp_whole_stats whole;
	/* Against a recording: stages that only one side has, the first names. */
	int only_ours, only_theirs;
	char ours[512], theirs[512];
};
void dtp_verify_report_free(struct dtp_verify_report *r);

struct dtp_verify_options {
	double tolerance;             /* 0: computed */
	bool free_run;
};

/* The ranks' side: gives every event of this rank's passes, and on rank 0 those of `whole` (NULL elsewhere), to the report.  All
 * ranks of tp use one; rank 0's report holds the result. */
struct dtp_verify;
enum dtp_code dtp_verify_new(const struct dtp_verify_options *o, struct dtp_comm *tp, struct dtp_backend *be,
			     struct dtp_whole *whole, struct dtp_backend *whole_be, struct dtp_verify_report *report,
			     struct dtp_verify **out, struct dtp_err *err);
const struct dtp_observer *dtp_verify_observer(struct dtp_verify *v);
void dtp_verify_free(struct dtp_verify *v); /* NULL is allowed */

/* A pipeline, opened for its degree, with a request for latents, against `whole`: the same opened for one rank (on rank 0;
 * NULL elsewhere), computed by whole_be.  One request, one use of whole. */
struct dtp_verify_job {
	struct dtp_verify_options options;
	struct dtp_pipeline *pipeline, *whole;
	const struct dtp_request *request;
	struct dtp_backend *backend, *whole_backend;
	struct dtp_mesh *mesh;
	const struct dtp_monitor *mon;
	int node_threads;
};
enum dtp_code dtp_verify_run(const struct dtp_verify_job *job, struct dtp_verify_report *report, struct dtp_err *err);

/* A run against the stages of a file, whole pictures included: tensors under the names that --dump-stages gives.  One row for
 * each stage that both have, in the order of the run.  job->whole is not used.  DTP_FAILED when a stage has another shape
 * there, or when there is none in common. */
enum dtp_code dtp_verify_against(const struct dtp_verify_job *job, const char *path, struct dtp_verify_report *report,
				 struct dtp_err *err);
#endif
