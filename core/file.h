/* SPDX-License-Identifier: Apache-2.0 */
/* Whole output files that appear complete or not at all. */
#ifndef DTP_FILE_H
#define DTP_FILE_H

#include "err.h"

#include <stdio.h>

/* The folder of path, malloc'd, NULL: out of memory; *name is the last component, if asked for. */
char *dtp_folder_of(const char *path, const char **name);

struct dtp_outfile {
	FILE *f;
	char *path, *tmp; /* tmp stands in the same folder; NULL while the file has no name */
};

/* Fails with DTP_REFUSED naming the folder when it does not exist or cannot be written, path is a folder, or its disk
 * has no room; creates nothing that stays.  Called before any load. */
enum dtp_code dtp_outfile_check(const char *path, struct dtp_err *err);
enum dtp_code dtp_outfile_open(const char *path, struct dtp_outfile *out, struct dtp_err *err);
/* Flushes, checks every error (disk full), fsyncs, renames.  On failure the temporary is removed.  Until here the file has no
 * name where the file system can do that, so that not even a killed process leaves anything. */
enum dtp_code dtp_outfile_commit(struct dtp_outfile *out, struct dtp_err *err);
void dtp_outfile_abandon(struct dtp_outfile *out);
/* Async-signal-safe, for a process that is about to end: unlinks the temporaries that exist at this moment; no later commit
 * of this process succeeds. */
void dtp_outfile_cleanup(void);
#endif
