/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's side of a job: its place in it, the monitor that core/ reports to, the world communicator. */
#ifndef DTP_WORKER_H
#define DTP_WORKER_H

#include "comm.h"
#include "err.h"
#include "monitor.h"

#include <stdbool.h>

struct dtp_footprint;
struct dtp_worker;

/* True when the environment says that this process is a rank that dtp_launch started. */
bool dtp_worker_is_rank(void);

/* Joins the job: connects to the launcher, starts the thread that reports to it, and forms the world communicator.
 * Collective over all ranks.  Call it first of all in a rank: SIGTERM and the end of the launcher clean up only from then
 * on.  On failure *w is NULL and the process must exit with the returned code; err->code is DTP_OK if the launcher has the error,
 * else there is none that could be told. */
enum dtp_code dtp_worker_open(struct dtp_worker **w, struct dtp_err *err);

int dtp_worker_rank(const struct dtp_worker *w);
int dtp_worker_size(const struct dtp_worker *w);
int dtp_worker_local_rank(const struct dtp_worker *w);       /* among the ranks of this host */
bool dtp_worker_shares_host(const struct dtp_worker *w, int rank);       /* with that rank, or itself */
bool dtp_worker_shares_processors(const struct dtp_worker *w, int rank); /* of its host */
struct dtp_comm *dtp_worker_world(const struct dtp_worker *w);
const struct dtp_monitor *dtp_worker_monitor(const struct dtp_worker *w);
bool dtp_worker_finishing(const struct dtp_worker *w);       /* the run is to end after what is at hand; from any thread */
/* A small picture of what is being drawn: rgb [height, width, 3]. */
void dtp_worker_preview(struct dtp_worker *w, const uint8_t *rgb, int64_t width, int64_t height);
/* An image is in its file.  seed: NULL if the noise was given. */
void dtp_worker_image(struct dtp_worker *w, const char *path, int64_t width, int64_t height, const uint64_t *seed);
/* What a rank took of memory in a phase, and what was foreseen. */
void dtp_worker_memory(struct dtp_worker *w, const char *phase, int rank, const struct dtp_footprint *f);
const struct dtp_store *dtp_worker_store(const struct dtp_worker *w); /* shared by all ranks of the job */
/* Puts a value into the store that is forgotten as soon as so many have got it; from any thread. */
void dtp_worker_hand_on(struct dtp_worker *w, const char *key, const void *val, size_t len, int takers);
uint64_t dtp_worker_taken(const struct dtp_worker *w); /* how many of these are forgotten */

/* Leaves the job: reports the outcome (err, stamped with rank and stage, unless code is DTP_OK), destroys the world
 * communicator and frees w.  Subgroups must be gone.  Returns the code with which the process must exit.  A rank prints
 * no error itself: the launcher does, once. */
int dtp_worker_close(struct dtp_worker *w, enum dtp_code code, struct dtp_err *err);

/* When the run is to end (another rank failed, a signal, the launcher died) monitor->stopped() turns true and every
 * pending and later collective fails; a rank whose main thread has not left within a second is ended by the reporting
 * thread, which removes the output file that is being written (dtp_outfile_cleanup) first. */
#endif
