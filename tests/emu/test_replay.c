/* SPDX-License-Identifier: Apache-2.0 */
/* Work that the CUDA backend repeats: as a graph, and what becomes of it where there can be none. */
#include "scenes.h"

#include "../../cuda/cuda.h"

static char said[1024];
static int notes;

static void note(void *unused, const char *text)
{
	(void)unused;
	notes++;
	snprintf(said, sizeof said, "%s", text);
}

enum odd { NOTHING, WAITS, UPLOADS, GROWS, STOPS };

/* x += by * y, x and y [n] F32, and, in between, something that cannot be recorded. */
struct work {
	struct dtp_backend *be;
	struct dtp_tensor x, y, by;
	struct dtp_recording *recording;
	enum odd odd;
	int asked;
};
enum { N = 70 };

static struct dtp_tensor device_floats(struct dtp_backend *be, int64_t n, float value)
{
	struct dtp_err err = DTP_ERR_INIT;
	float v[N];
	void *p;

	for (int i = 0; i < N; i++)
		v[i] = value;
	must(!be->ops->alloc(be, (uint64_t)n * sizeof(float), &p, &err));
	struct dtp_tensor x = dtp_tensor_make(p, DTP_F32, 1, &n);
	must(!be->ops->upload(be, x, v, DTP_F32, &err));
	return x;
}

static struct work new_work(enum odd odd, enum dtp_cuda_graph graph)
{
	static struct dtp_monitor mon;
	const struct dtp_cuda_options options = {.graph = graph, .mon = &mon};
	struct dtp_err err = DTP_ERR_INIT;
	struct work w = {.odd = odd};

	mon = dtp_monitor_none;
	mon.note = note;
	must(!dtp_backend_cuda(DTP_F32, &options, &w.be, &err));
	w.x = device_floats(w.be, N, 1);
	w.y = device_floats(w.be, N, 1);
	w.by = device_floats(w.be, 1, 0);
	return w;
}

static enum dtp_code enqueue(void *arg, struct dtp_err *err)
{
	struct work *w = arg;
	float one = 1;
	void *p;

	w->asked++;
	if (w->be->ops->euler_step(w->be, w->x, w->y, w->by, err))
		return err->code;
	switch (w->odd) {
	case NOTHING: return DTP_OK;
	case WAITS: return w->be->ops->sync(w->be, err);
	case UPLOADS: return w->be->ops->upload(w->be, dtp_narrow(w->y, 0, 0, 1), &one, DTP_F32, err);
	case GROWS: return dtp_cuda_scratch(dtp_cuda_of(w->be), dtp_cuda_of(w->be)->scratch_size + 1, &p, err);
	case STOPS: return w->asked == 2 ? dtp_fail(err, DTP_INTERRUPTED, "stopped") : DTP_OK;
	}
	return DTP_OK;
}

static enum dtp_code again(struct work *w, float by, struct dtp_err *err)
{
	enum dtp_code rc = w->be->ops->upload(w->be, w->by, &by, DTP_F32, err);

	return rc ? rc : w->be->ops->replay(w->be, &w->recording, enqueue, w, err);
}

static void repeat(struct work *w, int times)
{
	struct dtp_err err = DTP_ERR_INIT;
	float x[N], sum = 1;

	for (int i = 0; i < times; i++, sum += (float)i)
		must(!again(w, (float)(i + 1), &err));
	must(!w->be->ops->download(w->be, x, DTP_F32, w->x, &err));
	must(x[0] == sum && x[N - 1] == sum);
}

static const char *refused(const struct work *w)
{
	return w->be->ops->replay_refused(w->be, w->recording);
}

static void end(struct work *w)
{
	w->be->ops->replay_free(w->be, w->recording);
	w->be->ops->free(w->be, w->x.data, N * sizeof(float));
	w->be->ops->free(w->be, w->y.data, N * sizeof(float));
	w->be->ops->free(w->be, w->by.data, sizeof(float));
	w->be->ops->destroy(w->be);
}

/* ---- graphs */

static void work_is_asked_for_twice(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_AUTO);

	repeat(&w, 5);
	must(w.asked == 2 && !refused(&w) && !notes);
	end(&w);
}

static void once_is_no_repetition(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_AUTO);

	repeat(&w, 1);
	must(w.asked == 1 && refused(&w) && !notes);
	end(&w);
}

