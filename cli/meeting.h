/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of somebody else's launcher meet: rank 0 listens, the others connect to it.  docs/running.md has the rule. */
#ifndef DTP_MEETING_H
#define DTP_MEETING_H

#include "place.h"

#include <sys/types.h>

#define DTP_DERIVED_PORTS 16 /* MASTER_PORT + 1 and those that follow */

enum dtp_meeting_kind {
	DTP_MEET_TCP,   /* --rendezvous tcp:HOST:PORT */
	DTP_MEET_FILE,  /* --rendezvous file:PATH: rank 0 writes its addresses there */
	DTP_MEET_PORTS, /* MASTER_ADDR, and ports derived from MASTER_PORT, which the launcher itself may use */
	DTP_MEET_LOCAL  /* one host: an abstract socket, named after the user and the launcher's job */
};

struct dtp_meeting {
	enum dtp_meeting_kind kind;
	char host[256];
	int port;
	const char *path;
	bool one_host;
	char token[224]; /* the server says it first: a stranger, or another job, is recognised by it */
	char text[320];  /* how messages call the place */
};

/* rendezvous: the option's value, or NULL. */
enum dtp_code dtp_meeting_find(const struct dtp_place *place, const char *rendezvous, struct dtp_meeting *m,
			       struct dtp_err *err);
/* Rank 0: *fd listens.  A port that is taken, a file that cannot be written or is no rendezvous, and a rank 0 of the same job
 * that is there already are DTP_REFUSED; of the last, *twin is a connection to it, else -1. */
enum dtp_code dtp_meeting_open(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err);
/* Rank 0, once nobody is to come any more: removes the file. */
void dtp_meeting_close(const struct dtp_meeting *m);
/* The others: a connection to rank 0 that has said the token, or -1: not there yet, with the reason in why. */
int dtp_meeting_try(struct dtp_meeting *m, char *why, size_t size);
/* The numeric address of this end of a TCP connection; "" for other sockets. */
void dtp_socket_address(int fd, char *buf, size_t size);
/* Whether the other host has stopped taking what is sent, as opposed to a process there that does not read it. */
bool dtp_socket_unreachable(int fd);
#endif
