/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator over NCCL.  NCCL's own communicators do not block: whoever waits, here or for the stream (dtp_cuda_wait), looks for
 * NCCL's errors and for the end of the run meanwhile, and then aborts all communicators of the family, which ends their kernels.
 * Only the thread that makes the calls touches NCCL; others can but set `aborted`.
 *
 * Sums that go on beside the backend's work run on a stream of the family's own, all of them in the order of the calls; events carry the
 * order from the backend's stream to it and back.  Nothing of that waits on the host, so that it can be captured into a graph. */
#include "comm_cuda.h"

#include <nccl.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAVE_S 1.0 /* a communicator that has not come to its end by then is aborted */

#define FUNCTIONS(F)                                                                                                    \
	F(GetVersion) F(GetUniqueId) F(GetErrorString) F(GetLastError) F(CommInitRankConfig) F(CommSplit)               \
	F(CommFinalize) F(CommDestroy) F(CommAbort) F(CommGetAsyncError) F(AllReduce) F(AllGather) F(Broadcast) F(Send) \
	F(Recv) F(GroupStart) F(GroupEnd)

struct nccl {
#define F(name) __typeof__(nccl##name) *name;
	FUNCTIONS(F)
#undef F
};
static const struct dtp_symbol symbols[] = {
#define F(name) {"nccl" #name, offsetof(struct nccl, name)},
	FUNCTIONS(F)
#undef F
};

/* Of NCCL 2.19 and later; all NULL where one is missing. */
#define BUFFER_FUNCTIONS(F) F(MemAlloc) F(MemFree) F(CommRegister) F(CommDeregister)
struct nccl_buffers {
#define F(name) __typeof__(nccl##name) *name;
	BUFFER_FUNCTIONS(F)
#undef F
};

/* What communicators that descend from one have in common. */
struct family {
	struct nccl nccl;
	struct nccl_buffers buffers;
	struct dtp_cuda *cuda;
	struct dtp_comm *control; /* of the first */
	const struct dtp_monitor *mon;
	double timeout_s;
	struct dtp_cuda_watch watch;
	cudaStream_t beside;      /* sums that were started, until the backend's stream has joined them */
	cudaEvent_t ready, done;  /* the addends; the sums */
	bool started;             /* something waits to be joined */
	struct nccl_comm *members;
	atomic_bool aborted;      /* to be broken off: by any thread */
	bool broken;              /* NCCL's communicators are gone */
	struct dtp_err cause;     /* what went wrong where nobody could be told: for who asks next */
};

/* Memory that a communicator has been told of. */
struct buffer {
	struct buffer *next;
	void *p, *handle;
	uint64_t nbytes; /* of which the backend's count knows */
};

struct nccl_comm {
	struct dtp_comm base;
	struct dtp_comm *control;
	bool owns_control;
	ncclComm_t comm;          /* NULL: not yet, or no more */
	struct family *family;
	struct buffer *buffers;
	struct nccl_comm *next;
};

static const struct dtp_comm_ops nccl_ops;

