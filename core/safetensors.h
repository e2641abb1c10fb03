/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors folders: one file or shards with an index.  Headers are read and checked when opened; tensor data is
 * read by byte range only. */
#ifndef DTP_SAFETENSORS_H
#define DTP_SAFETENSORS_H

#include "err.h"
#include "file.h"
#include "tensor.h"

#include <time.h>

#define DTP_ST_MAX_DIMS 8

struct dtp_st_entry {
	char *name;
	enum dtp_dtype dtype;   /* DTP_NO_DTYPE if the file uses one that we do not read (dtype_name says which) */
	char dtype_name[12];
	int ndim;               /* 0: a scalar */
	int64_t shape[DTP_ST_MAX_DIMS];
	int file;               /* index into files */
	uint64_t offset, nbytes;/* absolute in the file; checked against the file's size */
	int64_t first_row;      /* the rows begin in the middle: row 0 is the file's first_row, the last is the one before it (names.h) */
	bool part;              /* the data are one rank's slice, dense, of the tensor whose shape this is (shards.h) */
};

struct dtp_st_file {
	char *path;
	int fd;                 /* open for reading, close-on-exec */
	uint64_t size, header_bytes;
	struct timespec mtime;  /* at opening; dtp_st_read compares */
	bool remote;            /* on a network file system: is read by few and large requests */
};

struct dtp_st {
	struct dtp_st_file *files;
	int nfiles;
	struct dtp_st_entry *entries; /* sorted by name */
	int nentries;
	char *index;                  /* path of the index that named the files; NULL: there is none */
};

/* Opens `dir`/`base`.safetensors, or `dir`/`base`.safetensors.index.json and every shard that it names (base as in
 * "diffusion_pytorch_model" or "model").  Every rule of the format is checked here, before any tensor byte is
 * read, each with DTP_REFUSED and a message that names file and tensor: 8-byte length within the file; header JSON
 * (duplicate names!); known dtype names; offsets ascending without overlap, without holes, within the file; byte
 * length = product of shape x element size, every product checked for overflow; index: missing shard, tensor in two
 * shards, tensor named for a shard that lacks it, shard tensor that the index does not list, shard names with '/' or "..".
 * If neither exists but .bin, .pt, .ckpt, .gguf files do, the message names them and says that safetensors is needed. */
enum dtp_code dtp_st_open(const char *dir, const char *base, struct dtp_st *st, struct dtp_err *err);
/* The same of a variant, "fp16": `base`.fp16.safetensors, or `base`.safetensors.index.fp16.json.  NULL: as above. */
enum dtp_code dtp_st_open_variant(const char *dir, const char *base, const char *variant, struct dtp_st *st, struct dtp_err *err);
/* Whether one of its two files is there. */
bool dtp_st_exists(const char *dir, const char *base, const char *variant);
enum dtp_code dtp_st_open_file(const char *path, struct dtp_st *st, struct dtp_err *err);
/* `dir`/`base`.safetensors.index.json and its shards, by the index's path. */
enum dtp_code dtp_st_open_index(const char *path, struct dtp_st *st, struct dtp_err *err);
void dtp_st_close(struct dtp_st *st);

const struct dtp_st_entry *dtp_st_find(const struct dtp_st *st, const char *name); /* NULL if absent */

/* Reads [offset, offset + len) of the entry's data.  A short read or a file whose size or mtime changed since opening is
 * DTP_FAILED naming file and tensor.  Safe from several threads. */
enum dtp_code dtp_st_read(const struct dtp_st *st, const struct dtp_st_entry *e, uint64_t offset, uint64_t len, void *dst,
			  struct dtp_err *err);
/* A file's metadata ("__metadata__") as an object of strings; NULL if there is none.  The caller deletes it. */
struct cJSON *dtp_st_metadata_all(const struct dtp_st_file *f);
/* The metadata of file 0 as read ("__metadata__"); returns NULL if the key is absent.  Caller frees. */
char *dtp_st_metadata(const struct dtp_st *st, const char *key);

/* Writing, through core/file.h (keep is its): whole or not at all. */
struct dtp_st_out {
	const char *name;
	struct dtp_tensor tensor; /* dense, host memory */
};
enum dtp_code dtp_st_write(const char *path, struct dtp_outkeep *keep, const struct dtp_st_out *tensors, int n,
			   const char *const (*metadata)[2], int nmeta, struct dtp_err *err);

/* What stands behind the last slash of a path. */
const char *dtp_base_name(const char *path);
#endif
