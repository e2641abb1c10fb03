/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the stand-in for the CUDA runtime: report.c, memory.c, devices.c, copy.c, stream.c, graph.c, order.c.  One lock guards all of it;
 * work on streams runs under it. */
#ifndef EMU_RUNTIME_H
#define EMU_RUNTIME_H

#include "emu.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

enum emu_mode { EMU_EAGER, EMU_DEFERRED, EMU_RANDOM };

/* ---- report.c */

/* A call begins: takes the lock and counts.  Its result is what the call must return at once: usual (or the code asked for) for an
 * injected fault, or the asynchronous error that happened before.  Every one ends with emu_end. */
cudaError_t emu_begin(const char *name, cudaError_t usual);
/* The call ends with this result: remembers it for cudaGetLastError, lets streams advance and gives the lock back. */
cudaError_t emu_end(cudaError_t result);
/* What emu_async_error said, once it did: never success again. */
cudaError_t emu_sticky(void);
bool emu_faulted(void); /* a call was made to fail: what the program does then may be incomplete */
enum emu_mode emu_mode(void);
unsigned emu_random(unsigned n); /* of [0, n) */
/* A number of the environment. */
uint64_t emu_setting(const char *name, uint64_t otherwise);
void emu_lock(void);
void emu_unlock(void);

/* ---- devices.c */
uint64_t emu_device_memory(int device);

/* ---- memory.c */

/* An allocation that is alive and holds [p, p + size), or the end of the process. */
void emu_check(const void *p, size_t size, enum emu_memory kind, const char *what);
int emu_range_device(const void *p);
/* Whether p was ever given out as device memory, alive or not. */
bool emu_in_heap(const void *p);
/* Device memory that work has touched is closed to the host again. */
void emu_heap_close(void);
unsigned emu_memory_leaks(char *text, size_t size);

/* Where what the allocation that p lies in was used for is kept; NULL if it lies in none. */
struct emu_spans;
struct emu_spans **emu_spans_at(const void *p);

/* ---- order.c: what comes before what.  See there. */
enum { EMU_STRANDS = 8 };
struct emu_clock {
	uint64_t seen[EMU_STRANDS]; /* how much work of each strand is known to come before */
};
void emu_clock_join(struct emu_clock *to, const struct emu_clock *from);
/* What the host knows to be over, and so what comes before all that it does next. */
const struct emu_clock *emu_host_clock(void);
void emu_host_learns(const struct emu_clock *);
void emu_host_learns_turn(void); /* of all that comes before the work that runs, and of that */
/* -1: there are too many. */
int emu_strand_new(void);
void emu_strand_end(int strand);
/* Work's turn: begins once, and goes on as often as it is called. */
struct emu_turn {
	bool begun;
	int strand;
	struct emu_clock clock; /* this work included */
};
void emu_turn_begin(struct emu_turn *, int strand, const struct emu_clock *before, const char *name);
void emu_turn_over(void);
void emu_spans_free(struct emu_spans *);
/* The name of work that the host does not know to be over, or NULL. */
const char *emu_spans_used(const struct emu_spans *);

/* ---- copy.c: whether this work is a copy that uses some of [p, p + size). */
bool emu_copy_uses(emu_work *work, const void *arg, const void *p, size_t size);

/* ---- stream.c: a point in a stream, reached or not.  Counted references. */
struct emu_point {
	cudaStream_t stream;
	const char *name;
	int refs;
	bool reached;
	struct emu_clock clock; /* of what came before, once it is reached */
	double ms; /* when */
};
struct emu_point *emu_point_keep(struct emu_point *);
void emu_point_drop(struct emu_point *);

/* The stream of a handle; a handle that is none ends the process.  NULL is the default stream. */
cudaStream_t emu_stream(cudaStream_t, const char *call);
/* Puts a point at the end of a stream. */
struct emu_point *emu_mark(cudaStream_t);
/* What is put into the stream from here on waits for the point. */
void emu_after(cudaStream_t, struct emu_point *);
/* Runs streams until the point is reached; from outside, a wait of the host. */
void emu_reach(struct emu_point *);
/* Until all that was given to the streams of all devices has run. */
void emu_drain(void);
/* Runs what the mode lets run at the end of a call. */
void emu_advance(void);
/* The name of the work that runs now, or NULL. */
const char *emu_running(void);
/* Runs work under the rules of all work; false when it must be called again. */
bool emu_run(emu_work *work, void *arg, const char *name, struct emu_turn *turn, int strand, const struct emu_clock *before);
int emu_stream_strand(cudaStream_t);
/* Puts work at the end of a stream, or into the graph that is being captured from it.  Called between emu_begin and emu_end. */
cudaError_t emu_put(cudaStream_t, emu_work *work, const void *arg, size_t arg_size, const char *name);
/* Whether a copy that has not run uses some of [p, p + size). */
bool emu_waits_for_range(const void *p, size_t size, const char **name);
unsigned emu_stream_leaks(char *text, size_t size);

/* ---- graph.c */
struct emu_capture;
/* Whether the stream is being captured. */
bool emu_captured(cudaStream_t);
/* A node of the graph that is being captured from the stream. */
void emu_capture_work(cudaStream_t, emu_work *work, const void *arg, size_t arg_size, const char *name);
void emu_capture_record(cudaStream_t, cudaEvent_t);
/* False if the event does not belong to a capture. */
bool emu_capture_wait(cudaStream_t, cudaEvent_t);
/* Ends the process if a capture forbids the call; stream: the one it waits for, or NULL for any. */
void emu_not_while_capturing(const char *call);
/* One step of a launched graph: false when nothing of it can run now; *finished when nothing is left, and *clock, which is that of what comes
 * before it, then is that of what comes after. */
struct emu_launch;
bool emu_launch_step(struct emu_launch *, struct emu_clock *clock, bool *finished);
void emu_launch_free(struct emu_launch *);
/* Puts a launch at the end of a stream. */
struct emu_point *emu_enqueue_launch(cudaStream_t, struct emu_launch *);
unsigned emu_graph_leaks(char *text, size_t size);

/* What a stream and an event know of a capture: the nodes that come before whatever follows. */
struct emu_frontier {
	struct emu_capture *capture;
	unsigned long long id;
	int *nodes, n;
};

struct CUevent_st {
	struct CUevent_st *next;
	int device;
	bool timing, alive;
	struct emu_point *point; /* of the last record, or NULL */
	struct emu_frontier captured;
};
cudaEvent_t emu_event(cudaEvent_t, const char *call);
struct emu_frontier *emu_stream_frontier(cudaStream_t);
#endif
