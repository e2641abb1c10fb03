/* SPDX-License-Identifier: Apache-2.0 */
#include "member.h"

#include "told.h"
#include "children.h"
#include "clock.h"
#include "control.h"
#include "supervise.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UP, CHILD, PEERS }; /* of its relay: rank 0's keeper, and the rank */

#define TICK_MS 200
#define RETRY_MS 50    /* between two attempts to find rank 0 */
#define HELD_UP_S 1.0
#define FAREWELL_S 3.0 /* for rank 0's keeper to print the reason and end */

struct dtp_member {
	struct dtp_server *relay;
	struct pollfd *fds; /* the relay's, and the signals */
	struct dtp_signals signals;
	struct dtp_seat seat;
	bool seated;
	double timeout;
	/* of rank 0's keeper, as far as it has said */
	double heard;
	bool begun;  /* it watches; before, it may still be reading the model's headers from a slow disk */
	bool speaks; /* this one, should that one be lost */
	bool unreachable; /* nor does its host take what is sent */
	char host[64], stage[128];
	/* how it ends */
	bool told, quiet; /* quiet: somebody else prints why */
	bool alone;       /* rank 0's keeper is lost: it need not be waited for */
	struct dtp_err err;

	struct dtp_children children;
	double said; /* that it is alive */
	long long oom_kills; /* when the rank began */
	double asked; /* to end, by a signal; 0: not */
	double farewell;
};

/* ---- what comes from rank 0's keeper */

static void take_ping(struct dtp_member *m, const struct dtp_msg *msg)
{
	m->begun = m->seated;
	m->speaks = (int)msg->n[0] == m->seat.rank;
	snprintf(m->host, sizeof m->host, "%s", msg->text[0].p);
	snprintf(m->stage, sizeof m->stage, "%s", msg->text[1].p);
}

static void finish(struct dtp_member *m, enum dtp_code code, const char *why, bool quiet)
{
	if (m->told)
		return;
	m->told = true;
	m->quiet = quiet;
	m->err.code = code;
	if (code)
		dtp_fail(&m->err, code, "%s", why);
	dtp_children_end(&m->children, dtp_seconds());
}

static void from_above(struct dtp_member *m, const struct dtp_msg *msg)
{
	m->heard = dtp_seconds();
	switch (msg->type) {
	case DTP_MSG_SEAT:
		m->seated = dtp_seat_read(&m->seat, msg);
		break;
	case DTP_MSG_PING:
		take_ping(m, msg);
		break;
	case DTP_MSG_ABORT:
		finish(m, (enum dtp_code)msg->n[0], msg->text[0].p, !msg->n[1]);
		dtp_server_send(m->relay, CHILD, msg);
		break;
	case DTP_MSG_END:
		finish(m, (enum dtp_code)msg->n[0], "", true);
		break;
	case DTP_MSG_VALUE:
	case DTP_MSG_TAKEN:
	case DTP_MSG_FINISH:
		dtp_server_send(m->relay, CHILD, msg);
		break;
	default:
		break;
	}
}

static void on_message(void *arg, int peer, const struct dtp_msg *msg)
{
	struct dtp_member *m = arg;

	if (peer == UP)
		from_above(m, msg);
	else
		dtp_server_send(m->relay, UP, msg);
}

/* The job has lost the process that watches over it. */
static void lost(struct dtp_member *m, const char *what)
{
	char text[512];

	snprintf(text, sizeof text, "rank 0 on %s %s in '%s'", m->host, what, m->stage);
	m->alone = true;
	/* Where the network is gone too, each host speaks for itself. */
	finish(m, DTP_FAILED, text, !m->speaks && !(m->unreachable && m->seat.local_rank == 0));
}

static void on_closed(void *arg, int peer)
{
	struct dtp_member *m = arg;

	if (peer == UP)
		lost(m, m->unreachable ? "cannot be reached any more" : "ended without saying why");
}

static void check_silence(struct dtp_member *m, double now)
{
	if (m->told || now - m->heard < m->timeout + DTP_SLACK_S)
		return;
	bool stopped = m->seat.first_pid && dtp_process_is_stopped(m->seat.first_pid);
	double patience = m->seated && !m->begun && !stopped && m->timeout < DTP_START_S ? DTP_START_S : m->timeout;
	char what[128];

	if (now - m->heard < patience + DTP_SLACK_S)
		return;
	snprintf(what, sizeof what, "made no progress for %.0f seconds (its %s)", now - m->heard,
		 stopped ? "process is stopped (SIGSTOP)" : m->unreachable ? "host cannot be reached" : "process does not answer");
	lost(m, what);
}

