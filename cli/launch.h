/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the ranks of a job as processes of this program, watches them, and ends all of them when one fails.  Where somebody
 * else's launcher has started a process for each rank, each of these is the keeper of its rank: it starts it, as one process,
 * and rank 0's watches over all. */
#ifndef DTP_LAUNCH_H
#define DTP_LAUNCH_H

#include "err.h"
#include "monitor.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct dtp_footprint;
struct dtp_gathering;
struct dtp_seat;

/* What the ranks say while they run. */
enum dtp_event_kind {
	DTP_EVENT_STAGE,    /* text: a new stage begins in phase */
	DTP_EVENT_PROGRESS, /* done of total within the stage: bytes in DTP_PHASE_LOAD, else blocks, steps or tiles; also sent
			     * with what it was before while the rank moves, some times a second */
	DTP_EVENT_NOTE,     /* text: a line for the user */
	DTP_EVENT_WARN,     /* text: a warning */
	DTP_EVENT_STDOUT,   /* text: a line, without its newline, that a rank other than 0 wrote on its stdout ... */
	DTP_EVENT_STDERR,   /* ... or stderr; rank 0 has this process's own */
	DTP_EVENT_MEMORY,   /* text: a phase; what `rank`, whoever says it, took of memory in it */
	DTP_EVENT_IMAGE,    /* text: the name of a file that now holds an image of width x height, drawn from seed */
	DTP_EVENT_PREVIEW   /* rgb: a picture of width x height of what is being drawn */
};

struct dtp_event {
	enum dtp_event_kind kind;
	int rank;
	enum dtp_phase phase; /* of the rank at this moment */
	const char *text;     /* valid during the call; NULL for PROGRESS and PREVIEW */
	uint64_t done, total;
	int width, height;    /* pixels, of an IMAGE or PREVIEW */
	const uint8_t *rgb;   /* [height, width, 3], valid during the call */
	const struct dtp_footprint *memory; /* of MEMORY; valid during the call */
	bool has_seed;        /* else the noise was given */
	uint64_t seed;
};

/* Seconds without any movement of a rank after which the run is ended, unless told otherwise: more than the slowest single
 * block or read that a working machine takes, less than a person's patience. */
#define DTP_TIMEOUT_DEFAULT 300

struct dtp_launch {
	int nranks;           /* >= 1 */
	char *const *argv;    /* of the ranks: NULL-terminated, usually main's own; they are this very program file */
	const char *const *env; /* NULL, or NULL-terminated "NAME=value" that the ranks get besides this environment */
	int threads_per_rank; /* 0: OpenMP decides; else OMP_NUM_THREADS of the ranks */
	bool may_finish;      /* the first SIGINT asks the ranks to end after what is at hand (dtp_worker_finishing) */
	double timeout_s;     /* 0: DTP_TIMEOUT_DEFAULT; see dtp_launch */
	const struct dtp_seat *seat; /* NULL: all ranks are this launcher's; else only the one of this seat is */
	struct dtp_gathering *gathering; /* of rank 0's keeper; NULL elsewhere */
	pid_t parent;         /* the launcher's process, without which the run is to end; 0: none is known */
	const char *parent_name;
	const char *program;  /* NULL: /proc/self/exe */
	void (*on_event)(void *arg, const struct dtp_event *); /* NULL: lines of the ranks go to stdout and stderr */
	void *arg;
};

/* timeout_s, or its default. */
double dtp_launch_timeout(const struct dtp_launch *opts);
/* A rank under somebody else's launcher ends its keeper that stands still for the timeout and so much longer: the job has been
 * given up by then. */
#define DTP_PATIENCE_S 2.5

/* Runs the whole job and returns when no rank is left: DTP_OK when every rank ended well, the code of the failure
 * otherwise.  Must be called before this process has threads; ranks find themselves through dtp_worker_open.
 *
 * The run ends as a whole when a rank reports an error, exits with a code other than 0, is killed by a signal, or
 * makes no progress for timeout_s (and a second): no beat though it is not waiting for others, no sign of life at all, or
 * all of them waiting for each other.
 * The other ranks are asked to end, then made to, within two seconds.  *err is then the root cause and not its consequences;
 * err->message is complete (rank, host, stage, progress, signal or error), to be printed as it is, once; unless err->code is
 * DTP_OK, whatever is returned: another host's keeper has done that.
 * SIGINT (the second one, with may_finish), SIGTERM and SIGHUP end the run with DTP_INTERRUPTED and "interrupted" (with a
 * gathering: unless they are only what the launcher did about the end of another rank).  The ranks stay in this process group, ignore
 * what the terminal sends them, and end when this process does, however it ends. */
enum dtp_code dtp_launch(const struct dtp_launch *opts, struct dtp_err *err);
#endif
