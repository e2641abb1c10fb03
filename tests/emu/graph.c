/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: capture of streams into graphs, and their launches.  A graph is as it was captured; what its
 * nodes do not order may run in any order, and is: in that of the capture in eager mode, the last first in deferred mode. */
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
	emu_work *work;
	void *arg;
	size_t arg_size;
	const char *name;
	int strand; /* that of the stream that it was captured from */
	int *before, nbefore; /* the nodes that it follows */
};

/* What a graph, its executable forms and their launches share: unchanged once the capture ended. */
struct nodes {
	struct node *node;
	int n, room, refs;
};

struct emu_capture {
	struct emu_capture *next;
	unsigned long long id;
	enum cudaStreamCaptureMode mode;
	pthread_t thread;
	cudaStream_t origin, *streams; /* all that joined, the origin first */
	int nstreams;
	struct nodes *nodes;
};

struct CUgraph_st {
	struct CUgraph_st *next;
	bool alive;
	struct nodes *nodes;
};

struct CUgraphExec_st {
	struct CUgraphExec_st *next;
	bool alive;
	struct nodes *nodes;
	struct emu_point *last; /* end of the last launch, or NULL */
};

struct emu_launch {
	struct nodes *nodes;
	int left;
	struct {
		void *arg;
		bool done;
		struct emu_turn turn;
	} *run;
};

static struct {
	struct emu_capture *captures;
	struct CUgraph_st *graphs;
	struct CUgraphExec_st *execs;
	unsigned long long last_id;
} g;

static void *need(void *p)
{
	if (!p)
		emu_misuse("no memory for the emulator itself");
	return p;
}

static void nodes_drop(struct nodes *nodes)
{
	if (--nodes->refs)
		return;
	for (int i = 0; i < nodes->n; i++) {
		free(nodes->node[i].arg);
		free(nodes->node[i].before);
	}
	free(nodes->node);
	free(nodes);
}

/* ---- capture */

bool emu_captured(cudaStream_t st)
{
	return emu_stream_frontier(st)->capture != NULL;
}

static void frontier_set(struct emu_frontier *f, struct emu_capture *capture, const int *nodes, int n)
{
	int *copy = need(malloc((size_t)(n + 1) * sizeof *copy));

	for (int i = 0; i < n; i++)
		copy[i] = nodes[i];
	free(f->nodes);
	*f = (struct emu_frontier){capture, capture->id, copy, n};
}

static void frontier_clear(struct emu_frontier *f)
{
	free(f->nodes);
	*f = (struct emu_frontier){0};
}

static void frontier_join(struct emu_frontier *f, const struct emu_frontier *other)
{
	f->nodes = need(realloc(f->nodes, (size_t)(f->n + other->n + 1) * sizeof *f->nodes));
	for (int i = 0; i < other->n; i++)
		f->nodes[f->n++] = other->nodes[i];
}

static void join(struct emu_capture *c, cudaStream_t st, const int *nodes, int n)
{
	c->streams = need(realloc(c->streams, (size_t)(c->nstreams + 1) * sizeof *c->streams));
	c->streams[c->nstreams++] = st;
	frontier_set(emu_stream_frontier(st), c, nodes, n);
}

void emu_capture_work(cudaStream_t st, emu_work *work, const void *arg, size_t arg_size, const char *name)
{
	struct emu_frontier *f = emu_stream_frontier(st);
	struct nodes *nodes = f->capture->nodes;

	if (nodes->n == nodes->room) {
		nodes->room = nodes->room ? 2 * nodes->room : 64;
		nodes->node = need(realloc(nodes->node, (size_t)nodes->room * sizeof *nodes->node));
	}
	struct node *node = &nodes->node[nodes->n];
	*node = (struct node){.work = work, .arg = need(malloc(arg_size + 1)), .arg_size = arg_size, .name = name,
			      .strand = emu_stream_strand(st), .before = f->nodes, .nbefore = f->n};
	if (arg_size)
		memcpy(node->arg, arg, arg_size);
	f->nodes = NULL;
	frontier_set(f, f->capture, &nodes->n, 1);
	nodes->n++;
}

