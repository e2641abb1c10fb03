/* SPDX-License-Identifier: Apache-2.0 */
/* Between weights.c, weights_check.c and readahead.c only. */
#ifndef DTP_WEIGHTS_INTERNAL_H
#define DTP_WEIGHTS_INTERNAL_H

#include "slice.h"
#include "weights.h"

/* The entry of a parameter, checked: there, of a dtype that we read, of the declared shape. */
enum dtp_code dtp_weights_find(const struct dtp_st *st, const char *prefix, const struct dtp_param *p,
			       const struct dtp_st_entry **e, struct dtp_err *err);

/* As what the backend holds a parameter. */
enum dtp_weight_kind dtp_weights_kind(const struct dtp_param *p);

/* One parameter's slice and where it goes. */
struct dtp_item {
	struct dtp_slice slice;
	enum dtp_weight_kind kind;
	int ndim;
	int64_t shape[DTP_MAX_DIMS]; /* local */
	struct dtp_weight **home;    /* in the layer; NULL: the module has none */
	const struct dtp_module *adds; /* to whose weight a LoRA adds; NULL: nothing is added to this */
	struct dtp_split split;
	int param;                   /* number in the order of the tree, which is the same on all ranks */
	/* Who reads it for all: of the ranks that no plan splits it over, and of those that hold the same slices; DTP_ITEM_EACH: each. */
	int reader, copy;
	bool read;                   /* by this rank, from its file */
};
enum { DTP_ITEM_EACH = -1 };

/* Every slice that the rank needs, in the order of the files; *items is malloc'd.  Those that read for others are given about the same number
 * of elements. */
enum dtp_code dtp_weights_collect(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				  const struct dtp_sharing *with, struct dtp_item **items, int *n, struct dtp_err *err);
#endif
