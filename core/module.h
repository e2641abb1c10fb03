/* SPDX-License-Identifier: Apache-2.0 */
/* The module tree: the one declaration of a model's parameters.  A model declares each module once, with the handle that
 * its forward pass will use; plan expansion, checks against the safetensors headers, placement, memory report and loading
 * are all derived from it.  There is no second list of parameter names anywhere. */
#ifndef DTP_MODULE_H
#define DTP_MODULE_H

#include "err.h"
#include "tensor.h"

#define DTP_MAX_BLOCKS 8
#define DTP_MAX_READS 8
#define DTP_MAX_RUNS DTP_MAX_BLOCKS

enum dtp_module_kind {
	DTP_MODULE_LIST,      /* "transformer_blocks": what may stand before ".*." in a plan */
	DTP_MODULE_LINEAR,    /* weight [out, in] */
	DTP_MODULE_EMBEDDING, /* weight [rows, width] */
	DTP_MODULE_NORM,      /* weight [n] (and bias [n]); batch norm: running_mean, running_var */
	DTP_MODULE_CONV       /* weight [out, in, kh, kw] */
};

enum dtp_style {
	DTP_REPLICATED, DTP_COLWISE, DTP_ROWWISE, DTP_ROWWISE_SPLIT_INPUT, DTP_PACKED_COLWISE, DTP_PACKED_ROWWISE,
	DTP_NSTYLES
};

struct dtp_lora_part;
struct dtp_weight; /* a parameter in the backend's own layout (backend.h) */

/* What the forward pass holds of a module: filled by the loader, sizes are this rank's own. */
struct dtp_layer {
	struct dtp_weight *weight, *bias; /* bias NULL when there is none */
	int64_t out, in;      /* local rows and columns */
	int64_t out_begin;    /* first row of the (unpacked) run that this rank owns: q_proj row, vocabulary row */
	int64_t in_begin;     /* first input column: where rowwise_split_input cuts a replicated input */
	bool split_input;     /* the input is replicated and cut by this layer */
	bool reduce;          /* the product is a partial sum: all-reduce, then bias */
	const struct dtp_module *module;
};

struct dtp_module {
	char *name;                   /* dotted, as in the state dict, without ".weight" */
	enum dtp_module_kind kind;
	int ndim;
	int64_t shape[DTP_MAX_DIMS];  /* of the weight, whole */
	bool bias;
	bool is_read;                 /* some module names it as a producer */
	bool needed;                  /* false: declared so that its name is known, but never read (layers past the last one wanted) */
	const char *param[2];         /* suffixes: {"weight", "bias"} or {"running_mean", "running_var"} */

	/* Fused projections: absolute sizes of the blocks along out rows and along in columns; 0 blocks: not packed. */
	int nout_blocks, nin_blocks;
	int64_t out_blocks[DTP_MAX_BLOCKS], in_blocks[DTP_MAX_BLOCKS];
	/* How many rows (columns) stay together: head_dim where the dimension is heads, else 1. */
	int64_t out_unit, in_unit;
	/* Grouped kv heads: the rows of this module are those that the query heads of module `follows` need, `group` query
	 * heads sharing one kv head.  -1: none. */
	int follows;
	int64_t group;
	/* Modules whose outputs, combined head by head or column by column, are this module's input.  None: the input is the
	 * residual stream or another replicated tensor. */
	int nreads;
	int reads[DTP_MAX_READS];

	struct dtp_layer *layer;      /* the model's handle; NULL for lists */

	const struct dtp_lora_part *lora; /* what is added to the weight as it loads (lora.h), in this order */
	int nlora;

	/* Set by dtp_plan_apply. */
	enum dtp_style style;
	int nblocks;                  /* of the packed styles: the blocks in force, absolute sizes */
	int64_t blocks[DTP_MAX_BLOCKS];
	int rule;                     /* index of the plan's rule, -1: replicated by default */
};

struct dtp_tree {
	const char *component;        /* "transformer", "text_encoder", "vae" */
	bool even;                    /* heads and split dimensions must divide (transformer); false: contiguous uneven runs */
	int64_t heads;                /* for messages: the head count that binds the degree */
	const char *const *unused;    /* parts of the checkpoint that are known and never read, up to NULL: any tensor with one of
				       * these between the dots of its name; NULL: none */
	struct dtp_module *modules;
	int n, cap;
	int *slot;                    /* module by the hash of its name, 2 * cap slots; -1: none */
};

#define DTP_MAX_LAYERS 1024 /* of one kind that a config.json may ask for: ten times what any model has */

void dtp_tree_init(struct dtp_tree *t, const char *component);
void dtp_tree_free(struct dtp_tree *t);
/* Each returns the module's index; the name is formatted.  Out of memory or a duplicate name aborts: both are bugs. */
int dtp_tree_list(struct dtp_tree *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int dtp_tree_linear(struct dtp_tree *t, struct dtp_layer *l, int64_t out, int64_t in, bool bias, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));
int dtp_tree_embedding(struct dtp_tree *t, struct dtp_layer *l, int64_t rows, int64_t width, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
int dtp_tree_norm(struct dtp_tree *t, struct dtp_layer *l, int64_t n, bool bias, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
int dtp_tree_conv(struct dtp_tree *t, struct dtp_layer *l, int64_t out, int64_t in, int64_t k, bool bias,
		  const char *fmt, ...) __attribute__((format(printf, 7, 8)));
/* Attributes of a declared module. */
void dtp_tree_reads(struct dtp_tree *t, int module, int n, const int *producers);
void dtp_tree_out_blocks(struct dtp_tree *t, int module, int n, const int64_t *sizes);
void dtp_tree_in_blocks(struct dtp_tree *t, int module, int n, const int64_t *sizes);
int dtp_tree_find(const struct dtp_tree *t, const char *name); /* -1 */
/* Whether a module's name fits a key, whose '*', if it has one, is an index.  Where that begins in the name, the name's end where
 * there is none; NULL: it does not fit. */
const char *dtp_key_match(const char *key, const char *name);

/* The parameters of a module: 0 (weight) and, if bias, 1.  NULL past the end.  shape gets the whole shape. */
struct dtp_param {
	const struct dtp_module *module;
	int which;               /* 0 weight, 1 bias */
	char name[256];          /* module name + suffix: the tensor's name in the safetensors file */
	int ndim;
	int64_t shape[DTP_MAX_DIMS];
};
bool dtp_module_param(const struct dtp_module *m, int which, struct dtp_param *p);
#endif
