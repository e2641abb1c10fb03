/* SPDX-License-Identifier: Apache-2.0 */
#include "supervise.h"

#include "units.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How long a likely consequence (a peer was lost) waits for its cause to show up. */
#define CAUSE_S 1.0

/* After a signal to the whole job, which may be the launcher's answer to the end of a rank: it lets little time pass before it
 * kills. */
#define ASKED_S 0.3

long long dtp_oom_kills(void)
{
	FILE *f = fopen("/proc/vmstat", "re");
	char line[128];
	long long n = -1;

	while (f && n < 0 && fgets(line, sizeof line, f))
		sscanf(line, "oom_kill %lld", &n);
	if (f)
		fclose(f);
	return n;
}

bool dtp_supervisor_init(struct dtp_supervisor *s, int nranks, double timeout_s, double now)
{
	struct dtp_watched *w = calloc((size_t)nranks, sizeof *w);

	*s = (struct dtp_supervisor){.nranks = nranks, .ranks = w, .timeout = timeout_s, .err = DTP_ERR_INIT,
		.oom_kills = dtp_oom_kills()};
	if (!w)
		return false;
	for (int r = 0; r < nranks; r++) {
		w[r].moved = w[r].heard = now;
		snprintf(w[r].stage, sizeof w[r].stage, "start");
		if (gethostname(w[r].host, sizeof w[r].host - 1)) /* until it says better */
			snprintf(w[r].host, sizeof w[r].host, "this host");
	}
	return true;
}

void dtp_supervisor_free(struct dtp_supervisor *s)
{
	free(s->ranks);
	s->ranks = NULL;
}

static double later(double t, double seconds, double now)
{
	return t + seconds < now ? t + seconds : now;
}

void dtp_supervisor_excuse(struct dtp_supervisor *s, double seconds, double now)
{
	for (int r = 0; r < s->nranks; r++) {
		s->ranks[r].moved = later(s->ranks[r].moved, seconds, now);
		s->ranks[r].heard = later(s->ranks[r].heard, seconds, now);
	}
	s->failed_at = later(s->failed_at, seconds, now);
}

/* "'load transformer' (1.2 GB of 3.9 GB)" */
static void where(const struct dtp_watched *w, char *buf, size_t size)
{
	if (!w->total)
		snprintf(buf, size, "'%s'", w->stage);
	else if (w->phase == DTP_PHASE_LOAD)
		snprintf(buf, size, "'%s' (%s of %s)", w->stage, dtp_bytes_text(w->done).s, dtp_bytes_text(w->total).s);
	else
		snprintf(buf, size, "'%s' (%llu of %llu done)", w->stage, (unsigned long long)w->done,
			 (unsigned long long)w->total);
}

/* Notes a failure of a rank: "rank 1 on HOST WHAT in 'STAGE' (progress)TAIL".  A suspected consequence gives way to
 * anything that is not one. */
static void blame(struct dtp_supervisor *s, int rank, bool secondary, double now, const char *what, const char *tail)
{
	const struct dtp_watched *w = &s->ranks[rank];
	char place[256];

	if (s->final || (s->failed && secondary))
		return;
	where(w, place, sizeof place);
	dtp_fail(&s->err, DTP_FAILED, "rank %d on %s %s in %s%s", rank, w->host, what, place, tail);
	s->err.rank = rank;
	s->err.secondary = secondary;
	snprintf(s->err.stage, sizeof s->err.stage, "%.*s", (int)sizeof s->err.stage - 1, w->stage);
	s->failed = true;
	s->final = !secondary;
	s->failed_at = now;
}

void dtp_supervisor_end(struct dtp_supervisor *s, enum dtp_code code, const char *why)
{
	if (s->final)
		return;
	s->failed = s->final = true;
	s->err = (struct dtp_err)DTP_ERR_INIT;
	dtp_fail(&s->err, code, "%s", why);
}

void dtp_supervisor_asked(struct dtp_supervisor *s, double now)
{
	double soon = now - CAUSE_S + ASKED_S;

	if (s->final)
		return;
	if (!s->failed) {
		s->err = (struct dtp_err)DTP_ERR_INIT;
		dtp_fail(&s->err, DTP_INTERRUPTED, "interrupted");
		s->failed = true;
		s->failed_at = soon;
	}
	s->failed_at = s->failed_at < soon ? s->failed_at : soon;
}

