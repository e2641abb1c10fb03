/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of ranks on GPUs, on emulated ones: through NCCL, and through host memory.  The cases that all communicators share
 * move host memory, so they see each of these through a face that copies to the device and back. */
#include "../comm_cases.h"

#include "../../cuda/comm_cuda.h"
#include "emu.h"

#include <nccl.h>
#include <stdatomic.h>
#include <stdlib.h>

static bool staged, one_gpu;       /* through host memory; all ranks on one GPU */
static double deadline = 20;
static struct dtp_monitor monitor; /* of the ranks */

/* ---- the face */

struct face {
	struct dtp_comm base;
	struct dtp_comm *inner, *control; /* control: NULL where it is not this one's */
	struct dtp_cuda *cuda;
};

static const struct dtp_comm_ops face_ops;

static struct face *self(struct dtp_comm *c)
{
	return (struct face *)c;
}

static void sure(cudaError_t e)
{
	if (e) {
		fprintf(stderr, "%s\n", cudaGetErrorString(e));
		_exit(1);
	}
}

static void *device_copy(struct face *f, const void *host, size_t n)
{
	void *p;

	sure(cudaMalloc(&p, n ? n : 1));
	sure(cudaMemcpyAsync(p, host, n, cudaMemcpyHostToDevice, f->cuda->stream));
	return p;
}

/* A copy to pageable memory would wait for the stream by itself, and for ever for a lost peer. */
static enum dtp_code take_back(struct face *f, void *host, void *p, size_t n, enum dtp_code code, struct dtp_err *err)
{
	code = code ? code : dtp_cuda_wait(f->cuda, err);
	if (!code && host)
		sure(cudaMemcpy(host, p, n, cudaMemcpyDeviceToHost));
	sure(cudaFree(p));
	return code;
}

static enum dtp_code face_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct face *f = self(c);
	size_t n = (size_t)count * dtp_dtype_size(t);
	void *p = device_copy(f, buf, n);

	return take_back(f, buf, p, n, f->inner->ops->all_reduce(f->inner, p, count, t, err), err);
}

static enum dtp_code face_all_gather(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	struct face *f = self(c);
	size_t n = (size_t)count * dtp_dtype_size(t);
	char *own = (char *)dst + (size_t)c->rank * n, *p = device_copy(f, dst, n * (size_t)c->size);
	void *q = own == src ? NULL : device_copy(f, src, n);
	enum dtp_code code = f->inner->ops->all_gather(f->inner, p, q ? q : p + (size_t)c->rank * n, count, t, err);

	code = take_back(f, dst, p, n * (size_t)c->size, code, err);
	return q ? take_back(f, NULL, q, n, code, err) : code;
}

typedef enum dtp_code (*mover)(struct dtp_comm *, void *, const void *, int64_t, enum dtp_dtype, struct dtp_err *);

/* From one place to another, `parts` times count elements. */
static enum dtp_code moved(struct face *f, mover move, int parts, void *dst, const void *src, int64_t count, enum dtp_dtype t,
			   struct dtp_err *err)
{
	size_t n = (size_t)count * dtp_dtype_size(t) * (size_t)parts;
	void *p = device_copy(f, dst, n), *q = device_copy(f, src, n);
	enum dtp_code code = take_back(f, dst, p, n, move(f->inner, p, q, count, t, err), err);

	return take_back(f, NULL, q, n, code, err);
}

static enum dtp_code face_all_to_all(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	return moved(self(c), self(c)->inner->ops->all_to_all, c->size, dst, src, count, t, err);
}

static enum dtp_code face_ring_shift(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				     struct dtp_err *err)
{
	return moved(self(c), self(c)->inner->ops->ring_shift, 1, dst, src, count, t, err);
}

static enum dtp_code face_broadcast(struct dtp_comm *c, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	struct face *f = self(c);
	void *p = device_copy(f, buf, (size_t)nbytes);

	return take_back(f, buf, p, (size_t)nbytes, f->inner->ops->broadcast(f->inner, p, nbytes, root, err), err);
}

static enum dtp_code face_barrier(struct dtp_comm *c, struct dtp_err *err)
{
	return self(c)->inner->ops->barrier(self(c)->inner, err);
}

static void face_abort(struct dtp_comm *c)
{
	self(c)->inner->ops->abort(self(c)->inner);
}

