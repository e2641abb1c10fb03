/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include "children.h"
#include "clock.h"
#include "control.h"
#include "footprints.h"
#include "gather.h"
#include "pipeline.h"
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 200
#define HELD_UP_S 1.0  /* a tick that took longer: this process was stopped or starved */
#define SAME_S 0.5     /* two requests of two keepers are one */
#define GIVE_UP_S 2.7  /* after the verdict: a keeper that has not ended its rank by then does not answer */

struct job {
	const struct dtp_launch *opts;
	struct dtp_children children;
	struct dtp_server *server;
	struct dtp_supervisor sup;
	struct pollfd *fds; /* the server's, the signals, then the children's */
	struct dtp_signals signals;
	double finishing; /* since when it has been asked to end in its own time; 0: not */
	bool ending;
	bool given_up; /* by the others, while this process stood still: they have said so */
	double ending_since, pinged;
};

double dtp_launch_timeout(const struct dtp_launch *opts)
{
	return opts->timeout_s > 0 ? opts->timeout_s : DTP_TIMEOUT_DEFAULT;
}

/* ---- what the ranks say */

static void emit_event(struct job *j, const struct dtp_event *e)
{
	bool line = e->kind == DTP_EVENT_STDOUT || e->kind == DTP_EVENT_STDERR;

	if (j->ending && !line)
		return; /* nothing that a rank does now is progress */
	if (j->opts->on_event) {
		j->opts->on_event(j->opts->arg, e);
	} else if (line || e->kind == DTP_EVENT_NOTE || e->kind == DTP_EVENT_WARN) {
		FILE *f = e->kind == DTP_EVENT_STDOUT ? stdout : stderr;
		fprintf(f, "[rank %d] %s\n", e->rank, e->text);
		fflush(f);
	}
}

static void emit(struct job *j, int rank, enum dtp_event_kind kind, const char *text)
{
	const struct dtp_watched *w = &j->sup.ranks[rank];
	struct dtp_event e = {.kind = kind, .rank = rank, .phase = w->phase, .text = text, .done = w->done, .total = w->total};

	emit_event(j, &e);
}

static void emit_preview(struct job *j, int rank, const struct dtp_msg *m)
{
	bool sound = m->n[0] <= DTP_MAX_SIDE && m->n[1] <= DTP_MAX_SIDE && m->text[0].len == 3 * m->n[0] * m->n[1];

	if (sound)
		emit_event(j, &(struct dtp_event){.kind = DTP_EVENT_PREVIEW, .rank = rank, .width = (int)m->n[0], .height = (int)m->n[1],
						  .rgb = (const uint8_t *)m->text[0].p});
}

static void emit_image(struct job *j, int rank, const struct dtp_msg *m)
{
	emit_event(j, &(struct dtp_event){.kind = DTP_EVENT_IMAGE, .rank = rank, .text = m->text[0].p, .width = (int)m->n[0],
					  .height = (int)m->n[1], .has_seed = m->n[3], .seed = m->n[2]});
}

static void emit_memory(struct job *j, const struct dtp_msg *m)
{
	struct dtp_footprint f;

	if (m->text[1].len != sizeof f)
		return;
	memcpy(&f, m->text[1].p, sizeof f); /* messages are not aligned */
	emit_event(j, &(struct dtp_event){.kind = DTP_EVENT_MEMORY, .rank = (int)m->n[0], .text = m->text[0].p, .memory = &f});
}

/* A process that comes once all ranks are there. */
static void turn_away(struct job *j, int peer, const struct dtp_msg *m)
{
	char text[160];
	struct dtp_msg answer;

	if (m->type != DTP_MSG_JOIN)
		return;
	snprintf(text, sizeof text, "rank %llu of this job is there already", (unsigned long long)m->n[1]);
	answer = dtp_msg_text(DTP_MSG_ABORT, text);
	answer.n[0] = DTP_REFUSED;
	answer.n[1] = true; /* nobody else says so */
	dtp_server_send(j->server, peer, &answer);
}

/* The first SIGINT, where the ranks may finish what they are at. */
static void ask_to_finish(struct job *j)
{
	struct dtp_msg m = {.type = DTP_MSG_FINISH};

	j->finishing = dtp_seconds();
	emit(j, 0, DTP_EVENT_NOTE, "interrupted: finishing the image at hand; interrupt again to end now");
	for (int r = 0; r < j->opts->nranks; r++)
		dtp_server_send(j->server, r, &m);
}

