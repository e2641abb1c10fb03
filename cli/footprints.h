/* SPDX-License-Identifier: Apache-2.0 */
/* What a run took of memory beside what `difftp plan` and the check before the run foresaw: bench prints it, other runs tell it. */
#ifndef DTP_FOOTPRINTS_H
#define DTP_FOOTPRINTS_H

#include "job.h"
#include "json.h"

/* Of one phase of one rank. */
struct dtp_footprint {
	uint64_t weights, scratch, workspace, predicted; /* predicted: their sum, what the backend takes */
	struct dtp_phase_use use;                        /* use.peak 0: the rank has no part in the phase */
};
struct dtp_footprints {
	int ranks;
	const char *name[DTP_NPHASES];
	struct dtp_footprint (*rank)[DTP_NPHASES]; /* [ranks] */
};

/* After the run, on every rank.  out->rank is the caller's to free, whatever the outcome. */
enum dtp_code dtp_footprints_collect(struct dtp_rank *r, struct dtp_footprints *out, struct dtp_err *err);
/* A line for each phase: the rank that took most.  gpu: with what is in use of its device. */
void dtp_footprints_print(const struct dtp_footprints *m, bool gpu);
cJSON *dtp_footprints_json(const struct dtp_footprints *m); /* a list of phases */
void dtp_footprint_add(cJSON *o, const struct dtp_footprint *f); /* its members */

/* Where a rank took over a twentieth more in a phase than was foreseen: a line about the one that did most.  False: none did. */
bool dtp_footprints_excess(const struct dtp_footprints *m, char *buf, size_t size);
/* After a run that is to end well, on every rank: tells programs of the rank that took most in each phase, and people of an excess. */
enum dtp_code dtp_footprints_tell(struct dtp_rank *r, struct dtp_err *err);
#endif
