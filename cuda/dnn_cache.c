/* SPDX-License-Identifier: Apache-2.0 */
#include "dnn_cache.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file.h"

/* A file is this line with the plan's name, the plan's SHA-256 in a line, and the plan. */
#define FIRST_LINE "difftp cuDNN plan 1 %s\n"
#define LARGEST ((size_t)64 << 20)

static struct dtp_digest digest(const void *a, size_t na, const void *b, size_t nb)
{
	struct dtp_hash h;
	struct dtp_digest d;

	dtp_hash_begin(&h);
	dtp_hash_add(&h, a, na);
	dtp_hash_add(&h, b, nb);
	dtp_hash_end(&h, &d);
	return d;
}

static bool path_of(const struct dtp_dnn_cache *c, const char *name, char path[PATH_MAX])
{
	struct dtp_digest d = digest(&c->made_for, sizeof c->made_for, name, strlen(name));
	char text[DTP_DIGEST_TEXT];

	return snprintf(path, PATH_MAX, "%s/%s.plan", c->dir, dtp_digest_text(&d, text)) < PATH_MAX;
}

/* What stands before a plan; returns its length. */
static int head_of(char *buf, size_t size, const char *name, const char *text, size_t len)
{
	struct dtp_digest d = digest(text, len, "", 0);
	char sum[DTP_DIGEST_TEXT];

	return snprintf(buf, size, FIRST_LINE "%s\n", name, dtp_digest_text(&d, sum));
}

static char *whole_file(FILE *f, size_t *len)
{
	struct stat st;
	char *text;

	if (fstat(fileno(f), &st) || !S_ISREG(st.st_mode) || st.st_size <= 0 || (uint64_t)st.st_size > LARGEST)
		return NULL;
	*len = (size_t)st.st_size;
	text = malloc(*len + 1);
	if (text && fread(text, 1, *len, f) != *len) {
		free(text);
		return NULL;
	}
	if (text)
		text[*len] = '\0';
	return text;
}

char *dtp_dnn_cache_read(const struct dtp_dnn_cache *c, const char *name, size_t *len)
{
	char path[PATH_MAX], head[1024];
	size_t size = 0, skip;
	FILE *f = c->dir && path_of(c, name, path) ? fopen(path, "rbe") : NULL;
	char *text = f ? whole_file(f, &size) : NULL;

	if (f)
		fclose(f);
	if (!text)
		return NULL;
	skip = (size_t)head_of(head, sizeof head, name, "", 0); /* as long for every plan */
	if (skip < sizeof head && size > skip)
		head_of(head, sizeof head, name, text + skip, size - skip);
	if (skip >= sizeof head || size <= skip || memcmp(text, head, skip) != 0) {
		free(text);
		return NULL;
	}
	*len = size - skip;
	memmove(text, text + skip, *len + 1);
	return text;
}

/* The folder and those it lies in. */
static int make_folders(const char *dir)
{
	char path[PATH_MAX];
	size_t n = strlen(dir);

	if (n >= sizeof path) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(path, dir, n + 1);
	for (char *p = path + 1; *p; p++)
		if (*p == '/') {
			*p = '\0';
			if (mkdir(path, 0777) && errno != EEXIST)
				return -1;
			*p = '/';
		}
	return mkdir(path, 0777) && errno != EEXIST ? -1 : 0;
}

enum dtp_code dtp_dnn_cache_write(const struct dtp_dnn_cache *c, const char *name, const char *text, size_t len, struct dtp_err *err)
{
	char path[PATH_MAX], head[1024];
	struct dtp_outfile out;
	enum dtp_code rc;
	int n;

	if (!c->dir)
		return DTP_OK;
	n = head_of(head, sizeof head, name, text, len);
	if (n < 0 || (size_t)n >= sizeof head || !path_of(c, name, path))
		return dtp_fail(err, DTP_FAILED, "the name of a plan in '%s' is too long", c->dir);
	if (make_folders(c->dir))
		return dtp_fail(err, DTP_FAILED, "cannot make folder '%s': %s", c->dir, strerror(errno));
	rc = dtp_outfile_open(path, NULL, &out, err);
	if (rc)
		return rc;
	if (fwrite(head, 1, (size_t)n, out.f) != (size_t)n || fwrite(text, 1, len, out.f) != len) {
		rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", path, strerror(errno));
		dtp_outfile_abandon(&out);
		return rc;
	}
	return dtp_outfile_commit(&out, err);
}
