/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into the ranks by LD_PRELOAD: makes one of them fail at a chosen moment.  The moments are the stages that a rank
 * reports to its launcher (its messages pass through here) and the naming of a finished file.
 *   FAULT_RANK    which rank
 *   FAULT_STAGE   how the stage's text begins; "naming": when a finished file is about to get its name
 *   FAULT_DO      kill, stop, exit, abort, segv, hang (for ever), memory (no more of it from here on, by fault_memory.c),
 *                 oom (more memory than the control group FAULT_GROUP has),
 *                 kill_keeper, stop_keeper (its parent, under somebody else's launcher; itself it hangs),
 *                 truncate (FAULT_FILE to its half), modify (a byte in the middle of FAULT_FILE)
 *   FAULT_MARK    a file that is made when it happens
 * Besides, a rank can be given another file than the one that it opens:
 *   FAULT_OPEN, FAULT_INSTEAD   paths
 * and be of another version: its first digit is made
 *   FAULT_VERSION               when the rank joins a job of somebody else's launcher
 * and find no room for a thread:
 *   FAULT_THREAD                which it cannot start, counted from 1 */
#include "control.h"
#include "fault_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *setting(const char *name)
{
	const char *s = getenv(name);
	return s ? s : "";
}

/* Into a control group that has less than what is then asked for: the kernel kills the process. */
static void meet_the_killer(void)
{
	const size_t much = (size_t)1 << 30;
	char path[512];

	snprintf(path, sizeof path, "%s/cgroup.procs", setting("FAULT_GROUP"));
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		abort();
	char *p = mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t i = 0; p != MAP_FAILED && i < much; i += 4096)
		p[i] = 1;
}

static void damage(int cut)
{
	const char *file = setting("FAULT_FILE");
	struct stat s;
	int fd = open(file, O_RDWR | O_CLOEXEC);
	char byte;

	if (fd < 0 || fstat(fd, &s) || pread(fd, &byte, 1, s.st_size / 2) != 1)
		abort();
	byte = (char)~byte;
	if (cut ? ftruncate(fd, s.st_size / 2) : pwrite(fd, &byte, 1, s.st_size / 2) != 1)
		abort();
	close(fd);
}

/* The parent dies or stands still, once it has passed on where the rank is. */
static void strike_keeper(int sig)
{
	usleep(500000);
	kill(getppid(), sig);
	for (;;)
		pause();
}

static void happen(void)
{
	const char *what = setting("FAULT_DO");
	int fd = open(setting("FAULT_MARK"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd >= 0)
		close(fd);
	if (!strcmp(what, "kill"))
		raise(SIGKILL);
	else if (!strcmp(what, "stop"))
		raise(SIGSTOP);
	else if (!strcmp(what, "kill_keeper"))
		strike_keeper(SIGKILL);
	else if (!strcmp(what, "stop_keeper"))
		strike_keeper(SIGSTOP);
	else if (!strcmp(what, "exit"))
		exit(1);
	else if (!strcmp(what, "abort"))
		abort();
	else if (!strcmp(what, "segv"))
		raise(SIGSEGV);
	else if (!strcmp(what, "memory") && end_of_memory)
		end_of_memory();
	else if (!strcmp(what, "oom"))
		meet_the_killer();
	else if (!strcmp(what, "truncate") || !strcmp(what, "modify"))
		damage(!strcmp(what, "truncate"));
	else if (!strcmp(what, "hang"))
		for (;;)
			pause();
}

static int this_rank(void)
{
	return !strcmp(setting(DTP_ENV_RANK), setting("FAULT_RANK"));
}

static int mine(const char *stage, size_t len)
{
	static int done;
	const char *want = setting("FAULT_STAGE");
	size_t n = strlen(want);

	if (done || !n || n > len || memcmp(stage, want, n) || !this_rank())
		return 0;
	done = 1;
	return 1;
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
	static ssize_t (*real)(int, const void *, size_t, int);
	const size_t text = 2 * sizeof(uint32_t) + DTP_MSG_NUMBERS * sizeof(uint64_t) + sizeof(uint32_t);
	uint32_t type = DTP_MSG_TYPES;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "send");
	if (len > text)
		memcpy(&type, (const char *)buf + sizeof type, sizeof type);
	if (type == DTP_MSG_JOIN && *setting("FAULT_VERSION"))
		((char *)(uintptr_t)buf)[text] = *setting("FAULT_VERSION"); /* the sender's own queue */
	ssize_t sent = real(fd, buf, len, flags);
	if (type == DTP_MSG_STAGE && mine((const char *)buf + text, len - text))
		happen();
	return sent;
}

/* It says what is wrong by what it returns, and leaves errno alone. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	static int n;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
	if (*setting("FAULT_THREAD") && this_rank() && ++n == atoi(setting("FAULT_THREAD"))) {
		errno = 0;
		return EAGAIN;
	}
	return real(thread, attr, run, arg);
}

int rename(const char *from, const char *to)
{
	static int (*real)(const char *, const char *);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "rename");
	if (mine("naming", strlen("naming")))
		happen();
	return real(from, to);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	static int (*real)(int, const char *, int, const char *, int);

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "linkat");
	if (mine("naming", strlen("naming")))
		happen();
	return real(from_dir, from, to_dir, to, flags);
}

int open(const char *path, int flags, ...)
{
	static int (*real)(const char *, int, ...);
	mode_t mode = 0;
	va_list ap;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "open");
	if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (this_rank() && !strcmp(path, setting("FAULT_OPEN")))
		path = setting("FAULT_INSTEAD");
	return real(path, flags, mode);
}
