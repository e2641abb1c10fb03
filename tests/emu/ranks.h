/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the stand-in for NCCL: ranks.c is the memory that the ranks of a communicator share, nccl.c its functions, nccl_work.c what
 * moves.  It is stricter than NCCL: ranks must make the same calls in the same order, which NCCL does not check, and a rank that
 * waits longer than DIFFTP_EMU_NCCL_TIMEOUT seconds (120) ends its process, telling what each side waits in.  As NCCL, it is called by
 * one thread at a time.  What NCCL asks of graphs is checked: an operation is captured by all ranks or by none, and a communicator goes
 * after the graphs that have operations of it (NCCL waits for that, for ever). */
#ifndef EMU_RANKS_H
#define EMU_RANKS_H

#include "emu.h"

#include <nccl.h>
#include <stdatomic.h>
#include <stdint.h>

enum { EMU_RANKS = 16, EMU_PIECE = 256 << 10 /* bytes of a rank at once */, EMU_MAIL = 64 << 10 };

enum emu_op { EMU_NONE, EMU_ALL_REDUCE, EMU_ALL_GATHER, EMU_BROADCAST, EMU_POINT_TO_POINT };

/* A call, as all ranks must make it. */
struct emu_posted {
	uint64_t number; /* of the communicator's collectives, from 1 */
	uint64_t count;
	int32_t op, type, redop, root;
	int64_t at; /* of what is received, from the beginning of registered memory; -1: that is not registered */
	int32_t captured; /* it comes from a graph */
};

/* What a rank shows to the others. */
struct emu_seat {
	_Atomic int32_t here;         /* enum emu_presence */
	int32_t pid, size;            /* size: of the communicator, as this rank was told */
	char device[16];              /* which GPU it has */
	struct emu_posted posted[2];  /* its last calls: number n is at n & 1 */
	struct emu_posted doing;      /* for messages: what it is in */
	_Atomic uint64_t put, got;    /* pieces that it has laid out, and that it is done with */
	/* A split: the vote of this rank, and, of a group's first rank, the new world. */
	struct {
		_Atomic uint64_t number, made, taken; /* splits that were voted in, whose world is made, which are over */
		int32_t color, key, fd;
		char token[16];
	} vote;
};
enum emu_presence { EMU_ABSENT, EMU_HERE, EMU_LEFT, EMU_ABORTED };

/* One way between two ranks, for sends. */
struct emu_mailbox {
	_Atomic uint64_t put, got; /* parts */
	uint64_t nbytes, length;   /* of the whole message, and of the part that lies here */
	char data[EMU_MAIL];
};

struct emu_world {
	char token[16];
	struct emu_seat seats[EMU_RANKS];
	struct emu_mailbox mail[EMU_RANKS][EMU_RANKS]; /* [from][to] */
	char piece[EMU_RANKS][EMU_PIECE];
};

/* Memory that a communicator was told of. */
struct emu_registration {
	struct emu_registration *next;
	char *p;
	size_t size;
};

struct ncclComm {
	struct ncclComm *next;
	struct emu_world *world;
	int rank, size;
	bool blocking, joined, connected;
	enum { EMU_ALIVE, EMU_DESTROYED, EMU_GONE } life;
	ncclResult_t state;      /* what ncclCommGetAsyncError says */
	char error[256];
	int peer[EMU_RANKS];     /* pidfd */
	uint64_t numbers, pieces, splits;
	unsigned begun;          /* operations that are under way on a stream */
	double since;            /* when the wait at hand began; 0: none */
	struct emu_registration *registered;
	struct ncclComm **child; /* of the split under way */
	ncclConfig_t config;
};

/* ---- ranks.c */

/* Which memory: known to other processes by the process that made it, its descriptor there, and a token. */
struct emu_card {
	int32_t pid, fd;
	char token[16];
};
struct emu_card emu_world_make(void);
/* NULL: there is none any more. */
struct emu_world *emu_world_open(const struct emu_card *);
/* Others can open it no more. */
void emu_world_close(const char token[16]);

/* Lets a communicator watch the processes of its peers. */
void emu_watch_peers(ncclComm_t);
void emu_unwatch_peers(ncclComm_t);
/* Rank r will never do anything again. */
bool emu_peer_gone(ncclComm_t, int r);
/* The communicator waits for rank r: tells a lost peer (in comm->state) and ends the process after too long a time.  what: the wait. */
void emu_waits(ncclComm_t, int r, const char *what);
void emu_waited(ncclComm_t); /* it did not have to, or no longer */

/* ---- nccl_work.c: emu_work of a collective and of a group of sends and receives */
struct emu_collective {
	ncclComm_t comm;
	struct emu_posted call;
	const char *send;
	char *recv;
	uint64_t at; /* elements that are done with */
	bool begun, put;
};
struct emu_message {
	char *data;
	uint64_t nbytes, at;
	int peer;
	bool receive;
};
struct emu_exchange {
	ncclComm_t comm;
	int n;
	bool begun;
	struct emu_message message[2 * EMU_RANKS];
};
bool emu_collective(void *);
bool emu_exchange(void *);
size_t emu_type_size(ncclDataType_t);
const char *emu_op_name(int op);
#endif
