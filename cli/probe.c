/* SPDX-License-Identifier: Apache-2.0 */
#include "probe.h"

#include "clock.h"
#include "text.h"
#include "utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define TICK_MS 20
#define DYING_S 1.0          /* SIGKILL takes no longer, unless the kernel itself hangs */
#define MAX_OUTPUT (4 << 20) /* of a probe: far more than any has to say */

const char *dtp_verdict_name(enum dtp_verdict v)
{
	static const char *const names[] = {"ok", "warning", "failure"};
	return names[v];
}

static cJSON *finding(enum dtp_verdict verdict, const char *text)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "verdict", dtp_verdict_name(verdict));
	cJSON_AddStringToObject(o, "text", text);
	return o;
}

/* ---- in the child */

void dtp_found(struct dtp_findings *f, enum dtp_verdict verdict, cJSON *data, const char *advice, const char *format, ...)
{
	char text[2048], line[2048];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	/* Drivers name devices as they like. */
	char *valid = dtp_utf8_repair(text, strlen(text));
	cJSON *o = finding(verdict, valid ? dtp_clean(line, sizeof line, valid) : "out of memory");
	free(valid);
	if (advice)
		cJSON_AddStringToObject(o, "advice", advice);
	if (data)
		cJSON_AddItemToObject(o, "data", data);
	char *json = cJSON_PrintUnformatted(o);
	cJSON_Delete(o);
	if (json)
		fprintf(f->to, "%s\n", json);
	fflush(f->to);
	cJSON_free(json);
}

_Noreturn static void become_probe(const struct dtp_probe *p, const struct dtp_args *args, char **argv, int fd, pid_t parent)
{
	struct rlimit no_core = {0, 0};
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct dtp_findings found = {fdopen(fd, "w")};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent || null < 0 || !found.to)
		_exit(1);
	setrlimit(RLIMIT_CORE, &no_core);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
	p->look(args, argv, &found);
	fclose(found.to);
	_exit(0); /* libraries that hang at exit have nothing more to say */
}

/* ---- in the parent */

struct output {
	char *text;
	size_t len;
	bool full; /* what comes then is read and forgotten */
};

static void take(struct output *o, int fd)
{
	char buf[4096];
	ssize_t n;

	while ((n = read(fd, buf, sizeof buf)) > 0) {
		char *more = o->full || o->len + (size_t)n > MAX_OUTPUT ? NULL : realloc(o->text, o->len + (size_t)n + 1);
		o->full = !more;
		if (o->full)
			continue;
		o->text = more;
		memcpy(o->text + o->len, buf, (size_t)n);
		o->len += (size_t)n;
		o->text[o->len] = '\0';
	}
}

/* Whether it ended before this moment, with its status. */
static bool wait_until(pid_t pid, double end, int fd, struct output *o, int *status)
{
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		bool ended = waitpid(pid, status, WNOHANG) == pid;

		take(o, fd);
		if (ended || dtp_seconds() >= end)
			return ended;
		if (poll(&p, 1, TICK_MS) > 0 && p.revents == POLLHUP)
			poll(NULL, 0, TICK_MS / 10); /* it is about to end */
	}
}

static void add_broken(cJSON *all, const struct dtp_probe *p, const char *advice, const char *format, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	cJSON *o = finding(p->broken, text);
	cJSON_AddStringToObject(o, "advice", advice);
	cJSON_AddItemToArray(all, o);
}

static void add_lines(cJSON *all, const struct dtp_probe *p, struct output *o)
{
	char *line = o->text, *end;
	struct dtp_json doc;
	struct dtp_err err;

	/* A last line without its newline was cut off by the probe's end. */
	for (; line && (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (dtp_json_parse("finding", line, (size_t)(end - line), &doc, &err)) {
			add_broken(all, p, "report this as an error of difftp", "found something that cannot be read: %s", err.message);
			continue;
		}
		cJSON_AddItemToArray(all, doc.root);
		doc.root = NULL;
		dtp_json_free(&doc);
	}
	free(o->text);
}

static void watch(const struct dtp_probe *p, double limit, pid_t pid, int fd, cJSON *all)
{
	struct output out = {0};
	int status = 0;
	bool late = !wait_until(pid, dtp_seconds() + limit, fd, &out, &status), stuck = false;

	if (late) {
		kill(pid, SIGKILL);
		stuck = !wait_until(pid, dtp_seconds() + DYING_S, fd, &out, &status);
	}
	add_lines(all, p, &out);
	if (stuck)
		add_broken(all, p, "look into the kernel's log (dmesg); this mostly takes a restart of the machine",
			   "took longer than %g s, and its process %ld cannot be killed: it hangs in the kernel, in a driver or a disk",
			   limit, (long)pid);
	else if (late)
		add_broken(all, p, "what it looks at hangs: try it by itself, and look into the kernel's log (dmesg)",
			   "took longer than %g s and was ended", limit);
	else if (WIFSIGNALED(status))
		add_broken(all, p, "what it looks at is broken: reinstall it, or take it out of the library path",
			   "crashed: killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		add_broken(all, p, "what it looks at ends the program that asks", "ended with code %d", WEXITSTATUS(status));
}

cJSON *dtp_probe_run(const struct dtp_probe *p, const struct dtp_args *args, char **argv)
{
	cJSON *all = cJSON_CreateArray(), *item;
	double limit = args->timeout > 0 && args->timeout < p->deadline_s ? args->timeout : p->deadline_s;
	pid_t parent = getpid(), pid = -1;
	int fd[2], failed = 0;

	fflush(NULL); /* what is buffered is not the child's to write */
	if (pipe2(fd, O_CLOEXEC)) {
		failed = errno;
	} else {
		pid = fork();
		failed = errno;
		if (pid == 0)
			become_probe(p, args, argv, fd[1], parent);
		close(fd[1]);
		fcntl(fd[0], F_SETFL, O_NONBLOCK);
		if (pid > 0)
			watch(p, limit, pid, fd[0], all);
		close(fd[0]);
	}
	if (pid < 0)
		cJSON_AddItemToArray(all, finding(DTP_VERDICT_FAILURE, strerror(failed)));
	cJSON_ArrayForEach(item, all)
		cJSON_AddStringToObject(item, "probe", p->name);
	return all;
}