void emu_capture_record(cudaStream_t st, cudaEvent_t event)
{
	const struct emu_frontier *f = emu_stream_frontier(st);

	frontier_set(&event->captured, f->capture, f->nodes, f->n);
	emu_point_drop(event->point);
	event->point = NULL;
}

static bool capture_is_on(const struct emu_frontier *f)
{
	for (const struct emu_capture *c = g.captures; c; c = c->next)
		if (c->id == f->id)
			return true;
	return false;
}

bool emu_capture_wait(cudaStream_t st, cudaEvent_t event)
{
	struct emu_frontier *f = emu_stream_frontier(st);

	if (!event->captured.capture) {
		if (f->capture)
			emu_misuse("a stream that is being captured waits for an event from outside of the capture");
		return false;
	}
	if (!capture_is_on(&event->captured))
		emu_misuse("a stream waits for an event that was recorded in a capture that has ended");
	if (!f->capture)
		join(event->captured.capture, st, event->captured.nodes, event->captured.n);
	else if (f->id == event->captured.id)
		frontier_join(f, &event->captured);
	else
		emu_misuse("a stream that is being captured waits for an event of another capture");
	return true;
}

void emu_not_while_capturing(const char *call)
{
	for (const struct emu_capture *c = g.captures; c; c = c->next)
		if (c->mode == cudaStreamCaptureModeGlobal ||
		    (c->mode == cudaStreamCaptureModeThreadLocal && pthread_equal(c->thread, pthread_self())))
			emu_misuse("%s while a stream is being captured", call);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
	cudaError_t e = emu_begin("cudaStreamBeginCapture", cudaErrorIllegalState);

	if (!handle || handle == cudaStreamLegacy)
		emu_misuse("cudaStreamBeginCapture of the default stream");
	if (!e) {
		cudaStream_t st = emu_stream(handle, "cudaStreamBeginCapture");
		if (emu_captured(st))
			emu_misuse("cudaStreamBeginCapture of a stream that is being captured");
		struct emu_capture *c = need(calloc(1, sizeof *c));
		*c = (struct emu_capture){.next = g.captures, .id = ++g.last_id, .mode = mode, .thread = pthread_self(), .origin = st,
					  .nodes = need(calloc(1, sizeof *c->nodes))};
		c->nodes->refs = 1;
		g.captures = c;
		join(c, st, NULL, 0);
	}
	return emu_end(e);
}

/* All nodes must come before the origin's last ones: another stream must have been waited for.  False where the wait may have been left
 * out because a call had failed. */
static bool check_joined(const struct emu_capture *c)
{
	const struct emu_frontier *f = emu_stream_frontier(c->origin);
	bool *seen = need(calloc((size_t)c->nodes->n + 1, sizeof *seen));

	for (int i = 0; i < f->n; i++)
		seen[f->nodes[i]] = true;
	for (int i = c->nodes->n - 1; i >= 0; i--)
		for (int j = 0; seen[i] && j < c->nodes->node[i].nbefore; j++)
			seen[c->nodes->node[i].before[j]] = true;
	bool all = true;
	for (int i = 0; i < c->nodes->n; i++)
		all &= seen[i];
	for (int i = 0; i < c->nodes->n && !emu_faulted(); i++)
		if (!seen[i])
			emu_misuse("the captured stream does not wait for '%s', which another stream runs in the capture",
				   c->nodes->node[i].name);
	free(seen);
	return all;
}

static void capture_end(struct emu_capture *c)
{
	struct emu_capture **at = &g.captures;

	for (int i = 0; i < c->nstreams; i++)
		frontier_clear(emu_stream_frontier(c->streams[i]));
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free(c->streams);
	nodes_drop(c->nodes);
	free(c);
}