static void face_destroy(struct dtp_comm *c)
{
	struct face *f = self(c);

	f->inner->ops->destroy(f->inner);
	if (f->control) {
		dtp_comm_destroy(f->control);
		sure(cudaStreamDestroy(f->cuda->stream));
		free(f->cuda);
	}
	free(f);
}

static struct dtp_comm *face_of(struct dtp_comm *inner, struct dtp_comm *control, struct dtp_cuda *cuda)
{
	struct face *f = malloc(sizeof *f);

	*f = (struct face){.base = {inner->rank, inner->size, &face_ops, inner->mon}, .inner = inner, .control = control, .cuda = cuda};
	return &f->base;
}

static enum dtp_code face_split(struct dtp_comm *c, int color, int key, struct dtp_comm **out, struct dtp_err *err)
{
	struct face *f = self(c);
	enum dtp_code code = f->inner->ops->split(f->inner, color, key, out, err);

	if (!code)
		*out = face_of(*out, NULL, f->cuda);
	return code;
}

static const struct dtp_comm_ops face_ops = {
	.name = "face",
	.all_reduce = face_all_reduce,
	.all_gather = face_all_gather,
	.all_to_all = face_all_to_all,
	.ring_shift = face_ring_shift,
	.broadcast = face_broadcast,
	.barrier = face_barrier,
	.split = face_split,
	.abort = face_abort,
	.destroy = face_destroy,
};

/* ---- ranks */

static void (*before_meeting)(int rank); /* what is different about a rank */

static enum dtp_code open_comm(int rank, int n, const struct dtp_store *store, struct dtp_comm **c, struct dtp_err *err)
{
	struct dtp_cuda *cuda = calloc(1, sizeof *cuda);
	struct dtp_comm *control, *inner;

	if (dtp_comm_gloo(rank, n, store, "test", NULL, &monitor, &control, err))
		return err->code;
	if (before_meeting)
		before_meeting(rank);
	sure(cudaSetDevice(staged || one_gpu ? 0 : rank));
	sure(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
	if (staged ? dtp_comm_staged(control, cuda, &inner, err) : dtp_comm_nccl(control, cuda, true, deadline, &inner, err)) {
		dtp_comm_destroy(control);
		return err->code;
	}
	*c = face_of(inner, control, cuda);
	return DTP_OK;
}

/* Runs ranks of which each ends as it may, and returns what they wrote. */
static const char *outcome_of(int n, rank_fn fn, int status[])
{
	static char text[8192];
	struct shared *s = shared_new();
	pid_t pid[16];
	FILE *f = tmpfile();

	fflush(NULL);
	for (int r = 0; r < n; r++) {
		pid[r] = fork();
		assert_int_not_equal(pid[r], -1);
		if (!pid[r]) {
			dup2(fileno(f), 2);
			be_rank(r, n, s, fn);
		}
	}
	for (int r = 0; r < n; r++)
		assert_int_equal(waitpid(pid[r], &status[r], 0), pid[r]);
	munmap(s, sizeof *s);
	rewind(f);
	text[fread(text, 1, sizeof text - 1, f)] = '\0';
	fclose(f);
	return text;
}

static void assert_contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in:\n%s", part, text);
}

/* ---- ends */

static void death(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	float x[1000] = {0};
	double start = now();

	if (c->rank == 1) {
		usleep(50000);
		raise(SIGKILL);
	}
	CHECK(dtp_all_reduce(c, x, 1000, DTP_F32, &err) == DTP_FAILED);
	CHECK(err.secondary);
	CHECK(strstr(err.message, "lost a peer"));
	CHECK(strstr(err.message, "comm_nccl.c"));
	CHECK(now() - start < 5);
	err = (struct dtp_err)DTP_ERR_INIT;
	CHECK(dtp_all_reduce(c, x, 1000, DTP_F32, &err) == DTP_FAILED); /* and so does what comes after */
	CHECK(err.secondary);
}

static void nccl_death_of_a_peer_ends_the_wait(void **state)
{
	(void)state;
	run_ranks_but(2, 1, death);
	run_ranks_but(3, 1, death);
}

