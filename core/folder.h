/* SPDX-License-Identifier: Apache-2.0 */
/* Whole output folders that appear complete or not at all. */
#ifndef DTP_FOLDER_H
#define DTP_FOLDER_H

#include "err.h"

#include <stdint.h>
#include <stdio.h>

struct dtp_outfolder {
	char *path, *tmp; /* what is written goes into tmp, beside path */
};

/* DTP_REFUSED when path exists and is no empty folder, its parent is missing, or the disk has less than `bytes` left. */
enum dtp_code dtp_outfolder_open(const char *path, uint64_t bytes, struct dtp_outfolder *out, struct dtp_err *err);
enum dtp_code dtp_make_folder(const char *dir, struct dtp_err *err); /* it may be there already */
/* A folder in it. */
enum dtp_code dtp_outfolder_add(const struct dtp_outfolder *out, const char *name, struct dtp_err *err);
/* Gives it its name.  The files in it have been synced. */
enum dtp_code dtp_outfolder_commit(struct dtp_outfolder *out, struct dtp_err *err);
/* Removes all of it; nothing to do after a commit. */
void dtp_outfolder_abandon(struct dtp_outfolder *out);

/* Copies a file's bytes to a new one, synced. */
enum dtp_code dtp_copy_file(const char *from, const char *to, struct dtp_err *err);
/* Every regular file of a folder but weights (whatever may hold tensors, by its suffix) to a folder that exists. */
enum dtp_code dtp_copy_small_files(const char *from, const char *to, struct dtp_err *err);
/* Writes a new file, synced. */
enum dtp_code dtp_write_new(const char *path, const void *data, size_t len, struct dtp_err *err);
/* Flushes, syncs and closes, whatever happens; 0 or an errno. */
int dtp_close_synced(FILE *f);
#endif
