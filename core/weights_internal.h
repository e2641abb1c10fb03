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
	int reader;                  /* the one rank that reads it for all; DTP_ITEM_EACH: each its own */
};
enum { DTP_ITEM_EACH = -1 };

/* Every slice that the rank needs, in the order of the files; *items is malloc'd.  shared: what no plan splits is read by one rank for
 * all, which are given about the same number of elements. */
enum dtp_code dtp_weights_collect(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				  bool shared, struct dtp_item **items, int *n, struct dtp_err *err);
/* Whether this rank reads it from its file. */
static inline bool dtp_item_is_read(const struct dtp_item *it, int rank)
{
	return it->home && dtp_slice_bytes(&it->slice) && (it->reader == DTP_ITEM_EACH || it->reader == rank);
}
#endif
