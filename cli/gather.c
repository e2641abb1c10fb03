/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include "told.h"
#include "clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 100
#define TELL_S 2.0 /* after a failure: for those who are still to come, so that they hear of it */

struct gather {
	struct dtp_gathering *g;
	struct dtp_err *err;
	bool failed;
	double failed_at;
};

static int count(const struct dtp_gathering *g)
{
	int n = 1; /* this rank itself */

	for (int r = 1; r < g->size; r++)
		n += dtp_server_has(g->server, r);
	return n;
}

/* ---- those who come */

/* The first failure counts. */
static bool refuse(struct gather *j, enum dtp_code code, const char *text)
{
	if (!j->failed) {
		dtp_fail(j->err, code, "%s", text);
		j->failed = true;
		j->failed_at = dtp_seconds();
	}
	return false;
}

/* The options of which each rank may have its own, as a list. */
static const char *may_differ(char *buf, size_t size)
{
	size_t used = 0;

	for (int i = 0; i < dtp_noptions && used < size; i++)
		if (dtp_options[i].may_differ)
			used += (size_t)snprintf(buf + used, size - used, "%s--%s", used ? ", " : "", dtp_options[i].name);
	return buf;
}

static bool check(struct gather *j, const struct dtp_guest *guest, bool whole)
{
	const struct dtp_guest *me = &j->g->guests[0], *other = &j->g->guests[guest->rank];
	char text[1024], mine[160], theirs[160];

	if (strcmp(guest->version, me->version) || !whole) {
		snprintf(text, sizeof text,
			 "rank %d on %s is difftp %s, rank 0 on %s is difftp %s%s: all ranks of a job need the same program", guest->rank,
			 guest->host, guest->version, me->host, me->version, whole ? "" : " with another protocol");
		return refuse(j, DTP_REFUSED, text);
	}
	if (guest->size != me->size) {
		snprintf(text, sizeof text, "rank %d on %s has been told of %d ranks, rank 0 on %s of %d", guest->rank, guest->host,
			 guest->size, me->host, me->size);
		return refuse(j, DTP_REFUSED, text);
	}
	if (guest->rank == 0 || dtp_server_has(j->g->server, guest->rank)) {
		snprintf(text, sizeof text, "rank %d is there twice: process %ld on %s and process %ld on %s", guest->rank,
			 (long)other->pid, other->host, (long)guest->pid, guest->host);
		return refuse(j, DTP_REFUSED, text);
	}
	if (!dtp_told_same(me->args, me->args_len, guest->args, guest->args_len, mine, theirs, sizeof mine)) {
		char free_ones[256];
		snprintf(text, sizeof text, "rank 0 on %s has %s, rank %d on %s %s: all ranks of a job need the same options (but for %s)",
			 me->host, mine, guest->rank, guest->host, theirs, may_differ(free_ones, sizeof free_ones));
		return refuse(j, DTP_REFUSED, text);
	}
	return true;
}

static void on_message(void *arg, int peer, const struct dtp_msg *m)
{
	struct gather *j = arg;
	struct dtp_gathering *g = j->g;
	struct dtp_guest guest;

	if (peer < g->size || m->type != DTP_MSG_JOIN)
		return;
	bool whole = dtp_guest_read(&guest, m);
	if (guest.rank < 0 || guest.rank >= g->size) { /* its own variables would have told it: a stranger */
		free(guest.args);
		return;
	}
	check(j, &guest, whole);
	if (guest.rank == 0 || dtp_server_has(g->server, guest.rank)) {
		free(guest.args);
		return; /* it stays a stranger, and is told what the others are */
	}
	free(g->guests[guest.rank].args);
	g->guests[guest.rank] = guest;
	dtp_server_move(g->server, peer, guest.rank);
}

static void on_closed(void *arg, int peer)
{
	struct gather *j = arg;
	char text[256];

	snprintf(text, sizeof text, "rank %d on %s ended in 'rendezvous', before all ranks had come", peer,
		 j->g->guests[peer].host);
	refuse(j, DTP_FAILED, text);
}

/* ---- waiting */

static void tell_missing(struct gather *j, const char *where, double seconds)
{
	const struct dtp_gathering *g = j->g;
	char list[512] = "";
	int missing = g->size - count(g);

	for (int r = 1; r < g->size; r++)
		if (!dtp_server_has(g->server, r) && strlen(list) < sizeof list - 32) {
			size_t used = strlen(list);
			snprintf(list + used, sizeof list - used, "%s%d", used ? ", " : "", r);
		}
	dtp_fail(j->err, DTP_FAILED, "rank%s %s of %d %s not come within %g seconds (--timeout) to where all meet: %s",
		 missing > 1 ? "s" : "", list, g->size, missing > 1 ? "have" : "has", seconds, where);
	j->err->secondary = true;
	j->failed = true;
}

static void ping(const struct dtp_gathering *g, double *last)
{
	struct dtp_msg m = {.type = DTP_MSG_PING, .n = {1}, .text = {{g->guests[0].host, strlen(g->guests[0].host)},
								     {"rendezvous", strlen("rendezvous")}}};
	double now = dtp_seconds();

	if (now - *last < DTP_PING_S)
		return;
	*last = now;
	while ((int)m.n[0] < g->size && !dtp_server_has(g->server, (int)m.n[0]))
		m.n[0]++;
	for (int r = 1; r < g->size; r++)
		dtp_server_send(g->server, r, &m);
}

static bool waits(const struct gather *j)
{
	if (count(j->g) < j->g->size)
		return !j->failed || dtp_seconds() - j->failed_at < TELL_S;
	return false;
}

