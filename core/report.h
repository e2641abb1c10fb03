/* SPDX-License-Identifier: Apache-2.0 */
/* What goes where: the modules of a pipeline, their styles, and what each rank holds of them; from JSON and headers. */
#ifndef DTP_REPORT_H
#define DTP_REPORT_H

#include "fold.h"
#include "pipeline.h"
#include "plan.h"

/* A line of a part's tree.  Memory is in bytes, as the backend holds weights in the run's dtype, biases and padding
 * included, of all modules that the line stands for: its `times` modules, or all that stand below it. */
struct dtp_report_line {
	struct dtp_fold_line at;
	const struct dtp_module *module; /* NULL where at.module is -1 */
	enum dtp_dtype dtype;            /* of its weight in the checkpoint; DTP_NO_DTYPE: it is not there */
	uint64_t whole;                  /* if one rank held all */
	const uint64_t *rank;            /* [degree] */
	uint64_t least, most;            /* of these */
	int64_t shape_least[DTP_MAX_DIMS], shape_most[DTP_MAX_DIMS]; /* smallest and largest local weight */
	bool uneven;                     /* the ranks' parts differ in size, or overlap */
};

/* Modules that no key of the plan names and that weigh much in what a rank holds. */
struct dtp_report_large {
	struct dtp_key key;
	uint64_t bytes;                  /* of all that the key names */
	bool alone;                      /* no declared layer reads it or is read by it: rowwise_split_input could split it */
};

struct dtp_report_part {
	const char *name;                /* "transformer" */
	const struct dtp_plan *plan;     /* NULL: it is not split, rank 0 has it */
	int degree;                      /* ranks that hold it */
	const struct dtp_tree *tree;
	struct dtp_report_line *lines;
	int nlines;
	struct dtp_report_large *large;  /* heaviest first */
	int nlarge;
	uint64_t whole, least, most;     /* as of a line */
	uint64_t replicated;             /* of each rank's: what all ranks hold whole */
	uint64_t read;                   /* bytes of the checkpoint that the rank with most to read reads */
	uint64_t *sums;                  /* behind the lines' rank */
};
#define DTP_REPORT_PARTS 3
struct dtp_report {
	struct dtp_report_part part[DTP_REPORT_PARTS]; /* text_encoder, transformer, vae */
};

/* Everything points into the pipeline, which must stay as it is meanwhile; free with dtp_report_free, which also takes an
 * empty report, as it is left on failure. */
enum dtp_code dtp_report_make(struct dtp_pipeline *p, const struct dtp_request *req, struct dtp_report *out,
			      struct dtp_err *err);
void dtp_report_free(struct dtp_report *r);

/* The trees and plans that are compared, derived and written. */
struct dtp_tree *dtp_pipeline_tree(struct dtp_pipeline *p, const char *component); /* NULL: no such part */

/* One rank's part of one module: the placement and the shape of its weight, and the memory of all its parameters. */
void dtp_report_placed(struct dtp_pipeline *p, const struct dtp_report_part *part, const struct dtp_module *m, int rank,
		       struct dtp_split *split, int64_t shape[DTP_MAX_DIMS], uint64_t *bytes);
/* The dtype of the module's weight in the checkpoint. */
enum dtp_dtype dtp_report_dtype(const struct dtp_pipeline *p, const struct dtp_report_part *part, const struct dtp_module *m);
#endif