void dtp_supervisor_elsewhere(struct dtp_supervisor *s, int rank, const struct dtp_guest *here, const struct dtp_guest *there)
{
	struct dtp_watched *w = &s->ranks[rank];

	w->elsewhere = true;
	w->pid = !strcmp(here->machine, there->machine) && !strcmp(here->pids, there->pids) ? there->pid : 0;
	snprintf(w->host, sizeof w->host, "%s", there->host);
}

static void reported_failure(struct dtp_supervisor *s, int rank, const struct dtp_msg *m, double now)
{
	char tail[sizeof s->err.message];
	enum dtp_code code = (enum dtp_code)m->n[0];

	s->ranks[rank].reported_failure = true;
	if (s->final || (s->failed && m->n[1]))
		return;
	snprintf(tail, sizeof tail, ": %s", m->text[0].p);
	blame(s, rank, m->n[1], now, "failed", tail);
	s->err.code = code;
	/* The user's input, or the job's result: which rank says it means nothing to them, unless hosts differ in it. */
	if ((code == DTP_REFUSED && !strcmp(s->ranks[rank].host, s->ranks[0].host)) || m->n[2])
		dtp_fail(&s->err, code, "%s", m->text[0].p);
}

const char *dtp_status_hint(long long oom_before, int status)
{
	int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (sig == SIGKILL && oom_before >= 0 && dtp_oom_kills() > oom_before)
		return ": the kernel's out-of-memory killer has struck meanwhile; more ranks or a smaller picture need less "
		       "memory each";
	if (sig == SIGKILL && oom_before >= 0)
		return ": by somebody, or by a service that guards memory; the kernel's own out-of-memory killer has not struck";
	if (sig == SIGKILL)
		return ": if nobody did that, it was the kernel's out-of-memory killer (its log says so: dmesg)";
	if (sig == SIGBUS)
		return ": a mapped file was cut short, or shared memory is full";
	if (sig == SIGSEGV || sig == SIGABRT || sig == SIGILL || sig == SIGFPE)
		return ": an error of this program or of a library, which may have found no memory";
	return "";
}

static void exited(struct dtp_supervisor *s, int rank, int status, const char *hint, double now)
{
	struct dtp_watched *w = &s->ranks[rank];
	char what[96];

	w->ended = true;
	w->moved = now;
	if (WIFSIGNALED(status)) {
		int sig = WTERMSIG(status);
		const char *name = sigabbrev_np(sig);
		snprintf(what, sizeof what, "was killed by SIG%s (signal %d)", name ? name : "?", sig);
		/* SIGTERM to the whole job reaches the launcher too, perhaps a moment later. */
		blame(s, rank, sig == SIGTERM, now, what, hint);
	} else if (WEXITSTATUS(status) || !w->reported_end) {
		if (w->reported_failure)
			return;
		snprintf(what, sizeof what, "exited with code %d, without saying why,", WEXITSTATUS(status));
		blame(s, rank, false, now, what, "");
	}
}

void dtp_supervisor_exited(struct dtp_supervisor *s, int rank, int status, double now)
{
	exited(s, rank, status, dtp_status_hint(s->oom_kills, status), now);
}

static void take_beat(struct dtp_watched *w, const struct dtp_msg *m, double now)
{
	bool waiting = m->n[1];

	if (m->n[0] != w->beats || waiting != w->waiting || m->n[2] != w->done)
		w->moved = now;
	w->beats = m->n[0];
	w->waiting = waiting;
	w->done = m->n[2];
	w->total = m->n[3];
}

void dtp_supervisor_message(struct dtp_supervisor *s, int rank, const struct dtp_msg *m, double now)
{
	struct dtp_watched *w = &s->ranks[rank];
	double heard = w->heard;

	w->heard = now;
	switch (m->type) {
	case DTP_MSG_HELLO:
		w->greeted = true;
		w->moved = now;
		snprintf(w->host, sizeof w->host, "%s", m->text[0].p);
		break;
	case DTP_MSG_BEAT:
		take_beat(w, m, now);
		break;
	case DTP_MSG_STAGE:
		w->moved = now;
		w->phase = (enum dtp_phase)m->n[0];
		snprintf(w->stage, sizeof w->stage, "%s", m->text[0].p);
		w->done = w->total = 0;
		break;
	case DTP_MSG_FAIL:
		reported_failure(s, rank, m, now);
		break;
	case DTP_MSG_DONE:
		w->reported_end = true;
		break;
	case DTP_MSG_ALIVE:
		w->stopped = m->n[0];
		w->heard = heard; /* of the keeper it says enough that its connection stands */
		break;
	case DTP_MSG_EXITED:
		exited(s, rank, (int)m->n[0], m->text[0].p, now);
		break;
	default:
		break;
	}
}

