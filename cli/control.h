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

#define DTP_CONTROL_VERSION 4
/* The variables by which a rank finds its place and its socket. */
#define DTP_ENV_RANK "DIFFTP_RANK"
#define DTP_ENV_SIZE "DIFFTP_WORLD_SIZE"
#define DTP_ENV_LOCAL_RANK "DIFFTP_LOCAL_RANK"   /* among the ranks of its host */
#define DTP_ENV_HOST "DIFFTP_HOST_RANKS"         /* the ranks of its host, "0,1,4"; unset: all */
#define DTP_ENV_SHARERS "DIFFTP_SHARERS"         /* those of them with which it shares its processors */
#define DTP_ENV_ADDRESS "DIFFTP_ADDRESS"         /* where it can be reached by the others; unset: the loopback */
#define DTP_ENV_PATIENCE "DIFFTP_PATIENCE"       /* milliseconds after which it ends a parent that is stopped; unset: never */
#define DTP_ENV_FD "DIFFTP_CONTROL_FD"
/* What the first process has decided for all of its ranks: */
#define DTP_ENV_DEFAULTS "DIFFTP_DEFAULTS"       /* lines "option=value" (defaults.c) */
#define DTP_ENV_MODEL "DIFFTP_MODEL_FOLDER"      /* where the model was found (hub.c) */

enum dtp_msg_type {
	/* rank to server */
	DTP_MSG_HELLO, /* n: version, rank, pid; text: host */
	DTP_MSG_BEAT,  /* n: beats, waiting, done, total */
	DTP_MSG_STAGE, /* n: phase; text: stage */
	DTP_MSG_NOTE,  /* text */
	DTP_MSG_WARN,  /* text */
	DTP_MSG_PREVIEW, /* n: width, height; text: rgb */
	DTP_MSG_IMAGE, /* n: width, height, seed, whether there is one; text: the file that holds it */
	DTP_MSG_MEMORY, /* n: a rank; text: a phase; a struct dtp_footprint of them */
	DTP_MSG_FAIL,  /* n: code, secondary, verdict; text: message */
	DTP_MSG_DONE,  /* n: code */
	DTP_MSG_SET,   /* n: how many will GET it, after which it is forgotten, or 0: it stays; text: key, value */
	DTP_MSG_GET,   /* text: key; answered as soon as the key exists */
	/* server to rank */
	DTP_MSG_VALUE, /* text: key, value */
	DTP_MSG_TAKEN, /* to the one who has SET it: a value is forgotten, all have it */
	DTP_MSG_ABORT, /* n: code; text: why */
	DTP_MSG_FINISH, /* end after what is at hand */
	/* Under somebody else's launcher each rank has a keeper, the process that was started.  Keeper to server: */
	DTP_MSG_JOIN,   /* see guest.c */
	DTP_MSG_ALIVE,  /* n: the rank's process is stopped */
	DTP_MSG_EXITED, /* n: status of waitpid; text: hint */
	DTP_MSG_SIGNAL, /* n: only by SIGINT: the keeper has been asked to end */
	/* server to keeper */
	DTP_MSG_TOKEN,  /* text: the job's token; the first word, to whoever connects */
	DTP_MSG_SEAT,   /* see guest.c */
	DTP_MSG_PING,   /* n: who speaks if the server is lost; text: rank 0's host, its stage */
	DTP_MSG_END,    /* n: code: all ranks have ended */
	DTP_MSG_TYPES
};

#define DTP_PING_S 0.3 /* the two sides of a keeper's connection hear from each other at least so often */

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
	/* Every message but SET and GET of the numbered peers, which the server answers itself unless it is a relay. */
	void (*message)(void *arg, int peer, const struct dtp_msg *m);
	void (*closed)(void *arg, int peer);
	bool relay;
};
struct dtp_server *dtp_server_new(int npeers, const struct dtp_server_events *ev); /* NULL: out of memory */
void dtp_server_events(struct dtp_server *s, const struct dtp_server_events *ev);  /* others from now on */
void dtp_server_free(struct dtp_server *s); /* closes the sockets */
/* Frees the memory and leaves the sockets open, for the end of the process to close: the other side sees when that is. */
void dtp_server_forget(struct dtp_server *s);
/* Hands a connected socket over to the server, which makes it non-blocking. */
void dtp_server_add(struct dtp_server *s, int peer, int fd);
/* Whoever connects there (the server owns the socket) is told the token, becomes a peer with a number from npeers on, and has a
 * few seconds to say JOIN.  Such a peer is not reported when it goes. */
void dtp_server_listen(struct dtp_server *s, int fd, const char *token);
/* Gives a peer another number, which is free. */
void dtp_server_move(struct dtp_server *s, int from, int to);
/* How many entries dtp_server_poll fills; those of closed peers are ignored by poll. */
int dtp_server_entries(const struct dtp_server *s);
void dtp_server_poll(const struct dtp_server *s, struct pollfd *fds);
void dtp_server_handle(struct dtp_server *s, const struct pollfd *fds);
/* Takes in all that a peer has sent until now (it may have died since). */
void dtp_server_drain(struct dtp_server *s, int peer);
/* Queues a message; a peer that is gone is skipped. */
void dtp_server_send(struct dtp_server *s, int peer, const struct dtp_msg *m);
/* To all peers that are there. */
void dtp_server_send_all(struct dtp_server *s, const struct dtp_msg *m);
/* Waits up to so many seconds for the sockets to take what is queued. */
void dtp_server_flush(struct dtp_server *s, double seconds);
bool dtp_server_has(const struct dtp_server *s, int peer);
int dtp_server_socket(const struct dtp_server *s, int peer); /* -1: none */
#endif
