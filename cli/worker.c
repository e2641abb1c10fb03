/* SPDX-License-Identifier: Apache-2.0 */
#include "worker.h"

#include "clock.h"
#include "control.h"
#include "file.h"
#include "footprints.h"
#include "sizes.h"
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define TICK_MS 150
#define ALIVE_S 0.3 /* the launcher hears from this process at least so often */
#define LEAVE_S 1.0 /* how long the main thread has, once the run is to end */

struct dtp_worker {
	int rank, size, local_rank;
	int patience_ms; /* with a parent that is stopped; 0: for ever */
	int still_ms;    /* how long it has been */
	int fd;      /* to the control server */
	int signals; /* SIGTERM arrives here */
	int wake;    /* ends the reporting thread */
	pthread_t thread;
	struct dtp_monitor mon;
	struct dtp_store store;

	/* The hot path of the monitor touches only these; the reporting thread samples them. */
	atomic_uint_fast64_t beats, done, total;
	atomic_uint_fast64_t taken; /* values that were handed on */
	atomic_int waiting;
	atomic_bool stopped, finishing, leaving;

	pthread_mutex_t sending; /* one message at a time on fd */

	pthread_mutex_t m; /* guards the rest */
	pthread_cond_t changed;
	struct dtp_comm *world;
	char stage[128];
	char why[512];     /* the run is to end */
	bool has_value;    /* the answer to the one GET that may be under way */
	char *value;
	size_t value_len;
};

/* A launcher that is gone is noticed by the reporting thread, which then ends the process: no sender need care. */
static bool say(struct dtp_worker *w, const struct dtp_msg *m)
{
	pthread_mutex_lock(&w->sending);
	bool ok = dtp_msg_send(w->fd, m);
	pthread_mutex_unlock(&w->sending);
	return ok;
}

/* For the reporting thread, which must notice the end of the run whatever happens: true, with `sending` held, if a message can
 * go out without waiting for another thread or for the launcher (which may be stopped). */
static bool free_to_say(struct dtp_worker *w)
{
	struct pollfd p = {.fd = w->fd, .events = POLLOUT};

	if (pthread_mutex_trylock(&w->sending))
		return false;
	if (poll(&p, 1, 0) == 1 && p.revents & POLLOUT)
		return true;
	pthread_mutex_unlock(&w->sending);
	return false;
}

/* ---- the monitor */

static void on_beat(void *arg)
{
	struct dtp_worker *w = arg;

	atomic_fetch_add_explicit(&w->beats, 1, memory_order_relaxed);
}

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
	struct dtp_worker *w = arg;

	atomic_store_explicit(&w->done, done, memory_order_relaxed);
	atomic_store_explicit(&w->total, total, memory_order_relaxed);
	on_beat(w);
}

static void on_waiting(void *arg, bool yes)
{
	struct dtp_worker *w = arg;

	atomic_fetch_add_explicit(&w->waiting, yes ? 1 : -1, memory_order_relaxed);
	on_beat(w);
}

static void on_stage(void *arg, enum dtp_phase phase, const char *text)
{
	struct dtp_worker *w = arg;
	struct dtp_msg m = dtp_msg_text(DTP_MSG_STAGE, text);

	pthread_mutex_lock(&w->m);
	snprintf(w->stage, sizeof w->stage, "%s", text);
	pthread_mutex_unlock(&w->m);
	on_progress(w, 0, 0);
	m.n[0] = phase;
	say(w, &m);
}

static void on_note(void *arg, const char *text)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_NOTE, text);

	say(arg, &m);
}

static void on_warn(void *arg, const char *text)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_WARN, text);

	say(arg, &m);
}

void dtp_worker_preview(struct dtp_worker *w, const uint8_t *rgb, int64_t width, int64_t height)
{
	struct dtp_msg m = {.type = DTP_MSG_PREVIEW, .n = {(uint64_t)width, (uint64_t)height},
			    .text = {{(const char *)rgb, (size_t)(3 * width * height)}}};

	say(w, &m);
}