/* This process has been asked to end, or another keeper has.  gently: by SIGINT. */
static void take_request(struct job *j, bool gently)
{
	if (gently && j->opts->may_finish && !j->finishing && !j->ending) {
		ask_to_finish(j);
		return;
	}
	/* A terminal sends one to every keeper of this host. */
	if (gently && j->opts->gathering && dtp_seconds() - j->finishing < SAME_S)
		return;
	if (j->opts->gathering)
		dtp_supervisor_asked(&j->sup, dtp_seconds());
	else
		dtp_supervisor_end(&j->sup, DTP_INTERRUPTED, "interrupted");
}

/* Asked twice: no more time for the ranks. */
static void take_signals(struct job *j)
{
	bool gently;
	int n = dtp_signals_take(&j->signals, &gently);

	if (n && j->ending)
		j->children.ending_since -= GIVE_UP_S;
	if (n)
		take_request(j, gently && n == 1);
}

static void on_message(void *arg, int rank, const struct dtp_msg *m)
{
	struct job *j = arg;

	if (rank >= j->opts->nranks) {
		turn_away(j, rank, m);
		return;
	}
	dtp_supervisor_message(&j->sup, rank, m, dtp_seconds());
	if (m->type == DTP_MSG_SIGNAL)
		take_request(j, m->n[0]);
	else if (m->type == DTP_MSG_STAGE)
		emit(j, rank, DTP_EVENT_STAGE, m->text[0].p);
	else if (m->type == DTP_MSG_BEAT)
		emit(j, rank, DTP_EVENT_PROGRESS, NULL);
	else if (m->type == DTP_MSG_NOTE)
		emit(j, rank, DTP_EVENT_NOTE, m->text[0].p);
	else if (m->type == DTP_MSG_WARN)
		emit(j, rank, DTP_EVENT_WARN, m->text[0].p);
	else if (m->type == DTP_MSG_PREVIEW)
		emit_preview(j, rank, m);
	else if (m->type == DTP_MSG_IMAGE)
		emit_image(j, rank, m);
	else if (m->type == DTP_MSG_MEMORY)
		emit_memory(j, m);
}

static void on_closed(void *arg, int rank)
{
	struct job *j = arg;

	dtp_supervisor_closed(&j->sup, rank, dtp_seconds());
}

static void on_line(void *arg, int rank, enum dtp_event_kind kind, const char *text)
{
	emit(arg, rank, kind, text);
}

static void on_last_words(void *arg, int rank)
{
	struct job *j = arg;

	dtp_server_drain(j->server, rank);
}

static void on_exited(void *arg, int rank, int status)
{
	struct job *j = arg;

	dtp_supervisor_exited(&j->sup, rank, status, dtp_seconds());
}

/* ---- ending */

static void end_job(struct job *j, double now)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_ABORT, j->sup.err.message);

	m.n[0] = j->sup.err.code;
	j->ending = true;
	j->ending_since = now;
	dtp_server_send_all(j->server, &m);
	dtp_children_end(&j->children, now);
}

/* ---- the loop */

/* The keepers hear that this process is alive, and what to say should it not be. */
static void ping(struct job *j, double now)
{
	const struct dtp_watched *first = &j->sup.ranks[0];
	struct dtp_msg m = {.type = DTP_MSG_PING, .n = {1},
		.text = {{first->host, strlen(first->host)}, {first->stage, strlen(first->stage)}}};

	if (!j->opts->gathering || now - j->pinged < DTP_PING_S)
		return;
	j->pinged = now;
	while ((int)m.n[0] < j->opts->nranks && !dtp_server_has(j->server, (int)m.n[0]))
		m.n[0]++;
	for (int r = 1; r < j->opts->nranks; r++)
		dtp_server_send(j->server, r, &m);
}

static void check_parent(struct job *j)
{
	char why[96];
	struct dtp_msg m;

	if (!dtp_children_orphaned(&j->children, why, sizeof why))
		return;
	m = dtp_msg_text(DTP_MSG_FAIL, why);
	m.n[0] = DTP_FAILED;
	dtp_supervisor_message(&j->sup, 0, &m, dtp_seconds());
}

static void tick(struct job *j)
{
	int n = dtp_server_entries(j->server);

	dtp_server_poll(j->server, j->fds);
	j->fds[n] = (struct pollfd){.fd = j->signals.fd, .events = POLLIN};
	dtp_children_poll(&j->children, j->fds + n + 1);
	poll(j->fds, (nfds_t)(n + 1 + 2 * j->children.n), j->ending ? TICK_MS / 4 : TICK_MS);
	dtp_server_handle(j->server, j->fds);
	take_signals(j);
	dtp_children_handle(&j->children, j->fds + n + 1);
	dtp_children_reap(&j->children);
	check_parent(j);
	ping(j, dtp_seconds());
}

