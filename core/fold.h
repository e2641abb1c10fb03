/* SPDX-License-Identifier: Apache-2.0 */
/* Few words for many modules: a tree's modules as lines in which equal list elements are one, and as the keys that a plan
 * would name them by.  What "equal" means is the caller's. */
#ifndef DTP_FOLD_H
#define DTP_FOLD_H

#include "module.h"

#define DTP_FOLD_NAME 256

typedef bool (*dtp_alike_fn)(void *arg, const struct dtp_module *a, const struct dtp_module *b);

/* A line of the tree, which follows the dots of the names; the lines below it come next, one deeper. */
struct dtp_fold_line {
	char name[DTP_FOLD_NAME]; /* "attn", "to_out.0", "transformer_blocks.0-4": from the line above on */
	int depth;
	int count;                /* list elements that the line stands for: 5 for "transformer_blocks.0-4", else 1 */
	int times;                /* the product of the counts from the top down to this line */
	int module;               /* its module, the first of `times`; -1: there are lines below instead */
};
struct dtp_fold {
	struct dtp_fold_line *lines;
	int n;
};
/* Modules appear in the order of the tree; neighbouring list elements are one line where all their modules are alike.
 * Lists themselves are no lines.  fold is the caller's to free, empty after a failure. */
enum dtp_code dtp_fold_make(const struct dtp_tree *tree, dtp_alike_fn alike, void *arg, struct dtp_fold *fold,
			    struct dtp_err *err);
void dtp_fold_free(struct dtp_fold *fold);

/* A key names modules that are all alike: "list.*.rest" for every element of the list, else one module. */
struct dtp_key {
	char name[DTP_FOLD_NAME];
	int module; /* the first that it names */
	int count;
};
/* Every module but lists belongs to exactly one of the keys, which come in the order of their first modules.
 * *keys is malloc'd. */
enum dtp_code dtp_keys_make(const struct dtp_tree *tree, dtp_alike_fn alike, void *arg, struct dtp_key **keys, int *n,
			    struct dtp_err *err);
#endif
