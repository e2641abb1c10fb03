/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: streams, events, and the order in which their work runs. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum kind { WORK, RECORD, WAIT, LAUNCH };

struct op {
	struct op *next;
	enum kind kind;
	const char *name;
	emu_work *work;
	void *arg;
	struct emu_point *point;
	struct emu_launch *launch;
	struct emu_turn turn;    /* of WORK */
	struct emu_clock given;  /* what the host knew */
};

struct CUstream_st {
	struct CUstream_st *next;
	int device;
	bool alive, blocking; /* blocking: ordered with the default stream */
	bool queried;         /* the host asked whether it is done, and was told no */
	int strand;
	struct emu_clock clock; /* of what has run */
	struct op *head, **tail;
	struct emu_frontier frontier;
};

static struct {
	struct CUstream_st *streams;
	struct CUstream_st *idle[64]; /* the default stream of each device */
	struct CUevent_st *events;
	const char *running;
} s;

/* ---- points */

struct emu_point *emu_point_keep(struct emu_point *p)
{
	p->refs++;
	return p;
}

void emu_point_drop(struct emu_point *p)
{
	if (p && !--p->refs)
		free(p);
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void *need(void *p)
{
	if (!p)
		emu_misuse("no memory for the emulator itself");
	return p;
}

/* ---- queues */

static struct CUstream_st *stream_new(int device, bool blocking)
{
	struct CUstream_st *st = need(calloc(1, sizeof *st));

	st->device = device;
	st->alive = true;
	st->blocking = blocking;
	st->strand = emu_strand_new();
	st->tail = &st->head;
	st->next = s.streams;
	s.streams = st;
	return st;
}

static struct CUstream_st *default_stream(int device)
{
	if (!s.idle[device])
		s.idle[device] = stream_new(device, false);
	return s.idle[device];
}

static bool is_default(const struct CUstream_st *st)
{
	return s.idle[st->device] == st;
}

cudaStream_t emu_stream(cudaStream_t st, const char *call)
{
	if (!st || st == cudaStreamLegacy)
		return default_stream(emu_device());
	for (struct CUstream_st *i = s.streams; i; i = i->next)
		if (i == st) {
			if (!i->alive)
				emu_misuse("%s with a stream that was destroyed", call);
			return i;
		}
	emu_misuse("%s with %p, which is no stream", call, (void *)st);
}

int emu_stream_strand(cudaStream_t st)
{
	return st->strand;
}

struct emu_frontier *emu_stream_frontier(cudaStream_t st)
{
	return &st->frontier;
}

static struct op *append(struct CUstream_st *st, enum kind kind, const char *name)
{
	struct op *op = need(calloc(1, sizeof *op));

	op->kind = kind;
	op->name = name;
	op->given = *emu_host_clock();
	*st->tail = op;
	st->tail = &op->next;
	return op;
}

struct emu_point *emu_mark(cudaStream_t st)
{
	struct emu_point *p = need(calloc(1, sizeof *p));

	*p = (struct emu_point){.stream = st, .name = "a point", .refs = 2};
	append(st, RECORD, "record")->point = p;
	return p;
}

/* The end of all that a stream has been given. */
static struct emu_point *last_point(struct CUstream_st *st)
{
	if (st->head)
		return emu_mark(st);
	struct emu_point *p = need(calloc(1, sizeof *p));
	*p = (struct emu_point){.stream = st, .name = "a point", .refs = 1, .reached = true, .clock = st->clock};
	return p;
}

void emu_after(cudaStream_t st, struct emu_point *p)
{
	if (p->reached && !st->head)
		emu_clock_join(&st->clock, &p->clock);
	else
		append(st, WAIT, "wait")->point = emu_point_keep(p);
}

/* What goes into the default stream comes after, and what goes into a blocking one after what the default one has. */
static void order_with_default(struct CUstream_st *st)
{
	if (is_default(st)) {
		for (struct CUstream_st *i = s.streams; i; i = i->next)
			if (i->blocking && i->device == st->device) {
				struct emu_point *p = last_point(i);
				emu_after(st, p);
				emu_point_drop(p);
			}
	} else if (st->blocking) {
		struct emu_point *p = last_point(default_stream(st->device));
		emu_after(st, p);
		emu_point_drop(p);
	}
}

const char *emu_running(void)
{
	return s.running;
}

bool emu_run(emu_work *work, void *arg, const char *name, struct emu_turn *turn, int strand, const struct emu_clock *before)
{
	int code = cudaErrorIllegalAddress;
	bool done = true;

	if (emu_sticky())
		return true; /* nothing runs any more */
	emu_turn_begin(turn, strand, before, name);
	s.running = name;
	done = work(arg);
	s.running = NULL;
	emu_turn_over();
	if (done && emu_call("work", &code))
		emu_async_error((cudaError_t)code);
	return done;
}

static void op_free(struct op *op)
{
	emu_point_drop(op->point);
	if (op->launch)
		emu_launch_free(op->launch);
	free(op->arg);
	free(op);
}

/* Runs the first item of a stream, of a launched graph a node; false when it cannot run now. */
static bool step(struct CUstream_st *st)
{
	struct op *op = st->head;
	bool finished = true;

	if (!op)
		return false;
	emu_clock_join(&st->clock, &op->given);
	switch (op->kind) {
	case WORK:
		if (!emu_run(op->work, op->arg, op->name, &op->turn, st->strand, &st->clock))
			return false;
		emu_clock_join(&st->clock, &op->turn.clock);
		break;
	case RECORD:
		op->point->reached = true;
		op->point->clock = st->clock;
		op->point->ms = now_ms();
		break;
	case WAIT:
		if (!op->point->reached)
			return false;
		emu_clock_join(&st->clock, &op->point->clock);
		break;
	case LAUNCH:
		if (!emu_launch_step(op->launch, &st->clock, &finished))
			return false;
		break;
	}
	if (finished) {
		st->head = op->next;
		if (!st->head)
			st->tail = &st->head;
		op_free(op);
	}
	return true;
}

/* Everything that can run. */
static bool run_all(void)
{
	bool any = false, moved;

	do {
		moved = false;
		for (struct CUstream_st *st = s.streams; st; st = st->next)
			while (step(st))
				moved = any = true;
	} while (moved);
	return any;
}

static bool run_any(void)
{
	unsigned n = 0;

	for (struct CUstream_st *st = s.streams; st; st = st->next)
		n += st->head != NULL;
	if (!n)
		return false;
	unsigned first = emu_random(n), i = 0;
	for (int pass = 0; pass < 2; pass++)
		for (struct CUstream_st *st = s.streams; st; st = st->next)
			if (st->head && (i++ >= first || pass) && step(st))
				return true;
	return false;
}

/* No more than what the point needs. */
static bool run_towards(const struct emu_point *p)
{
	bool any = false;

	while (!p->reached) {
		const struct op *op = p->stream->head;
		bool moved = op && op->kind == WAIT && !op->point->reached && run_towards(op->point);
		if (!step(p->stream) && !moved)
			return any;
		any = true;
	}
	return any;
}

static bool run_for(const struct emu_point *p)
{
	return emu_mode() == EMU_EAGER ? run_all() : emu_mode() == EMU_RANDOM ? run_any() : run_towards(p);
}

void emu_reach(struct emu_point *p)
{
	while (!p->reached)
		if (!run_for(p) && !p->reached) { /* waits for another process */
			emu_unlock();
			usleep(100);
			emu_lock();
		}
	emu_host_learns(&p->clock);
}

void emu_drain(void)
{
	for (;;) {
		bool left = false;
		run_all();
		for (struct CUstream_st *st = s.streams; st; st = st->next)
			left |= st->head != NULL;
		if (!left)
			break;
		emu_unlock();
		usleep(100);
		emu_lock();
	}
	for (const struct CUstream_st *st = s.streams; st; st = st->next)
		emu_host_learns(&st->clock);
}

void emu_advance(void)
{
	if (s.running)
		emu_misuse("'%s' calls the runtime", s.running);
	if (emu_mode() == EMU_EAGER)
		run_all();
	else if (emu_mode() == EMU_RANDOM)
		for (unsigned n = emu_random(4); n; n--)
			run_any();
}

cudaError_t emu_put(cudaStream_t st, emu_work *work, const void *arg, size_t arg_size, const char *name)
{
	if (emu_sticky())
		return emu_sticky();
	if (emu_captured(st)) {
		emu_capture_work(st, work, arg, arg_size, name);
		return cudaSuccess;
	}
	if (is_default(st)) /* stricter than CUDA, which allows it beside streams that do not block */
		emu_not_while_capturing("work in the default stream");
	order_with_default(st);
	struct op *op = append(st, WORK, name);
	op->work = work;
	op->arg = need(malloc(arg_size + 1));
	if (arg_size)
		memcpy(op->arg, arg, arg_size);
	return cudaSuccess;
}

cudaError_t emu_enqueue(cudaStream_t handle, emu_work *work, const void *arg, size_t arg_size, const char *name)
{
	emu_lock();
	struct CUstream_st *st = emu_stream(handle, name);

	if (st->device != emu_device())
		emu_misuse("%s on a stream of device %d while the thread's device is %d", name, st->device, emu_device());
	return emu_end(emu_put(st, work, arg, arg_size, name));
}

bool emu_waits_for_range(const void *p, size_t size, const char **name)
{
	for (const struct CUstream_st *st = s.streams; st; st = st->next)
		for (const struct op *op = st->head; op; op = op->next)
			if (op->kind == WORK && emu_copy_uses(op->work, op->arg, p, size)) {
				*name = op->name;
				return true;
			}
	return false;
}

struct emu_point *emu_enqueue_launch(cudaStream_t st, struct emu_launch *launch)
{
	order_with_default(st);
	append(st, LAUNCH, "a graph")->launch = launch;
	return emu_mark(st);
}

unsigned emu_stream_leaks(char *text, size_t size)
{
	unsigned n = 0;

	for (struct CUstream_st *st = s.streams; st; st = st->next)
		n += st->alive && !is_default(st);
	unsigned streams = n;
	for (struct CUevent_st *e = s.events; e; e = e->next)
		n += e->alive;
	size_t used = strlen(text);
	if (n)
		snprintf(text + used, size - used, " %u streams; %u events;", streams, n - streams);
	return n;
}

/* ---- streams */

static cudaError_t create(const char *call, cudaStream_t *out, unsigned flags)
{
	cudaError_t e = emu_begin(call, cudaErrorMemoryAllocation);

	if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
		emu_misuse("%s with flags %#x", call, flags);
	if (!e)
		*out = stream_new(emu_device(), flags == cudaStreamDefault);
	return emu_end(e);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
	return create("cudaStreamCreate", out, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
	return create("cudaStreamCreateWithFlags", out, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
	(void)priority;
	return create("cudaStreamCreateWithPriority", out, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	cudaError_t e = emu_begin("cudaDeviceGetStreamPriorityRange", cudaErrorInvalidDevice);

	if (!e) {
		*least = 0;
		*greatest = -5;
	}
	return emu_end(e);
}

/* The handle stays known, so that its use is seen; the GPU would finish the work. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
	cudaError_t e = emu_begin("cudaStreamDestroy", cudaErrorLaunchFailure);
	struct CUstream_st *st = emu_stream(handle, "cudaStreamDestroy");

	if (is_default(st))
		emu_misuse("cudaStreamDestroy of the default stream");
	if (emu_captured(st))
		emu_misuse("cudaStreamDestroy of a stream that is being captured");
	struct emu_point *p = emu_mark(st);
	emu_reach(p);
	emu_point_drop(p);
	st->alive = false;
	emu_strand_end(st->strand);
	return emu_end(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
	cudaError_t e = emu_begin("cudaStreamSynchronize", cudaErrorLaunchFailure);

	if (!e) {
		struct CUstream_st *st = emu_stream(handle, "cudaStreamSynchronize");
		if (emu_captured(st))
			emu_misuse("cudaStreamSynchronize of a stream that is being captured");
		order_with_default(st);
		struct emu_point *p = emu_mark(st);
		emu_reach(p);
		emu_point_drop(p);
		e = emu_sticky();
	}
	return emu_end(e);
}

cudaError_t cudaDeviceSynchronize(void)
{
	cudaError_t e = emu_begin("cudaDeviceSynchronize", cudaErrorLaunchFailure);

	if (!e) {
		emu_not_while_capturing("cudaDeviceSynchronize");
		emu_drain();
		e = emu_sticky();
	}
	return emu_end(e);
}

/* The end of a stream that is not empty, for a host that asks again and again: one point. */
static struct emu_point *end_of(struct CUstream_st *st)
{
	static const char asked[] = "a query";
	struct op *last = st->head;

	while (last->next)
		last = last->next;
	if (last->kind == RECORD && last->name == asked)
		return emu_point_keep(last->point);
	struct emu_point *p = emu_mark(st);
	while (last->next)
		last = last->next;
	last->name = asked;
	return p;
}

/* Whoever asks twice waits: the first answer is no, and then everything runs that can. */
static cudaError_t query(bool *asked, const struct emu_point *p)
{
	if (!p->reached && *asked)
		run_for(p);
	*asked = !p->reached;
	if (p->reached)
		emu_host_learns(&p->clock);
	return emu_sticky() ? emu_sticky() : p->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
	cudaError_t e = emu_begin("cudaStreamQuery", cudaErrorLaunchFailure);

	if (!e) {
		struct CUstream_st *st = emu_stream(handle, "cudaStreamQuery");
		if (emu_captured(st))
			emu_misuse("cudaStreamQuery of a stream that is being captured");
		if (st->head) {
			struct emu_point *p = end_of(st);
			e = query(&st->queried, p);
			emu_point_drop(p);
		} else {
			emu_host_learns(&st->clock);
		}
	}
	emu_unlock();
	return e == cudaErrorNotReady ? e : emu_result(e);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
	cudaError_t e = emu_begin("cudaStreamWaitEvent", cudaErrorInvalidResourceHandle);

	if (flags)
		emu_misuse("cudaStreamWaitEvent with flags %#x", flags);
	if (!e) {
		struct CUstream_st *st = emu_stream(handle, "cudaStreamWaitEvent");
		emu_event(event, "cudaStreamWaitEvent");
		if (!emu_capture_wait(st, event) && event->point)
			emu_after(st, event->point);
	}
	return emu_end(e);
}

struct host_function {
	cudaHostFn_t function;
	void *data;
};

static bool call_host(void *arg)
{
	const struct host_function *h = arg;

	h->function(h->data);
	emu_host_learns_turn(); /* it may have told another thread */
	return true;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	cudaError_t e = emu_begin("cudaLaunchHostFunc", cudaErrorMemoryAllocation);
	struct host_function h = {function, data};

	if (!e)
		e = emu_enqueue(stream, call_host, &h, sizeof h, "a function of the host");
	return emu_end(e);
}

/* ---- events */

cudaEvent_t emu_event(cudaEvent_t event, const char *call)
{
	for (struct CUevent_st *i = s.events; i; i = i->next)
		if (i == event) {
			if (!i->alive)
				emu_misuse("%s with an event that was destroyed", call);
			return i;
		}
	emu_misuse("%s with %p, which is no event", call, (void *)event);
}

static cudaError_t event_create(const char *call, cudaEvent_t *out, unsigned flags)
{
	cudaError_t e = emu_begin(call, cudaErrorMemoryAllocation);

	if (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming))
		emu_misuse("%s with flags %#x", call, flags);
	if (!e) {
		struct CUevent_st *event = need(calloc(1, sizeof *event));
		*event = (struct CUevent_st){.next = s.events, .device = emu_device(), .timing = !(flags & cudaEventDisableTiming),
					     .alive = true};
		s.events = *out = event;
	}
	return emu_end(e);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
	return event_create("cudaEventCreate", out, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
	return event_create("cudaEventCreateWithFlags", out, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	cudaError_t e = emu_begin("cudaEventDestroy", cudaErrorLaunchFailure);

	emu_event(event, "cudaEventDestroy");
	emu_point_drop(event->point);
	event->point = NULL;
	free(event->captured.nodes);
	event->captured = (struct emu_frontier){0};
	event->alive = false;
	return emu_end(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
	cudaError_t e = emu_begin("cudaEventRecord", cudaErrorInvalidResourceHandle);

	if (!e) {
		struct CUstream_st *st = emu_stream(handle, "cudaEventRecord");
		emu_event(event, "cudaEventRecord");
		if (event->device != st->device)
			emu_misuse("cudaEventRecord of an event of device %d on a stream of device %d", event->device, st->device);
		if (emu_captured(st)) {
			emu_capture_record(st, event);
		} else {
			order_with_default(st);
			emu_point_drop(event->point);
			event->point = emu_mark(st);
			free(event->captured.nodes);
			event->captured = (struct emu_frontier){0};
		}
	}
	return emu_end(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	cudaError_t e = emu_begin("cudaEventQuery", cudaErrorLaunchFailure);

	if (!e) {
		bool *asked;
		emu_event(event, "cudaEventQuery");
		emu_not_while_capturing("cudaEventQuery");
		if (event->captured.capture)
			emu_misuse("cudaEventQuery of an event that was recorded in a capture");
		if (event->point) {
			asked = &event->point->stream->queried;
			e = query(asked, event->point);
		}
	}
	emu_unlock();
	return e == cudaErrorNotReady ? e : emu_result(e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	cudaError_t e = emu_begin("cudaEventSynchronize", cudaErrorLaunchFailure);

	if (!e) {
		emu_event(event, "cudaEventSynchronize");
		if (event->captured.capture)
			emu_misuse("cudaEventSynchronize of an event that was recorded in a capture");
		if (event->point) {
			struct emu_point *p = emu_point_keep(event->point); /* others may record it meanwhile */
			emu_reach(p);
			emu_point_drop(p);
		}
		e = emu_sticky();
	}
	return emu_end(e);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
	cudaError_t e = emu_begin("cudaEventElapsedTime", cudaErrorLaunchFailure);

	if (!e) {
		emu_event(start, "cudaEventElapsedTime");
		emu_event(end, "cudaEventElapsedTime");
		if (!start->timing || !end->timing)
			emu_misuse("cudaEventElapsedTime of an event made without timing");
		if (!start->point || !end->point)
			emu_misuse("cudaEventElapsedTime of an event that was never recorded");
		if (!start->point->reached || !end->point->reached)
			e = cudaErrorNotReady;
		else
			*ms = (float)(end->point->ms - start->point->ms);
	}
	return emu_end(e);
}
