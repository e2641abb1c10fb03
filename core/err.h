/* SPDX-License-Identifier: Apache-2.0 */
/* The one error type.  A function that can fail returns enum dtp_code and fills *err on failure only.
 * Nothing below cli/ prints or exits. */
#ifndef DTP_ERR_H
#define DTP_ERR_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values are the exit codes of the program. */
enum dtp_code {
	DTP_OK = 0,
	DTP_FAILED = 1,       /* the run failed: a rank, a device or I/O died; or verify diverged */
	DTP_REFUSED = 2,      /* refused before work: usage, input, plan, checkpoint, does not fit */
	DTP_INTERRUPTED = 130 /* SIGINT or SIGTERM */
};

struct dtp_err {
	enum dtp_code code;
	int rank;          /* -1 until the process stamps it */
	bool verdict;      /* what the job as a whole has come to (some of its images failed): nothing is wrong with the rank */
	bool no_room;      /* the device's memory is used up: whoever knows what would take less may add it */
	bool secondary;    /* likely the consequence of another rank's failure (a peer was lost) */
	char stage[64];    /* what the rank was doing; stamped by the process, not by whoever fails */
	char message[2048];/* one or more lines, no trailing newline: what failed, where, what to do */
};

#define DTP_ERR_INIT {DTP_OK, -1, false, false, false, "", ""}

/* Fills *err (err may be NULL) and returns code, so that a failing function ends in
 * `return dtp_fail(err, DTP_REFUSED, "'%s': ...", name);`.  Form of messages: what first, names in single
 * quotes, both numbers of a comparison, then what would work. */
enum dtp_code dtp_fail(struct dtp_err *err, enum dtp_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts context in front of the message that is already there ("while reading 'x': ...").  Returns err->code. */
enum dtp_code dtp_err_prefix(struct dtp_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
