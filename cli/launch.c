/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include "clock.h"
#include "control.h"
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* How the end goes, in seconds after the verdict: each rank is asked over its channel and has a second to leave, then gets
 * SIGTERM, which its reporting thread takes, then SIGKILL. */
#define END_TERM_S 1.2
#define END_KILL_S 1.7
#define TICK_MS 200
#define HELD_UP_S 1.0 /* a tick that took longer: this process was stopped or starved */
#define MAX_LINE 8192

/* Output of a rank on its way to the user, a line at a time. */
struct lines {
	int fd; /* -1: closed */
	enum dtp_event_kind kind;
	size_t len;
	char buf[MAX_LINE + 1];
};

struct child {
	pid_t pid; /* 0: not started, or reaped */
	bool termed, killed;
	struct lines out[2];
};

struct job {
	const struct dtp_launch *opts;
	struct child *children;
	struct dtp_server *server;
	struct dtp_supervisor sup;
	struct pollfd *fds; /* the ranks' channels, the signals, then two outputs for each rank */
	int signals;
	sigset_t old_mask;
	struct sigaction old_chld;
	bool int_was_ignored;
	bool finishing; /* asked to end in its own time */
	bool ending;
	double ending_since;
};

/* ---- what the ranks say */

static void emit(struct job *j, int rank, enum dtp_event_kind kind, const char *text)
{
	const struct dtp_watched *w = &j->sup.ranks[rank];
	struct dtp_event e = {kind, rank, w->phase, text, w->done, w->total};

	if (j->ending && kind != DTP_EVENT_STDOUT && kind != DTP_EVENT_STDERR)
		return; /* nothing that a rank does now is progress */
	if (j->opts->on_event) {
		j->opts->on_event(j->opts->arg, &e);
	} else if (kind != DTP_EVENT_STAGE && kind != DTP_EVENT_PROGRESS) {
		FILE *f = kind == DTP_EVENT_STDOUT ? stdout : stderr;
		fprintf(f, "[rank %d] %s\n", rank, text);
		fflush(f);
	}
}

static void on_message(void *arg, int rank, const struct dtp_msg *m)
{
	struct job *j = arg;

	dtp_supervisor_message(&j->sup, rank, m, dtp_seconds());
	if (m->type == DTP_MSG_STAGE)
		emit(j, rank, DTP_EVENT_STAGE, m->text[0].p);
	else if (m->type == DTP_MSG_BEAT)
		emit(j, rank, DTP_EVENT_PROGRESS, NULL);
	else if (m->type == DTP_MSG_NOTE)
		emit(j, rank, DTP_EVENT_NOTE, m->text[0].p);
	else if (m->type == DTP_MSG_WARN)
		emit(j, rank, DTP_EVENT_WARN, m->text[0].p);
}

static void on_closed(void *arg, int rank)
{
	struct job *j = arg;

	dtp_supervisor_closed(&j->sup, rank, dtp_seconds());
}

static void emit_line(struct job *j, int rank, struct lines *l, size_t len)
{
	l->buf[len] = '\0';
	emit(j, rank, l->kind, l->buf);
}

static void close_lines(struct job *j, int rank, struct lines *l)
{
	if (l->len)
		emit_line(j, rank, l, l->len); /* the last line lacks its newline */
	close(l->fd);
	l->fd = -1;
	l->len = 0;
}

static void read_lines(struct job *j, int rank, struct lines *l)
{
	while (l->fd >= 0) {
		ssize_t n = read(l->fd, l->buf + l->len, MAX_LINE - l->len);
		char *nl;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close_lines(j, rank, l);
			return;
		}
		l->len += (size_t)n;
		while ((nl = memchr(l->buf, '\n', l->len))) {
			size_t line = (size_t)(nl - l->buf);
			emit_line(j, rank, l, line);
			l->len -= line + 1;
			memmove(l->buf, nl + 1, l->len);
		}
		if (l->len == MAX_LINE) { /* a longer line is broken */
			emit_line(j, rank, l, l->len);
			l->len = 0;
		}
	}
}

/* ---- starting */

/* The ends of one rank's channel and outputs; -1 where there is none. */
struct ends {
	int control[2], out[2], err[2];
};

static void close_ends(struct ends *e)
{
	int *fds[] = {e->control, e->out, e->err};

	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 2; k++)
			if (fds[i][k] >= 0)
				close(fds[i][k]);
}

static void set_number(const char *name, int value)
{
	char buf[16];

	snprintf(buf, sizeof buf, "%d", value);
	setenv(name, buf, 1);
}

static void set_environment(const struct dtp_launch *o, int rank, int fd)
{
	for (int i = 0; o->env && o->env[i]; i++)
		putenv((char *)o->env[i]);
	set_number(DTP_ENV_RANK, rank);
	set_number(DTP_ENV_SIZE, o->nranks);
	set_number(DTP_ENV_LOCAL_RANK, rank);
	set_number(DTP_ENV_FD, fd);
	if (o->threads_per_rank > 0)
		set_number("OMP_NUM_THREADS", o->threads_per_rank);
	/* Threads that have nothing to do sleep: other ranks need their cores. */
	setenv("OMP_WAIT_POLICY", "passive", 0);
	setenv("GOMP_SPINCOUNT", "0", 0);
}

