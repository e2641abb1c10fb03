/* SPDX-License-Identifier: Apache-2.0 */
#include "infile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dtp_code read_all(const char *path, const char *what, int fd, size_t max, char **bytes, size_t *len,
			      struct dtp_err *err)
{
	struct stat st;
	size_t cap = 4096, n = 0;

	if (fstat(fd, &st))
		return dtp_fail(err, DTP_FAILED, "cannot read '%s': %s", path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		return dtp_fail(err, DTP_REFUSED, "'%s' is a folder, expected %s", path, what);
	if (S_ISREG(st.st_mode) && st.st_size > 0) {
		if ((uintmax_t)st.st_size > max)
			return dtp_fail(err, DTP_REFUSED, "'%s' has %lld bytes, %s here has at most %zu", path,
					(long long)st.st_size, what, max);
		cap = (size_t)st.st_size + 2; /* one more, to see the end at once, and the '\0' */
	}
	char *buf = NULL;
	for (;;) {
		char *bigger = realloc(buf, cap);
		if (!bigger) {
			free(buf);
			return dtp_fail(err, DTP_FAILED, "cannot read '%s': out of memory", path);
		}
		buf = bigger;
		ssize_t got = read(fd, buf + n, cap - 1 - n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			enum dtp_code rc = dtp_fail(err, DTP_FAILED, "cannot read '%s': %s", path, strerror(errno));
			free(buf);
			return rc;
		}
		if (got == 0)
			break;
		n += (size_t)got;
		if (n > max) {
			free(buf);
			return dtp_fail(err, DTP_REFUSED, "'%s' has more than the %zu bytes that %s here may have", path,
					max, what);
		}
		if (n == cap - 1)
			cap *= 2;
	}
	buf[n] = '\0';
	*bytes = buf;
	*len = n;
	return DTP_OK;
}

enum dtp_code dtp_infile_read(const char *path, const char *what, size_t max, char **bytes, size_t *len, struct dtp_err *err)
{
	*bytes = NULL;
	*len = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return dtp_cannot_open(path, err);
	enum dtp_code rc = read_all(path, what, fd, max, bytes, len, err);
	close(fd);
	return rc;
}

bool dtp_path_exists(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

bool dtp_path_reads_once(const char *path)
{
	struct stat st;

	return !stat(path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

enum dtp_code dtp_cannot_open(const char *path, struct dtp_err *err)
{
	char to[1024];
	int why = errno;
	ssize_t n = why == ENOENT ? readlink(path, to, sizeof to - 1) : -1;

	if (n < 0)
		return dtp_fail(err, DTP_REFUSED, "cannot open '%s': %s", path, strerror(why));
	to[n] = '\0';
	return dtp_fail(err, DTP_REFUSED,
			"cannot open '%s': it is a link to '%s', which is not there (an interrupted download, or a file that was deleted)",
			path, to);
}
