/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Takes the place of the C library's in this program: a file system that knows no nameless files. */
static bool no_nameless;

int open(const char *path, int flags, ...)
{
	va_list ap;

	va_start(ap, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if (no_nameless && (flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return openat(AT_FDCWD, path, flags, mode);
}

static bool no_links; /* and none that has links */

int link(const char *from, const char *to)
{
	if (no_links && faccessat(AT_FDCWD, to, F_OK, AT_SYMLINK_NOFOLLOW)) {
		errno = EPERM;
		return -1;
	}
	return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static int with_names(void **state)
{
	(void)state;
	no_nameless = true;
	return 0;
}

static int without_names(void **state)
{
	(void)state;
	no_nameless = false;
	return 0;
}

/* A fresh empty folder; the path is one of 4 static buffers. */
static const char *folder(void)
{
	static char dirs[4][600];
	static int n;
	char *d = dirs[n % 4];
	snprintf(d, sizeof dirs[0], "%s/f%d", temp_dir(), n++);
	assert_int_equal(mkdir(d, 0777), 0);
	return d;
}

static const char *in(const char *dir, const char *name)
{
	static char paths[4][1200];
	static int n;
	char *p = paths[n++ % 4];
	snprintf(p, sizeof paths[0], "%s/%s", dir, name);
	return p;
}

/* Not every file system can. */
static bool nameless_in(const char *dir)
{
	int fd = open(dir, O_TMPFILE | O_WRONLY, 0600);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int entries(const char *dir)
{
	int n = -2; /* . and .. */
	DIR *d = opendir(dir);
	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void assert_holds(const char *path, const char *text)
{
	char *s = read_file(path, NULL);
	assert_string_equal(s, text);
	free(s);
}

static void set_limit(rlim_t bytes, struct rlimit *former)
{
	struct rlimit l;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, former), 0);
	l = *former;
	l.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void file_check_refused(void **state)
{
	const char *d = folder();
	char file[700];
	(void)state;
	snprintf(file, sizeof file, "%s/file", d);
	write_file(file, "x", 1);
	const struct {
		const char *path, *message[2];
	} cases[] = {
		{"", {"empty"}},
		{d, {"names a folder", d}},
		{in(d, ""), {"names a folder", d}},
		{in(d, "new/"), {"names a folder"}},
		{".", {"names a folder"}},
		{in(d, "absent/out.png"), {"the folder '", "/absent' does not exist"}},
		{in(d, "file/out.png"), {"file' is no folder"}},
		{"/proc/out.png", {"in the folder '/proc'"}}, /* unwritable for everybody */
		{"/dev/null/out.png", {"'/dev/null' is no folder"}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dtp_err err = DTP_ERR_INIT;
		if (dtp_outfile_check(cases[i].path, &err) == DTP_OK)
			fail_msg("accepted: '%s'", cases[i].path);
		for (int j = 0; j < 2 && cases[i].message[j]; j++)
			assert_message(&err, DTP_REFUSED, cases[i].path, cases[i].message[j], NULL);
	}
	assert_int_equal(entries(d), 1);
}

static void file_check_unwritable(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	(void)state;
	chmod(d, 0555);
	enum dtp_code rc = dtp_outfile_check(in(d, "out.png"), &err);
	chmod(d, 0777);
	/* A superuser may: the answer must be what a real attempt gives. */
	assert_int_equal(rc, geteuid() == 0 ? DTP_OK : DTP_REFUSED);
	if (rc)
		assert_message(&err, DTP_REFUSED, d, "Permission denied", NULL);
	assert_int_equal(entries(d), 0);
}

static void file_check_no_room(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct rlimit former;
	(void)state;
	set_limit(1000, &former);
	enum dtp_code rc = dtp_outfile_check(in(d, "out.png"), &err);
	setrlimit(RLIMIT_FSIZE, &former);
	assert_int_equal(rc, DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, d, "File too large", NULL);
	assert_int_equal(entries(d), 0);
}

static void file_check_leaves_nothing(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	(void)state;
	assert_int_equal(dtp_outfile_check(in(d, "out.png"), &err), DTP_OK);
	assert_int_equal(entries(d), 0);
	write_file(in(d, "out.png"), "old", 3);
	assert_int_equal(dtp_outfile_check(in(d, "out.png"), &err), DTP_OK);
	assert_int_equal(entries(d), 1);
	assert_holds(in(d, "out.png"), "old");
	assert_int_equal(dtp_outfile_check("/dev/null", &err), DTP_OK);
}

static void file_commit_appears_whole(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	struct stat st;
	(void)state;
	mode_t mask = umask(022);
	assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
	umask(mask);
	assert_true(fcntl(fileno(out.f), F_GETFD) & FD_CLOEXEC);
	if (no_nameless)
		assert_true(!strncmp(out.tmp, d, strlen(d)) && !strncmp(out.tmp + strlen(d), "/.out.", 6));
	fputs("hello", out.f);
	fflush(out.f);
	assert_int_equal(access(in(d, "out"), F_OK), -1);
	assert_int_equal(entries(d), nameless_in(d) ? 0 : 1);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_null(out.f);
	assert_int_equal(entries(d), 1);
	assert_holds(in(d, "out"), "hello");
	assert_int_equal(stat(in(d, "out"), &st), 0);
	assert_int_equal(st.st_mode & 0777, 0644);

	assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
	fputs("new", out.f);
	fflush(out.f);
	assert_holds(in(d, "out"), "hello");
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_holds(in(d, "out"), "new");
	assert_int_equal(entries(d), 1);
}

/* A file that is replaced has been for its owner alone. */
static void file_commit_keeps_the_mode(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	struct stat st;
	(void)state;
	write_file(in(d, "out"), "old", 3);
	assert_int_equal(chmod(in(d, "out"), 0600), 0);
	assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
	fputs("new", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_holds(in(d, "out"), "new");
	assert_int_equal(stat(in(d, "out"), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

static void file_abandon_removes(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	(void)state;
	write_file(in(d, "out"), "old", 3);
	assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
	fputs("new", out.f);
	dtp_outfile_abandon(&out);
	dtp_outfile_abandon(&out); /* nothing more to do */
	assert_int_equal(entries(d), 1);
	assert_holds(in(d, "out"), "old");
}

static void file_commit_full_disk(void **state)
{
	static char block[10000], buffer[65536];
	const char *d = folder();
	struct rlimit former;
	(void)state;
	write_file(in(d, "out"), "old", 3);
	for (int early = 0; early < 2; early++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_outfile out;
		assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
		set_limit(5000, &former);
		/* Found by an earlier flush, or only by the last one. */
		setvbuf(out.f, early ? NULL : buffer, early ? _IONBF : _IOFBF, sizeof buffer);
		fwrite(block, sizeof block, 1, out.f);
		enum dtp_code rc = dtp_outfile_commit(&out, &err);
		setrlimit(RLIMIT_FSIZE, &former);
		assert_int_equal(rc, DTP_FAILED);
		assert_message(&err, DTP_FAILED, in(d, "out"), "File too large", NULL);
		assert_int_equal(entries(d), 1);
		assert_holds(in(d, "out"), "old");
	}
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	assert_int_equal(dtp_outfile_open("/dev/full", NULL, &out, &err), DTP_OK);
	fputs("x", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "/dev/full", "No space left", NULL);
	assert_int_equal(access("/dev/full", F_OK), 0);
}

/* The target becomes a folder while the file is being written. */
static void file_commit_rename_fails(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	(void)state;
	assert_int_equal(dtp_outfile_open(in(d, "out"), NULL, &out, &err), DTP_OK);
	assert_int_equal(mkdir(in(d, "out"), 0777), 0);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, in(d, "out"), "directory", NULL);
	assert_int_equal(entries(d), 1);
}

/* Another run takes the names while the file is being written: neither is lost, and nothing else is left. */
static void file_commit_keeps_what_appeared(void **state)
{
	const char *d = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	char path[700];
	(void)state;
	snprintf(path, sizeof path, "%s", in(d, "out.png"));
	struct dtp_outkeep keep = dtp_outkeep_of(path);
	assert_int_equal(dtp_outfile_open(path, &keep, &out, &err), DTP_OK);
	fputs("mine", out.f);
	write_file(path, "theirs", 6);
	assert_int_equal(symlink("nowhere", in(d, "out-2.png")), 0);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_string_equal(dtp_outkeep_name(&keep, path), in(d, "out-3.png"));
	assert_holds(path, "theirs");
	assert_holds(in(d, "out-3.png"), "mine");
	assert_int_equal(entries(d), 3);
	dtp_outkeep_free(&keep);

	/* A number that the name has already is counted on; a name that is free is taken as it is. */
	keep = (struct dtp_outkeep){.at = strlen(d) + 4, .len = 2, .next = 3};
	assert_int_equal(dtp_outfile_open(in(d, "out-2.png"), &keep, &out, &err), DTP_OK);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_string_equal(keep.name, in(d, "out-4.png"));
	dtp_outkeep_free(&keep);
	keep = dtp_outkeep_of(in(d, "free"));
	assert_int_equal(dtp_outfile_open(in(d, "free"), &keep, &out, &err), DTP_OK);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_null(keep.name);
	assert_int_equal(entries(d), 5);
}

/* A file system that knows no links either. */
static void file_commit_keeps_without_links(void **state)
{
	with_names(state);
	no_links = true;
	file_commit_keeps_what_appeared(state);
	no_links = false;
	without_names(state);
}

static void file_open_refused(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	(void)state;
	assert_int_equal(dtp_outfile_open("/absent/x/out", NULL, &out, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "'/absent/x/out'", "'/absent/x' does not exist", NULL);
	assert_null(out.f);
	assert_null(out.tmp);
}

static void file_open_link(void **state)
{
	const char *d = folder(), *real = folder();
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	struct stat st;
	(void)state;
	write_file(in(real, "out"), "old", 3);
	assert_int_equal(symlink(in(real, "out"), in(d, "link")), 0);
	assert_int_equal(dtp_outfile_open(in(d, "link"), NULL, &out, &err), DTP_OK);
	fputs("new", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_int_equal(lstat(in(d, "link"), &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_holds(in(real, "out"), "new");
	assert_int_equal(entries(real), 1);
	assert_int_equal(entries(d), 1);

	/* What they lead to is not there yet; of links in a circle nothing can be. */
	assert_int_equal(symlink("second", in(d, "first")), 0);
	char target[700];
	snprintf(target, sizeof target, "../%s/target", strrchr(real, '/') + 1);
	assert_int_equal(symlink(target, in(d, "second")), 0);
	assert_int_equal(dtp_outfile_open(in(d, "first"), NULL, &out, &err), DTP_OK);
	fputs("made", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_holds(in(real, "target"), "made");
	assert_int_equal(entries(d), 3);
	assert_int_equal(lstat(in(d, "first"), &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(symlink("circle", in(d, "circle")), 0);
	assert_int_equal(dtp_outfile_check(in(d, "circle"), &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "circle'", "symbolic links", NULL);
}

static void file_open_device_stays(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	struct stat st;
	(void)state;
	assert_int_equal(dtp_outfile_open("/dev/null", NULL, &out, &err), DTP_OK);
	fputs("x", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_int_equal(stat("/dev/null", &st), 0);
	assert_true(S_ISCHR(st.st_mode));
}

/* The longest name that a folder takes, and a temporary left by a process of the same number that was killed. */
static void file_open_names(void **state)
{
	const char *d = folder();
	char name[256];
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile out;
	(void)state;
	memset(name, 'n', 255);
	name[255] = '\0';
	write_file(in(d, "keep"), "x", 1);
	assert_int_equal(dtp_outfile_open(in(d, name), NULL, &out, &err), DTP_OK);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	char *stale;
	assert_true(asprintf(&stale, "%s/.%.200s.%d.tmp", d, name, (int)getpid()) > 0);
	write_file(stale, "stale", 5);
	assert_int_equal(dtp_outfile_open(in(d, name), NULL, &out, &err), DTP_OK);
	fputs("new", out.f);
	assert_int_equal(dtp_outfile_commit(&out, &err), DTP_OK);
	assert_holds(in(d, name), "new");
	assert_holds(stale, "stale");
	assert_int_equal(entries(d), 3);
	free(stale);
}

/* In a process of its own: it is the last thing that one does. */
static int clean_up(const char *d)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_outfile a, b, c;

	if (dtp_outfile_open(in(d, "a"), NULL, &a, &err) || dtp_outfile_open(in(d, "b"), NULL, &b, &err) ||
	    dtp_outfile_open(in(d, "c"), NULL, &c, &err) || dtp_outfile_commit(&c, &err))
		return 1;
	int with = entries(d);
	pid_t child = fork();
	if (child == 0) {
		dtp_outfile_cleanup(); /* they are not the child's */
		_exit(0);
	}
	waitpid(child, NULL, 0);
	if (entries(d) != with)
		return 2;
	dtp_outfile_cleanup();
	if (entries(d) != 1 || access(in(d, "c"), F_OK)) /* what is committed is no longer ours to remove */
		return 3;
	if (dtp_outfile_commit(&a, &err) != DTP_FAILED)
		return 4;
	dtp_outfile_abandon(&b);
	return entries(d) == 1 ? 0 : 5;
}

static void file_cleanup_removes_all(void **state)
{
	const char *d = folder();
	int status;

	(void)state;
	pid_t child = fork();
	if (child == 0)
		_exit(clean_up(d));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void on_term(int sig)
{
	(void)sig;
	dtp_outfile_cleanup();
	_exit(3);
}

static void file_cleanup_from_signal(void **state)
{
	const char *d = folder();
	int ready[2], status;
	char c;
	(void)state;
	assert_int_equal(pipe(ready), 0);
	pid_t child = fork();
	if (child == 0) {
		struct dtp_outfile out;
		signal(SIGTERM, on_term);
		if (dtp_outfile_open(in(d, "out"), NULL, &out, NULL))
			_exit(1);
		fputs("half", out.f);
		fflush(out.f);
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	assert_int_equal(entries(d), nameless_in(d) ? 0 : 1);
	kill(child, SIGTERM);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	assert_int_equal(entries(d), 0);
}

static void file_death_leaves_nothing(void **state)
{
	const char *d = folder();
	int status;

	(void)state;
	if (!nameless_in(d))
		skip();
	pid_t child = fork();
	if (child == 0) {
		struct dtp_outfile out;
		if (!dtp_outfile_open(in(d, "out"), NULL, &out, NULL) && fputs("half", out.f) >= 0 && !fflush(out.f))
			raise(SIGKILL);
		_exit(1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, SIGKILL);
	assert_int_equal(entries(d), 0);
}

#define both(fn) cmocka_unit_test(fn), {#fn "_named", fn, with_names, without_names, NULL}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_check_refused),
		both(file_check_unwritable),
		both(file_check_no_room),
		both(file_check_leaves_nothing),
		both(file_commit_appears_whole),
		both(file_abandon_removes),
		both(file_commit_full_disk),
		both(file_commit_keeps_the_mode),
		both(file_commit_rename_fails),
		both(file_commit_keeps_what_appeared),
		cmocka_unit_test(file_commit_keeps_without_links),
		cmocka_unit_test(file_open_refused),
		both(file_open_link),
		cmocka_unit_test(file_open_device_stays),
		both(file_open_names),
		both(file_cleanup_removes_all),
		both(file_cleanup_from_signal),
		cmocka_unit_test(file_death_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