static struct nccl_comm *self(struct dtp_comm *c)
{
	return (struct nccl_comm *)c;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- errors */

/* The backend's stream waits for what was started. */
static enum dtp_code join_beside(struct family *f, struct dtp_err *err)
{
	if (!f->started)
		return DTP_OK;
	if (DTP_CUDA(cudaEventRecord(f->done, f->beside), err) || DTP_CUDA(cudaStreamWaitEvent(f->cuda->stream, f->done, 0), err))
		return DTP_FAILED;
	f->started = false;
	return DTP_OK;
}

/* What ends NCCL's communicators and memory has no caller that could do anything about a failure: the user is told of it. */
static ncclResult_t noted(const struct nccl_comm *c, ncclResult_t r, const char *call, int line)
{
	const struct dtp_monitor *mon = c->family->mon;
	char text[256];

	if (r && r != ncclInProgress && r != ncclRemoteError) { /* a lost peer tells itself */
		snprintf(text, sizeof text, "rank %d: %s failed: %s (%d), %s:%d; with NCCL_DEBUG=WARN it says more", c->family->control->rank, call,
			 c->family->nccl.GetErrorString(r), (int)r, __FILE__, line);
		mon->note(mon->arg, text);
	}
	return r;
}

static void abort_comm(struct nccl_comm *c)
{
	if (c->comm)
		noted(c, c->family->nccl.CommAbort(c->comm), "ncclCommAbort", __LINE__);
	c->comm = NULL;
}

/* NCCL has no means to end some of the communicators and go on with the others: the ranks no longer agree on where they are.  Twice, since
 * a split that is under way may still make its part until its parent has ended. */
static void break_off(struct family *f)
{
	f->broken = true;
	if (f->cuda->recording) /* it ends with what was started beside it */
		join_beside(f, NULL);
	dtp_cuda_forget(f->cuda);
	for (int turn = 0; turn < 2; turn++)
		for (struct nccl_comm *c = f->members; c; c = c->next)
			abort_comm(c);
}

static enum dtp_code ending(const char *call, struct dtp_err *err)
{
	dtp_fail(err, DTP_FAILED, "%s was broken off: the run is ending", call);
	if (err)
		err->secondary = true;
	return DTP_FAILED;
}

static const char *remedy(ncclResult_t r)
{
	switch (r) {
	case ncclUnhandledCudaError:
	case ncclSystemError:
		return "with NCCL_DEBUG=WARN it says more; in a container, /dev/shm may be too small (docker run --shm-size=1g)";
	case ncclRemoteError:
		return "the other rank's message, if there is one, says why";
	default:
		return "with NCCL_DEBUG=WARN it says more";
	}
}

/* Where to tell what went wrong: what nobody asked for is kept. */
static struct dtp_err *teller(struct family *f, struct dtp_err *err)
{
	return err || f->cause.code ? err : &f->cause;
}

/* Tells what went wrong and ends the family. */
static enum dtp_code failed(struct family *f, ncclComm_t comm, ncclResult_t r, const char *call, int line, struct dtp_err *err)
{
	const char *more = f->nccl.GetLastError(comm);

	err = teller(f, err);
	dtp_fail(err, DTP_FAILED, "%s %s: %s (%d)%s%s, %s:%d\n%s", call, r == ncclRemoteError ? "lost a peer" : "failed",
		 f->nccl.GetErrorString(r), (int)r, more && *more ? ": " : "", more ? more : "", __FILE__, line, remedy(r));
	if (err)
		err->secondary = r == ncclRemoteError;
	break_off(f);
	return DTP_FAILED;
}

/* Whether the family is whole, as far as can be known without waiting. */
static enum dtp_code check_family(struct family *f, const char *call, struct dtp_err *err)
{
	if (!f->broken && (atomic_load(&f->aborted) || f->mon->stopped(f->mon->arg)))
		break_off(f);
	if (f->broken && f->cause.code && err) {
		*err = f->cause;
		f->cause.code = DTP_OK;
		return DTP_FAILED;
	}
	if (f->broken)
		return ending(call, err);
	for (struct nccl_comm *c = f->members; c; c = c->next) {
		ncclResult_t state = ncclSuccess, r = c->comm ? f->nccl.CommGetAsyncError(c->comm, &state) : ncclSuccess;
		if (r)
			return failed(f, c->comm, r, "ncclCommGetAsyncError", __LINE__, err);
		if (state && state != ncclInProgress)
			return failed(f, c->comm, state, call, __LINE__, err);
	}
	return DTP_OK;
}

static enum dtp_code check(void *arg, struct dtp_err *err)
{
	return check_family(arg, "a sum over the GPUs", err);
}

static void end(void *arg)
{
	break_off(arg);
}

static enum dtp_code agree(void *arg, bool *yes, struct dtp_err *err)
{
	struct family *f = arg;
	float no = !*yes;
	enum dtp_code code = check_family(f, "an agreement of the ranks", err);