/* A graph works in scratch that goes where another amount is reserved. */
static void other_scratch_makes_another_graph(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_AUTO);
	struct dtp_err err = DTP_ERR_INIT;
	float x[N];

	must(!w.be->ops->reserve(w.be, 512, &err));
	repeat(&w, 3); /* 1 + 1 + 2 + 3 */
	must(w.asked == 2 && !w.be->ops->reserve(w.be, 512, &err) && !refused(&w));
	must(!w.be->ops->reserve(w.be, 4096, &err) && refused(&w));
	must(!again(&w, 10, &err) && w.asked == 3 && !refused(&w));
	must(!again(&w, 100, &err) && w.asked == 3);
	must(!w.be->ops->download(w.be, x, DTP_F32, w.x, &err) && x[0] == 117);
	end(&w);
}

/* ---- no graphs */

static void graphs_are_off(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_OFF);

	repeat(&w, 5);
	must(w.asked == 5 && !strcmp(refused(&w), "--graph off") && !notes);
	end(&w);
}

static void plain(enum odd odd, const char *why)
{
	struct work w = new_work(odd, DTP_GRAPH_AUTO);

	repeat(&w, 5);
	must(w.asked == 6); /* the recording was tried */
	must(strstr(refused(&w), why) && notes == 1 && strstr(said, why));
	end(&w);
}

static void what_waits_is_not_recorded(void)
{
	plain(WAITS, "a wait for the GPU cannot be part of a CUDA graph");
}

static void what_uploads_is_not_recorded(void)
{
	plain(UPLOADS, "an upload cannot be part of a CUDA graph");
}

static void what_takes_memory_is_not_recorded(void)
{
	plain(GROWS, "another amount of scratch memory cannot be part of a CUDA graph");
}

static void a_stop_is_no_reason_to_try_again(void)
{
	struct work w = new_work(STOPS, DTP_GRAPH_AUTO);
	struct dtp_err err = DTP_ERR_INIT;

	must(!again(&w, 1, &err));
	must(again(&w, 1, &err) == DTP_INTERRUPTED && !strcmp(err.message, "stopped") && w.asked == 2);
	end(&w);
}

/* ---- faults: the second time, that is */

static void begin_fails(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_AUTO);

	repeat(&w, 5);
	must(w.asked == 5 && strstr(said, "cudaStreamBeginCapture: ") && notes == 1);
	end(&w);
}

static void end_fails(void)
{
	plain(NOTHING, "cudaStreamEndCapture: operation failed due to a previous error during capture");
}

static void instantiation_fails(void)
{
	plain(NOTHING, "cudaGraphInstantiate: out of memory (2)");
}

static void kernel_fails_while_recorded(void)
{
	plain(NOTHING, "too many resources requested for launch");
}

static void launch_fails(void)
{
	struct work w = new_work(NOTHING, DTP_GRAPH_AUTO);
	struct dtp_err err = DTP_ERR_INIT;

	must(!again(&w, 1, &err));
	must(!again(&w, 1, &err));
	must(again(&w, 1, &err) == DTP_FAILED && strstr(err.message, "cudaGraphLaunch: ") && strstr(err.message, "replay.c:"));
	end(&w);
}

static const struct scene scenes[] = {
	RIGHT(work_is_asked_for_twice, ALL, NULL),
	RIGHT(once_is_no_repetition, ALL, NULL),
	RIGHT(other_scratch_makes_another_graph, ALL, NULL),
	RIGHT(graphs_are_off, ALL, NULL),
	RIGHT(what_waits_is_not_recorded, ALL, NULL),
	RIGHT(what_uploads_is_not_recorded, ALL, NULL),
	RIGHT(what_takes_memory_is_not_recorded, ALL, NULL),
	RIGHT(a_stop_is_no_reason_to_try_again, ALL, NULL),
	RIGHT(begin_fails, ALL, "DIFFTP_EMU_FAIL=cudaStreamBeginCapture:1"),
	RIGHT(end_fails, ALL, "DIFFTP_EMU_FAIL=cudaStreamEndCapture:1"),
	RIGHT(instantiation_fails, ALL, "DIFFTP_EMU_FAIL=cudaGraphInstantiate:1"),
	RIGHT(kernel_fails_while_recorded, ALL, "DIFFTP_EMU_FAIL=cudaLaunchKernelExC:2"),
	RIGHT(launch_fails, ALL, "DIFFTP_EMU_FAIL=cudaGraphLaunch:2"),
};

int main(void)
{
	return play_all("replay", scenes, sizeof scenes / sizeof scenes[0]);
}