/* ---- joining */

static enum dtp_code find_first(struct dtp_member *m, struct dtp_meeting *meeting, int rank, int size, struct dtp_err *err)
{
	double until = dtp_seconds() + m->timeout;
	char why[256] = "";
	int fd;

	while ((fd = dtp_meeting_try(meeting, why, sizeof why)) < 0) {
		if (dtp_seconds() > until) {
			dtp_fail(err, DTP_FAILED,
				 "rank 0 has not come within %g seconds (--timeout) to where rank %d of %d waits for it: %s: %s", m->timeout,
				 rank, size, meeting->text, why);
			err->secondary = true;
			return err->code;
		}
		poll(NULL, 0, RETRY_MS);
	}
	dtp_server_add(m->relay, UP, fd);
	return DTP_OK;
}

static enum dtp_code introduce(struct dtp_member *m, const struct dtp_place *place, const struct dtp_args *args,
			       struct dtp_err *err)
{
	struct dtp_guest me;
	char buf[sizeof me];

	dtp_guest_self(&me);
	me.rank = place->rank;
	me.size = place->size;
	dtp_socket_address(dtp_server_socket(m->relay, UP), me.address, sizeof me.address);
	me.args = dtp_told_record(args, &me.args_len);
	if (!me.args)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	struct dtp_msg join = dtp_guest_message(&me, buf, sizeof buf);
	dtp_server_send(m->relay, UP, &join);
	free(me.args);
	return DTP_OK;
}

static void tick(struct dtp_member *m)
{
	int n = dtp_server_entries(m->relay);

	dtp_server_poll(m->relay, m->fds);
	m->fds[n] = (struct pollfd){.fd = m->signals.fd, .events = POLLIN};
	poll(m->fds, (nfds_t)n + 1, m->told ? TICK_MS / 4 : TICK_MS);
	dtp_server_handle(m->relay, m->fds);
}

/* The one that prints the reason ends then, and takes the connection with it. */
static void wait_for_farewell(struct dtp_member *m)
{
	double until = dtp_seconds() + FAREWELL_S;

	while (dtp_server_has(m->relay, UP) && !m->alone && dtp_seconds() < until)
		tick(m);
}

static enum dtp_code outcome(struct dtp_member *m, struct dtp_err *err)
{
	*err = m->err;
	if (m->quiet)
		err->code = DTP_OK;
	return m->err.code;
}

enum dtp_code dtp_member_join(struct dtp_member **out, const struct dtp_place *place, struct dtp_meeting *meeting,
			      const struct dtp_args *args, double timeout, struct dtp_err *err)
{
	struct dtp_member *m = calloc(1, sizeof *m);
	struct dtp_server_events ev = {m, on_message, on_closed, true};

	*out = m;
	if (m)
		m->signals.fd = -1;
	if (!m || !(m->relay = dtp_server_new(PEERS, &ev)) ||
	    !(m->fds = calloc((size_t)dtp_server_entries(m->relay) + 1, sizeof *m->fds)))
		return dtp_fail(err, DTP_FAILED, "out of memory");
	m->timeout = timeout;
	m->seat.rank = place->rank;
	m->err = (struct dtp_err)DTP_ERR_INIT;
	m->speaks = true; /* until it is known who does */
	snprintf(m->host, sizeof m->host, "another host");
	snprintf(m->stage, sizeof m->stage, "rendezvous");
	if (find_first(m, meeting, place->rank, place->size, err) || introduce(m, place, args, err))
		return err->code;
	m->heard = dtp_seconds();
	while (!m->seated && !m->told) {
		tick(m);
		check_silence(m, dtp_seconds());
	}
	if (!m->told)
		return DTP_OK;
	wait_for_farewell(m);
	return outcome(m, err);
}

const struct dtp_seat *dtp_member_seat(const struct dtp_member *m)
{
	return &m->seat;
}

/* ---- keeping the rank */

static void on_last_words(void *arg, int rank)
{
	struct dtp_member *m = arg;

	(void)rank;
	dtp_server_drain(m->relay, CHILD);
}

static void on_exited(void *arg, int rank, int status)
{
	struct dtp_member *m = arg;
	struct dtp_msg msg = dtp_msg_text(DTP_MSG_EXITED, dtp_status_hint(m->oom_kills, status));

	(void)rank;
	msg.n[0] = (uint64_t)status;
	dtp_server_send(m->relay, UP, &msg);
}