static void abort_by_a_thread(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *part;
	pthread_t t;
	float x = 1;

#define CALL(e) c->ops->split(c, 0, c->rank, &part, e)
	OK(CALL);
#undef CALL
	if (c->rank == 0)
		pthread_create(&t, NULL, abort_soon, c);
	else
		usleep(300000); /* lives, but does not come */
	if (c->rank == 0) {
		CHECK(dtp_all_reduce(part, &x, 1, DTP_F32, &err) == DTP_FAILED);
		pthread_join(t, NULL);
	} else { /* what rank 0 had begun may still come to its end; then it hears of it from NCCL */
		dtp_all_reduce(part, &x, 1, DTP_F32, &err);
		CHECK(dtp_all_reduce(part, &x, 1, DTP_F32, &err) == DTP_FAILED);
	}
	CHECK(err.secondary);
	err = (struct dtp_err)DTP_ERR_INIT;
	CHECK(dtp_barrier(c, &err) == DTP_FAILED);
	CHECK(err.secondary);
	dtp_comm_destroy(part);
}

static void nccl_abort_ends_a_wait(void **state)
{
	(void)state;
	run_ranks(2, abort_by_a_thread);
}

static double stop_at;

static bool soon(void *arg)
{
	(void)arg;
	return stop_at && now() > stop_at;
}

static void stopped_while_waiting(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	float x = 1;

	if (c->rank) {
		usleep(500000);
		return;
	}
	stop_at = now() + 0.1;
	CHECK(dtp_all_reduce(c, &x, 1, DTP_F32, &err) == DTP_FAILED);
	CHECK(strstr(err.message, "the run is ending"));
	CHECK(err.secondary);
}

static void nccl_end_of_the_run_ends_a_wait(void **state)
{
	(void)state;
	monitor.stopped = soon;
	run_ranks(2, stopped_while_waiting);
	monitor.stopped = dtp_monitor_none.stopped;
}

/* ---- sums beside other work */

enum { PART = 3000 };

/* Fills two parts of x, each of which is summed as soon as it is there. */
static void sum_in_parts(struct dtp_comm *c, char *x, const float *values)
{
	struct face *f = self(c);
	struct dtp_err err = DTP_ERR_INIT;
	size_t n = PART * sizeof(float);

	for (int i = 0; i < 2; i++) {
		sure(cudaMemcpyAsync(x + (size_t)i * n, (const char *)values + (size_t)i * n, n, cudaMemcpyDeviceToDevice, f->cuda->stream));
		CHECK(dtp_start_all_reduce(f->inner, x + (size_t)i * n, PART, DTP_F32, &err) == DTP_OK);
	}
	CHECK(f->inner->ops->join(f->inner, &err) == DTP_OK);
}