/* Whether any rank still runs, as far as can be known. */
static bool goes_on(const struct job *j, double now)
{
	if (dtp_children_alive(&j->children))
		return true;
	for (int r = 1; j->opts->gathering && r < j->opts->nranks; r++)
		if (!j->sup.ranks[r].ended && !(j->ending && now - j->ending_since > GIVE_UP_S))
			return true;
	return false;
}

/* After a tick that took so long: whether a keeper has left meanwhile that would have waited for this process. */
static bool was_given_up(const struct job *j, double seconds)
{
	if (!j->opts->gathering || seconds < dtp_launch_timeout(j->opts))
		return false;
	for (int r = 1; r < j->opts->nranks; r++)
		if (j->sup.ranks[r].closed && !j->sup.ranks[r].reported_end)
			return true;
	return false;
}

static void watch(struct job *j)
{
	double last = dtp_seconds(), now = last;

	while (goes_on(j, now)) {
		tick(j);
		now = dtp_seconds();
		if (now - last > HELD_UP_S) {
			dtp_supervisor_excuse(&j->sup, now - last, now);
			j->given_up = j->given_up || was_given_up(j, now - last);
			j->ending_since += now - last;
			j->children.ending_since += now - last;
		}
		last = now;
		if (!j->ending && dtp_supervisor_verdict(&j->sup, now))
			end_job(j, now);
		if (j->ending)
			dtp_children_escalate(&j->children, now);
	}
	/* The last to end may have left a suspicion that nothing better came for. */
	j->sup.final = j->sup.failed;
}

/* ---- */

/* A standard descriptor that is closed must not become a channel: writing to it keeps failing, as it would have. */
static void occupy_standard_fds(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
			return;
}

static enum dtp_code prepare(struct job *j, struct dtp_err *err)
{
	struct dtp_gathering *g = j->opts->gathering;
	int n = j->opts->nranks;
	struct dtp_server_events ev = {j, on_message, on_closed, false};

	j->children = (struct dtp_children){.opts = j->opts, .signals = &j->signals, .arg = j, .line = on_line,
		.last_words = on_last_words, .exited = on_exited};
	if (g) {
		j->signals = g->signals;
		j->server = g->server;
		dtp_server_events(j->server, &ev);
	} else {
		occupy_standard_fds();
		j->server = dtp_server_new(n, &ev);
	}
	if ((!g && !dtp_signals_open(&j->signals)) || !j->server || !dtp_children_init(&j->children, 0, g ? 1 : n) ||
	    !dtp_supervisor_init(&j->sup, n, dtp_launch_timeout(j->opts), dtp_seconds()))
		return dtp_fail(err, DTP_FAILED, "cannot watch %d ranks: %s", n, strerror(errno));
	j->fds = calloc((size_t)(dtp_server_entries(j->server) + 1 + 2 * n), sizeof *j->fds);
	if (!j->fds)
		return dtp_fail(err, DTP_FAILED, "cannot watch %d ranks: %s", n, strerror(errno));
	for (int r = 1; g && r < n; r++)
		dtp_supervisor_elsewhere(&j->sup, r, &g->guests[0], &g->guests[r]);
	return DTP_OK;
}

static enum dtp_code start_ranks(struct job *j, struct dtp_err *err)
{
	fflush(NULL); /* what is buffered is not the ranks' to write */
	for (int i = 0; i < j->children.n; i++) {
		int control;
		if (dtp_children_start(&j->children, i, &control, err))
			return err->code;
		j->sup.ranks[i].pid = j->children.list[i].pid;
		dtp_server_add(j->server, i, control);
	}
	return DTP_OK;
}

static void clean_up(struct job *j)
{
	struct dtp_msg end = {.type = DTP_MSG_END, .n = {j->sup.err.code}};

	dtp_children_free(&j->children);
	if (j->opts->gathering) {
		dtp_server_send_all(j->server, &end);
		dtp_server_flush(j->server, 1);
	} else {
		dtp_server_free(j->server);
		dtp_signals_close(&j->signals, true);
	}
	dtp_supervisor_free(&j->sup);
	free(j->fds);
}

enum dtp_code dtp_launch(const struct dtp_launch *opts, struct dtp_err *err)
{
	struct job j = {.opts = opts, .signals.fd = -1};
	enum dtp_code code = prepare(&j, err);

	if (!code) {
		struct dtp_err start = DTP_ERR_INIT;
		code = start_ranks(&j, &start);
		if (code)
			dtp_supervisor_end(&j.sup, code, start.message);
		watch(&j);
		code = j.sup.err.code;
		if (code && err)
			*err = j.sup.err;
		if (j.given_up && err)
			err->code = DTP_OK;
	}
	clean_up(&j);
	return code;
}
