/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline's run against the whole model's: both are the ordinary run of the pipeline, watched. */
#include "verify_internal.h"

#include "pipeline_internal.h"

/* The whole model's run beside the ranks' own, which speaks for both: it tells nobody what it does, but its heartbeats count, and
 * it stops with the other. */
struct alone {
	const struct dtp_verify_job *job;
	struct dtp_monitor mon;
};

static void alone_beat(void *arg)
{
	const struct dtp_monitor *mon = ((struct alone *)arg)->job->mon;
	mon->beat(mon->arg);
}

static void alone_progress(void *arg, uint64_t done, uint64_t total)
{
	(void)done, (void)total;
	alone_beat(arg);
}

static bool alone_stopped(void *arg)
{
	const struct dtp_monitor *mon = ((struct alone *)arg)->job->mon;
	return mon->stopped(mon->arg);
}

/* In the thread: as the only rank of a mesh of its own. */
static enum dtp_code run_alone(void *arg, const struct dtp_observer *o, struct dtp_err *err)
{
	static const int sizes[DTP_MESH_DIMS] = {1, 1, 1, 1};
	struct alone *a = arg;
	struct dtp_pipeline *p = a->job->whole;
	struct dtp_mesh mesh = {0};
	struct dtp_comm *one;

	if (dtp_comm_single(&a->mon, &one, err))
		return err->code;
	if (!dtp_mesh_make(one, sizes, &mesh, err)) {
		p->observer = o;
		p->streamed = true;
		dtp_pipeline_run(p, a->job->request, a->job->whole_backend, &mesh, &a->mon, a->job->node_threads, dtp_verify_no_image, NULL,
				 err);
		p->observer = NULL;
	}
	dtp_mesh_free(&mesh);
	dtp_comm_destroy(one);
	return err->code;
}

static enum dtp_code compare(const struct dtp_verify_job *job, struct dtp_whole *whole, struct dtp_verify_report *report,
			     struct dtp_err *err)
{
	struct dtp_verify *v;
	struct dtp_comm *tp = job->mesh->dim[DTP_MESH_TP];

	if (dtp_verify_new(&job->options, tp, job->backend, whole, job->whole_backend, report, &v, err))
		return err->code;
	job->pipeline->observer = dtp_verify_observer(v);
	dtp_pipeline_run(job->pipeline, job->request, job->backend, job->mesh, job->mon, job->node_threads, dtp_verify_no_image, NULL, err);
	job->pipeline->observer = NULL;
	dtp_verify_free(v);
	return err->code;
}

enum dtp_code dtp_verify_run(const struct dtp_verify_job *job, struct dtp_verify_report *report, struct dtp_err *err)
{
	struct alone alone = {job, dtp_monitor_none};
	struct dtp_whole_source sources[DTP_COMPONENTS];
	struct dtp_whole *whole = NULL;
	struct dtp_point event;

	*report = (struct dtp_verify_report){0};
	alone.mon.arg = &alone;
	alone.mon.progress = alone_progress;
	alone.mon.beat = alone_beat;
	alone.mon.stopped = alone_stopped;
	if (job->whole) {
		for (int i = 0; i < DTP_VAE; i++) {
			struct dtp_component *c = &job->whole->component[i];
			sources[i] = (struct dtp_whole_source){c->tree, &c->st, c->prefix};
		}
		struct dtp_whole_job other = {run_alone, &alone, sources, DTP_VAE, job->options.free_run};
		if (dtp_whole_start(&other, &whole, err))
			return err->code;
	}
	compare(job, whole, report, err);
	if (whole && !err->code) {
		if (!dtp_whole_next(whole, &event, err) && event.kind != DTP_POINT_END)
			dtp_fail(err, DTP_FAILED, "internal error: one rank computes more than the ranks together");
		report->whole = dtp_whole_stats(whole);
	}
	dtp_whole_stop(whole);
	return err->code;
}