static void check_sums(struct dtp_comm *c, void *x)
{
	struct dtp_err err = DTP_ERR_INIT;
	float got[2 * PART];

	CHECK(dtp_cuda_wait(self(c)->cuda, &err) == DTP_OK);
	sure(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
	for (int i = 0; i < 2 * PART; i++)
		CHECK(got[i] == (float)(c->size * i + c->size * (c->size - 1) / 2));
}

/* As they are, and as a graph: the stream of the sums joins the capture by the events. */
static void beside(struct dtp_comm *c)
{
	struct face *f = self(c);
	struct dtp_err err = DTP_ERR_INIT;
	float host[2 * PART];
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	void *x, *values;

	for (int i = 0; i < 2 * PART; i++)
		host[i] = (float)(i + c->rank);
	values = device_copy(f, host, sizeof host);
	x = device_copy(f, host, sizeof host);
	for (int i = 0; i < 3; i++) {
		sum_in_parts(c, x, values);
		check_sums(c, x);
	}
	CHECK(f->inner->ops->join(f->inner, &err) == DTP_OK); /* nothing is there to be joined */
	sure(cudaStreamBeginCapture(f->cuda->stream, cudaStreamCaptureModeThreadLocal));
	sum_in_parts(c, x, values);
	sure(cudaStreamEndCapture(f->cuda->stream, &graph));
	sure(cudaGraphInstantiate(&exec, graph, 0));
	for (int i = 0; i < 3; i++) {
		sure(cudaGraphLaunch(exec, f->cuda->stream));
		check_sums(c, x);
	}
	sure(cudaGraphExecDestroy(exec));
	sure(cudaGraphDestroy(graph));
	sure(cudaFree(values));
	sure(cudaFree(x));
}

static void nccl_sums_beside_other_work(void **state)
{
	static const char *const modes[] = {"eager", "deferred", "random"};
	const char *former = getenv("DIFFTP_EMU_STREAMS");

	(void)state;
	for (int i = 0; i < 3; i++) {
		setenv("DIFFTP_EMU_STREAMS", modes[i], 1);
		run_ranks(2, beside);
		run_ranks(3, beside);
	}
	setenv("DIFFTP_EMU_STREAMS", former, 1);
}

/* ---- memory that NCCL knows */

static char *new_buffer(struct dtp_comm *c, size_t n)
{
	struct face *f = self(c);
	struct dtp_err err = DTP_ERR_INIT;
	void *p;

	CHECK(f->inner->ops->buffer_new(f->inner, n, &p, &err) == DTP_OK);
	return p;
}

static void sums_in_a_buffer(struct dtp_comm *c)
{
	struct face *f = self(c);
	size_t n = 2 * PART * sizeof(float);
	char *small = new_buffer(c, 1000), *x = new_buffer(c, n + 64);
	float host[2 * PART];

	CHECK(small && x);
	for (int i = 0; i < 2 * PART; i++)
		host[i] = (float)(i + c->rank);
	void *values = device_copy(f, host, sizeof host);
	sum_in_parts(c, x + 64, values);
	check_sums(c, x + 64);
	f->inner->ops->buffer_free(f->inner, small);
	f->inner->ops->buffer_free(f->inner, x);
	sure(cudaFree(values));
}

static void nccl_sums_from_memory_that_it_knows(void **state)
{
	(void)state;
	run_ranks(2, sums_in_a_buffer);
	run_ranks(3, sums_in_a_buffer);
}

static void no_buffer(struct dtp_comm *c)
{
	CHECK(!new_buffer(c, 1000));
}

/* One rank cannot: then none does. */
static void nccl_memory_is_known_on_all_ranks_or_none(void **state)
{
	static const char *const lacks[][2] = {{"DIFFTP_EMU_FAIL", "ncclMemAlloc:1@1"}, {"DIFFTP_EMU_FAIL", "ncclCommRegister:1@1"},
		{"DIFFTP_EMU_MISSING", "ncclCommDeregister"}};

	(void)state;
	for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
		setenv(lacks[i][0], lacks[i][1], 1);
		run_ranks(2, no_buffer);
		unsetenv(lacks[i][0]);
	}
}

/* The peer has not come to the sum in it, and will not: the memory is given back all the same. */
static void free_behind_an_absent_peer(struct dtp_comm *c)
{
	struct face *f = self(c);
	struct dtp_err err = DTP_ERR_INIT;
	char *x = new_buffer(c, PART * sizeof(float));
	double start = now();

	CHECK(x);
	if (c->rank == 0)
		CHECK(f->inner->ops->all_reduce(f->inner, x, PART, DTP_F32, &err) == DTP_OK);
	else
		usleep(2500000);
	f->inner->ops->buffer_free(f->inner, x);
	CHECK(c->rank || now() - start < 2.4);
}

static void nccl_memory_is_freed_behind_an_absent_peer(void **state)
{
	(void)state;
	run_ranks(2, free_behind_an_absent_peer);
}

/* ---- refusals and faults */

static const char *fault;
static int faulty = 1; /* the rank that has it */

static void a_rank_fails(int rank)
{
	if (rank == faulty)
		setenv("DIFFTP_EMU_FAIL", fault, 1);
}

static void everything(struct dtp_comm *c)
{
	struct face *f = self(c);
	struct dtp_comm *part;
	char buf[64] = "", more[64] = "";

#define CALL(e) c->ops->split(c, 0, c->rank, &part, e)
	OK(CALL);
#undef CALL
#define CALL(e) dtp_all_reduce(part, buf, 4, DTP_F32, e)
	OK(CALL);
#undef CALL
#define CALL(e) dtp_all_gather(part, buf, more, 4, DTP_F32, e)
	OK(CALL);
#undef CALL
#define CALL(e) dtp_broadcast(part, buf, 4, 0, e)
	OK(CALL);
#undef CALL
#define CALL(e) part->ops->all_to_all(part, buf, more, 4, DTP_F32, e)
	OK(CALL);
#undef CALL
#define CALL(e) part->ops->ring_shift(part, buf, more, 4, DTP_F32, e)
	OK(CALL);
#undef CALL
	char *x = new_buffer(c, 1000);
	if (x)
		f->inner->ops->buffer_free(f->inner, x);
	dtp_comm_destroy(part);
}