	if (!code)
		code = dtp_all_reduce(f->control, &no, 1, DTP_F32, err);
	*yes = no == 0;
	return code;
}

/* Looks once whether NCCL is done with what it goes on with in a thread of its own. */
static enum dtp_code look(struct nccl_comm *c, double start, const char *call, ncclResult_t *state, struct dtp_err *err)
{
	struct family *f = c->family;

	if (check_family(f, call, err))
		return DTP_FAILED;
	if (now() - start > f->timeout_s) {
		break_off(f);
		return dtp_fail(err, DTP_FAILED, "%s: not all of %d ranks have come within %g s (rank %d has)\nanother rank's message may "
				"say why; with NCCL_DEBUG=INFO NCCL tells how it connects them", call, c->base.size, f->timeout_s, c->base.rank);
	}
	ncclResult_t r = f->nccl.CommGetAsyncError(c->comm, state);
	return r ? failed(f, c->comm, r, "ncclCommGetAsyncError", __LINE__, err) : DTP_OK;
}

/* A call has returned r: waits until it is done. */
static enum dtp_code settle(struct nccl_comm *c, ncclResult_t r, const char *call, int line, struct dtp_err *err)
{
	const struct dtp_monitor *mon = c->family->mon;
	enum dtp_code code = DTP_OK;

	if (r == ncclInProgress) {
		double start = now();
		mon->waiting(mon->arg, true);
		for (unsigned turn = 0; r == ncclInProgress && !code; turn++) {
			dtp_cuda_nap(turn);
			code = look(c, start, call, &r, err);
		}
		mon->waiting(mon->arg, false);
	}
	return code ? code : r ? failed(c->family, c->comm, r, call, line, err) : DTP_OK;
}
/* Makes a call and waits until it is done; c: whose communicator NCCL works on. */
#define NCCL(c, name, err, ...) settle(c, (c)->family->nccl.name(__VA_ARGS__), "nccl" #name, __LINE__, err)

/* ---- what moves.  Nothing is given to NCCL where nothing is to be moved: whether it then waits for others is its own affair. */

static ncclDataType_t type_of(enum dtp_dtype t)
{
	static const ncclDataType_t types[DTP_NDTYPES] = {
		[DTP_F32] = ncclFloat32, [DTP_BF16] = ncclBfloat16, [DTP_F16] = ncclFloat16, [DTP_F64] = ncclFloat64,
		[DTP_I64] = ncclInt64,   [DTP_I32] = ncclInt32,     [DTP_U8] = ncclUint8,
	};
	return types[t];
}

static enum dtp_code nccl_all_reduce(struct dtp_comm *base, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct nccl_comm *c = self(base);

	if (check_family(c->family, "ncclAllReduce", err))
		return DTP_FAILED;
	return count ? NCCL(c, AllReduce, err, buf, buf, (size_t)count, type_of(t), ncclSum, c->comm, c->family->cuda->stream) : DTP_OK;
}

/* The stream of its own has a higher priority than the backend's: the few blocks of a sum find room among a product's. */
static enum dtp_code nccl_start_all_reduce(struct dtp_comm *base, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct nccl_comm *c = self(base);
	struct family *f = c->family;

	if (check_family(f, "ncclAllReduce", err))
		return DTP_FAILED;
	if (!count)
		return DTP_OK;
	if (DTP_CUDA(cudaEventRecord(f->ready, f->cuda->stream), err) || DTP_CUDA(cudaStreamWaitEvent(f->beside, f->ready, 0), err))
		return DTP_FAILED;
	f->started = true;
	return NCCL(c, AllReduce, err, buf, buf, (size_t)count, type_of(t), ncclSum, c->comm, f->beside);
}

/* Also after a failure: what has been put on the stream before may be under way. */
static enum dtp_code nccl_join(struct dtp_comm *base, struct dtp_err *err)
{
	return join_beside(self(base)->family, err);
}

static enum dtp_code nccl_all_gather(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	struct nccl_comm *c = self(base);

	if (check_family(c->family, "ncclAllGather", err))
		return DTP_FAILED;
	return count ? NCCL(c, AllGather, err, src, dst, (size_t)count, type_of(t), c->comm, c->family->cuda->stream) : DTP_OK;
}

static enum dtp_code nccl_broadcast(struct dtp_comm *base, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	struct nccl_comm *c = self(base);

	if (check_family(c->family, "ncclBroadcast", err))
		return DTP_FAILED;
	return nbytes ? NCCL(c, Broadcast, err, buf, buf, (size_t)nbytes, ncclUint8, root, c->comm, c->family->cuda->stream) : DTP_OK;
}

/* n bytes to `to` and n from `from`, within a group; the first error. */
static ncclResult_t swap(struct nccl_comm *c, void *dst, const void *src, size_t n, int to, int from)
{
	const struct nccl *nccl = &c->family->nccl;
	ncclResult_t r = nccl->Send(src, n, ncclUint8, to, c->comm, c->family->cuda->stream);

	return r && r != ncclInProgress ? r : nccl->Recv(dst, n, ncclUint8, from, c->comm, c->family->cuda->stream);
}

/* A group that was begun is ended whatever became of its calls. */
static enum dtp_code end_group(struct nccl_comm *c, ncclResult_t first, struct dtp_err *err)
{
	ncclResult_t r = c->family->nccl.GroupEnd();