static void wait_for_all(struct gather *j, const char *where, double timeout)
{
	struct dtp_gathering *g = j->g;
	int n = dtp_server_entries(g->server);
	struct pollfd *fds = calloc((size_t)n + 1, sizeof *fds);
	double since = dtp_seconds(), pinged = 0;

	if (!fds)
		refuse(j, DTP_FAILED, "out of memory");
	while (fds && waits(j)) {
		dtp_server_poll(g->server, fds);
		fds[n] = (struct pollfd){.fd = g->signals.fd, .events = POLLIN};
		poll(fds, (nfds_t)n + 1, TICK_MS);
		dtp_server_handle(g->server, fds);
		ping(g, &pinged);
		bool gently;
		if (dtp_signals_take(&g->signals, &gently)) {
			refuse(j, DTP_INTERRUPTED, "interrupted");
			break;
		}
		if (!j->failed && dtp_seconds() - since > timeout && count(g) < g->size) {
			tell_missing(j, where, timeout);
			break;
		}
	}
	free(fds);
}

/* ---- the seats */

/* What the others reach this rank by: the end of a connection from another host, if there is one. */
static void find_own_address(struct dtp_gathering *g)
{
	struct dtp_guest *me = &g->guests[0];

	for (int r = 1; r < g->size; r++) {
		const struct dtp_guest *x = &g->guests[r];
		bool near = !strcmp(me->machine, x->machine) && !strcmp(me->net, x->net);
		if (me->address[0] && near)
			continue;
		dtp_socket_address(dtp_server_socket(g->server, r), me->address, sizeof me->address);
		if (!near)
			return;
	}
}

static enum dtp_code give_seats(struct dtp_gathering *g, struct dtp_err *err)
{
	char buf[512];

	find_own_address(g);
	for (int r = 1; r < g->size; r++) {
		struct dtp_seat seat;
		if (!dtp_seat_make(&seat, g->guests, g->size, r))
			return dtp_fail(err, DTP_FAILED, "out of memory");
		struct dtp_msg m = dtp_seat_message(&seat, buf, sizeof buf);
		dtp_server_send(g->server, r, &m);
		dtp_seat_free(&seat);
	}
	dtp_server_flush(g->server, 1);
	return dtp_seat_make(&g->seat, g->guests, g->size, 0) ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory");
}

/* ---- */

/* Another process is rank 0 too and is told so; it prints it, unless its job has begun without this one. */
static enum dtp_code meet_twin(struct dtp_guest *me, int fd, struct dtp_err *err)
{
	double until = dtp_seconds() + TELL_S + 1;
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct dtp_inbox in = {0};
	char buf[sizeof *me];
	struct dtp_msg m = dtp_guest_message(me, buf, sizeof buf);

	dtp_msg_send(fd, &m);
	while (dtp_seconds() < until && poll(&p, 1, TICK_MS) >= 0 && dtp_inbox_read(&in, fd) != DTP_INBOX_CLOSED)
		if (dtp_inbox_next(&in, &m) == DTP_INBOX_OK && m.type == DTP_MSG_ABORT) {
			if (!m.n[1])
				err->code = DTP_OK;
			break;
		}
	dtp_inbox_free(&in);
	close(fd);
	return DTP_REFUSED;
}

static enum dtp_code prepare(struct gather *j, const struct dtp_place *place, struct dtp_meeting *m,
			     const struct dtp_args *args, struct dtp_err *err)
{
	struct dtp_server_events ev = {j, on_message, on_closed, false};
	struct dtp_gathering *g = j->g;
	int listener, twin;

	*g = (struct dtp_gathering){.size = place->size, .signals.fd = -1};
	g->guests = calloc((size_t)g->size, sizeof *g->guests);
	g->server = dtp_server_new(g->size, &ev);
	if (!g->guests || !g->server || !dtp_signals_open(&g->signals))
		return dtp_fail(err, DTP_FAILED, "cannot wait for %d ranks: %s", g->size, strerror(errno));
	dtp_guest_self(&g->guests[0]);
	g->guests[0].size = g->size;
	g->guests[0].args = dtp_told_record(args, &g->guests[0].args_len);
	if (!g->guests[0].args)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (dtp_meeting_open(m, &listener, &twin, err))
		return twin < 0 ? err->code : meet_twin(&g->guests[0], twin, err);
	dtp_server_listen(g->server, listener, m->token);
	return DTP_OK;
}

enum dtp_code dtp_gather(struct dtp_gathering *g, const struct dtp_place *place, struct dtp_meeting *m,
			 const struct dtp_args *args, double timeout, struct dtp_err *err)
{
	struct gather j = {.g = g, .err = err};
	enum dtp_code code = prepare(&j, place, m, args, err);

	if (code)
		return code;
	wait_for_all(&j, m->text, timeout);
	dtp_meeting_close(m);
	return j.failed ? err->code : give_seats(g, err);
}

void dtp_gathering_dismiss(struct dtp_gathering *g, const struct dtp_err *err)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_ABORT, err->message);

	if (!g->server)
		return;
	m.n[0] = err->code;
	dtp_server_send_all(g->server, &m);
	dtp_server_flush(g->server, 1);
}

void dtp_gathering_free(struct dtp_gathering *g)
{
	for (int r = 0; g->guests && r < g->size; r++)
		free(g->guests[r].args);
	free(g->guests);
	dtp_seat_free(&g->seat);
	if (g->server)
		dtp_server_forget(g->server);
	dtp_signals_close(&g->signals, false);
}