/* The two ranks' words, of which one has the fault. */
static const char *outcome_of_fault(const char *what, int rank, rank_fn fn, int status[2])
{
	fault = what;
	faulty = rank;
	before_meeting = a_rank_fails;
	const char *text = outcome_of(2, fn, status);
	before_meeting = NULL;
	faulty = 1;
	return text;
}

static void assert_names_call(const char *text, const char *what, const char *result)
{
	char call[48];

	snprintf(call, sizeof call, "%.*s", (int)strcspn(what, ":"), what);
	assert_contains(text, call);
	assert_contains(text, result);
	assert_contains(text, "cuda/comm_nccl.c:");
}

/* Each call of each rank fails in turn: it says which, and all ranks end. */
static void nccl_every_fault_is_told_and_ends_all_ranks(void **state)
{
	static const char *const faults[] = {"ncclGetVersion:1", "ncclGetUniqueId:1", "ncclCommInitRankConfig:1", "ncclCommGetAsyncError:1",
		"ncclCommSplit:1", "ncclAllReduce:1", "ncclAllGather:1", "ncclBroadcast:1", "ncclGroupStart:1", "ncclSend:1", "ncclRecv:2",
		"ncclGroupEnd:2"};
	int status[2];

	(void)state;
	deadline = 0.5;
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		for (int rank = 0; rank < 2; rank++) {
			if (rank && !strcmp(faults[i], "ncclGetUniqueId:1"))
				continue; /* rank 0 alone asks for it */
			const char *text = outcome_of_fault(faults[i], rank, everything, status);
			assert_contains(text, rank ? "rank 1 of 2" : "rank 0 of 2");
			assert_names_call(text, faults[i], "failed: unhandled system error (2)");
			assert_int_equal(status[0], 1 << 8);
			assert_int_equal(status[1], 1 << 8);
		}
	deadline = 20;
}

static void print_note(void *arg, const char *text)
{
	(void)arg;
	fprintf(stderr, "note: %s\n", text);
}

static void end_by_abort(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;

	c->ops->abort(c);
	CHECK(dtp_barrier(c, &err) == DTP_FAILED);
}

/* What makes room for sums or ends something fails: they go on without, and say so. */
static void nccl_faults_that_end_nothing_are_told(void **state)
{
	static const struct { const char *fault, *said; rank_fn fn; } faults[] = {
		{"ncclMemAlloc:1", "ncclMemAlloc failed for 1000 bytes", everything},
		{"ncclCommRegister:1", "ncclCommRegister failed for 1000 bytes", everything},
		{"ncclCommDeregister:1", "ncclCommDeregister failed: unhandled system error (2)", everything},
		{"ncclMemFree:1", "ncclMemFree failed: unhandled cuda error (1)", everything},
		{"ncclCommFinalize:1", "ncclCommFinalize failed: unhandled system error (2)", everything},
		{"ncclCommDestroy:1", "ncclCommDestroy failed: unhandled system error (2)", everything},
		{"ncclCommAbort:1", "ncclCommAbort failed: unhandled system error (2)", end_by_abort},
	};
	int status[2];

	(void)state;
	monitor.note = print_note;
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		for (int rank = 0; rank < 2; rank++) {
			const char *text = outcome_of_fault(faults[i].fault, rank, faults[i].fn, status);
			assert_contains(text, rank ? "note: rank 1: nccl" : "note: rank 0: nccl");
			assert_names_call(text, faults[i].fault, faults[i].said);
			assert_int_equal(status[0], 0);
			assert_int_equal(status[1], 0);
		}
	monitor.note = dtp_monitor_none.note;
}

static void free_a_buffer(struct dtp_comm *c)
{
	self(c)->inner->ops->buffer_free(self(c)->inner, new_buffer(c, 1000));
}

static void free_a_buffer_and_sum(struct dtp_comm *c)
{
	float x = 1;

	free_a_buffer(c);
#define CALL(e) dtp_all_reduce(c, &x, 1, DTP_F32, e)
	OK(CALL);
#undef CALL
}

