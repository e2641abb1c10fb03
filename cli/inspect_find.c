/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/stat.h>

#define INDEX ".safetensors.index."
#define JSON ".json"
#define SINGLE ".safetensors"

static bool ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);

	return n > m && !strcmp(s + n - m, tail);
}

/* Of any variant: "...safetensors.index.fp16.json". */
static bool is_index(const char *s)
{
	return strstr(s, INDEX) && ends_with(s, JSON);
}

static enum dtp_code no_memory(struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "out of memory");
}

/* Opens what path names, an index or a file; path is taken over. */
static enum dtp_code add(struct dtp_checkpoints *c, char *path, struct dtp_err *err)
{
	struct dtp_checkpoint *more = path ? realloc(c->item, (size_t)(c->n + 1) * sizeof *more) : NULL;

	if (!more) {
		free(path);
		return no_memory(err);
	}
	c->item = more;
	struct dtp_checkpoint *cp = &c->item[c->n++];
	*cp = (struct dtp_checkpoint){.path = path, .err = DTP_ERR_INIT};
	if (!is_index(path)) {
		dtp_st_open_file(path, &cp->st, &cp->err);
		return DTP_OK;
	}
	dtp_st_open_index(path, &cp->st, &cp->err);
	return DTP_OK;
}

/* Whether a file is one of those that the checkpoints from `first` on consist of. */
static bool is_shard(const struct dtp_checkpoints *c, int first, const char *path)
{
	for (int i = first; i < c->n; i++)
		for (int k = 0; k < c->item[i].st.nfiles; k++)
			if (!strcmp(c->item[i].st.files[k].path, path))
				return true;
	return false;
}

static int not_hidden(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

/* One kind of entry of a folder: indexes first, so that shards are known, then files, then folders. */
enum pass { INDEXES, FILES, FOLDERS, PASSES };

static enum dtp_code search(struct dtp_checkpoints *c, const char *dir, bool deeper, struct dtp_err *err);

static enum dtp_code visit(struct dtp_checkpoints *c, int first, const char *dir, const char *name, enum pass pass, bool deeper,
			   struct dtp_err *err)
{
	struct stat st;
	char *path;
	size_t n = strlen(dir);

	if (asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0)
		return no_memory(err);
	bool there = !stat(path, &st), folder = there && S_ISDIR(st.st_mode);
	/* A dangling link is damage, and told. */
	bool wanted = !folder && ((pass == INDEXES && is_index(name)) ||
				  (pass == FILES && ends_with(name, SINGLE) && !is_shard(c, first, path)));
	if (wanted)
		return add(c, path, err);
	enum dtp_code rc = pass == FOLDERS && folder && deeper ? search(c, path, false, err) : DTP_OK;
	free(path);
	return rc;
}

static enum dtp_code search(struct dtp_checkpoints *c, const char *dir, bool deeper, struct dtp_err *err)
{
	struct dirent **list;
	int first = c->n, n = scandir(dir, &list, not_hidden, alphasort);
	enum dtp_code rc = DTP_OK;

	if (n < 0)
		return dtp_fail(err, DTP_REFUSED, "cannot open the folder '%s': %s", dir, strerror(errno));
	for (int pass = INDEXES; pass < PASSES; pass++)
		for (int i = 0; i < n && !rc; i++)
			rc = visit(c, first, dir, list[i]->d_name, (enum pass)pass, deeper, err);
	for (int i = 0; i < n; i++)
		free(list[i]);
	free(list);
	return rc;
}

enum dtp_code dtp_checkpoints_find(const char *path, struct dtp_checkpoints *out, struct dtp_err *err)
{
	struct stat st;
	enum dtp_code rc;

	*out = (struct dtp_checkpoints){0};
	if (stat(path, &st))
		return dtp_fail(err, DTP_REFUSED, "cannot open '%s': %s", path, strerror(errno));
	rc = S_ISDIR(st.st_mode) ? search(out, path, true, err) : add(out, strdup(path), err);
	if (!rc && !out->n)
		rc = dtp_fail(err, DTP_REFUSED, "'%s' holds no safetensors files, and neither do the folders in it", path);
	if (rc)
		dtp_checkpoints_free(out);
	return rc;
}

void dtp_checkpoints_free(struct dtp_checkpoints *c)
{
	for (int i = 0; i < c->n; i++) {
		dtp_st_close(&c->item[i].st);
		free(c->item[i].path);
	}
	free(c->item);
	*c = (struct dtp_checkpoints){0};
}
