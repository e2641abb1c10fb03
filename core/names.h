/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of the transformer under the names of Black Forest Labs' own files, in which q, k and v are one tensor. */
#ifndef DTP_NAMES_H
#define DTP_NAMES_H

#include "module.h"
#include "safetensors.h"

/* Gives a checkpoint that has those names, or either scheme's behind "model.diffusion_model.", the tree's own: each parameter gets an
 * entry that is a block of rows of the tensor that holds it, so that slices of it are read directly.  What belongs to no parameter
 * keeps its name.  Nothing happens to a checkpoint that has the tree's names, or neither; *renamed says whether it did.  DTP_REFUSED
 * when a tensor that is cut into blocks has another shape than they need. */
enum dtp_code dtp_names_adopt(const struct dtp_tree *tree, struct dtp_st *st, bool *renamed, struct dtp_err *err);

/* A module under those names: the tensor without its suffix, and where in it the module lies. */
struct dtp_foreign {
	char name[256];
	int block, blocks; /* which of so many equal blocks of rows; 0 blocks: all of it */
	bool halves;       /* the halves of its rows are the other way round */
};
/* False: the module has no name there. */
bool dtp_names_foreign(const char *module, struct dtp_foreign *out);
#endif