	if (first && first != ncclInProgress)
		return failed(c->family, c->comm, first, "ncclSend and ncclRecv", __LINE__, err);
	return settle(c, r, "ncclGroupEnd", __LINE__, err);
}

static enum dtp_code nccl_all_to_all(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	struct nccl_comm *c = self(base);
	size_t n = (size_t)count * dtp_dtype_size(t);
	ncclResult_t r = ncclSuccess;

	if (check_family(c->family, "ncclSend", err))
		return DTP_FAILED;
	if (!n)
		return DTP_OK;
	if (NCCL(c, GroupStart, err))
		return DTP_FAILED;
	for (int i = 0; i < base->size && (!r || r == ncclInProgress); i++)
		r = swap(c, (char *)dst + (size_t)i * n, (const char *)src + (size_t)i * n, n, i, i);
	return end_group(c, r, err);
}

static enum dtp_code nccl_ring_shift(struct dtp_comm *base, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	struct nccl_comm *c = self(base);
	size_t n = (size_t)count * dtp_dtype_size(t);

	if (check_family(c->family, "ncclSend", err))
		return DTP_FAILED;
	if (!n)
		return DTP_OK;
	if (NCCL(c, GroupStart, err))
		return DTP_FAILED;
	return end_group(c, swap(c, dst, src, n, (base->rank + 1) % base->size, (base->rank + base->size - 1) % base->size), err);
}

static enum dtp_code nccl_barrier(struct dtp_comm *base, struct dtp_err *err)
{
	struct nccl_comm *c = self(base);

