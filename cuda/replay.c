/* SPDX-License-Identifier: Apache-2.0 */
/* Repeated work as a CUDA graph, NCCL's operations inside.  The first time it is done as it comes: algorithms are chosen, plans made and
 * scratch grows, which cannot be recorded.  The second time it is recorded, and from then on the recording is launched.  NCCL lets go of
 * no communicator that a graph uses, so graphs end first, whatever else has failed. */
#include "comm_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dtp_recording {
	struct dtp_recording *next;
	cudaGraphExec_t graph; /* NULL: none */
	bool done;             /* the work was done once */
	char plain[200];       /* why there will be no graph; "" while there may be */
};

enum dtp_code dtp_cuda_not_recorded(const struct dtp_cuda *cu, const char *what, struct dtp_err *err)
{
	return cu->recording ? dtp_fail(err, DTP_FAILED, "%s cannot be part of a CUDA graph", what) : DTP_OK;
}

static void never(struct dtp_recording *r, const char *why)
{
	snprintf(r->plain, sizeof r->plain, "%.*s", (int)strcspn(why, "\n"), why);
}

/* Waits for nothing: what was launched of it comes to its end. */
static void drop_graph(struct dtp_recording *r)
{
	if (!r->graph)
		return;
	cudaGraphExecDestroy(r->graph);
	r->graph = NULL;
}

void dtp_cuda_drop_graphs(struct dtp_cuda *cu)
{
	for (struct dtp_recording *r = cu->recordings; r; r = r->next)
		drop_graph(r);
}

/* ---- making one */

/* What the stream was given since the recording began, or NULL. */
static enum dtp_code end_recording(struct dtp_cuda *cu, cudaGraph_t *graph, struct dtp_err *err)
{
	*graph = NULL;
	if (!cu->recording)
		return dtp_fail(err, DTP_FAILED, "the recording was broken off");
	cu->recording = false;
	return DTP_CUDA(cudaStreamEndCapture(cu->stream, graph), err);
}

static enum dtp_code record(struct dtp_cuda *cu, struct dtp_recording *r, enum dtp_code (*enqueue)(void *, struct dtp_err *), void *arg,
			    struct dtp_err *why)
{
	cudaGraph_t graph;
	enum dtp_code rc = DTP_CUDA(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal), why);

	if (rc)
		return rc;
	cu->recording = true;
	rc = enqueue(arg, why);
	enum dtp_code end = end_recording(cu, &graph, rc ? NULL : why);
	rc = rc ? rc : end;
	if (!rc)
		rc = DTP_CUDA(cudaGraphInstantiate(&r->graph, graph, 0), why);
	if (rc)
		r->graph = NULL;
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* Failures that leave nothing to be tried again. */
static bool is_over(const struct dtp_cuda *cu, enum dtp_code rc)
{
	return rc == DTP_INTERRUPTED || dtp_cuda_check(cu, NULL);
}

/* Whether all who record together say so. */
static enum dtp_code agree(const struct dtp_cuda *cu, bool *yes, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;

	for (const struct dtp_cuda_watch *w = cu->watch; w && !rc; w = w->next)
		if (w->agree)
			rc = w->agree(w->arg, yes, err);
	return rc;
}

/* A graph of all ranks, or r->plain of all ranks; a failure is one that ends the run. */
static enum dtp_code record_together(struct dtp_cuda *cu, struct dtp_recording *r, enum dtp_code (*enqueue)(void *, struct dtp_err *),
				     void *arg, struct dtp_err *err)
{
	struct dtp_err why = DTP_ERR_INIT;
	enum dtp_code rc = record(cu, r, enqueue, arg, &why);
	bool all = !rc;

	if (rc && is_over(cu, rc)) {
		if (err)
			*err = why;
		return rc;
	}
	rc = agree(cu, &all, err);
	if (!all || rc) {
		drop_graph(r);
		never(r, why.code ? why.message : "another rank could not record it");
	}
	return rc;
}

/* Once: why steps are not as fast as they could be. */
static void tell(struct dtp_cuda *cu, const struct dtp_recording *r)
{
	const struct dtp_monitor *mon = cu->options.mon;
	char text[sizeof r->plain + 64];

	if (cu->recording_told || cu->options.graph == DTP_GRAPH_OFF)
		return;
	cu->recording_told = true;
	snprintf(text, sizeof text, "no CUDA graph of a step, each kernel is launched by itself: %s", r->plain);
	mon->note(mon->arg, text);
}

/* ---- the backend's table */

static struct dtp_recording *new_recording(struct dtp_cuda *cu)
{
	struct dtp_recording *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->next = cu->recordings;
	cu->recordings = r;
	if (cu->options.graph == DTP_GRAPH_OFF)
		never(r, "--graph off");
	else if (cu->unrecordable)
		never(r, cu->unrecordable);
	return r;
}

enum dtp_code dtp_cuda_replay(struct dtp_backend *be, struct dtp_recording **at, enum dtp_code (*enqueue)(void *, struct dtp_err *),
			      void *arg, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	struct dtp_recording *r = *at ? *at : new_recording(cu);
	enum dtp_code rc;

	*at = r;
	if (!r)
		return dtp_fail(err, DTP_FAILED, "out of memory for a recording");
	if (!r->done) {
		r->done = true;
		return enqueue(arg, err);
	}
	if (!r->graph && !*r->plain && (rc = record_together(cu, r, enqueue, arg, err)))
		return rc;
	if (r->graph)
		return DTP_CUDA(cudaGraphLaunch(r->graph, cu->stream), err);
	tell(cu, r);
	return enqueue(arg, err);
}

const char *dtp_cuda_replay_refused(struct dtp_backend *be, const struct dtp_recording *r)
{
	(void)be;
	return r->graph ? NULL : *r->plain ? r->plain : "what was done once was not repeated";
}

void dtp_cuda_replay_free(struct dtp_backend *be, struct dtp_recording *r)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	struct dtp_recording **from = &cu->recordings;

	drop_graph(r);
	while (*from != r)
		from = &(*from)->next;
	*from = r->next;
	free(r);
}

void dtp_cuda_forget(struct dtp_cuda *cu)
{
	cudaGraph_t graph = NULL;

	if (cu->recording && !end_recording(cu, &graph, NULL))
		cudaGraphDestroy(graph);
	for (struct dtp_recording *r = cu->recordings; r; r = r->next)
		if (r->graph)
			never(r, "the ranks' communicators have ended");
	dtp_cuda_drop_graphs(cu);
}
