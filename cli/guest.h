/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank that somebody else's launcher started says of itself when it comes to rank 0, and what it is told there. */
#ifndef DTP_GUEST_H
#define DTP_GUEST_H

#include "control.h"

#include <sys/types.h>

struct dtp_guest {
	char host[64], machine[64]; /* name; the running kernel's id, or the name again: both tell hosts apart */
	char net[32], pids[32];     /* namespaces: whether addresses and process numbers mean the same to two ranks */
	char processors[32];        /* those that it may use: ranks with the same share them */
	char version[32];           /* of the program */
	char address[64];           /* of its end of the connection; "" where it is no TCP */
	int rank, size;
	pid_t pid;
	char *args; /* dtp_told_record's */
	size_t args_len;
};

/* Of this process, but for rank, size, address and args. */
void dtp_guest_self(struct dtp_guest *g);
/* The JOIN message as dtp_msg_send's; what it points to is in buf and in g. */
struct dtp_msg dtp_guest_message(const struct dtp_guest *g, char *buf, size_t size);
/* From such a message; args is malloc'd.  False: it makes no sense, or is of another version of the protocol: then at least
 * rank, host and version are there if they can be read. */
bool dtp_guest_read(struct dtp_guest *g, const struct dtp_msg *m);

/* The place of a rank among the others of its host, once all are there. */
struct dtp_seat {
	int rank, size, hosts;
	int *local, nlocal;         /* the ranks of this host, ascending; behind them, as 0 and 1, which of them may use the same
				     * processors as this one */
	int local_rank;             /* this one's number among them */
	char address[64];           /* where the others reach it; "": by the loopback */
	char first_host[64];        /* rank 0's; its process if that is of this machine, else 0 */
	pid_t first_pid;
};
/* As rank `rank` of all; false: out of memory. */
bool dtp_seat_make(struct dtp_seat *seat, const struct dtp_guest *all, int size, int rank);
struct dtp_msg dtp_seat_message(const struct dtp_seat *seat, char *buf, size_t size);
bool dtp_seat_read(struct dtp_seat *seat, const struct dtp_msg *m);
void dtp_seat_free(struct dtp_seat *seat);
#endif
