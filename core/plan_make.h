/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that the program makes itself: with everything explicit, or derived from a model's modules; their text; and what
 * differs between two plans.  Plans and arrays that are returned are the caller's to free; empty after a failure. */
#ifndef DTP_PLAN_MAKE_H
#define DTP_PLAN_MAKE_H

#include "fold.h"
#include "plan.h"

/* The plan that gives every module the style and the blocks that dtp_plan_apply has given it: as few keys as possible, in the
 * order of the tree, blocks of packed styles as their least proportions. */
enum dtp_code dtp_plan_explicit(const struct dtp_tree *tree, const char *source, struct dtp_plan *plan,
				struct dtp_err *err);

/* As a plan file, one key a line, with a newline at the end; malloc'd, NULL when out of memory. */
char *dtp_plan_text(const struct dtp_plan *plan);

/* Why a key has its style; DTP_REPLICATED: why the plan has no such key. */
struct dtp_reason {
	struct dtp_key key;
	enum dtp_style style;
	char text[800];
};
/* Derives a plan from what the tree says of its modules (which read which, heads, packed blocks) and from nothing else:
 * layers whose readers are all known and can take a part each are split by rows, the readers by columns; embeddings by
 * vocabulary rows.  One reason per key, and one per linear layer or embedding that is left whole. */
enum dtp_code dtp_plan_derive(const struct dtp_tree *tree, struct dtp_plan *plan, struct dtp_reason **why, int *n,
			      struct dtp_err *err);

/* A module's part in a plan. */
struct dtp_role {
	enum dtp_style style;
	int nblocks;
	int64_t blocks[DTP_MAX_BLOCKS]; /* absolute */
};
struct dtp_plan_change {
	struct dtp_key key;
	struct dtp_role a, b;
};
/* What differs in effect between two plans of one model; the tree ends up with plan b.  DTP_REFUSED when either plan does not
 * suit the model at this degree. */
enum dtp_code dtp_plan_compare(const struct dtp_plan *a, const struct dtp_plan *b, struct dtp_tree *tree, int degree,
			       struct dtp_plan_change **changes, int *n, struct dtp_err *err);
#endif
