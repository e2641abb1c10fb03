/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel of a job: each rank has one stream socket to a server, for supervision, error reports and the
 * key-value store of the rendezvous.  A message is a type, some numbers and some texts. */
#ifndef DTP_CONTROL_H
#define DTP_CONTROL_H

#include "err.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTP_CONTROL_VERSION 1
/* The variables by which a rank finds its place and its socket. */
#define DTP_ENV_RANK "DIFFTP_RANK"
#define DTP_ENV_SIZE "DIFFTP_WORLD_SIZE"
#define DTP_ENV_LOCAL_RANK "DIFFTP_LOCAL_RANK"
#define DTP_ENV_FD "DIFFTP_CONTROL_FD"

enum dtp_msg_type {
	/* rank to server */
	DTP_MSG_HELLO, /* n: version, rank, pid; text: host */
	DTP_MSG_BEAT,  /* n: beats, waiting, done, total */
	DTP_MSG_STAGE, /* n: phase; text: stage */
	DTP_MSG_NOTE,  /* text */
	DTP_MSG_WARN,  /* text */
	DTP_MSG_FAIL,  /* n: code, secondary, verdict; text: message */
	DTP_MSG_DONE,  /* n: code */
	DTP_MSG_SET,   /* text: key, value */
	DTP_MSG_GET,   /* text: key; answered as soon as the key exists */
	/* server to rank */
	DTP_MSG_VALUE, /* text: key, value */
	DTP_MSG_ABORT, /* text: why */
	DTP_MSG_FINISH, /* end after what is at hand */
	DTP_MSG_TYPES
};

#define DTP_MSG_NUMBERS 4
#define DTP_MSG_TEXTS 2
struct dtp_msg {
	enum dtp_msg_type type;
	uint64_t n[DTP_MSG_NUMBERS];
	struct {
		const char *p; /* a NUL follows; NULL is sent as an empty text */
		size_t len;
	} text[DTP_MSG_TEXTS];
};
/* A message of one text, NUL-terminated. */
struct dtp_msg dtp_msg_text(enum dtp_msg_type type, const char *text);

/* Writes the whole message; blocks until the other side has taken it.  False: the other side is gone (or no memory). */
bool dtp_msg_send(int fd, const struct dtp_msg *m);

/* What has been read of a stream and not yet been taken out as messages. */
struct dtp_inbox {
	char *buf;
	size_t len, cap, taken;
};
enum dtp_inbox_state { DTP_INBOX_OK, DTP_INBOX_EMPTY, DTP_INBOX_CLOSED };
/* Reads once, without blocking.  EMPTY: nothing there.  CLOSED: end of stream, error, or no memory. */
enum dtp_inbox_state dtp_inbox_read(struct dtp_inbox *in, int fd);
/* Takes the next whole message; its texts are valid until the next read.  EMPTY: none yet.  CLOSED: not one of ours. */
enum dtp_inbox_state dtp_inbox_next(struct dtp_inbox *in, struct dtp_msg *m);
void dtp_inbox_free(struct dtp_inbox *in);

/* ---- the server: peers are numbered by the caller (the launcher: by rank) */
struct dtp_server;
struct dtp_server_events {
	void *arg;
	/* Every message but SET and GET, which the server answers itself. */
	void (*message)(void *arg, int peer, const struct dtp_msg *m);
	void (*closed)(void *arg, int peer);
};
struct dtp_server *dtp_server_new(int npeers, const struct dtp_server_events *ev); /* NULL: out of memory */
void dtp_server_free(struct dtp_server *s); /* closes the sockets */
/* Hands a connected socket over to the server, which makes it non-blocking. */
void dtp_server_add(struct dtp_server *s, int peer, int fd);
/* npeers entries; those of closed peers are ignored by poll. */
void dtp_server_poll(const struct dtp_server *s, struct pollfd *fds);
void dtp_server_handle(struct dtp_server *s, const struct pollfd *fds);
/* Takes in all that a peer has sent until now (it may have died since). */
void dtp_server_drain(struct dtp_server *s, int peer);
/* Queues a message; a peer that is gone is skipped. */
void dtp_server_send(struct dtp_server *s, int peer, const struct dtp_msg *m);
#endif
