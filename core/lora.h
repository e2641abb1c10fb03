/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank additions to a model's weights: W + scale * B A for the linear layers that a LoRA file names.  They are merged while
 * the weights stream in, each rank its own slices, so that no full matrix is ever built; in f32, rounded once with the weight. */
#ifndef DTP_LORA_H
#define DTP_LORA_H

#include "backend.h"
#include "hash.h"
#include "module.h"
#include "monitor.h"
#include "plan.h"
#include "safetensors.h"

#define DTP_MAX_LORAS 8

/* One pair of factors of a module. */
struct dtp_lora_part {
	const struct dtp_st *st;
	const struct dtp_st_entry *a, *b; /* [rank, in], [rows, rank]: rows may be those of several modules, fused */
	int64_t row0;                     /* b's first row for the module ... */
	int64_t first_row;                /* ... whose row 0 is this one: halves that are the other way round (names.h) */
	float scale;
};

struct dtp_lora;
/* given: "FILE" or "FILE:scale", n of them, applied in this order.  Names as in PEFT ("transformer.X.lora_A.weight") and Kohya files
 * ("lora_unet_X.lora_down.weight", X with '_' for '.'), X being the module's own name or Black Forest Labs' for it, with the
 * scale alpha / rank where alpha is given as a tensor or in PEFT's metadata.  Attaches the parts to the tree's modules; the
 * tree must not outlive *out while it is loaded from.  Every pair is checked against its module; keys that name nothing
 * are listed in a warning.  DTP_REFUSED: no such file, a pair that does not fit, another kind of adapter (DoRA, LoKr, LoHa), nothing
 * that fits at all.  No data are read but alphas. */
enum dtp_code dtp_lora_open(const char *const *given, int n, struct dtp_tree *tree, const struct dtp_monitor *mon,
			    struct dtp_lora **out, struct dtp_err *err);
void dtp_lora_close(struct dtp_lora *l); /* NULL is allowed */
/* Adds what tells these additions from others. */
enum dtp_code dtp_lora_hash(const struct dtp_lora *l, struct dtp_hash *h, struct dtp_err *err);

/* The factors of one rank's slice of a module's weight: BF16 where both of a pair are that in the file, else F32. */
struct dtp_lora_slice {
	int64_t rows, cols; /* local */
	int nparts;
	struct dtp_low_rank *part; /* b [rows, r], a [r, cols] */
	void *data;                /* of all parts */
};
/* split: of the weight.  Reads the factors' parts. */
enum dtp_code dtp_lora_slice_read(const struct dtp_module *m, const struct dtp_split *split, struct dtp_lora_slice **out,
				  struct dtp_err *err);
/* Has the kernel read the factors that dtp_lora_slice_read will want, in the background. */
void dtp_lora_slice_prefetch(const struct dtp_module *m, const struct dtp_split *split);
void dtp_lora_slice_free(struct dtp_lora_slice *s); /* NULL is allowed */
/* What it takes, reading included, without reading: for the fit report.  0 for a module to which nothing is added. */
uint64_t dtp_lora_slice_bytes(const struct dtp_module *m, const struct dtp_split *split);
#endif