void dtp_supervisor_closed(struct dtp_supervisor *s, int rank, double now)
{
	struct dtp_watched *w = &s->ranks[rank];

	bool known = w->ended || w->reported_failure || w->reported_end;

	w->closed = true;
	w->ended = w->ended || w->elsewhere;
	if (known)
		return;
	if (w->elsewhere) /* the system closes it when the keeper ends, and that says first why it does */
		blame(s, rank, false, now, "ended without saying why", ": the launcher that started it may know more");
	else /* its exit status says more, and comes at once */
		blame(s, rank, true, now, "closed its connection to the launcher", "");
}

bool dtp_process_is_stopped(pid_t pid)
{
	char path[64], line[512], *state;
	FILE *f;
	size_t n;

	snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	n = fread(line, 1, sizeof line - 1, f);
	fclose(f);
	line[n] = '\0';
	state = strrchr(line, ')'); /* the name before it may hold anything */
	return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

static bool is_stopped(const struct dtp_watched *w)
{
	return w->stopped || (w->pid && dtp_process_is_stopped(w->pid));
}

static void blame_silence(struct dtp_supervisor *s, int rank, double since, double now)
{
	const struct dtp_watched *w = &s->ranks[rank];
	char what[96];

	snprintf(what, sizeof what, "made no progress for %.0f seconds", now - since);
	if (is_stopped(w))
		blame(s, rank, false, now, what, ": its process is stopped (SIGSTOP)");
	else if (now - w->heard > s->timeout + DTP_SLACK_S)
		blame(s, rank, false, now, what, ": its process does not answer");
	else
		blame(s, rank, false, now, what, "; --timeout sets how long a rank may take for one block or read");
}

static double patience(const struct dtp_supervisor *s, int rank)
{
	const struct dtp_watched *w = &s->ranks[rank];

	if (w->greeted || s->timeout > DTP_START_S || is_stopped(w))
		return s->timeout + DTP_SLACK_S;
	return DTP_START_S;
}

static void check_deadlines(struct dtp_supervisor *s, double now)
{
	const struct dtp_watched *w = s->ranks;
	int live = 0, stuck = 0, first = -1;
	bool input = false; /* the user takes their time, and the others wait for that */
	double limit = s->timeout + DTP_SLACK_S;
	double latest = 0; /* movement of any rank: the last one to end may have ended a wait */

	/* A silent process first, whatever it was doing: its reporting thread speaks as long as it can run. */
	for (int r = 0; r < s->nranks; r++)
		if (!w[r].ended && now - w[r].heard > limit && now - w[r].heard > patience(s, r)) {
			blame_silence(s, r, w[r].heard, now);
			return;
		}
	for (int r = 0; r < s->nranks; r++) {
		latest = w[r].moved > latest ? w[r].moved : latest;
		if (w[r].ended)
			continue;
		live++;
		if (w[r].greeted && !w[r].waiting && now - w[r].moved > limit) {
			blame_silence(s, r, w[r].moved, now);
			return;
		}
		input = input || (w[r].phase == DTP_PHASE_INPUT && w[r].waiting);
		stuck += w[r].waiting;
		if (first < 0)
			first = r;
	}
	if (live && stuck == live && !input && now - latest > limit) {
		char what[96];
		snprintf(what, sizeof what, "has waited for %s for %.0f seconds",
			 live == s->nranks ? "the others, as they for it," : "ranks that have ended", now - latest);
		blame(s, first, false, now, what, "");
	}
}

bool dtp_supervisor_verdict(struct dtp_supervisor *s, double now)
{
	if (!s->failed)
		check_deadlines(s, now);
	if (s->failed && !s->final && now - s->failed_at >= CAUSE_S)
		s->final = true;
	return s->final;
}
