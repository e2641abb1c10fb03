/* SPDX-License-Identifier: Apache-2.0 */
/* The judgement on a running job: from what the ranks say, how they end and how long they are silent, whether the job
 * has failed, and whose failure came first.  Knows no processes and no sockets: its caller passes everything in. */
#ifndef DTP_SUPERVISE_H
#define DTP_SUPERVISE_H

#include "control.h"
#include "err.h"
#include "guest.h"
#include "monitor.h"

#include <stdbool.h>
#include <sys/types.h>

/* Beats are sampled and sent a few times a second, on a machine that may be busy. */
#define DTP_SLACK_S 1.0
/* A process that has not spoken yet may still be loading its libraries from a cold disk, whatever the timeout. */
#define DTP_START_S 30.0

/* What is known of a rank. */
struct dtp_watched {
	char host[64];
	pid_t pid;             /* of it, or of its keeper, where process numbers mean the same as here; else 0 */
	bool elsewhere;        /* it has a keeper, whose connection `closed` is about */
	bool stopped;          /* its keeper says so */
	bool greeted;          /* it has said hello */
	enum dtp_phase phase;
	char stage[128];
	uint64_t beats, done, total;
	bool waiting;          /* for another rank, or for input */
	double moved;          /* when any of these changed last */
	double heard;          /* when anything came from it last */
	bool reported_end;     /* it said that it ends well ... */
	bool reported_failure; /* ... or why it does not */
	bool ended;            /* its process is gone, or its keeper */
	bool closed;           /* its channel is */
};

struct dtp_supervisor {
	int nranks;
	struct dtp_watched *ranks;
	double timeout;
	long long oom_kills; /* of this host's kernel, at the start; -1: unknown */
	/* The best explanation so far; `final` or, for a suspected consequence, once nothing better came in time. */
	bool failed, final;
	double failed_at;
	struct dtp_err err;
};

/* False: out of memory. */
bool dtp_supervisor_init(struct dtp_supervisor *s, int nranks, double timeout_s, double now);
void dtp_supervisor_free(struct dtp_supervisor *s);
void dtp_supervisor_message(struct dtp_supervisor *s, int rank, const struct dtp_msg *m, double now);
void dtp_supervisor_closed(struct dtp_supervisor *s, int rank, double now);
/* status: as waitpid gives it. */
void dtp_supervisor_exited(struct dtp_supervisor *s, int rank, int status, double now);
/* The watcher itself was held up for so long (stopped by a terminal, starved): nobody is blamed for that time. */
void dtp_supervisor_excuse(struct dtp_supervisor *s, double seconds, double now);
/* Checks the deadlines.  True: the job has failed, s->err says why, and stays so. */
bool dtp_supervisor_verdict(struct dtp_supervisor *s, double now);
/* The rank has a keeper, which says what it knows in messages. */
void dtp_supervisor_elsewhere(struct dtp_supervisor *s, int rank, const struct dtp_guest *here, const struct dtp_guest *there);
/* The launcher of the job wants it to end, perhaps because a rank has died of which nothing is known here yet. */
void dtp_supervisor_asked(struct dtp_supervisor *s, double now);
/* The job is to end for a reason of its own (a signal to the launcher); an earlier verdict stands. */
void dtp_supervisor_end(struct dtp_supervisor *s, enum dtp_code code, const char *why);
/* True when the kernel holds the process stopped (SIGSTOP, or a debugger). */
bool dtp_process_is_stopped(pid_t pid);
/* How many processes the kernel has killed for want of memory, on this host or in one of its control groups; -1: unknown. */
long long dtp_oom_kills(void);
/* What to think of a process that ended so, as the tail of a message; oom_before: dtp_oom_kills when it began. */
const char *dtp_status_hint(long long oom_before, int status);
#endif
