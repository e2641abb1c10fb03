/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <pthread.h>

struct filled {
	int job;
	char *buf;
};

/* Everything that changes is under the lock; a buffer belongs to whoever took it off one of the two queues. */
struct engine {
	const struct dtp_stream *s;
	pthread_mutex_t lock;
	pthread_cond_t space, ready;
	int next;  /* job to be read next */
	int taken; /* jobs that packers have taken */
	int nfree;
	char *free[DTP_STREAM_MAX_SLOTS];
	int first, nfilled; /* a ring */
	struct filled filled[DTP_STREAM_MAX_SLOTS];
	bool ended; /* by a failure */
	struct dtp_err err;
};

/* With the lock held.  What failed first is what is told. */
static void end(struct engine *e, const struct dtp_err *err)
{
	if (!e->ended)
		e->err = *err;
	e->ended = true;
	pthread_cond_broadcast(&e->space);
	pthread_cond_broadcast(&e->ready);
}

static bool check_stopped(struct engine *e)
{
	struct dtp_err err = DTP_ERR_INIT;

	if (!e->ended && e->s->stopped(e->s->arg)) {
		dtp_fail(&err, DTP_INTERRUPTED, "interrupted");
		end(e, &err);
	}
	return e->ended;
}

static void *read_loop(void *arg)
{
	struct engine *e = arg;

	pthread_mutex_lock(&e->lock);
	for (;;) {
		while (!e->ended && e->next < e->s->njobs && !e->nfree)
			pthread_cond_wait(&e->space, &e->lock);
		if (check_stopped(e) || e->next >= e->s->njobs)
			break;
		struct filled f = {e->next++, e->free[--e->nfree]};
		struct dtp_err err = DTP_ERR_INIT;
		if (e->next == e->s->njobs) /* the other readers wait for nothing */
			pthread_cond_broadcast(&e->space);
		pthread_mutex_unlock(&e->lock);
		enum dtp_code rc = e->s->fill(e->s->arg, f.job, f.buf, &err);
		pthread_mutex_lock(&e->lock);
		if (rc) {
			end(e, &err);
			break;
		}
		e->filled[(e->first + e->nfilled++) % DTP_STREAM_MAX_SLOTS] = f;
		pthread_cond_signal(&e->ready);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

static void *pack_loop(void *arg)
{
	struct engine *e = arg;

	pthread_mutex_lock(&e->lock);
	for (;;) {
		while (!e->ended && !e->nfilled && e->taken < e->s->njobs)
			pthread_cond_wait(&e->ready, &e->lock);
		if (check_stopped(e) || !e->nfilled)
			break;
		struct filled f = e->filled[e->first];
		struct dtp_err err = DTP_ERR_INIT;
		e->first = (e->first + 1) % DTP_STREAM_MAX_SLOTS;
		e->nfilled--;
		if (++e->taken == e->s->njobs) /* the other packers wait for nothing */
			pthread_cond_broadcast(&e->ready);
		pthread_mutex_unlock(&e->lock);
		enum dtp_code rc = e->s->drain(e->s->arg, f.job, f.buf, &err);
		pthread_mutex_lock(&e->lock);
		if (rc) {
			end(e, &err);
			break;
		}
		e->free[e->nfree++] = f.buf;
		pthread_cond_signal(&e->space);
		e->s->progress(e->s->arg, f.job);
	}
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

/* The last of the threads may be missing: the load is slower then, but goes on. */
static int start(struct engine *e, pthread_t *threads, int n, void *(*loop)(void *))
{
	int started = 0;

	while (started < n && !pthread_create(&threads[started], NULL, loop, e))
		started++;
	return started;
}

static void run(struct engine *e)
{
	pthread_t readers[DTP_STREAM_MAX_THREADS], packers[DTP_STREAM_MAX_THREADS];
	int nreaders = start(e, readers, e->s->nreaders, read_loop);
	int npackers = 0;

	if (nreaders) {
		npackers = start(e, packers, e->s->npackers - 1, pack_loop);
		pack_loop(e);
	} else {
		struct dtp_err err = DTP_ERR_INIT;
		dtp_fail(&err, DTP_FAILED, "cannot start a thread that reads");
		end(e, &err);
	}
	for (int i = 0; i < nreaders; i++)
		pthread_join(readers[i], NULL);
	for (int i = 0; i < npackers; i++)
		pthread_join(packers[i], NULL);
}

enum dtp_code dtp_stream_run(const struct dtp_stream *s, struct dtp_err *err)
{
	struct engine e = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .space = PTHREAD_COND_INITIALIZER,
			   .ready = PTHREAD_COND_INITIALIZER, .err = DTP_ERR_INIT};

	if (!s->njobs)
		return DTP_OK;
	for (int i = 0; i < s->nslots; i++)
		e.free[e.nfree++] = s->buffers + (uint64_t)i * s->slot_bytes;
	run(&e);
	pthread_cond_destroy(&e.space);
	pthread_cond_destroy(&e.ready);
	pthread_mutex_destroy(&e.lock);
	return e.ended ? dtp_fail(err, e.err.code, "%s", e.err.message) : DTP_OK;
}