/* A capture that fails ends all the same. */
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
	cudaError_t e = emu_begin("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated);
	cudaStream_t st = emu_stream(handle, "cudaStreamEndCapture");
	struct emu_capture *c = emu_stream_frontier(st)->capture;

	*out = NULL;
	if (!c)
		emu_misuse("cudaStreamEndCapture of a stream that is not being captured");
	if (c->origin != st)
		emu_misuse("cudaStreamEndCapture of a stream on which the capture did not begin");
	if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
		emu_misuse("cudaStreamEndCapture in another thread than cudaStreamBeginCapture");
	if (!e && !check_joined(c))
		e = cudaErrorStreamCaptureUnjoined;
	if (!e) {
		struct CUgraph_st *graph = need(calloc(1, sizeof *graph));
		*graph = (struct CUgraph_st){.next = g.graphs, .alive = true, .nodes = c->nodes};
		c->nodes->refs++;
		g.graphs = *out = graph;
	}
	capture_end(c);
	return emu_end(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
	cudaError_t e = emu_begin("cudaStreamIsCapturing", cudaErrorInvalidValue);

	if (!e)
		*status = emu_captured(emu_stream(handle, "cudaStreamIsCapturing")) ? cudaStreamCaptureStatusActive :
										       cudaStreamCaptureStatusNone;
	return emu_end(e);
}

/* ---- graphs */

static struct CUgraph_st *graph_of(cudaGraph_t graph, const char *call)
{
	for (struct CUgraph_st *i = g.graphs; i; i = i->next)
		if (i == graph && i->alive)
			return i;
	emu_misuse("%s with %p, which is no graph or was destroyed", call, (void *)graph);
}

static struct CUgraphExec_st *exec_of(cudaGraphExec_t exec, const char *call)
{
	for (struct CUgraphExec_st *i = g.execs; i; i = i->next)
		if (i == exec && i->alive)
			return i;
	emu_misuse("%s with %p, which is no executable graph or was destroyed", call, (void *)exec);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	cudaError_t e = emu_begin("cudaGraphDestroy", cudaErrorInvalidValue);

	nodes_drop(graph_of(graph, "cudaGraphDestroy")->nodes);
	graph->alive = false;
	return emu_end(e);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
	cudaError_t e = emu_begin("cudaGraphGetNodes", cudaErrorInvalidValue);

	if (nodes)
		emu_misuse("cudaGraphGetNodes of more than their number, which is not emulated");
	if (!e)
		*n = (size_t)graph_of(graph, "cudaGraphGetNodes")->nodes->n;
	return emu_end(e);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
	cudaError_t e = emu_begin("cudaGraphInstantiate", cudaErrorMemoryAllocation);

	if (flags)
		emu_misuse("cudaGraphInstantiate with flags %#llx", flags);
	if (!e) {
		struct CUgraphExec_st *exec = need(calloc(1, sizeof *exec));
		*exec = (struct CUgraphExec_st){.next = g.execs, .alive = true,
						.nodes = graph_of(graph, "cudaGraphInstantiate")->nodes};
		exec->nodes->refs++;
		g.execs = *out = exec;
	}
	return emu_end(e);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	cudaError_t e = emu_begin("cudaGraphExecDestroy", cudaErrorInvalidValue);

	nodes_drop(exec_of(exec, "cudaGraphExecDestroy")->nodes);
	emu_point_drop(exec->last);
	exec->last = NULL;
	exec->alive = false;
	return emu_end(e);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
	cudaError_t e = emu_begin("cudaGraphUpload", cudaErrorMemoryAllocation);

	exec_of(exec, "cudaGraphUpload");
	emu_stream(stream, "cudaGraphUpload");
	return emu_end(e);
}

/* ---- launches */

/* One launch after the other, whatever their streams. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
	cudaError_t e = emu_begin("cudaGraphLaunch", cudaErrorLaunchOutOfResources);

	if (!e) {
		cudaStream_t st = emu_stream(handle, "cudaGraphLaunch");
		struct nodes *nodes = exec_of(exec, "cudaGraphLaunch")->nodes;
		if (emu_captured(st))
			emu_misuse("cudaGraphLaunch on a stream that is being captured, which is not emulated");
		struct emu_launch *launch = need(calloc(1, sizeof *launch));
		*launch = (struct emu_launch){.nodes = nodes, .left = nodes->n,
					      .run = need(calloc((size_t)nodes->n + 1, sizeof *launch->run))};
		nodes->refs++;
		if (exec->last)
			emu_after(st, exec->last);
		emu_point_drop(exec->last);
		exec->last = emu_enqueue_launch(st, launch);
	}
	return emu_end(e);
}

void emu_launch_free(struct emu_launch *launch)
{
	for (int i = 0; i < launch->nodes->n; i++)
		free(launch->run[i].arg);
	nodes_drop(launch->nodes);
	free(launch->run);
	free(launch);
}

static bool is_ready(const struct emu_launch *launch, int i)
{
	const struct node *node = &launch->nodes->node[i];

	for (int j = 0; j < node->nbefore; j++)
		if (!launch->run[node->before[j]].done)
			return false;
	return !launch->run[i].done;
}

static bool run_node(struct emu_launch *launch, int i, const struct emu_clock *clock)
{
	const struct node *node = &launch->nodes->node[i];
	struct emu_clock before = *clock;

	if (!launch->run[i].arg) {
		launch->run[i].arg = need(malloc(node->arg_size + 1));
		if (node->arg_size)
			memcpy(launch->run[i].arg, node->arg, node->arg_size);
	}
	for (int j = 0; j < node->nbefore; j++)
		emu_clock_join(&before, &launch->run[node->before[j]].turn.clock);
	launch->run[i].done = emu_run(node->work, launch->run[i].arg, node->name, &launch->run[i].turn, node->strand, &before);
	return launch->run[i].done;
}

bool emu_launch_step(struct emu_launch *launch, struct emu_clock *clock, bool *finished)
{
	int n = launch->nodes->n, first = emu_mode() == EMU_RANDOM && n ? (int)emu_random((unsigned)n) : 0;
	bool moved = !launch->left;

	for (int k = 0; k < n && !moved; k++) {
		int i = emu_mode() == EMU_DEFERRED ? n - 1 - k : (first + k) % n;
		if (is_ready(launch, i) && run_node(launch, i, clock)) {
			launch->left--;
			moved = true;
		}
	}
	*finished = !launch->left;
	for (int i = 0; i < n && *finished; i++)
		emu_clock_join(clock, &launch->run[i].turn.clock);
	return moved;
}

/* ---- for libraries */

bool emu_is_captured(cudaStream_t stream)
{
	emu_lock();
	bool yes = emu_captured(emu_stream(stream, "a library"));
	emu_unlock();
	return yes;
}

typedef bool (*which)(emu_work *work, const void *arg, const void *what);

static bool any_node(const struct nodes *nodes, which is, const void *what)
{
	for (int i = 0; i < nodes->n; i++)
		if (is(nodes->node[i].work, nodes->node[i].arg, what))
			return true;
	return false;
}

bool emu_graphs_have(which is, const void *what)
{
	bool found = false;

	emu_lock();
	for (const struct emu_capture *i = g.captures; i; i = i->next)
		found |= any_node(i->nodes, is, what);
	for (const struct CUgraph_st *i = g.graphs; i; i = i->next)
		found |= i->alive && any_node(i->nodes, is, what);
	for (const struct CUgraphExec_st *i = g.execs; i; i = i->next)
		found |= i->alive && any_node(i->nodes, is, what);
	emu_unlock();
	return found;
}

unsigned emu_graph_leaks(char *text, size_t size)
{
	unsigned graphs = 0, execs = 0, captures = 0;

	for (const struct CUgraph_st *i = g.graphs; i; i = i->next)
		graphs += i->alive;
	for (const struct CUgraphExec_st *i = g.execs; i; i = i->next)
		execs += i->alive;
	for (const struct emu_capture *i = g.captures; i; i = i->next)
		captures++;
	size_t used = strlen(text);
	if (graphs + execs + captures)
		snprintf(text + used, size - used, " %u graphs; %u executable graphs; %u captures;", graphs, execs, captures);
	return graphs + execs + captures;
}