void dtp_worker_image(struct dtp_worker *w, const char *path, int64_t width, int64_t height, const uint64_t *seed)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_IMAGE, path);

	m.n[0] = (uint64_t)width;
	m.n[1] = (uint64_t)height;
	m.n[2] = seed ? *seed : 0;
	m.n[3] = seed != NULL;
	say(w, &m);
}

void dtp_worker_memory(struct dtp_worker *w, const char *phase, int rank, const struct dtp_footprint *f)
{
	struct dtp_msg m = {.type = DTP_MSG_MEMORY, .n = {(uint64_t)rank}, .text = {{phase, strlen(phase)}, {(const char *)f, sizeof *f}}};

	say(w, &m);
}

static bool on_stopped(void *arg)
{
	struct dtp_worker *w = arg;

	return atomic_load_explicit(&w->stopped, memory_order_relaxed);
}

/* ---- the store */

static enum dtp_code ended(struct dtp_worker *w, struct dtp_err *err)
{
	pthread_mutex_lock(&w->m);
	dtp_fail(err, DTP_FAILED, "the run is ending: %s", w->why[0] ? w->why : "the launcher is gone");
	pthread_mutex_unlock(&w->m);
	if (err)
		err->secondary = true;
	return DTP_FAILED;
}

static enum dtp_code store_set(void *arg, const char *key, const void *val, size_t len, struct dtp_err *err)
{
	struct dtp_worker *w = arg;
	struct dtp_msg m = {.type = DTP_MSG_SET, .text = {{key, strlen(key)}, {val, len}}};

	return say(w, &m) ? DTP_OK : ended(w, err);
}

/* A launcher that is gone ends the process elsewhere. */
void dtp_worker_hand_on(struct dtp_worker *w, const char *key, const void *val, size_t len, int takers)
{
	struct dtp_msg m = {.type = DTP_MSG_SET, .n = {(uint64_t)takers}, .text = {{key, strlen(key)}, {val, len}}};

	say(w, &m);
}

uint64_t dtp_worker_taken(const struct dtp_worker *w)
{
	return atomic_load(&w->taken);
}

/* One at a time: a rank meets others in its main thread only. */
static enum dtp_code store_get(void *arg, const char *key, void **val, size_t *len, struct dtp_err *err)
{
	struct dtp_worker *w = arg;
	struct dtp_msg m = dtp_msg_text(DTP_MSG_GET, key);
	bool got;

	if (!say(w, &m))
		return ended(w, err);
	on_waiting(w, true);
	pthread_mutex_lock(&w->m);
	while (!w->has_value && !atomic_load(&w->stopped))
		pthread_cond_wait(&w->changed, &w->m);
	got = w->has_value;
	*val = w->value;
	*len = w->value_len;
	w->has_value = false;
	w->value = NULL;
	pthread_mutex_unlock(&w->m);
	on_waiting(w, false);
	if (!got)
		return ended(w, err);
	return *val ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for %zu bytes of '%s'", *len, key);
}

static void take_value(struct dtp_worker *w, const struct dtp_msg *m)
{
	pthread_mutex_lock(&w->m);
	free(w->value);
	w->value_len = m->text[1].len;
	w->value = malloc(w->value_len + 1);
	if (w->value)
		memcpy(w->value, m->text[1].p, w->value_len + 1);
	w->has_value = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->m);
}

/* ---- the reporting thread */

_Noreturn static void leave_now(void)
{
	dtp_outfile_cleanup();
	_exit(DTP_FAILED);
}

static void take_abort(struct dtp_worker *w, const char *why)
{
	pthread_mutex_lock(&w->m);
	snprintf(w->why, sizeof w->why, "%s", why);
	atomic_store(&w->stopped, true);
	pthread_cond_broadcast(&w->changed);
	if (w->world)
		w->world->ops->abort(w->world);
	pthread_mutex_unlock(&w->m);
}

