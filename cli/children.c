/* SPDX-License-Identifier: Apache-2.0 */
#include "children.h"

#include "control.h"
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* How the end goes, in seconds after the verdict: each rank is asked over its channel and has a second to leave, then gets
 * SIGTERM, which its reporting thread takes, then SIGKILL. */
#define END_TERM_S 1.2
#define END_KILL_S 1.7

bool dtp_children_init(struct dtp_children *c, int first, int n)
{
	c->list = calloc((size_t)n, sizeof *c->list);
	c->n = c->list ? n : 0;
	for (int i = 0; i < c->n; i++) {
		c->list[i].rank = first + i;
		c->list[i].out[0].fd = c->list[i].out[1].fd = -1;
	}
	return c->list;
}

/* ---- what they write */

static void emit_line(struct dtp_children *c, int rank, struct dtp_child_output *l, size_t len)
{
	l->buf[len] = '\0';
	c->line(c->arg, rank, l->kind, l->buf);
}

static void close_lines(struct dtp_children *c, int rank, struct dtp_child_output *l)
{
	if (l->len)
		emit_line(c, rank, l, l->len); /* the last line lacks its newline */
	close(l->fd);
	l->fd = -1;
	l->len = 0;
}

static void read_lines(struct dtp_children *c, int rank, struct dtp_child_output *l)
{
	while (l->fd >= 0) {
		ssize_t n = read(l->fd, l->buf + l->len, DTP_OUTPUT_LINE_MAX - l->len);
		char *nl;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close_lines(c, rank, l);
			return;
		}
		l->len += (size_t)n;
		while ((nl = memchr(l->buf, '\n', l->len))) {
			size_t line = (size_t)(nl - l->buf);
			emit_line(c, rank, l, line);
			l->len -= line + 1;
			memmove(l->buf, nl + 1, l->len);
		}
		if (l->len == DTP_OUTPUT_LINE_MAX) { /* a longer line is broken */
			emit_line(c, rank, l, l->len);
			l->len = 0;
		}
	}
}

void dtp_children_poll(const struct dtp_children *c, struct pollfd *fds)
{
	for (int i = 0; i < 2 * c->n; i++)
		fds[i] = (struct pollfd){.fd = c->list[i / 2].out[i % 2].fd, .events = POLLIN};
}

void dtp_children_handle(struct dtp_children *c, const struct pollfd *fds)
{
	for (int i = 0; i < 2 * c->n; i++)
		if (fds[i].revents)
			read_lines(c, c->list[i / 2].rank, &c->list[i / 2].out[i % 2]);
}

