/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline folders whose weights are split already: one file per rank and split component, and a manifest.  docs/shards.md
 * describes the folder; shard.c makes it, unshard.c undoes it, this reads it. */
#ifndef DTP_SHARDS_H
#define DTP_SHARDS_H

#include "hash.h"
#include "plan.h"
#include "safetensors.h"

#define DTP_SHARDS_MANIFEST "difftp-shards.json"
#define DTP_SHARDS_SOURCES "sources" /* folder: what the original files were, but for their data */
#define DTP_SHARDS_VERSION 1
#define DTP_SHARDS_MAX_DEGREE 1024

struct dtp_shard_file {
	char *name;             /* within the component's folder */
	uint64_t size;
	char sha256[DTP_DIGEST_TEXT];
};
struct dtp_shards_part {
	char *component;        /* "transformer" */
	struct dtp_plan plan;   /* everything explicit */
	struct dtp_shard_file *sources;
	int nsources;
	char *index;            /* name of the original's index; NULL: it had none */
	struct dtp_shard_file *ranks;
	int nranks;             /* the degree */
	struct dtp_shard_file rest;   /* tensors that no run reads; name NULL: none */
};
struct dtp_shards {
	char *path;             /* of the manifest */
	char id[DTP_DIGEST_TEXT]; /* of original, plans and degree: in every file of the folder */
	char *variant;          /* of the files that are not split; NULL: none */
	int degree;
	struct dtp_shards_part *part;
	int nparts;
};

/* *out is NULL when the folder has no manifest.  DTP_REFUSED for a manifest that is damaged or of another version. */
enum dtp_code dtp_shards_load(const char *model, struct dtp_shards **out, struct dtp_err *err);
/* Writes the manifest into a folder; path is not used. */
enum dtp_code dtp_shards_save(const struct dtp_shards *s, const char *dir, struct dtp_err *err);
void dtp_shards_free(struct dtp_shards *s); /* NULL is allowed */
const struct dtp_shards_part *dtp_shards_part(const struct dtp_shards *s, const char *component); /* NULL: not split */
/* The degree that the folder was made for; *degree stays as it is where the folder is not sharded or not there. */
enum dtp_code dtp_shards_degree(const char *model, int *degree, struct dtp_err *err);

/* Opens a rank's file, or the rest (-1), and checks name, size, and whose it is. */
enum dtp_code dtp_shards_open(const struct dtp_shards *s, const struct dtp_shards_part *part, int rank, struct dtp_st *st,
			      struct dtp_err *err);
/* Checks that it holds the rank's slice of every parameter that the tree (with the part's plan) needs.  The entries then have the
 * whole shapes of the model and `part` set: what reads a checkpoint reads them as it does any other. */
enum dtp_code dtp_shards_bind(const struct dtp_tree *tree, const char *prefix, int rank, int degree, struct dtp_st *st,
			      struct dtp_err *err);

/* Metadata of every file: id, and whose it is: "transformer, rank 1 of 4"; "transformer, rest" for rank -1. */
#define DTP_SHARDS_META_ID "difftp_shards"
#define DTP_SHARDS_META_RANK "difftp_rank"
void dtp_shards_owner(int degree, const char *component, int rank, char *buf, size_t size);
#endif
