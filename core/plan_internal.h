/* SPDX-License-Identifier: Apache-2.0 */
/* Between the parts that know what plans mean: plan_apply.c, plan_check.c, placement.c and those that explain or derive plans. */
#ifndef DTP_PLAN_INTERNAL_H
#define DTP_PLAN_INTERNAL_H

#include "plan.h"

/* Both take a tree whose modules have got their styles.  Each message begins with the plan's source and the key. */

/* Whether what one layer writes is what its readers expect: split columns or whole ones. */
enum dtp_code dtp_plan_check_flow(const struct dtp_plan *plan, const struct dtp_tree *tree, struct dtp_err *err);
/* Whether degree divides what it must; err may be NULL. */
enum dtp_code dtp_plan_check_degree(const struct dtp_plan *plan, const struct dtp_tree *tree, int degree,
				    struct dtp_err *err);
/* The degrees up to 64 that dtp_plan_check_degree accepts.  Returns buf. */
const char *dtp_plan_degrees_text(const struct dtp_plan *plan, const struct dtp_tree *tree, char *buf, size_t len);

int64_t dtp_gcd(int64_t a, int64_t b); /* plan_apply.c */

static inline bool dtp_style_cuts_rows(enum dtp_style s) /* column-parallel: the output is split */
{
	return s == DTP_COLWISE || s == DTP_PACKED_COLWISE;
}

static inline bool dtp_style_cuts_columns(enum dtp_style s) /* row-parallel: the output is a sum over ranks */
{
	return s == DTP_ROWWISE || s == DTP_ROWWISE_SPLIT_INPUT || s == DTP_PACKED_ROWWISE;
}
#endif
