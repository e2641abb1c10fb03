/* SPDX-License-Identifier: Apache-2.0 */
/* Work that is done again and again, such as a step of a run: where the backend can, it records it once and repeats the recording, which
 * keeps the processor out of the way.  What was counted of it is counted at every repetition. */
#ifndef DTP_REPLAY_H
#define DTP_REPLAY_H

#include "ops.h"

/* Begins as zeros. */
struct dtp_replay {
	struct dtp_recording *recording; /* the backend's; NULL: none */
	struct dtp_opstat cost[DTP_NOPS];/* of one time; without seconds */
};

/* Does what work(arg) says with the operations of ops.h on c: the same ones, on the same memory, in every call with one *r.  Values that
 * differ lie in the backend's memory, written before.  work may be called again when it has failed, and need not be called at all.
 * Nothing is recorded where stages are, or where an observer looks on.  All ranks of a sum call it together. */
void dtp_replay(struct dtp_ctx *c, struct dtp_replay *r, void (*work)(void *arg), void *arg);
/* NULL where the last call of dtp_replay repeated or made a recording; else why it did not, in words that last as long as r. */
const char *dtp_replay_refused(const struct dtp_ctx *c, const struct dtp_replay *r);
/* Where some ranks of a sum have lost their recording (memory that it works in went) and others have not, all begin anew, since they record together.
 * Collective; before dtp_replay, wherever memory has come or gone since. */
enum dtp_code dtp_replay_agree(struct dtp_ctx *c, struct dtp_replay *r, struct dtp_err *err);
/* Before the memory that the work uses goes, and before the communicators of its sums. */
void dtp_replay_free(struct dtp_backend *be, struct dtp_replay *r);
#endif