static void say_alive(struct dtp_member *m, double now)
{
	struct dtp_msg msg = {.type = DTP_MSG_ALIVE};

	if (now - m->said < DTP_PING_S)
		return;
	m->said = now;
	if (dtp_server_has(m->relay, UP))
		m->unreachable = dtp_socket_unreachable(dtp_server_socket(m->relay, UP));
	msg.n[0] = m->children.list && m->children.list[0].pid && dtp_process_is_stopped(m->children.list[0].pid);
	dtp_server_send(m->relay, UP, &msg);
}

/* The job decides: it may be the consequence of another rank's end.  If it does not, this rank ends alone. */
static void take_signals(struct dtp_member *m, double now)
{
	struct dtp_msg msg = {.type = DTP_MSG_SIGNAL};
	bool gently;

	if (dtp_signals_take(&m->signals, &gently)) {
		if (!m->asked && !(gently && m->children.opts->may_finish))
			m->asked = now;
		msg.n[0] = gently;
		dtp_server_send(m->relay, UP, &msg);
	}
	if (m->asked && now - m->asked > FAREWELL_S)
		finish(m, DTP_INTERRUPTED, "interrupted", false);
}

/* It ends with its launcher, whether the job hears of it or not. */
static void check_parent(struct dtp_member *m)
{
	char why[96];
	struct dtp_msg msg;

	if (!dtp_children_orphaned(&m->children, why, sizeof why) || m->asked)
		return;
	msg = dtp_msg_text(DTP_MSG_FAIL, why);
	msg.n[0] = DTP_FAILED;
	dtp_server_send(m->relay, UP, &msg);
	m->asked = dtp_seconds();
}

/* Until the rank has ended, and the job too or rank 0's keeper. */
static bool goes_on(struct dtp_member *m, double now)
{
	if (dtp_children_alive(&m->children) || !m->told)
		return true;
	if (!m->farewell)
		m->farewell = now;
	return m->err.code && !m->alone && dtp_server_has(m->relay, UP) && now - m->farewell < FAREWELL_S;
}

static void watch(struct dtp_member *m)
{
	double last = dtp_seconds(), now = last;

	while (goes_on(m, now)) {
		tick(m);
		now = dtp_seconds();
		if (now - last > HELD_UP_S) {
			m->heard += now - last;
			m->children.ending_since += now - last;
		}
		last = now;
		take_signals(m, now);
		check_parent(m);
		dtp_children_reap(&m->children);
		say_alive(m, now);
		check_silence(m, now);
		if (m->told)
			dtp_children_escalate(&m->children, now);
	}
}

static enum dtp_code start(struct dtp_member *m, struct dtp_err *err)
{
	int control;

	if (!dtp_signals_open(&m->signals) || !dtp_children_init(&m->children, m->seat.rank, 1))
		return dtp_fail(err, DTP_FAILED, "cannot watch rank %d: %s", m->seat.rank, strerror(errno));
	if (dtp_children_start(&m->children, 0, &control, err))
		return err->code;
	dtp_server_add(m->relay, CHILD, control);
	return DTP_OK;
}

enum dtp_code dtp_member_run(struct dtp_member *m, const struct dtp_launch *opts, const struct dtp_err *refusal,
			     struct dtp_err *err)
{
	struct dtp_err start_err = DTP_ERR_INIT;

	m->oom_kills = dtp_oom_kills();
	m->children = (struct dtp_children){.opts = opts, .signals = &m->signals, .arg = m, .last_words = on_last_words,
		.exited = on_exited};
	if (!refusal && start(m, &start_err))
		refusal = &start_err;
	if (refusal) {
		struct dtp_msg msg = dtp_msg_text(DTP_MSG_FAIL, refusal->message);
		msg.n[0] = refusal->code;
		dtp_server_send(m->relay, UP, &msg);
		msg = (struct dtp_msg){.type = DTP_MSG_EXITED, .n = {(uint64_t)refusal->code << 8}};
		dtp_server_send(m->relay, UP, &msg);
	}
	m->heard = dtp_seconds();
	watch(m);
	return outcome(m, err);
}

void dtp_member_free(struct dtp_member *m)
{
	if (!m)
		return;
	dtp_children_free(&m->children);
	dtp_server_free(m->relay);
	dtp_seat_free(&m->seat);
	free(m->fds);
	dtp_signals_close(&m->signals, false);
	free(m);
}
