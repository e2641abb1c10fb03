/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The temporaries that have a name now, and the process that has cleaned up.  The one mutable state of core/ at file scope: a
 * signal handler has nothing else to go by. */
enum { FREE, BUSY, OPEN };
static struct {
	atomic_int state;
	pid_t pid; /* a forked child leaves its parent's alone */
	char path[PATH_MAX];
} temporaries[8];

static atomic_long given_up;

#define NSLOTS (int)(sizeof temporaries / sizeof *temporaries)

/* Before the file exists, so that no moment is left uncovered. */
static bool claim(const char *path)
{
	if (strlen(path) >= PATH_MAX)
		return false;
	for (int i = 0; i < NSLOTS; i++) {
		int expected = FREE;
		if (!atomic_compare_exchange_strong(&temporaries[i].state, &expected, BUSY))
			continue;
		temporaries[i].pid = getpid();
		strcpy(temporaries[i].path, path);
		atomic_store(&temporaries[i].state, OPEN);
		return true;
	}
	return false;
}

static void unclaim(const char *path)
{
	for (int i = 0; i < NSLOTS; i++)
		if (atomic_load(&temporaries[i].state) == OPEN && !strcmp(temporaries[i].path, path))
			atomic_store(&temporaries[i].state, FREE);
}

void dtp_outfile_cleanup(void)
{
	int saved = errno;
	atomic_store(&given_up, (long)getpid());
	for (int i = 0; i < NSLOTS; i++)
		if (atomic_load(&temporaries[i].state) == OPEN && temporaries[i].pid == getpid())
			unlink(temporaries[i].path);
	errno = saved;
}

/* ---- names */