/* Who frees is told nothing: then who asks next is, or at the end the user. */
static void nccl_fault_that_nobody_asked_for_is_told_later(void **state)
{
	int status[2];

	(void)state;
	monitor.note = print_note;
	const char *text = outcome_of_fault("cudaStreamQuery:1", 1, free_a_buffer_and_sum, status);
	assert_contains(text, "rank 1 of 2: ");
	assert_contains(text, "cudaStreamQuery: unspecified launch failure (719), cuda/comm_nccl.c:");
	assert_int_equal(status[0], 1 << 8);
	assert_int_equal(status[1], 1 << 8);
	text = outcome_of_fault("cudaStreamQuery:1", 1, free_a_buffer, status);
	assert_contains(text, "note: rank 1: cudaStreamQuery: unspecified launch failure (719), cuda/comm_nccl.c:");
	assert_int_equal(status[0], 0);
	assert_int_equal(status[1], 0);
	monitor.note = dtp_monitor_none.note;
}

static void nccl_rank_that_does_not_come_is_not_waited_for(void **state)
{
	int status[2];

	(void)state;
	deadline = 0.5;
	const char *text = outcome_of_fault("ncclCommInitRankConfig:1", 1, everything, status);
	assert_contains(text, "not all of 2 ranks have come within 0.5 s (rank 0 has)");
	deadline = 20;
}

static void nothing(struct dtp_comm *c)
{
	(void)c;
}

static void nccl_refuses_ranks_on_one_gpu(void **state)
{
	int status[2];

	(void)state;
	one_gpu = true;
	const char *text = outcome_of(2, nothing, status);
	assert_contains(text, "invalid usage (5): Duplicate GPU detected");
	assert_int_equal(status[0], 1 << 8);
	assert_int_equal(status[1], 1 << 8);
	one_gpu = false;
}

/* ---- what only the stand-in sees */

enum { COUNT, TYPE, OPERATION, ROOT, ORDER, PLACE, MIXED, LENGTH, ABSENCE, NWRONG };
static int wrong;

/* Of memory that NCCL knows, at another place than the other rank, or of other memory than it. */
static void sum_elsewhere(struct dtp_comm *c, bool mixed)
{
	struct face *f = self(c);
	struct dtp_err err = DTP_ERR_INIT;
	char *x = new_buffer(c, 1000), *y = mixed ? device_copy(f, "abc", 4) : x + 4;

	f->inner->ops->all_reduce(f->inner, c->rank ? x : y, 1, DTP_F32, &err);
	dtp_cuda_wait(f->cuda, &err);
}

/* Ranks that do not do the same; in NCCL's own hands they would hang, or sum what does not belong together. */
static void do_wrong(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	char buf[64] = "", more[64] = "";
	bool first = c->rank == 0;

	setenv("DIFFTP_EMU_NCCL_TIMEOUT", "0.5", 1);
	if (wrong == COUNT)
		dtp_all_reduce(c, buf, first ? 4 : 5, DTP_F32, &err);
	if (wrong == TYPE)
		dtp_all_reduce(c, buf, 4, first ? DTP_F32 : DTP_I32, &err);
	if (wrong == OPERATION || (wrong == ORDER && first))
		first ? dtp_all_reduce(c, buf, 4, DTP_F32, &err) : dtp_broadcast(c, buf, 16, 0, &err);
	if (wrong == ORDER)
		first ? dtp_broadcast(c, buf, 16, 0, &err) : dtp_all_reduce(c, buf, 8, DTP_F32, &err);
	if (wrong == ROOT)
		dtp_broadcast(c, buf, 16, c->rank, &err);
	if (wrong == PLACE || wrong == MIXED)
		sum_elsewhere(c, wrong == MIXED);
	if (wrong == LENGTH)
		c->ops->ring_shift(c, buf, more, first ? 4 : 5, DTP_F32, &err);
	if (wrong == ABSENCE && first)
		dtp_all_reduce(c, buf, 4, DTP_F32, &err);
	usleep(1500000); /* both are there to the end */
}

