/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: rules from module-name patterns to styles; their checks; and placement, the only place that computes with a rank
 * and a degree.  docs/plans.md describes the file format. */
#ifndef DTP_PLAN_H
#define DTP_PLAN_H

#include "err.h"
#include "module.h"

struct dtp_rule {
	char *key;
	enum dtp_style style;
	int nblocks;                    /* 0: omitted */
	int64_t blocks[DTP_MAX_BLOCKS]; /* proportions */
};

struct dtp_plan {
	char *source;                   /* path or "built-in plan 'flux2'" */
	struct dtp_rule *rules;
	int n;
};

/* The files of plans/, compiled in; ends with a NULL name. */
struct dtp_builtin_plan {
	const char *name, *text;
};
extern const struct dtp_builtin_plan dtp_builtin_plans[];

const char *dtp_style_name(enum dtp_style s); /* "colwise", ... ; "replicated" */

/* Reads a plan file.  Errors (DTP_REFUSED) name the file and the key: unknown style (with "did you mean"), unknown field,
 * more than one '*', blocks on a style that has none, blocks that are not positive integers. */
enum dtp_code dtp_plan_load(const char *path, struct dtp_plan *plan, struct dtp_err *err);
/* The same from memory; source stands for the path in messages. */
enum dtp_code dtp_plan_parse(const char *source, const char *text, size_t len, struct dtp_plan *plan, struct dtp_err *err);
/* A plan of plans/ that is compiled in: "flux2", "text". */
enum dtp_code dtp_plan_builtin(const char *name, struct dtp_plan *plan, struct dtp_err *err);
enum dtp_code dtp_plan_copy(const struct dtp_plan *from, struct dtp_plan *to, struct dtp_err *err);
void dtp_plan_free(struct dtp_plan *plan);

/* Expands the rules over the tree for a degree and sets style and blocks of each module, after every check of
 * docs/plans.md: no module matched; prefix is no list; two keys for one module; a module of a kind that cannot be split;
 * plain style on a packed module or packed style on a plain one without blocks; blocks whose number or proportions are not
 * the module's own; proportions whose sum does not divide the dimension; a degree that does not divide heads, a dimension or
 * any block (tree->even), with the degrees that would work; a split output that no rowwise module consumes; a rowwise
 * module whose input is not split; producers of one consumer (q, k, v) styled differently; rowwise_split_input on
 * an input that is split already.  A degree of 1 runs all checks too. */
enum dtp_code dtp_plan_apply(const struct dtp_plan *plan, struct dtp_tree *tree, int degree, struct dtp_err *err);

/* What rank of degree owns of a parameter: consecutive runs [begin, end) of dimension dim, concatenated. */
struct dtp_split {
	int dim;   /* -1: whole (replicated); the one run is then all of dimension 0 */
	int nruns;
	struct {
		int64_t begin, end;
	} run[DTP_MAX_RUNS];
};
void dtp_placement(const struct dtp_tree *tree, const struct dtp_param *p, int rank, int degree, struct dtp_split *out);
int64_t dtp_split_length(const struct dtp_split *s); /* sum of the runs */
/* The local shape of p under s. */
void dtp_split_shape(const struct dtp_param *p, const struct dtp_split *s, int64_t shape[DTP_MAX_DIMS]);
/* Fills module->layer's sizes and flags (not weight, bias) of every module for this rank. */
void dtp_plan_bind(struct dtp_tree *tree, int rank, int degree);
/* "1, 2, 4, 8": the degrees up to 64 that pass for this tree and plan; "any" if all do, "none" if the plan is refused
 * whatever the degree.  buf gets the text. */
void dtp_plan_valid_degrees(const struct dtp_plan *plan, const struct dtp_tree *tree, char *buf, size_t len);
#endif
