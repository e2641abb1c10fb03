/* SPDX-License-Identifier: Apache-2.0 */
/* The engine that moves panels between threads: every job once, whatever fails, no thread left, no deadlock. */
#include "stream.h"
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define JOBS 300

struct work {
	struct dtp_stream s;
	int filled[JOBS], drained[JOBS], progressed;
	_Atomic int in_use, most_in_use; /* buffers */
	int fail_fill, fail_drain, stop_at; /* job; -1: none */
};

static enum dtp_code fill(void *arg, int job, void *buf, struct dtp_err *err)
{
	struct work *w = arg;
	int now = atomic_fetch_add(&w->in_use, 1) + 1, most = w->most_in_use;

	while (now > most && !atomic_compare_exchange_weak(&w->most_in_use, &most, now))
		;
	w->filled[job]++;
	memset(buf, job & 255, w->s.slot_bytes);
	if (job % 7 == 0)
		sched_yield();
	return job == w->fail_fill ? dtp_fail(err, DTP_FAILED, "fill of job %d", job) : DTP_OK;
}

static enum dtp_code drain(void *arg, int job, void *buf, struct dtp_err *err)
{
	struct work *w = arg;
	const unsigned char *p = buf;

	w->drained[job]++;
	for (uint64_t i = 0; i < w->s.slot_bytes; i++)
		if (p[i] != (job & 255))
			return dtp_fail(err, DTP_FAILED, "job %d: another job's bytes", job);
	if (job % 5 == 0)
		sched_yield();
	atomic_fetch_sub(&w->in_use, 1);
	return job == w->fail_drain ? dtp_fail(err, DTP_REFUSED, "drain of job %d", job) : DTP_OK;
}

static void progress(void *arg, int job)
{
	(void)job;
	((struct work *)arg)->progressed++;
}

static bool stopped(void *arg)
{
	struct work *w = arg;
	return w->stop_at >= 0 && w->progressed >= w->stop_at;
}

static char buffers[DTP_STREAM_MAX_SLOTS * 1000];

static void start(struct work *w, int njobs, int nslots, int nreaders, int npackers)
{
	*w = (struct work){.fail_fill = -1, .fail_drain = -1, .stop_at = -1};
	w->s = (struct dtp_stream){njobs, 1000, nslots, buffers, nreaders, npackers, w, fill, drain, progress, stopped};
}

static const int shapes[][3] = {{1, 1, 1}, {1, 4, 3}, {8, 3, 1}, {4, 2, 4}, {DTP_STREAM_MAX_SLOTS, 4, 4}};
#define NSHAPES (sizeof shapes / sizeof *shapes)

static void stream_every_job_once(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	static struct work w;

	(void)state;
	for (size_t i = 0; i < NSHAPES; i++)
		for (int n = 0; n <= JOBS; n += n < 3 ? 1 : 99) {
			start(&w, n, shapes[i][0], shapes[i][1], shapes[i][2]);
			assert_int_equal(dtp_stream_run(&w.s, &err), DTP_OK);
			for (int j = 0; j < n; j++)
				assert_true(w.filled[j] == 1 && w.drained[j] == 1);
			assert_int_equal(w.progressed, n);
			assert_true(w.most_in_use <= shapes[i][0]);
		}
}

static void stream_first_failure_told(void **state)
{
	static struct work w;

	(void)state;
	for (size_t i = 0; i < NSHAPES; i++)
		for (int j = 0; j < JOBS; j += 60) {
			struct dtp_err err = DTP_ERR_INIT;
			char text[32];
			start(&w, JOBS, shapes[i][0], shapes[i][1], shapes[i][2]);
			w.fail_fill = j;
			assert_int_equal(dtp_stream_run(&w.s, &err), DTP_FAILED);
			snprintf(text, sizeof text, "fill of job %d", j);
			assert_string_equal(err.message, text);
			assert_int_equal(w.drained[j], 0);
			start(&w, JOBS, shapes[i][0], shapes[i][1], shapes[i][2]);
			w.fail_drain = j;
			assert_int_equal(dtp_stream_run(&w.s, &err), DTP_REFUSED);
			snprintf(text, sizeof text, "drain of job %d", j);
			assert_string_equal(err.message, text);
		}
}

static void stream_stops_when_told(void **state)
{
	static struct work w;

	(void)state;
	for (size_t i = 0; i < NSHAPES; i++)
		for (int at = 0; at < JOBS; at += 50) {
			struct dtp_err err = DTP_ERR_INIT;
			start(&w, JOBS, shapes[i][0], shapes[i][1], shapes[i][2]);
			w.stop_at = at;
			assert_int_equal(dtp_stream_run(&w.s, &err), DTP_INTERRUPTED);
			/* what was under way in other packers may still come */
			assert_in_range(w.progressed, at, at + shapes[i][2]);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stream_every_job_once),
		cmocka_unit_test(stream_first_failure_told),
		cmocka_unit_test(stream_stops_when_told),
	};
	alarm(120); /* a deadlock must not last */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