static void emulator_ends_ranks_that_do_not_do_the_same(void **state)
{
	static const char *const said[NWRONG] = {[COUNT] = "(count 5, ", [TYPE] = "type 7, ", [OPERATION] = "ncclBroadcast (count 16, ",
		[ROOT] = "root 1, at ",
		[PLACE] = ", at 4 of registered memory)", [MIXED] = ", at -1 of registered memory)", [ORDER] = "ncclAllReduce (count 8, ", [LENGTH] = "receives 20 bytes from rank 0, which sends 16",
		[ABSENCE] = "deadlock: rank 0 of 2 has waited 0."};
	int status[2];

	(void)state;
	for (wrong = 0; wrong < NWRONG; wrong++) {
		const char *text = outcome_of(2, do_wrong, status);
		assert_contains(text, said[wrong]);
		if (wrong < LENGTH)
			assert_contains(text, "NCCL's ranks do different things: collective 1 of rank ");
		assert_true(status[0] == EMU_EXIT << 8 || status[1] == EMU_EXIT << 8);
	}
}

static void leave_memory_registered(struct dtp_comm *c)
{
	new_buffer(c, 1000);
}

static void emulator_misses_memory_that_is_left_registered(void **state)
{
	int status[2];

	(void)state;
	assert_contains(outcome_of(2, leave_memory_registered, status), "ncclCommDestroy: 1000 bytes are still registered");
	assert_int_equal(status[0], EMU_EXIT << 8);
}

static void leave_one_behind(struct dtp_comm *c)
{
	(void)c;
	exit(0); /* neither destroyed nor aborted */
}

static void emulator_misses_a_communicator_that_is_left(void **state)
{
	int status[2];

	(void)state;
	assert_contains(outcome_of(2, leave_one_behind, status), "an NCCL communicator of 2 ranks is left at the end of the process");
	assert_int_equal(status[0], EMU_EXIT << 8);
}

/* ---- graphs */

struct sums {
	struct face *face;
	float *x;  /* device memory, [1000] */
	int asked; /* how often the work was */
};

static enum dtp_code sum(void *arg, struct dtp_err *err)
{
	struct sums *s = arg;

	s->asked++;
	return dtp_all_reduce(s->face->inner, s->x, 1000, DTP_F32, err);
}

static enum dtp_code sum_again(struct sums *s, struct dtp_recording **r, struct dtp_err *err)
{
	enum dtp_code code = dtp_cuda_replay(&s->face->cuda->base, r, sum, s, err);

	return code ? code : dtp_cuda_wait(s->face->cuda, err);
}

/* Begins with 1 on every rank. */
static struct sums new_sums(struct dtp_comm *c)
{
	struct sums s = {.face = self(c)};
	float one[1000];
	void *p;

	for (int i = 0; i < 1000; i++)
		one[i] = 1;
	p = device_copy(s.face, one, sizeof one);
	s.x = p;
	s.face->cuda->options.mon = &monitor;
	return s;
}

static int recordings; /* that are to come about: 0 where a rank cannot */

static void sums_in_a_graph(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct sums s = new_sums(c);
	struct dtp_recording *r = NULL;
	float x[1000];
	int size = c->size;

	for (int i = 0; i < 4; i++)
		CHECK(sum_again(&s, &r, &err) == DTP_OK);
	sure(cudaMemcpy(x, s.x, sizeof x, cudaMemcpyDeviceToHost));
	CHECK(x[0] == (float)(size * size * size * size) && x[999] == x[0]);
	const char *why = dtp_cuda_replay_refused(&s.face->cuda->base, r);
	if (recordings) {
		CHECK(s.asked == 2 && !why);
	} else {
		CHECK(why && strstr(why, c->rank == 1 ? "cudaGraphInstantiate: out of memory (2)" : "another rank could not"));
		CHECK(s.asked == 5);
	}
	dtp_cuda_replay_free(&s.face->cuda->base, r);
	sure(cudaFree(s.x));
}

static void nccl_sums_are_replayed(void **state)
{
	(void)state;
	recordings = 1;
	run_ranks(2, sums_in_a_graph);
	run_ranks(3, sums_in_a_graph);
}

static void nccl_ranks_record_all_or_none(void **state)
{
	(void)state;
	recordings = 0;
	fault = "cudaGraphInstantiate:1";
	before_meeting = a_rank_fails;
	run_ranks(2, sums_in_a_graph);
	run_ranks(3, sums_in_a_graph);
	before_meeting = NULL;
}