/* In the child: becomes the rank. */
_Noreturn static void become_rank(const struct job *j, int rank, const struct ends *e, pid_t parent)
{
	const struct dtp_launch *o = j->opts;
	const char *program = o->program ? o->program : "/proc/self/exe";
	char text[512];
	struct dtp_msg m;

	/* What the terminal sends is for the launcher, which passes it on; SIGTERM when the launcher is no more. */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigaction(SIGCHLD, &j->old_chld, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(DTP_FAILED);
	if (rank) {
		int null = open("/dev/null", O_RDONLY);
		dup2(null, STDIN_FILENO);
		dup2(e->out[1], STDOUT_FILENO);
		dup2(e->err[1], STDERR_FILENO);
		if (null > STDERR_FILENO)
			close(null);
	}
	fcntl(e->control[1], F_SETFD, 0);
	set_environment(o, rank, e->control[1]);
	sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
	execv(program, o->argv);
	snprintf(text, sizeof text, "cannot start '%s': %s", program, strerror(errno));
	m = dtp_msg_text(DTP_MSG_FAIL, text);
	m.n[0] = DTP_FAILED;
	dtp_msg_send(e->control[1], &m);
	_exit(DTP_FAILED);
}

static void watch_output(struct lines *l, enum dtp_event_kind kind, int *fd)
{
	l->kind = kind;
	l->fd = *fd;
	*fd = -1;
	if (l->fd >= 0)
		fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
}

static enum dtp_code start_rank(struct job *j, int rank, struct dtp_err *err)
{
	struct child *c = &j->children[rank];
	struct ends e = {{-1, -1}, {-1, -1}, {-1, -1}};
	pid_t parent = getpid();

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.control) ||
	    (rank && (pipe2(e.out, O_CLOEXEC) || pipe2(e.err, O_CLOEXEC))) || (c->pid = fork()) < 0) {
		int error = errno;
		close_ends(&e);
		c->pid = 0;
		return dtp_fail(err, DTP_FAILED, "cannot start rank %d of %d: %s", rank, j->opts->nranks, strerror(error));
	}
	if (!c->pid)
		become_rank(j, rank, &e, parent);
	j->sup.ranks[rank].pid = c->pid;
	watch_output(&c->out[0], DTP_EVENT_STDOUT, &e.out[0]);
	watch_output(&c->out[1], DTP_EVENT_STDERR, &e.err[0]);
	dtp_server_add(j->server, rank, e.control[0]);
	e.control[0] = -1;
	close_ends(&e);
	return DTP_OK;
}

/* ---- ending */

static void end_job(struct job *j, double now)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_ABORT, j->sup.err.message);

	j->ending = true;
	j->ending_since = now;
	for (int r = 0; r < j->opts->nranks; r++)
		dtp_server_send(j->server, r, &m);
}

static void escalate(struct job *j, double now)
{
	double since = now - j->ending_since;

	for (int r = 0; r < j->opts->nranks; r++) {
		struct child *c = &j->children[r];
		if (!c->pid)
			continue;
		if (!c->termed && since >= END_TERM_S) {
			c->termed = true;
			kill(c->pid, SIGTERM);
		}
		/* A stopped process cannot answer, and woken it would go on with what it was about to do, such as naming a
		 * file of a run that has failed.  What it was writing has no name yet and goes with it. */
		if (!c->killed && (since >= END_KILL_S || dtp_process_is_stopped(c->pid))) {
			c->killed = true;
			kill(c->pid, SIGKILL);
		}
	}
}

static int live_children(const struct job *j)
{
	int n = 0;

	for (int r = 0; r < j->opts->nranks; r++)
		n += j->children[r].pid != 0;
	return n;
}

static void reap(struct job *j)
{
	for (int r = 0; r < j->opts->nranks; r++) {
		struct child *c = &j->children[r];
		int status;

		if (!c->pid || waitpid(c->pid, &status, WNOHANG) != c->pid)
			continue;
		c->pid = 0;
		dtp_server_drain(j->server, r); /* its last words come before its end */
		for (int i = 0; i < 2; i++)
			read_lines(j, r, &c->out[i]);
		dtp_supervisor_exited(&j->sup, r, status, dtp_seconds());
	}
}

/* The first SIGINT, where the ranks may finish what they are at. */
static void ask_to_finish(struct job *j)
{
	struct dtp_msg m = {.type = DTP_MSG_FINISH};

	j->finishing = true;
	emit(j, 0, DTP_EVENT_NOTE, "interrupted: finishing the image at hand; interrupt again to end now");
	for (int r = 0; r < j->opts->nranks; r++)
		dtp_server_send(j->server, r, &m);
}

