/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory of a phase: a stack in the backend's memory, sized beforehand by a dry run, so that nothing is
 * allocated inside the step loop. */
#ifndef DTP_ARENA_H
#define DTP_ARENA_H

#include "backend.h"
#include "comm.h"

struct dtp_arena {
	struct dtp_backend *be;
	struct dtp_comm *sums; /* whose memory it is; NULL: be's */
	char *base;
	uint64_t size, used, peak;
	bool measuring;     /* addresses are not memory; only used and peak count */
};

enum dtp_code dtp_arena_init(struct dtp_arena *a, struct dtp_backend *be, uint64_t size, struct dtp_err *err);
/* Of memory that sums gives for what it sums, where it gives any; sums may be NULL.  Collective among its ranks, which must go on to take the same
 * from their arenas.  It is freed before sums. */
enum dtp_code dtp_arena_init_for_sums(struct dtp_arena *a, struct dtp_backend *be, struct dtp_comm *sums, uint64_t size, struct dtp_err *err);
void dtp_arena_measure(struct dtp_arena *a); /* for a dry run */
void dtp_arena_free(struct dtp_arena *a);
/* 64-byte aligned; NULL when it does not fit (a bug: the dry run said otherwise). */
void *dtp_arena_alloc(struct dtp_arena *a, uint64_t nbytes);
uint64_t dtp_arena_mark(const struct dtp_arena *a);
void dtp_arena_release(struct dtp_arena *a, uint64_t mark); /* gives back all that was taken after mark */
#endif
