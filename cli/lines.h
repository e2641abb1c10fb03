/* SPDX-License-Identifier: Apache-2.0 */
/* Where the lines of --prompts come from: a file, which rank 0 reads and hands to the first ranks of the other replicas, or
 * stdin, of which every line goes to them as it arrives. */
#ifndef DTP_LINES_H
#define DTP_LINES_H

#include "job.h"

struct dtp_lines;

/* Whether the file can be read at all, before any rank is started. */
enum dtp_code dtp_lines_check(const char *path, struct dtp_err *err);
/* What messages call it: the path, or "stdin". */
const char *dtp_lines_name(const char *path);

/* Called by the first rank of every replica, in the same order.  Rank 0 of stdin reads it in a thread of its own, up to the end or
 * until the run is to finish (dtp_worker_finishing). */
enum dtp_code dtp_lines_open(struct dtp_rank *rank, const char *path, struct dtp_lines **out, struct dtp_err *err);
void dtp_lines_close(struct dtp_lines *l);
bool dtp_lines_are_known(const struct dtp_lines *l); /* all of them from the start: a file */

enum dtp_lines_got { DTP_LINES_LINE, DTP_LINES_NONE_YET, DTP_LINES_END, DTP_LINES_FAILED };
struct dtp_lines_line {
	const char *text; /* valid until the next call */
	size_t len;
	int64_t number; /* from 1, the blank ones counted */
};
/* The next line that is not blank.  wait: until there is one; no deadline runs meanwhile.  FAILED: err says why. */
enum dtp_lines_got dtp_lines_next(struct dtp_lines *l, bool wait, struct dtp_lines_line *line, struct dtp_err *err);
#endif
