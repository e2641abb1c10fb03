/* SPDX-License-Identifier: Apache-2.0 */
/* Communication between ranks: one interface, several implementations (one rank, Gloo, NCCL).  Every collective is
 * called by all ranks of the communicator in the same order, by one thread at a time.  Any count may be 0.  A lost peer
 * or an abort makes the call return DTP_FAILED with err->secondary set, at once; the communicator is then unusable. */
#ifndef DTP_COMM_H
#define DTP_COMM_H

#include "err.h"
#include "monitor.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dtp_comm {
	int rank, size;
	const struct dtp_comm_ops *ops;
	const struct dtp_monitor *mon; /* `waiting` is called around every wait */
};

struct dtp_comm_ops {
	const char *name; /* "none", "gloo", "shared" (over gloo), "nccl" */
	/* In place, dense.  dtype F32 or BF16 (summed in f32, rounded once), I64, I32.  An element is summed in the order
	 * of the ranks, by one rank, whatever count is: the result is the same bits on all ranks and in every run. */
	enum dtp_code (*all_reduce)(struct dtp_comm *, void *buf, int64_t count, enum dtp_dtype, struct dtp_err *);
	/* For sums of what a device computes while it goes on computing; both NULL where that is not possible.  start: the sum of what the
	 * backend's stream computes up to here is under way, beside what that stream is given next, which must not touch buf.  join: that
	 * stream goes on when all sums that were started are done.  What was started is joined whatever failed since, and no other
	 * collective comes before that.  The order in which an element is summed may depend on count. */
	enum dtp_code (*start_all_reduce)(struct dtp_comm *, void *buf, int64_t count, enum dtp_dtype, struct dtp_err *);
	enum dtp_code (*join)(struct dtp_comm *, struct dtp_err *);
	/* Memory of the device for what is summed, where sums of it may be faster than those of other memory; both NULL where none is.
	 * new: collective; *p is NULL where one of the ranks cannot have it.  What is summed must lie as far from its beginning on all ranks.
	 * free: before the communicator ends; ends it where a rank does not come that the memory's use waits for. */
	enum dtp_code (*buffer_new)(struct dtp_comm *, uint64_t nbytes, void **p, struct dtp_err *);
	void (*buffer_free)(struct dtp_comm *, void *p);
	/* dst holds size * count elements, rank-major; src may be its own place in dst. */
	enum dtp_code (*all_gather)(struct dtp_comm *, void *dst, const void *src, int64_t count, enum dtp_dtype,
				    struct dtp_err *);
	/* count elements to and from each rank; dst and src do not overlap. */
	enum dtp_code (*all_to_all)(struct dtp_comm *, void *dst, const void *src, int64_t count, enum dtp_dtype,
				    struct dtp_err *);
	/* Sends to rank + 1 and receives from rank - 1, cyclically, at the same time.  dst and src do not overlap. */
	enum dtp_code (*ring_shift)(struct dtp_comm *, void *dst, const void *src, int64_t count, enum dtp_dtype,
				    struct dtp_err *);
	enum dtp_code (*broadcast)(struct dtp_comm *, void *buf, int64_t nbytes, int root, struct dtp_err *);
	/* The waiting ranks sleep: they never spin. */
	enum dtp_code (*barrier)(struct dtp_comm *, struct dtp_err *);
	/* Ranks with the same color form a new communicator, ordered by key, then by rank.  Collective. */
	enum dtp_code (*split)(struct dtp_comm *, int color, int key, struct dtp_comm **out, struct dtp_err *);
	/* From any thread: every pending and later call returns DTP_FAILED at once, also on the communicators that were
	 * split from this one or that it was split from, and the peers lose this rank. */
	void (*abort)(struct dtp_comm *);
	void (*destroy)(struct dtp_comm *);
};

/* Whether the sum of a layer's first tokens goes on while the rest is multiplied (ops.c).  AUTO: where it wins; ON: wherever it can. */
enum dtp_overlap { DTP_OVERLAP_AUTO, DTP_OVERLAP_ON, DTP_OVERLAP_OFF };