	return dtp_cuda_wait(c->family->cuda, err) ? DTP_FAILED : dtp_barrier(c->control, err);
}

/* ---- life */

static void nccl_abort(struct dtp_comm *base)
{
	struct family *f = self(base)->family;

	atomic_store(&f->aborted, true);
	f->control->ops->abort(f->control);
}

/* Whether the streams come to their end soon: where they do not, somebody has not come, and will not. */
static bool comes_to_rest(struct family *f, double start)
{
	for (unsigned turn = 0; !check_family(f, "the end of the GPU's work", NULL); turn++) {
		cudaError_t e = cudaStreamQuery(f->cuda->stream);
		if (!e)
			e = cudaStreamQuery(f->beside);
		if (e && e != cudaErrorNotReady)
			return !dtp_cuda_status(e, "cudaStreamQuery", __FILE__, __LINE__, teller(f, NULL));
		if (!e || now() - start > LEAVE_S)
			return !e;
		dtp_cuda_nap(turn);
	}
	return false;
}

/* ---- buffers.  NCCL may let peers and switches read and write memory that it gave itself and was told of, and so save copies of its own. */

static void find_buffer_functions(struct nccl_buffers *b)
{
	static const struct dtp_symbol names[] = {
#define F(name) {"nccl" #name, offsetof(struct nccl_buffers, name)},
		BUFFER_FUNCTIONS(F)
#undef F
	};
	struct dtp_err none = DTP_ERR_INIT;

	if (dtp_cuda_table(DTP_LIB_NCCL, names, sizeof names / sizeof *names, b, &none))
		*b = (struct nccl_buffers){NULL};
}

static void give_up(struct nccl_comm *c, struct buffer *b)
{
	const struct nccl_buffers *f = &c->family->buffers;

	if (!b)
		return;
	if (b->handle && c->comm)
		noted(c, f->CommDeregister(c->comm, b->handle), "ncclCommDeregister", __LINE__);
	if (b->p)
		noted(c, f->MemFree(b->p), "ncclMemFree", __LINE__);
	dtp_cuda_count(c->family->cuda, 0, b->nbytes);
	free(b);
}

/* NULL, with what failed. */
static struct buffer *obtain(struct nccl_comm *c, uint64_t nbytes, const char **what)
{
	const struct nccl_buffers *f = &c->family->buffers;
	struct buffer *b = calloc(1, sizeof *b);

	*what = "malloc";
	if (!b)
		return NULL;
	if (*what = "ncclMemAlloc", f->MemAlloc(&b->p, nbytes))
		b->p = NULL;
	else if (*what = "ncclCommRegister", f->CommRegister(c->comm, b->p, nbytes, &b->handle))
		b->handle = NULL;
	if (b->handle) {
		dtp_cuda_count(c->family->cuda, b->nbytes = nbytes, 0);
		return b;
	}
	cudaGetLastError(); /* what is said of it here is all */
	give_up(c, b);
	return NULL;
}

/* All ranks have one or none does: NCCL forbids sums of which some ranks' memory is registered and others' is not. */
static enum dtp_code nccl_buffer_new(struct dtp_comm *base, uint64_t nbytes, void **p, struct dtp_err *err)
{
	struct nccl_comm *c = self(base);
	const char *what = NULL;
	char text[160];

