/* SPDX-License-Identifier: Apache-2.0 */
/* Joins module tree, placement, safetensors and backend: checks a checkpoint against the tree, then streams this rank's
 * slices into the backend.  A weight exists once: file -> bounded staging -> final layout. */
#ifndef DTP_WEIGHTS_H
#define DTP_WEIGHTS_H

#include "backend.h"
#include "comm.h"
#include "module.h"
#include "monitor.h"
#include "plan.h"
#include "safetensors.h"

/* Every needed parameter is in the file with the declared shape and a dtype among BF16, F16, F32 (DTP_REFUSED names file,
 * tensor, expected and actual; packed and 8-bit dtypes and a quantised checkpoint get their own message).  Tensors that
 * the tree does not declare get one warning with their count and first names.  prefix stands before every name of the
 * tree in the file ("" as a rule). */
enum dtp_code dtp_weights_check(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix,
				const struct dtp_monitor *mon, struct dtp_err *err);

/* A parameter's tensor in the file; NULL: it is not there. */
const struct dtp_st_entry *dtp_weights_entry(const struct dtp_st *st, const char *prefix, const struct dtp_param *p);

struct dtp_load_stats {
	uint64_t wanted;    /* bytes of what this rank reads: its slices, but those that another reads for it */
	uint64_t received;  /* bytes in the backend of what other ranks have read for it */
	uint64_t gaps;      /* bytes read through because they lay between two slices (dtp_gap_bytes) */
	uint64_t requests;  /* read calls */
	uint64_t staging;   /* bytes of staging buffers */
	double seconds;
};

/* Loads what dtp_plan_bind has bound for rank/degree into tree->modules[i].layer->weight/bias.  Several reads are in flight;
 * the buffers are at most DTP_STAGING_BYTES.  Stops with DTP_INTERRUPTED when mon->stopped says so.  On failure everything
 * that was allocated is freed. */
enum dtp_code dtp_weights_load(struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
			       struct dtp_backend *be, const struct dtp_monitor *mon, struct dtp_load_stats *stats,
			       struct dtp_err *err);
/* Whose tensors' communicators carry what one rank has read to those that have the same; NULL: to none, each reads it.  Every such tensor is
 * one rank's to read, and all of them read about as much. */
struct dtp_sharing {
	struct dtp_comm *sums;   /* of the ranks that the weights are split over: what no plan splits */
	struct dtp_comm *copies; /* of ranks whose slices are the same: all of them */
};
/* The same; what others read is sent to this rank's memory when all have been read.  Collective: a rank that fails before it sends leaves
 * the others waiting until it is lost. */
enum dtp_code dtp_weights_load_shared(struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				      struct dtp_backend *be, const struct dtp_sharing *with, const struct dtp_monitor *mon,
				      struct dtp_load_stats *stats, struct dtp_err *err);
void dtp_weights_free(struct dtp_tree *tree, struct dtp_backend *be);
/* Memory of this rank's weights in the backend, and their bytes in the file. */
uint64_t dtp_weights_param_memory(const struct dtp_param *p, const struct dtp_split *s, struct dtp_backend *be);
uint64_t dtp_weights_memory(const struct dtp_tree *tree, int rank, int degree, struct dtp_backend *be);
/* What loading, or computing them, takes of the host beside the weights, at most: the staging buffers and what is added by a LoRA. */
uint64_t dtp_weights_staging(const struct dtp_tree *tree, int rank, int degree);
/* What dtp_weights_load_shared reads here; of the communicators their ranks and sizes count. */
uint64_t dtp_weights_file_bytes(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				const struct dtp_sharing *with);

/* The bytes of one parameter's slice as they lie in the file (row-major, stored dtype): for shard hashes and `shard`.
 * dst holds dtp_split_length * ... elements. */
enum dtp_code dtp_weights_slice(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix,
				const struct dtp_param *p, int rank, int degree, void *dst, struct dtp_err *err);

/* Brings this rank's slices into the page cache, by a thread in the background: called while another
 * component computes: those that dtp_weights_load_shared reads here.  Returns the bytes that it asks for, small gaps included; the
 * kernel may read some megabytes around them. */
uint64_t dtp_weights_readahead(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
			       const struct dtp_sharing *with);
#endif