static void take_messages(struct dtp_worker *w, struct dtp_inbox *in)
{
	enum dtp_inbox_state st = dtp_inbox_read(in, w->fd);
	struct dtp_msg m;

	while (st == DTP_INBOX_OK && (st = dtp_inbox_next(in, &m)) == DTP_INBOX_OK) {
		if (m.type == DTP_MSG_VALUE)
			take_value(w, &m);
		else if (m.type == DTP_MSG_TAKEN)
			atomic_fetch_add(&w->taken, 1);
		else if (m.type == DTP_MSG_ABORT && !atomic_load(&w->stopped))
			take_abort(w, m.text[0].p);
		else if (m.type == DTP_MSG_FINISH)
			atomic_store(&w->finishing, true);
	}
	if (st == DTP_INBOX_CLOSED && !atomic_load(&w->leaving)) /* the launcher is gone */
		leave_now();
}

/* SIGTERM: from the launcher at its end or at the end of its patience, or from anybody. */
static void take_sigterm(struct dtp_worker *w)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_FAIL, "ended by SIGTERM");

	m.n[0] = DTP_FAILED;
	m.n[1] = true; /* whoever sent it to the whole job means the launcher */
	if (!atomic_load(&w->stopped) && free_to_say(w))
		dtp_msg_send(w->fd, &m);
	leave_now();
}

struct sample {
	uint64_t beats, done, total;
	bool waiting;
	double sent;
};

/* Called with `sending` held: the progress of one stage never follows the message of the next. */
static void send_beat(struct dtp_worker *w, struct sample *last)
{
	struct sample s = {.beats = atomic_load_explicit(&w->beats, memory_order_relaxed),
			   .done = atomic_load_explicit(&w->done, memory_order_relaxed),
			   .total = atomic_load_explicit(&w->total, memory_order_relaxed),
			   .waiting = atomic_load_explicit(&w->waiting, memory_order_relaxed) > 0,
			   .sent = dtp_seconds()};
	struct dtp_msg m = {.type = DTP_MSG_BEAT, .n = {s.beats, s.waiting, s.done, s.total}};

	if (s.beats == last->beats && s.waiting == last->waiting && s.sent - last->sent < ALIVE_S)
		return;
	*last = s;
	dtp_msg_send(w->fd, &m);
}

/* Called every tick: whether the keeper that another launcher started stands still.  One that does so for too long can neither
 * end its rank nor be ended by the job: its rank does both.  Time counts in ticks, so that it does not while this process is
 * stopped too. */
static bool parent_stands_still(struct dtp_worker *w)
{
	pid_t parent = getppid();

	if (!w->patience_ms || !dtp_process_is_stopped(parent)) {
		w->still_ms = 0;
		return false;
	}
	w->still_ms += TICK_MS;
	if (w->still_ms >= w->patience_ms) {
		kill(parent, SIGKILL);
		leave_now();
	}
	return true;
}

static void *report(void *arg)
{
	struct dtp_worker *w = arg;
	struct dtp_inbox in = {0};
	struct sample last = {0};
	double stopped_at = 0, watched = 0;

	for (;;) {
		struct pollfd fds[] = {{.fd = w->fd, .events = POLLIN}, {.fd = w->signals, .events = POLLIN},
				       {.fd = w->wake, .events = POLLIN}};
		poll(fds, 3, TICK_MS);
		if (fds[1].revents)
			take_sigterm(w);
		if (fds[2].revents)
			break;
		if (fds[0].revents)
			take_messages(w, &in);
		if (dtp_seconds() - watched >= TICK_MS / 1000.0) {
			watched = dtp_seconds();
			parent_stands_still(w);
		}
		if (atomic_load(&w->stopped)) {
			if (!stopped_at)
				stopped_at = dtp_seconds();
			else if (dtp_seconds() - stopped_at > LEAVE_S)
				leave_now();
		}
		if (free_to_say(w)) {
			send_beat(w, &last);
			pthread_mutex_unlock(&w->sending);
		}
	}
	dtp_inbox_free(&in);
	return NULL;
}

/* ---- joining and leaving */

