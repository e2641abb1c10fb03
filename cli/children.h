/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks that are processes of this one: starting them, reading what they write, and ending them. */
#ifndef DTP_CHILDREN_H
#define DTP_CHILDREN_H

#include "guest.h"
#include "launch.h"
#include "signals.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>

#define DTP_OUTPUT_LINE_MAX 8192

/* Output of a rank on its way to the user, a line at a time. */
struct dtp_child_output {
	int fd; /* -1: closed, or the rank has this process's own */
	enum dtp_event_kind kind;
	size_t len;
	char buf[DTP_OUTPUT_LINE_MAX + 1];
};

struct dtp_child {
	int rank;
	pid_t pid; /* 0: not started, or reaped */
	bool termed, killed;
	struct dtp_child_output out[2];
};

struct dtp_children {
	const struct dtp_launch *opts;
	const struct dtp_signals *signals;
	struct dtp_child *list;
	int n;
	bool ending;
	double ending_since;
	/* Its owner's: */
	void *arg;
	void (*line)(void *arg, int rank, enum dtp_event_kind kind, const char *text);
	void (*last_words)(void *arg, int rank);       /* the process is gone: take in what it has sent */
	void (*exited)(void *arg, int rank, int status);
};

/* Of n ranks: all of a job, or the one of rank `first`.  False: out of memory. */
bool dtp_children_init(struct dtp_children *c, int first, int n);
void dtp_children_free(struct dtp_children *c);
/* Starts list[i] of nranks; *control: this side of its channel. */
enum dtp_code dtp_children_start(struct dtp_children *c, int i, int *control, struct dtp_err *err);
/* 2 n entries. */
void dtp_children_poll(const struct dtp_children *c, struct pollfd *fds);
void dtp_children_handle(struct dtp_children *c, const struct pollfd *fds);
void dtp_children_reap(struct dtp_children *c);
int dtp_children_alive(const struct dtp_children *c);
/* Whether the launcher that started this process is no more: then why is what is to be said of the rank. */
bool dtp_children_orphaned(const struct dtp_children *c, char *why, size_t size);
/* They have been asked over their channels: from now on the escalation runs. */
void dtp_children_end(struct dtp_children *c, double now);
void dtp_children_escalate(struct dtp_children *c, double now);
#endif
