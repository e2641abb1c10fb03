/* SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- the folder */

static bool is_empty(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;

	if (!d)
		return false;
	while (n < 3 && readdir(d))
		n++;
	closedir(d);
	return n < 3; /* itself and its parent */
}

static enum dtp_code check_room(const char *path, const char *parent, uint64_t bytes, struct dtp_err *err)
{
	struct statvfs fs;

	if (statvfs(parent, &fs))
		return dtp_fail(err, DTP_REFUSED, "cannot write the folder '%s': '%s': %s", path, parent, strerror(errno));
	uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
	if (room < bytes)
		return dtp_fail(err, DTP_REFUSED, "cannot write the folder '%s': it takes %" PRIu64 " bytes, the disk of '%s' has %"
				PRIu64 " left", path, bytes, parent, room);
	return DTP_OK;
}

enum dtp_code dtp_outfolder_open(const char *path, uint64_t bytes, struct dtp_outfolder *out, struct dtp_err *err)
{
	size_t n = strlen(path);
	struct stat st;

	while (n > 1 && path[n - 1] == '/')
		n--;
	*out = (struct dtp_outfolder){.path = strndup(path, n)};
	char *parent = out->path ? dtp_folder_of(out->path, NULL) : NULL;
	enum dtp_code rc = DTP_OK;
	if (!parent || asprintf(&out->tmp, "%s.tmp-%ld", out->path, (long)getpid()) < 0) {
		out->tmp = NULL;
		rc = dtp_fail(err, DTP_FAILED, "out of memory");
	} else if (!lstat(out->path, &st) && !(S_ISDIR(st.st_mode) && is_empty(out->path))) {
		rc = dtp_fail(err, DTP_REFUSED, "'%s' exists already: name a new folder", out->path);
	} else if (!(rc = check_room(out->path, parent, bytes, err)) && mkdir(out->tmp, 0777)) {
		rc = dtp_fail(err, DTP_REFUSED, "cannot create the folder '%s': %s", out->tmp, strerror(errno));
	}
	free(parent);
	if (!rc)
		return DTP_OK;
	free(out->path);
	free(out->tmp);
	*out = (struct dtp_outfolder){0};
	return rc;
}

enum dtp_code dtp_make_folder(const char *dir, struct dtp_err *err)
{
	if (mkdir(dir, 0777) && errno != EEXIST)
		return dtp_fail(err, DTP_FAILED, "cannot create the folder '%s': %s", dir, strerror(errno));
	return DTP_OK;
}

enum dtp_code dtp_outfolder_add(const struct dtp_outfolder *out, const char *name, struct dtp_err *err)
{
	char dir[4096];

	snprintf(dir, sizeof dir, "%s/%s", out->tmp, name);
	return dtp_make_folder(dir, err);
}

static int sync_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
	(void)st, (void)f;
	int fd = kind == FTW_DP ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
	return 0;
}

enum dtp_code dtp_outfolder_commit(struct dtp_outfolder *out, struct dtp_err *err)
{
	char *parent = dtp_folder_of(out->path, NULL);

	nftw(out->tmp, sync_one, 16, FTW_DEPTH | FTW_PHYS);
	if (rename(out->tmp, out->path)) {
		int failed = errno;
		free(parent);
		return dtp_fail(err, DTP_FAILED, "cannot give '%s' the name '%s': %s", out->tmp, out->path, strerror(failed));
	}
	if (parent)
		sync_one(parent, NULL, FTW_DP, NULL);
	free(parent);
	free(out->path);
	free(out->tmp);
	*out = (struct dtp_outfolder){0};
	return DTP_OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *f)
{
	(void)st, (void)kind, (void)f;
	remove(path);
	return 0;
}

void dtp_outfolder_abandon(struct dtp_outfolder *out)
{
	if (out->tmp)
		nftw(out->tmp, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(out->path);
	free(out->tmp);
	*out = (struct dtp_outfolder){0};
}

/* ---- files in it */

int dtp_close_synced(FILE *f)
{
	int failed = ferror(f) ? EIO : 0;

	if (fflush(f))
		failed = errno;
	if (!failed && fsync(fileno(f)))
		failed = errno;
	if (fclose(f) && !failed)
		failed = errno;
	return failed;
}

enum dtp_code dtp_write_new(const char *path, const void *data, size_t len, struct dtp_err *err)
{
	FILE *f = fopen(path, "wbxe");
	int failed = f ? 0 : errno;

	if (f && len && fwrite(data, len, 1, f) != 1)
		failed = errno;
	int closed = f ? dtp_close_synced(f) : 0;
	failed = failed ? failed : closed;
	return failed ? dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", path, strerror(failed)) : DTP_OK;
}

enum dtp_code dtp_copy_file(const char *from, const char *to, struct dtp_err *err)
{
	static const size_t block = 1u << 20;
	FILE *in = fopen(from, "rbe"), *out = NULL;
	char *buf = malloc(block);
	enum dtp_code rc = DTP_OK;
	size_t n;

	if (!in)
		rc = dtp_fail(err, DTP_FAILED, "cannot open '%s': %s", from, strerror(errno));
	else if (!buf)
		rc = dtp_fail(err, DTP_FAILED, "out of memory");
	else if (!(out = fopen(to, "wbxe")))
		rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", to, strerror(errno));
	while (!rc && (n = fread(buf, 1, block, in)))
		if (fwrite(buf, n, 1, out) != 1)
			rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", to, strerror(errno));
	if (!rc && ferror(in))
		rc = dtp_fail(err, DTP_FAILED, "cannot read '%s': %s", from, strerror(errno));
	int failed = out ? dtp_close_synced(out) : 0;
	if (!rc && failed)
		rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", to, strerror(failed));
	if (in)
		fclose(in);
	free(buf);
	return rc;
}

static bool may_hold_weights(const char *name)
{
	static const char *const suffixes[] = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack",
					       ".h5", ".onnx"};
	size_t n = strlen(name);

	if (strstr(name, ".index.")) /* of any variant */
		return true;
	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
		size_t m = strlen(suffixes[i]);
		if (n >= m && !strcmp(name + n - m, suffixes[i]))
			return true;
	}
	return false;
}

enum dtp_code dtp_copy_small_files(const char *from, const char *to, struct dtp_err *err)
{
	DIR *d = opendir(from);
	enum dtp_code rc = DTP_OK;
	char a[8192], b[8192];
	struct dirent *e;
	struct stat st;

	if (!d)
		return dtp_fail(err, DTP_FAILED, "cannot open the folder '%s': %s", from, strerror(errno));
	while (!rc && (e = readdir(d))) {
		snprintf(a, sizeof a, "%s/%s", from, e->d_name);
		snprintf(b, sizeof b, "%s/%s", to, e->d_name);
		if (e->d_name[0] != '.' && !may_hold_weights(e->d_name) && !stat(a, &st) && S_ISREG(st.st_mode))
			rc = dtp_copy_file(a, b, err);
	}
	closedir(d);
	return rc;
}