static void take_signals(struct job *j)
{
	struct signalfd_siginfo si;

	while (read(j->signals, &si, sizeof si) == sizeof si) {
		if (si.ssi_signo == SIGCHLD)
			continue; /* every tick reaps */
		/* A shell starts background jobs with SIGINT ignored, to keep the terminal's from them; a kill is meant. */
		if (si.ssi_signo == SIGINT && j->int_was_ignored && si.ssi_code == SI_KERNEL)
			continue;
		if (si.ssi_signo == SIGINT && j->opts->may_finish && !j->finishing && !j->ending) {
			ask_to_finish(j);
			continue;
		}
		if (j->ending) /* asked twice: no more time for the ranks */
			j->ending_since -= END_TERM_S;
		dtp_supervisor_end(&j->sup, DTP_INTERRUPTED, "interrupted");
	}
}

/* ---- the loop */

static void tick(struct job *j)
{
	int n = j->opts->nranks;
	struct pollfd *outs = j->fds + n + 1;

	dtp_server_poll(j->server, j->fds);
	j->fds[n] = (struct pollfd){.fd = j->signals, .events = POLLIN};
	for (int i = 0; i < 2 * n; i++)
		outs[i] = (struct pollfd){.fd = j->children[i / 2].out[i % 2].fd, .events = POLLIN};
	poll(j->fds, (nfds_t)(3 * n + 1), j->ending ? TICK_MS / 4 : TICK_MS);
	take_signals(j);
	dtp_server_handle(j->server, j->fds);
	for (int i = 0; i < 2 * n; i++)
		if (outs[i].revents)
			read_lines(j, i / 2, &j->children[i / 2].out[i % 2]);
	reap(j);
}

static void watch(struct job *j)
{
	double last = dtp_seconds();

	while (live_children(j)) {
		tick(j);
		double now = dtp_seconds();
		if (now - last > HELD_UP_S) {
			dtp_supervisor_excuse(&j->sup, now - last, now);
			j->ending_since += now - last;
		}
		last = now;
		if (!j->ending && dtp_supervisor_verdict(&j->sup, now))
			end_job(j, now);
		if (j->ending)
			escalate(j, now);
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
	int n = j->opts->nranks;
	double timeout = j->opts->timeout_s > 0 ? j->opts->timeout_s : DTP_TIMEOUT_DEFAULT;
	struct dtp_server_events ev = {j, on_message, on_closed};
	struct sigaction dfl = {.sa_handler = SIG_DFL}, old;
	sigset_t set;

	occupy_standard_fds();
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaction(SIGINT, NULL, &old);
	j->int_was_ignored = old.sa_handler == SIG_IGN;
	sigaction(SIGHUP, NULL, &old);
	if (old.sa_handler != SIG_IGN) /* else nohup: the run outlives its terminal */
		sigaddset(&set, SIGHUP);
	sigaction(SIGCHLD, &dfl, &j->old_chld); /* ignored, it would take the exit codes away */
	sigprocmask(SIG_BLOCK, &set, &j->old_mask);
	j->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	j->children = calloc((size_t)n, sizeof *j->children);
	j->fds = calloc((size_t)(3 * n + 1), sizeof *j->fds);
	j->server = dtp_server_new(n, &ev);
	if (j->signals < 0 || !j->children || !j->fds || !j->server ||
	    !dtp_supervisor_init(&j->sup, n, timeout, dtp_seconds()))
		return dtp_fail(err, DTP_FAILED, "cannot watch %d ranks: %s", n, strerror(errno));
	for (int r = 0; r < n; r++)
		j->children[r].out[0].fd = j->children[r].out[1].fd = -1;
	return DTP_OK;
}

static void clean_up(struct job *j)
{
	for (int r = 0; j->children && r < j->opts->nranks; r++)
		for (int i = 0; i < 2; i++)
			if (j->children[r].out[i].fd >= 0)
				close_lines(j, r, &j->children[r].out[i]);
	dtp_server_free(j->server);
	dtp_supervisor_free(&j->sup);
	free(j->children);
	free(j->fds);
	if (j->signals >= 0)
		close(j->signals);
	sigprocmask(SIG_SETMASK, &j->old_mask, NULL);
	sigaction(SIGCHLD, &j->old_chld, NULL);
}

enum dtp_code dtp_launch(const struct dtp_launch *opts, struct dtp_err *err)
{
	struct job j = {.opts = opts, .signals = -1};
	enum dtp_code code = prepare(&j, err);

	if (!code) {
		struct dtp_err start = DTP_ERR_INIT;
		fflush(NULL); /* what is buffered is not the ranks' to write */
		for (int r = 0; r < opts->nranks && !code; r++)
			code = start_rank(&j, r, &start);
		if (code)
			dtp_supervisor_end(&j.sup, code, start.message);
		watch(&j);
		code = j.sup.err.code;
		if (code && err)
			*err = j.sup.err;
	}
	clean_up(&j);
	return code;
}