static void death_beside_a_graph(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct sums s = new_sums(c);
	struct dtp_recording *r = NULL;
	double start;

	for (int i = 0; i < 3; i++)
		CHECK(sum_again(&s, &r, &err) == DTP_OK);
	if (c->rank == 1)
		raise(SIGKILL);
	start = now();
	CHECK(sum_again(&s, &r, &err) == DTP_FAILED);
	CHECK(err.secondary && strstr(err.message, "lost a peer"));
	CHECK(now() - start < 5);
	CHECK(strstr(dtp_cuda_replay_refused(&s.face->cuda->base, r), "communicators have ended"));
	dtp_cuda_replay_free(&s.face->cuda->base, r);
	sure(cudaFree(s.x));
}

static void nccl_death_of_a_peer_ends_a_graph(void **state)
{
	(void)state;
	run_ranks_but(2, 1, death_beside_a_graph);
}

/* By hand, since the backend does not do that. */
static cudaGraphExec_t capture_of(struct dtp_comm *c, struct sums *s)
{
	struct dtp_err err = DTP_ERR_INIT;
	cudaGraphExec_t exec;
	cudaGraph_t graph;

	sure(cudaStreamBeginCapture(s->face->cuda->stream, cudaStreamCaptureModeThreadLocal));
	CHECK(sum(s, &err) == DTP_OK);
	sure(cudaStreamEndCapture(s->face->cuda->stream, &graph));
	sure(cudaGraphInstantiate(&exec, graph, 0));
	sure(cudaGraphDestroy(graph));
	return exec;
}

static void graph_of_one_rank(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct sums s = new_sums(c);

	CHECK(sum(&s, &err) == DTP_OK);
	if (c->rank)
		sum(&s, &err);
	else
		sure(cudaGraphLaunch(capture_of(c, &s), s.face->cuda->stream));
	dtp_cuda_wait(s.face->cuda, &err);
	usleep(1500000); /* both are there to the end */
}

static void destroyed_before_its_graph(struct dtp_comm *c)
{
	struct sums s = new_sums(c);

	capture_of(c, &s);
	dtp_comm_destroy(s.face->inner);
}

static void emulator_ends_ranks_of_wrong_graphs(void **state)
{
	int status[2];

	(void)state;
	assert_contains(outcome_of(2, graph_of_one_rank, status), ", in a graph)");
	assert_true(status[0] == EMU_EXIT << 8 || status[1] == EMU_EXIT << 8);
	assert_contains(outcome_of(2, destroyed_before_its_graph, status), "ncclCommFinalize: there is a graph with operations of this");
	assert_true(status[0] == EMU_EXIT << 8 || status[1] == EMU_EXIT << 8);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest through_host[] = {COMM_CASES, GLOO_CASES}, through_nccl[] = {COMM_CASES,
		cmocka_unit_test(nccl_death_of_a_peer_ends_the_wait),
		cmocka_unit_test(nccl_abort_ends_a_wait),
		cmocka_unit_test(nccl_end_of_the_run_ends_a_wait),
		cmocka_unit_test(nccl_sums_beside_other_work),
		cmocka_unit_test(nccl_sums_from_memory_that_it_knows),
		cmocka_unit_test(nccl_memory_is_known_on_all_ranks_or_none),
		cmocka_unit_test(nccl_memory_is_freed_behind_an_absent_peer),
		cmocka_unit_test(nccl_every_fault_is_told_and_ends_all_ranks),
		cmocka_unit_test(nccl_faults_that_end_nothing_are_told),
		cmocka_unit_test(nccl_fault_that_nobody_asked_for_is_told_later),
		cmocka_unit_test(nccl_rank_that_does_not_come_is_not_waited_for),
		cmocka_unit_test(nccl_refuses_ranks_on_one_gpu),
		cmocka_unit_test(emulator_ends_ranks_that_do_not_do_the_same),
		cmocka_unit_test(emulator_misses_memory_that_is_left_registered),
		cmocka_unit_test(emulator_misses_a_communicator_that_is_left),
		cmocka_unit_test(nccl_sums_are_replayed),
		cmocka_unit_test(nccl_ranks_record_all_or_none),
		cmocka_unit_test(nccl_death_of_a_peer_ends_a_graph),
		cmocka_unit_test(emulator_ends_ranks_of_wrong_graphs),
	};
	int failed = 0;

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	monitor = dtp_monitor_none;
	setenv("DIFFTP_EMU_STREAMS", "random", 0);
	staged = true;
	failed += cmocka_run_group_tests_name("staged", through_host, NULL, NULL);
	staged = false;
	failed += cmocka_run_group_tests_name("nccl", through_nccl, NULL, NULL);
	return failed;
}