	*p = NULL;
	if (!c->family->buffers.MemAlloc || !nbytes)
		return DTP_OK;
	if (check_family(c->family, "ncclMemAlloc", err))
		return DTP_FAILED;
	struct buffer *b = obtain(c, nbytes, &what);
	int32_t lacking = !b;
	enum dtp_code code = dtp_all_reduce(c->control, &lacking, 1, DTP_I32, err);
	if (!code && !lacking) {
		b->next = c->buffers;
		c->buffers = b;
		*p = b->p;
		return DTP_OK;
	}
	if (!b) {
		snprintf(text, sizeof text, "rank %d: %s failed for %llu bytes, %s:%d: NCCL sums through memory of its own",
			 c->family->control->rank, what, (unsigned long long)nbytes, __FILE__, __LINE__);
		base->mon->note(base->mon->arg, text);
	}
	give_up(c, b);
	return code;
}

/* The memory goes at once, whatever uses it: so nothing may. */
static void nccl_buffer_free(struct dtp_comm *base, void *p)
{
	struct nccl_comm *c = self(base);
	struct buffer **at = &c->buffers, *b;

	if (!comes_to_rest(c->family, now())) {
		break_off(c->family);
		cudaStreamSynchronize(c->family->beside);
		cudaStreamSynchronize(c->family->cuda->stream);
	}
	while ((*at)->p != p)
		at = &(*at)->next;
	b = *at;
	*at = b->next;
	give_up(c, b);
}

/* NCCL lets go of what the peers have from this rank. */
static ncclResult_t finalize(struct nccl_comm *c, double start)
{
	const struct nccl *nccl = &c->family->nccl;
	ncclResult_t state = nccl->CommFinalize(c->comm);

	for (unsigned turn = 0; state == ncclInProgress && now() - start < LEAVE_S; turn++) {
		dtp_cuda_nap(turn);
		ncclResult_t r = nccl->CommGetAsyncError(c->comm, &state);
		if (r)
			return noted(c, r, "ncclCommGetAsyncError", __LINE__);
	}
	return noted(c, state, "ncclCommFinalize", __LINE__);
}

static void leave(struct nccl_comm *c)
{
	struct family *f = c->family;
	double start = now();

	dtp_cuda_forget(f->cuda);
	if (c->comm && comes_to_rest(f, start) && !finalize(c, start) &&
	    !noted(c, f->nccl.CommDestroy(c->comm), "ncclCommDestroy", __LINE__))
		c->comm = NULL;
	abort_comm(c);
}

static void end_family(struct family *f)
{
	struct dtp_cuda_watch **at = &f->cuda->watch;
	char text[400];

	while (*at && *at != &f->watch)
		at = &(*at)->next;
	if (*at)
		*at = f->watch.next;
	if (f->cause.code && !f->cause.secondary) { /* nobody has asked */
		snprintf(text, sizeof text, "rank %d: %.*s", f->control->rank, (int)strcspn(f->cause.message, "\n"), f->cause.message);
		f->mon->note(f->mon->arg, text);
	}
	if (f->done)
		cudaEventDestroy(f->done);
	if (f->ready)
		cudaEventDestroy(f->ready);
	if (f->beside)
		cudaStreamDestroy(f->beside);
	free(f);
}

static void nccl_destroy(struct dtp_comm *base)
{
	struct nccl_comm *c = self(base), **at = &c->family->members;
	struct family *f = c->family;

	leave(c);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	if (c->owns_control)
		dtp_comm_destroy(c->control);
	free(c);
	if (!f->members)
		end_family(f);
}

static struct nccl_comm *new_member(struct family *f, struct dtp_comm *control, bool owned)
{
	struct nccl_comm *c = malloc(sizeof *c);

	if (!c)
		return NULL;
	*c = (struct nccl_comm){.base = {control->rank, control->size, &nccl_ops, f->mon}, .control = control,
				.owns_control = owned, .family = f, .next = f->members};
	f->members = c;
	return c;
}

/* The new communicator is known when the old one is done, and then may still be at work itself. */
static enum dtp_code split_comm(struct nccl_comm *c, struct nccl_comm *part, int color, int key, struct dtp_err *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	config.blocking = 0;
	if (NCCL(c, CommSplit, err, c->comm, color, key, &part->comm, &config))
		return DTP_FAILED;
	return settle(part, ncclInProgress, "ncclCommSplit", __LINE__, err);
}

static enum dtp_code nccl_split(struct dtp_comm *base, int color, int key, struct dtp_comm **out, struct dtp_err *err)
{
	struct nccl_comm *c = self(base), *part;
	struct dtp_comm *control;