static bool number_from(const char *name, int lo, int hi, int *out)
{
	const char *s = getenv(name);
	char *end;
	long v;

	if (!s || !*s)
		return false;
	errno = 0;
	v = strtol(s, &end, 10);
	*out = (int)v;
	return !errno && !*end && v >= lo && v <= hi;
}

bool dtp_worker_is_rank(void)
{
	return getenv(DTP_ENV_FD) != NULL;
}

static enum dtp_code read_environment(struct dtp_worker *w, struct dtp_err *err)
{
	number_from(DTP_ENV_PATIENCE, 1, INT_MAX, &w->patience_ms);
	if (number_from(DTP_ENV_SIZE, 1, DTP_MAX_RANKS, &w->size) && number_from(DTP_ENV_RANK, 0, w->size - 1, &w->rank) &&
	    number_from(DTP_ENV_LOCAL_RANK, 0, w->size - 1, &w->local_rank) &&
	    number_from(DTP_ENV_FD, 0, 1 << 20, &w->fd))
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED,
			"the variables '" DTP_ENV_RANK "', '" DTP_ENV_SIZE "', '" DTP_ENV_LOCAL_RANK "' and '" DTP_ENV_FD
			"' do not fit together: difftp sets them for its own ranks; unset them to start a run");
}

static void report_outcome(struct dtp_worker *w, enum dtp_code code, struct dtp_err *err)
{
	struct dtp_msg m = {.type = DTP_MSG_DONE};

	if (code) {
		bool aborted = atomic_load(&w->stopped);
		pthread_mutex_lock(&w->sending);
		send_beat(w, &(struct sample){0}); /* how far it came */
		pthread_mutex_unlock(&w->sending);
		err->rank = w->rank;
		err->secondary = err->secondary || aborted || (code == DTP_INTERRUPTED && !err->verdict);
		snprintf(err->stage, sizeof err->stage, "%.*s", (int)sizeof err->stage - 1, w->stage);
		m = dtp_msg_text(DTP_MSG_FAIL, err->message);
		m.n[0] = code;
		m.n[1] = err->secondary;
		m.n[2] = err->verdict;
	}
	say(w, &m);
}

static enum dtp_code start_reporting(struct dtp_worker *w, struct dtp_err *err)
{
	char host[64] = "";
	struct dtp_msg m;
	sigset_t term;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &term, NULL); /* also in all threads to come */
	signal(SIGPIPE, SIG_IGN);                /* a lost peer or reader is an error of the call */
	w->signals = signalfd(-1, &term, SFD_CLOEXEC | SFD_NONBLOCK);
	w->wake = eventfd(0, EFD_CLOEXEC);
	gethostname(host, sizeof host - 1);
	m = dtp_msg_text(DTP_MSG_HELLO, host);
	m.n[0] = DTP_CONTROL_VERSION;
	m.n[1] = (uint64_t)w->rank;
	m.n[2] = (uint64_t)getpid();
	fcntl(w->fd, F_SETFD, FD_CLOEXEC);
	bool ready = w->signals >= 0 && w->wake >= 0 && say(w, &m);
	int failed = ready ? pthread_create(&w->thread, NULL, report, w) : errno;
	if (ready && !failed)
		return DTP_OK;
	dtp_fail(err, DTP_FAILED, "rank %d cannot report to its launcher: %s", w->rank, strerror(failed));
	report_outcome(w, DTP_FAILED, err);
	err->code = ready ? DTP_OK : DTP_FAILED;
	return DTP_FAILED;
}

static enum dtp_code join_world(struct dtp_worker *w, struct dtp_err *err)
{
	struct dtp_comm *world;
	enum dtp_code code;

	if (w->size == 1)
		code = dtp_comm_single(&w->mon, &world, err);
	else
		code = dtp_comm_gloo(w->rank, w->size, &w->store, "world", getenv(DTP_ENV_ADDRESS), &w->mon, &world, err);
	if (code == DTP_REFUSED) /* the address was difftp's own choice, not the user's */
		code = err->code = DTP_FAILED;
	if (code)
		return code;
	code = dtp_comm_shared(world, &world, err);
	if (code) {
		dtp_comm_destroy(world);
		return code;
	}
	pthread_mutex_lock(&w->m);
	w->world = world;
	if (atomic_load(&w->stopped)) /* while we were connecting */
		world->ops->abort(world);
	pthread_mutex_unlock(&w->m);
	return DTP_OK;
}