char *dtp_folder_of(const char *path, const char **name)
{
	const char *slash = strrchr(path, '/');
	if (name)
		*name = slash ? slash + 1 : path;
	if (!slash)
		return strdup(".");
	return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

const char *dtp_suffix_of(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');

	return dot && dot != name ? dot : path + strlen(path);
}

struct dtp_outkeep dtp_outkeep_of(const char *path)
{
	return (struct dtp_outkeep){.at = (size_t)(dtp_suffix_of(path) - path), .next = 2};
}

const char *dtp_outkeep_name(const struct dtp_outkeep *keep, const char *path)
{
	return keep && keep->name ? keep->name : path;
}

void dtp_outkeep_tell(const struct dtp_outkeep *keep, const char *path, const struct dtp_monitor *mon)
{
	char text[8704];

	if (!keep || !keep->name)
		return;
	snprintf(text, sizeof text, "'%s' exists by now, it was none when this began: it is left as it is, and this one is kept as '%s'", path,
		 keep->name);
	mon->warn(mon->arg, text);
}

void dtp_outkeep_free(struct dtp_outkeep *keep)
{
	free(keep->name);
	keep->name = NULL;
}

#define MAX_LINKS 40 /* that lead to each other, as the kernel's limit */

/* Writing through a link leaves the link and replaces what it points to, or makes it. */
static char *resolve(const char *path)
{
	char to[PATH_MAX], *at = strdup(path);
	ssize_t n;

	for (int i = 0; at && (n = readlink(at, to, sizeof to - 1)) >= 0; i++) {
		char *dir = dtp_folder_of(at, NULL), *next = NULL;
		to[n] = '\0';
		if (i == MAX_LINKS)
			errno = ELOOP;
		else if (dir && asprintf(&next, "%s%s%s", to[0] == '/' ? "" : dir, to[0] == '/' ? "" : "/", to) < 0)
			next = NULL;
		free(dir);
		free(at);
		at = next;
	}
	return at;
}

static bool same_place(const char *a, const char *b)
{
	const char *a_name, *b_name;
	char *a_dir = dtp_folder_of(a, &a_name), *b_dir = dtp_folder_of(b, &b_name);
	struct stat x, y;
	bool same = a_dir && b_dir && !strcmp(a_name, b_name) && !stat(a_dir, &x) && !stat(b_dir, &y) && x.st_dev == y.st_dev &&
		    x.st_ino == y.st_ino;

	free(a_dir);
	free(b_dir);
	return same;
}

bool dtp_same_file(const char *a, const char *b)
{
	char *x = resolve(a), *y = resolve(b);
	bool same = !strcmp(a, b) || (x && y && same_place(x, y));

	free(x);
	free(y);
	return same;
}

static bool is_device(const char *path)
{
	struct stat st;
	return !stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* What can be said without touching anything. */
static enum dtp_code check_name(const char *path, const char *dir, const char *name, enum dtp_code code, struct dtp_err *err)
{
	struct stat st;

	if (!*path)
		return dtp_fail(err, code, "the name of the output file is empty");
	if (!*name || (!stat(path, &st) && S_ISDIR(st.st_mode)))
		return dtp_fail(err, code, "cannot write '%s': it names a folder, give the name of a file", path);
	if (stat(dir, &st)) {
		if (errno == ENOENT)
			return dtp_fail(err, code, "cannot write '%s': the folder '%s' does not exist", path, dir);
		return dtp_fail(err, code, "cannot write '%s': the folder '%s': %s", path, dir, strerror(errno));
	}
	if (!S_ISDIR(st.st_mode))
		return dtp_fail(err, code, "cannot write '%s': '%s' is no folder", path, dir);
	return DTP_OK;
}

/* ---- the temporary */

/* Gives a temporary its claimed name in dir: a new file, or the nameless one that is open as fd.  Returns the descriptor. */
static int give_name(const char *dir, const char *name, int fd, char **tmp)
{
	for (int i = 0; i < 16; i++) {
		char again[16] = "", self[32];
		if (i) /* left by a process of the same number that was killed, or by one elsewhere on a shared folder */
			snprintf(again, sizeof again, "-%d", i);
		/* A name of 255 bytes is allowed and leaves no room for ours around it. */
		if (asprintf(tmp, "%s/.%.200s.%ld%s.tmp", dir, name, (long)getpid(), again) < 0) {
			*tmp = NULL;
			errno = ENOMEM;
			return -1;
		}
		if (!claim(*tmp)) {
			free(*tmp);
			*tmp = NULL;
			errno = ENFILE;
			return -1;
		}
		snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
		int named = fd < 0 ? open(*tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)
				   : linkat(AT_FDCWD, self, AT_FDCWD, *tmp, AT_SYMLINK_FOLLOW);
		if (named >= 0)
			return fd < 0 ? named : fd;
		int saved = errno;
		unclaim(*tmp);
		free(*tmp);
		*tmp = NULL;
		errno = saved;
		if (errno != EEXIST)
			break;
	}
	return -1;
}

/* Where the file system can, the file has no name until it is complete: even a killed process leaves nothing. */
static int create(const char *dir, const char *name, char **tmp)
{
	int fd = access("/proc/self/fd", X_OK) ? -1 : open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	return fd >= 0 ? fd : give_name(dir, name, -1, tmp);
}

static void drop(struct dtp_outfile *out)
{
	if (out->f)
		fclose(out->f);
	if (out->tmp) {
		unlink(out->tmp);
		unclaim(out->tmp);
	}
	free(out->path);
	free(out->tmp);
	*out = (struct dtp_outfile){0};
}

static enum dtp_code open_as(const char *path, struct dtp_outkeep *keep, struct dtp_outfile *out, enum dtp_code code, struct dtp_err *err)
{
	const char *name;
	int fd;

	*out = (struct dtp_outfile){.path = keep ? strdup(path) : resolve(path), .keep = keep};
	char *dir = out->path ? dtp_folder_of(out->path, &name) : NULL;
	enum dtp_code rc = dir ? check_name(out->path, dir, name, code, err)
			       : dtp_fail(err, code, "cannot write '%s': %s", path, strerror(errno));
	if (rc == DTP_OK) {
		/* A device or a pipe (/dev/null, /dev/stdout) is written as it is: there is nothing to replace. */
		bool device = is_device(out->path);
		fd = device ? open(out->path, O_WRONLY | O_CLOEXEC) : create(dir, name, &out->tmp);
		if (fd < 0 && device)
			rc = dtp_fail(err, code, "cannot write '%s': %s", path, strerror(errno));
		else if (fd < 0)
			rc = dtp_fail(err, code, "cannot write '%s': cannot create a file in the folder '%s': %s", path, dir,
				      strerror(errno));
		else if (!(out->f = fdopen(fd, "wb"))) {
			close(fd);
			rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': out of memory", path);
		}
	}
	free(dir);
	if (rc)
		drop(out);
	return rc;
}

enum dtp_code dtp_outfile_open(const char *path, struct dtp_outkeep *keep, struct dtp_outfile *out, struct dtp_err *err)
{
	return open_as(path, keep, out, DTP_FAILED, err);
}

enum dtp_code dtp_outfile_check(const char *path, struct dtp_err *err)
{
	/* Rights say little (a superuser has them all, a mount may be read-only, a quota used up): so it is tried. */
	static const char block[65536];
	struct dtp_outfile out;

	if (is_device(path)) { /* opening it would already be an act: a reader would see the end */
		if (access(path, W_OK))
			return dtp_fail(err, DTP_REFUSED, "cannot write '%s': %s", path, strerror(errno));
		return DTP_OK;
	}
	enum dtp_code rc = open_as(path, NULL, &out, DTP_REFUSED, err);
	if (rc)
		return rc;
	if (fwrite(block, sizeof block, 1, out.f) != 1 || fflush(out.f))
		rc = dtp_fail(err, DTP_REFUSED, "cannot write '%s': %s", path, strerror(errno));
	drop(&out);
	return rc;
}

/* So that the new name survives a crash too; a file system that cannot do this has no remedy. */
static void sync_folder(const char *path)
{
	char *dir = dtp_folder_of(path, NULL);
	int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
	free(dir);
}

static void forget_temporary(struct dtp_outfile *out)
{
	unclaim(out->tmp);
	free(out->tmp);
	out->tmp = NULL;
}

static int name_nameless(const struct dtp_outfile *out, const char *path)
{
	char self[32];

	snprintf(self, sizeof self, "/proc/self/fd/%d", fileno(out->f));
	return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) ? errno : 0;
}

/* Where a file system has no links, the name is made first: for a moment it is an empty file. */
static int rename_beside(const struct dtp_outfile *out, const char *path)
{
	if (!link(out->tmp, path))
		return unlink(out->tmp) ? errno : 0;
	int fd = errno == EEXIST ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return errno;
	close(fd);
	if (!rename(out->tmp, path))
		return 0;
	int failed = errno;
	unlink(path);
	return failed;
}

/* Gives the file the first name that nothing has: the one that was asked for, or that with a number in it. */
static int place_beside(struct dtp_outfile *out)
{
	struct dtp_outkeep *k = out->keep;
	char *name = NULL;
	int failed;

	while ((failed = out->tmp ? rename_beside(out, name ? name : out->path) : name_nameless(out, name ? name : out->path)) == EEXIST) {
		free(name);
		if (asprintf(&name, "%.*s-%d%s", (int)k->at, out->path, k->next++, out->path + k->at + k->len) < 0)
			return ENOMEM;
	}
	if (failed)
		free(name);
	else
		k->name = name;
	return failed;
}

/* At once where nothing has the name yet, else as a temporary, which is renamed once it is closed. */
static int place_over(struct dtp_outfile *out)
{
	const char *name;
	int failed = name_nameless(out, out->path);

	if (failed != EEXIST)
		return failed;
	char *dir = dtp_folder_of(out->path, &name);
	failed = !dir ? ENOMEM : give_name(dir, name, fileno(out->f), &out->tmp) < 0 ? errno : 0;
	free(dir);
	return failed;
}

/* What was for few eyes stays so.  A file system that knows no modes has no remedy. */
static void take_mode(const struct dtp_outfile *out)
{
	struct stat st;

	if (!out->keep && !stat(out->path, &st) && S_ISREG(st.st_mode))
		(void)fchmod(fileno(out->f), st.st_mode & 0777);
}

/* The file is complete. */
static int place(struct dtp_outfile *out)
{
	struct stat st;

	if (out->tmp)
		return 0;
	if (fstat(fileno(out->f), &st))
		return errno;
	if (!S_ISREG(st.st_mode) || st.st_nlink)
		return 0;
	return out->keep ? place_beside(out) : place_over(out);
}

static int place_temporary(struct dtp_outfile *out)
{
	int failed = out->keep ? place_beside(out) : rename(out->tmp, out->path) ? errno : 0;

	if (!failed)
		forget_temporary(out);
	return failed;
}

enum dtp_code dtp_outfile_commit(struct dtp_outfile *out, struct dtp_err *err)
{
	bool device = is_device(out->path);
	int failed = 0;

	/* An earlier error of the stream has lost its errno: the file is given up, so one more byte may ask why. */
	if (ferror(out->f))
		failed = write(fileno(out->f), "", 1) < 0 ? errno : EIO;
	if (fflush(out->f) && !failed)
		failed = errno;
	if (!failed && !device && fsync(fileno(out->f)) && errno != EINVAL && errno != ENOSYS)
		failed = errno;
	if (!failed && atomic_load(&given_up) == (long)getpid())
		failed = ECANCELED;
	if (!failed && !device)
		take_mode(out);
	if (!failed)
		failed = place(out);
	if (fclose(out->f) && !failed)
		failed = errno;
	out->f = NULL;
	if (!failed && out->tmp)
		failed = place_temporary(out);
	if (!failed && !device)
		sync_folder(out->path);
	enum dtp_code rc = DTP_OK;
	if (failed)
		rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", out->path, strerror(failed));
	drop(out);
	return rc;
}

void dtp_outfile_abandon(struct dtp_outfile *out)
{
	drop(out);
}