	if (check_family(c->family, "ncclCommSplit", err) || c->control->ops->split(c->control, color, key, &control, err))
		return DTP_FAILED;
	part = new_member(c->family, control, true);
	if (!part) {
		dtp_comm_destroy(control);
		return dtp_fail(err, DTP_FAILED, "out of memory for a communicator");
	}
	if (split_comm(c, part, color, key, err)) {
		nccl_destroy(&part->base);
		return DTP_FAILED;
	}
	*out = &part->base;
	return DTP_OK;
}

static const struct dtp_comm_ops nccl_ops = {
	.name = "nccl",
	.all_reduce = nccl_all_reduce,
	.start_all_reduce = nccl_start_all_reduce,
	.join = nccl_join,
	.buffer_new = nccl_buffer_new,
	.buffer_free = nccl_buffer_free,
	.all_gather = nccl_all_gather,
	.all_to_all = nccl_all_to_all,
	.ring_shift = nccl_ring_shift,
	.broadcast = nccl_broadcast,
	.barrier = nccl_barrier,
	.split = nccl_split,
	.abort = nccl_abort,
	.destroy = nccl_destroy,
};

/* ---- meeting */

static const char *version_text(int version, char *buf, size_t size)
{
	snprintf(buf, size, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
	return buf;
}

/* Different versions may fail in many ways, of which a message is the best. */
static enum dtp_code same_version(struct nccl_comm *c, struct dtp_err *err)
{
	int size = c->base.size, differs = 0;
	int32_t *all = calloc((size_t)size, sizeof *all);
	char ours[24], theirs[24];
	int version = 0;

	if (!all)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", size);
	enum dtp_code code = NCCL(c, GetVersion, err, &version);
	int32_t mine = version;
	if (!code)
		code = dtp_all_gather(c->control, all, &mine, 1, DTP_I32, err);
	while (!code && differs < size && all[differs] == all[0])
		differs++;
	if (!code && differs < size)
		code = dtp_fail(err, DTP_FAILED, "rank 0 loads NCCL %s, rank %d NCCL %s: all ranks need the same; see LD_LIBRARY_PATH on each "
				"host", version_text(all[0], ours, sizeof ours), differs, version_text(all[differs], theirs, sizeof theirs));
	free(all);
	return code;
}

static enum dtp_code meet(struct nccl_comm *c, struct dtp_err *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;

	memset(&id, 0, sizeof id);
	config.blocking = 0;
	if (same_version(c, err) || (c->base.rank == 0 && NCCL(c, GetUniqueId, err, &id)) ||
	    dtp_broadcast(c->control, &id, sizeof id, 0, err))
		return DTP_FAILED;
	if (!NCCL(c, CommInitRankConfig, err, &c->comm, c->base.size, id, c->base.rank, &config))
		return DTP_OK;
	if (err && c->base.rank) /* they meet at rank 0: NCCL does not say whether that is gone or this rank's own system fails */
		err->secondary = true;
	return DTP_FAILED;
}

static enum dtp_code load(struct nccl *nccl, struct dtp_err *err)
{
	return dtp_cuda_table(DTP_LIB_NCCL, symbols, sizeof symbols / sizeof *symbols, nccl, err);
}

enum dtp_code dtp_nccl_library(struct dtp_err *err)
{
	struct nccl nccl;

	return load(&nccl, err);
}

static enum dtp_code begin_family(struct family *f, struct dtp_err *err)
{
	int least = 0, greatest = 0;

	if (load(&f->nccl, err) || DTP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), err) ||
	    DTP_CUDA(cudaStreamCreateWithPriority(&f->beside, cudaStreamNonBlocking, greatest), err) ||
	    DTP_CUDA(cudaEventCreateWithFlags(&f->ready, cudaEventDisableTiming), err) ||
	    DTP_CUDA(cudaEventCreateWithFlags(&f->done, cudaEventDisableTiming), err))
		return err->code;
	find_buffer_functions(&f->buffers);
	return DTP_OK;
}

enum dtp_code dtp_comm_nccl(struct dtp_comm *control, struct dtp_cuda *cuda, bool in_step, double timeout_s, struct dtp_comm **out,
			    struct dtp_err *err)
{
	struct family *f = calloc(1, sizeof *f);

	if (!f)
		return dtp_fail(err, DTP_FAILED, "out of memory for a communicator of %d ranks", control->size);
	*f = (struct family){.cuda = cuda, .control = control, .mon = control->mon, .timeout_s = timeout_s,
			     .watch = {f, check, end, in_step ? agree : NULL, control->mon, cuda->watch}};
	struct nccl_comm *c = begin_family(f, err) ? NULL : new_member(f, control, false);
	if (!c) {
		enum dtp_code code = err->code ? err->code : dtp_fail(err, DTP_FAILED, "out of memory for a communicator of %d ranks",
								      control->size);
		end_family(f);
		return code;
	}
	cuda->watch = &f->watch;
	if (meet(c, err)) {
		nccl_destroy(&c->base);
		return DTP_FAILED;
	}
	*out = &c->base;
	return DTP_OK;
}