static struct dtp_worker *worker_new(void)
{
	struct dtp_worker *w = calloc(1, sizeof *w);

	if (!w)
		return NULL;
	w->signals = w->wake = -1;
	pthread_mutex_init(&w->sending, NULL);
	pthread_mutex_init(&w->m, NULL);
	pthread_cond_init(&w->changed, NULL);
	w->mon = (struct dtp_monitor){w, on_stage, on_progress, on_beat, on_waiting, on_note, on_warn, on_stopped};
	w->store = (struct dtp_store){w, store_set, store_get};
	return w;
}

static void worker_free(struct dtp_worker *w)
{
	if (w->signals >= 0)
		close(w->signals);
	if (w->wake >= 0)
		close(w->wake);
	free(w->value);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->m);
	pthread_mutex_destroy(&w->sending);
	free(w);
}

enum dtp_code dtp_worker_open(struct dtp_worker **out, struct dtp_err *err)
{
	struct dtp_worker *w = worker_new();
	enum dtp_code code;

	*out = NULL;
	if (!w)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	code = read_environment(w, err);
	if (!code)
		code = start_reporting(w, err);
	if (code) {
		worker_free(w);
		return code;
	}
	on_stage(w, DTP_PHASE_RENDEZVOUS, "rendezvous");
	code = join_world(w, err);
	if (code) {
		dtp_worker_close(w, code, err);
		err->code = DTP_OK;
		return code;
	}
	*out = w;
	return DTP_OK;
}

int dtp_worker_close(struct dtp_worker *w, enum dtp_code code, struct dtp_err *err)
{
	struct dtp_err none = DTP_ERR_INIT;
	struct dtp_comm *world;
	uint64_t one = 1;

	/* First of all the cause: the end of our connections makes the others fail too. */
	report_outcome(w, code, err ? err : &none);
	atomic_store(&w->leaving, true);
	pthread_mutex_lock(&w->m);
	world = w->world;
	w->world = NULL;
	pthread_mutex_unlock(&w->m);
	dtp_comm_destroy(world);
	if (write(w->wake, &one, sizeof one) == sizeof one)
		pthread_join(w->thread, NULL);
	while (parent_stands_still(w)) /* it could not tell the outcome */
		poll(NULL, 0, TICK_MS);
	close(w->fd);
	worker_free(w);
	return code;
}

int dtp_worker_rank(const struct dtp_worker *w)
{
	return w->rank;
}

int dtp_worker_size(const struct dtp_worker *w)
{
	return w->size;
}

int dtp_worker_local_rank(const struct dtp_worker *w)
{
	return w->local_rank;
}

bool dtp_worker_finishing(const struct dtp_worker *w)
{
	return atomic_load_explicit(&w->finishing, memory_order_relaxed);
}

/* "0,1,4,"; one that is not set holds all. */
static bool list_holds(const char *name, int rank)
{
	const char *s = getenv(name);
	char *end;

	if (!s)
		return true;
	for (; *s; s = *end ? end + 1 : end)
		if (strtol(s, &end, 10) == rank)
			return true;
	return false;
}

bool dtp_worker_shares_host(const struct dtp_worker *w, int rank)
{
	return rank >= 0 && rank < w->size && list_holds(DTP_ENV_HOST, rank);
}

bool dtp_worker_shares_processors(const struct dtp_worker *w, int rank)
{
	return rank >= 0 && rank < w->size && list_holds(DTP_ENV_SHARERS, rank);
}

struct dtp_comm *dtp_worker_world(const struct dtp_worker *w)
{
	return w->world;
}

const struct dtp_monitor *dtp_worker_monitor(const struct dtp_worker *w)
{
	return &w->mon;
}

const struct dtp_store *dtp_worker_store(const struct dtp_worker *w)
{
	return &w->store;
}