void dtp_children_free(struct dtp_children *c)
{
	for (int i = 0; i < 2 * c->n; i++)
		if (c->list[i / 2].out[i % 2].fd >= 0)
			close_lines(c, c->list[i / 2].rank, &c->list[i / 2].out[i % 2]);
	free(c->list);
	c->list = NULL;
	c->n = 0;
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

/* The ranks of the seat's host; `sharing`: those that may use the same processors. */
static void set_list(const char *name, const struct dtp_seat *seat, bool sharing)
{
	char *buf = NULL;
	size_t len;
	FILE *f = open_memstream(&buf, &len);

	for (int i = 0; f && i < seat->nlocal; i++)
		if (!sharing || seat->local[seat->nlocal + i])
			fprintf(f, "%d,", seat->local[i]);
	if (f && !fclose(f))
		setenv(name, buf, 1);
	free(buf);
}

static void set_environment(const struct dtp_launch *o, int rank, int fd)
{
	const struct dtp_seat *seat = o->seat;

	for (int i = 0; o->env && o->env[i]; i++)
		putenv((char *)o->env[i]);
	set_number(DTP_ENV_RANK, rank);
	set_number(DTP_ENV_SIZE, o->nranks);
	set_number(DTP_ENV_LOCAL_RANK, seat ? seat->local_rank : rank);
	set_number(DTP_ENV_FD, fd);
	if (seat) {
		set_number(DTP_ENV_PATIENCE, (int)((dtp_launch_timeout(o) + DTP_PATIENCE_S) * 1000));
		set_list(DTP_ENV_HOST, seat, false);
		set_list(DTP_ENV_SHARERS, seat, true);
	}
	if (seat && seat->address[0])
		setenv(DTP_ENV_ADDRESS, seat->address, 1);
	if (o->threads_per_rank > 0)
		set_number("OMP_NUM_THREADS", o->threads_per_rank);
	/* Threads that have nothing to do sleep: other ranks need their cores. */
	setenv("OMP_WAIT_POLICY", "passive", 0);
	setenv("GOMP_SPINCOUNT", "0", 0);
}

/* In the child: becomes the rank. */
_Noreturn static void become_rank(const struct dtp_children *c, int rank, const struct ends *e, pid_t parent)
{
	const struct dtp_launch *o = c->opts;
	const char *program = o->program ? o->program : "/proc/self/exe";
	char text[512];
	struct dtp_msg m;

	/* What the terminal sends is for the launcher, which passes it on; SIGTERM when the launcher is no more. */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigaction(SIGCHLD, &c->signals->old_chld, NULL);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(DTP_FAILED);
	if (rank) {
		int null = open("/dev/null", O_RDONLY);
		dup2(null, STDIN_FILENO);
		if (null > STDERR_FILENO)
			close(null);
	}
	if (e->out[1] >= 0) {
		dup2(e->out[1], STDOUT_FILENO);
		dup2(e->err[1], STDERR_FILENO);
	}
	fcntl(e->control[1], F_SETFD, 0);
	set_environment(o, rank, e->control[1]);
	sigprocmask(SIG_SETMASK, &c->signals->old_mask, NULL);
	execv(program, o->argv);
	snprintf(text, sizeof text, "cannot start '%s': %s", program, strerror(errno));
	m = dtp_msg_text(DTP_MSG_FAIL, text);
	m.n[0] = DTP_FAILED;
	dtp_msg_send(e->control[1], &m);
	_exit(DTP_FAILED);
}

static void watch_output(struct dtp_child_output *l, enum dtp_event_kind kind, int *fd)
{
	l->kind = kind;
	l->fd = *fd;
	*fd = -1;
	if (l->fd >= 0)
		fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
}

enum dtp_code dtp_children_start(struct dtp_children *children, int i, int *control, struct dtp_err *err)
{
	struct dtp_child *c = &children->list[i];
	struct ends e = {{-1, -1}, {-1, -1}, {-1, -1}};
	bool piped = c->rank && !children->opts->seat; /* somebody else's launcher looks after its ranks' output itself */
	pid_t parent = getpid();

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, e.control) ||
	    (piped && (pipe2(e.out, O_CLOEXEC) || pipe2(e.err, O_CLOEXEC))) || (c->pid = fork()) < 0) {
		int error = errno;
		close_ends(&e);
		c->pid = 0;
		return dtp_fail(err, DTP_FAILED, "cannot start rank %d of %d: %s", c->rank, children->opts->nranks, strerror(error));
	}
	if (!c->pid)
		become_rank(children, c->rank, &e, parent);
	watch_output(&c->out[0], DTP_EVENT_STDOUT, &e.out[0]);
	watch_output(&c->out[1], DTP_EVENT_STDERR, &e.err[0]);
	*control = e.control[0];
	e.control[0] = -1;
	close_ends(&e);
	return DTP_OK;
}

/* ---- ending */

bool dtp_children_orphaned(const struct dtp_children *c, char *why, size_t size)
{
	const struct dtp_launch *o = c->opts;

	if (c->ending || !o->parent || getppid() == o->parent)
		return false;
	snprintf(why, size, "%s, which started it, has ended", o->parent_name);
	return true;
}

int dtp_children_alive(const struct dtp_children *c)
{
	int n = 0;

	for (int i = 0; i < c->n; i++)
		n += c->list[i].pid != 0;
	return n;
}

void dtp_children_reap(struct dtp_children *c)
{
	for (int i = 0; i < c->n; i++) {
		struct dtp_child *child = &c->list[i];
		int status;

		if (!child->pid || waitpid(child->pid, &status, WNOHANG) != child->pid)
			continue;
		child->pid = 0;
		c->last_words(c->arg, child->rank);
		for (int k = 0; k < 2; k++)
			read_lines(c, child->rank, &child->out[k]);
		c->exited(c->arg, child->rank, status);
	}
}

void dtp_children_end(struct dtp_children *c, double now)
{
	c->ending = true;
	c->ending_since = now;
}

void dtp_children_escalate(struct dtp_children *c, double now)
{
	double since = now - c->ending_since;

	for (int i = 0; i < c->n; i++) {
		struct dtp_child *child = &c->list[i];
		if (!child->pid)
			continue;
		if (!child->termed && since >= END_TERM_S) {
			child->termed = true;
			kill(child->pid, SIGTERM);
		}
		/* A stopped process cannot answer, and woken it would go on with what it was about to do, such as naming a
		 * file of a run that has failed.  What it was writing has no name yet and goes with it. */
		if (!child->killed && (since >= END_KILL_S || dtp_process_is_stopped(child->pid))) {
			child->killed = true;
			kill(child->pid, SIGKILL);
		}
	}
}