/* A key-value store that all ranks of a job share, for the rendezvous of a communicator.  get waits until the key exists. */
struct dtp_store {
	void *arg;
	enum dtp_code (*set)(void *arg, const char *key, const void *val, size_t len, struct dtp_err *);
	/* *val is malloc'd. */
	enum dtp_code (*get)(void *arg, const char *key, void **val, size_t *len, struct dtp_err *);
};

/* The communicator of one rank: every call succeeds and moves nothing (copies where dst != src). */
enum dtp_code dtp_comm_single(const struct dtp_monitor *mon, struct dtp_comm **out, struct dtp_err *err);
/* Gloo over TCP.  iface: numeric address or interface name to bind (NULL: loopback).  prefix keeps the keys of several
 * communicators of one store apart.  The process must ignore SIGPIPE. */
enum dtp_code dtp_comm_gloo(int rank, int size, const struct dtp_store *store, const char *prefix, const char *iface,
			    const struct dtp_monitor *mon, struct dtp_comm **out, struct dtp_err *err);

/* The same with sums of F32 through memory that the ranks of one host share, which costs a fraction of what sockets do; all else,
 * and everything where the ranks (of a group that was split off, too) are not on one host or memory cannot be shared, is
 * inner's.  Collective.  The memory has no name: nothing is left of it when the ranks have ended, however they did.  Takes
 * inner over; on failure it is still the caller's. */
enum dtp_code dtp_comm_shared(struct dtp_comm *inner, struct dtp_comm **out, struct dtp_err *err);

/* For tensors in the memory of these ranks' CUDA backends, on their streams: a call may return before it is done, as the backend's
 * operations do.  Through NCCL, or, where `shared` says that ranks share a GPU, through host memory.  control: the same ranks'
 * communicator of host memory; it stays the caller's and, as the backend, must outlive *out.  in_step: these ranks repeat recorded work
 * (dtp_backend_ops.replay) together.  Of one backend there may be several.  Collective; DTP_FAILED when the others have not come within
 * timeout_s. */
struct dtp_backend;
enum dtp_code dtp_comm_cuda(struct dtp_comm *control, struct dtp_backend *backend, bool shared, bool in_step, double timeout_s,
			    struct dtp_comm **out, struct dtp_err *err);

/* Wrappers that check arguments and skip the call when size is 1. */
enum dtp_code dtp_all_reduce(struct dtp_comm *, void *buf, int64_t count, enum dtp_dtype, struct dtp_err *);
/* Only where it can: see there. */
enum dtp_code dtp_start_all_reduce(struct dtp_comm *, void *buf, int64_t count, enum dtp_dtype, struct dtp_err *);
enum dtp_code dtp_all_gather(struct dtp_comm *, void *dst, const void *src, int64_t count, enum dtp_dtype, struct dtp_err *);
enum dtp_code dtp_broadcast(struct dtp_comm *, void *buf, int64_t nbytes, int root, struct dtp_err *);
enum dtp_code dtp_barrier(struct dtp_comm *, struct dtp_err *);
void dtp_comm_destroy(struct dtp_comm *); /* NULL is allowed */

/* The ranks of a job as a mesh of dimensions, outermost first: dp x ring x ulysses x tp (tp is contiguous).  A dimension of
 * size 1 has a single-rank communicator; one that holds all ranks is the world itself. */
enum dtp_mesh_dim { DTP_MESH_DP, DTP_MESH_RING, DTP_MESH_ULYSSES, DTP_MESH_TP, DTP_MESH_DIMS };
struct dtp_mesh {
	struct dtp_comm *world; /* not owned */
	struct dtp_comm *dim[DTP_MESH_DIMS];
	/* dtp_comm_cuda, freed by their maker; NULL: tensors are in host memory, or there is but one rank. */
	struct dtp_comm *sums;   /* of dim[DTP_MESH_TP] */
	struct dtp_comm *copies; /* of ranks of dim[DTP_MESH_DP] that share a host: weights are read by one of them.  NULL: each reads its own */
};
/* The product of sizes must be world->size, else DTP_REFUSED with all the numbers. */
enum dtp_code dtp_mesh_make(struct dtp_comm *world, const int sizes[DTP_MESH_DIMS], struct dtp_mesh *mesh,
			    struct dtp_err *err);
void dtp_mesh_free(struct dtp_mesh *mesh);

#ifdef __cplusplus
}
#endif
#endif
