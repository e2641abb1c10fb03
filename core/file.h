/* SPDX-License-Identifier: Apache-2.0 */
/* Whole output files that appear complete or not at all. */
#ifndef DTP_FILE_H
#define DTP_FILE_H

#include "err.h"
#include "monitor.h"

#include <stdbool.h>
#include <stdio.h>

/* The folder of path, malloc'd, NULL: out of memory; *name is the last component, if asked for. */
char *dtp_folder_of(const char *path, const char **name);

/* The suffix with its dot, or the end of the name; a dot at the start of the file's name makes no suffix. */
const char *dtp_suffix_of(const char *path);

/* Whether a file that is written under the one name would be found under the other: folders may be spelled in several ways, and links
 * followed.  The files need not be there. */
bool dtp_same_file(const char *a, const char *b);

/* For a file that may replace none: should its name be taken when it is complete, it gets a number, "a-2.png", the first that is
 * free. */
struct dtp_outkeep {
	size_t at, len; /* bytes of the name for which "-N" stands */
	int next;       /* the number to begin with */
	char *name;     /* out, malloc'd: what the file is called; NULL: as was asked */
};
struct dtp_outkeep dtp_outkeep_of(const char *path); /* "-2" and so on before the suffix */
const char *dtp_outkeep_name(const struct dtp_outkeep *keep, const char *path); /* keep may be NULL, here and below */
/* A warning, where the file is not called path. */
void dtp_outkeep_tell(const struct dtp_outkeep *keep, const char *path, const struct dtp_monitor *mon);
void dtp_outkeep_free(struct dtp_outkeep *keep);

struct dtp_outfile {
	FILE *f;
	char *path, *tmp; /* tmp stands in the same folder; NULL while the file has no name */
	struct dtp_outkeep *keep;
};

/* Fails with DTP_REFUSED naming the folder when it does not exist or cannot be written, path is a folder, or its disk
 * has no room; creates nothing that stays.  Called before any load. */
enum dtp_code dtp_outfile_check(const char *path, struct dtp_err *err);
/* keep: NULL: a file that has the name is replaced. */
enum dtp_code dtp_outfile_open(const char *path, struct dtp_outkeep *keep, struct dtp_outfile *out, struct dtp_err *err);
/* Flushes, checks every error (disk full), fsyncs, gives the name, and the mode of the file that is replaced.  On failure the
 * temporary is removed.  Until here the file has no name where the file system can do that, so that not even a killed process
 * leaves anything. */
enum dtp_code dtp_outfile_commit(struct dtp_outfile *out, struct dtp_err *err);
void dtp_outfile_abandon(struct dtp_outfile *out);
/* Async-signal-safe, for a process that is about to end: unlinks the temporaries that exist at this moment; no later commit
 * of this process succeeds. */
void dtp_outfile_cleanup(void);
#endif
