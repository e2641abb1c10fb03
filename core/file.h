/* SPDX-License-Identifier: Apache-2.0 */
/* Whole output files that appear complete or not at all. */
#ifndef DTP_FILE_H
#define DTP_FILE_H

#include "err.h"

#include <stdio.h>

struct dtp_outfile {
	FILE *f;
	char *path, *tmp; /* tmp stands in the same folder */
};

/* Fails with DTP_REFUSED naming the folder when it does not exist or cannot be written, path is a folder, or its disk
 * has no room; creates nothing that stays.  Called before any load. */
enum dtp_code dtp_outfile_check(const char *path, struct dtp_err *err);
enum dtp_code dtp_outfile_open(const char *path, struct dtp_outfile *out, struct dtp_err *err);
/* Flushes, checks every error (disk full), fsyncs, renames.  On failure the temporary is removed. */
enum dtp_code dtp_outfile_commit(struct dtp_outfile *out, struct dtp_err *err);
void dtp_outfile_abandon(struct dtp_outfile *out);
/* Async-signal-safe: unlinks the temporary that is open at this moment, if any (a run that is ended by a signal). */
void dtp_outfile_cleanup(void);
#endif
