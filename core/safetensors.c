/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"
#include "infile.h"
#include "remote.h"
#include "st_header.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dtp_code no_memory(const char *path, struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "cannot open '%s': out of memory", path);
}

/* ---- opening */

/* Adds the file, open but without its entries; path is taken over. */
static enum dtp_code add_file(struct dtp_st *st, char *path, struct dtp_err *err)
{
	struct stat s;
	struct dtp_st_file *f = path ? realloc(st->files, (size_t)(st->nfiles + 1) * sizeof *f) : NULL;

	if (!f) {
		free(path);
		return dtp_fail(err, DTP_FAILED, "out of memory while opening a checkpoint");
	}
	st->files = f;
	f += st->nfiles++;
	*f = (struct dtp_st_file){.path = path};
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe of that name must not block */
	if (f->fd < 0)
		return dtp_cannot_open(path, err);
	if (fstat(f->fd, &s))
		return dtp_fail(err, DTP_FAILED, "cannot open '%s': %s", path, strerror(errno));
	if (!S_ISREG(s.st_mode))
		return dtp_fail(err, DTP_REFUSED, "'%s' is %s, expected a safetensors file", path,
				S_ISDIR(s.st_mode) ? "a folder" : "no regular file");
	f->size = (uint64_t)s.st_size;
	f->mtime = s.st_mtim;
	f->remote = dtp_remote_file(f->fd);
	return DTP_OK;
}

/* Reads the header of the last file and appends its entries. */
static enum dtp_code add_entries(struct dtp_st *st, struct dtp_err *err)
{
	struct dtp_st_file *f = &st->files[st->nfiles - 1];
	struct dtp_st_entry *more, *all;
	char *text;
	size_t len;
	int n;

	enum dtp_code rc = dtp_st_header_read(f, &text, &len, err);
	if (rc)
		return rc;
	f->header_bytes = 8 + (uint64_t)len;
	rc = dtp_st_header_parse(f->path, text, len, f->size, st->nfiles - 1, &more, &n, err);
	free(text);
	if (rc || !n)
		return rc;
	if (n > INT_MAX - st->nentries ||
	    !(all = realloc(st->entries, ((size_t)st->nentries + (size_t)n) * sizeof *all))) {
		dtp_st_entries_free(more, n);
		return no_memory(f->path, err);
	}
	memcpy(all + st->nentries, more, (size_t)n * sizeof *all);
	free(more);
	st->entries = all;
	st->nentries += n;
	return DTP_OK;
}

static enum dtp_code open_one(struct dtp_st *st, char *path, struct dtp_err *err)
{
	enum dtp_code rc = add_file(st, path, err);
	return rc ? rc : add_entries(st, err);
}

enum dtp_code dtp_st_open_file(const char *path, struct dtp_st *st, struct dtp_err *err)
{
	*st = (struct dtp_st){0};
	enum dtp_code rc = open_one(st, strdup(path), err);
	if (rc)
		dtp_st_close(st);
	return rc;
}

void dtp_st_close(struct dtp_st *st)
{
	for (int i = 0; i < st->nfiles; i++) {
		if (st->files[i].fd >= 0)
			close(st->files[i].fd);
		free(st->files[i].path);
	}
	free(st->files);
	free(st->index);
	dtp_st_entries_free(st->entries, st->nentries);
	*st = (struct dtp_st){0};
}

/* ---- the index of a sharded checkpoint */

struct placed {
	const char *tensor, *shard;
};

static int by_tensor(const void *a, const void *b)
{
	return strcmp(((const struct placed *)a)->tensor, ((const struct placed *)b)->tensor);
}

static int by_shard(const void *a, const void *b)
{
	return strcmp(((const struct placed *)a)->shard, ((const struct placed *)b)->shard);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct dtp_st_entry *)a)->name, ((const struct dtp_st_entry *)b)->name);
}

/* weight_map as pairs, in the order of the file. */
static enum dtp_code read_map(const struct dtp_json *doc, struct placed **map, int *n, struct dtp_err *err)
{
	const cJSON *c, *m = cJSON_GetObjectItemCaseSensitive(doc->root, "weight_map");
	int i = 0;

	if (!cJSON_IsObject(m) || !m->child)
		return dtp_fail(err, DTP_REFUSED, "%s: no 'weight_map', expected an object from tensor names to file names",
				doc->path);
	*n = cJSON_GetArraySize(m);
	*map = malloc((size_t)*n * sizeof **map);
	if (!*map)
		return no_memory(doc->path, err);
	cJSON_ArrayForEach(c, m) {
		const char *shard = cJSON_GetStringValue(c);
		if (!shard)
			return dtp_fail(err, DTP_REFUSED, "%s: 'weight_map' gives no file name for tensor '%.200s'", doc->path,
					c->string);
		if (!*shard || strchr(shard, '/') || strstr(shard, ".."))
			return dtp_fail(err, DTP_REFUSED, "%s: 'weight_map' gives '%.200s' for tensor '%.200s', expected the name "
					"of a file in the same folder", doc->path, shard, c->string);
		(*map)[i++] = (struct placed){c->string, shard};
	}
	return DTP_OK;
}

static enum dtp_code open_shards(const char *dir, const char *index, struct placed *map, int n, struct dtp_st *st,
				 struct dtp_err *err)
{
	qsort(map, (size_t)n, sizeof *map, by_shard);
	for (int i = 0; i < n; i++) {
		char *path;
		if (i && !strcmp(map[i].shard, map[i - 1].shard))
			continue;
		if (asprintf(&path, "%s/%s", dir, map[i].shard) < 0)
			return no_memory(index, err);
		if (!dtp_path_exists(path)) {
			free(path);
			return dtp_fail(err, DTP_REFUSED, "'%s' names the shard '%s' (for tensor '%.200s'), which is missing",
					index, map[i].shard, map[i].tensor);
		}
		enum dtp_code rc = open_one(st, path, err);
		if (rc)
			return rc;
	}
	return DTP_OK;
}

const char *dtp_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* Index and shards say the same about every tensor.  Both lists are sorted by name. */
static enum dtp_code compare_map(const char *index, const struct placed *map, int n, const struct dtp_st *st,
				 struct dtp_err *err)
{
	const struct dtp_st_entry *e = st->entries;

	for (int i = 1; i < st->nentries; i++)
		if (!strcmp(e[i - 1].name, e[i].name))
			return dtp_fail(err, DTP_REFUSED, "tensor '%.200s' is in two shards, '%s' and '%s'", e[i].name,
					st->files[e[i - 1].file].path, st->files[e[i].file].path);
	for (int i = 0, j = 0; i < n || j < st->nentries;) {
		int order = i == n ? 1 : j == st->nentries ? -1 : strcmp(map[i].tensor, e[j].name);
		if (order < 0)
			return dtp_fail(err, DTP_REFUSED, "'%s' names '%s' for tensor '%.200s', which that shard lacks", index,
					map[i].shard, map[i].tensor);
		const char *path = st->files[e[j].file].path;
		if (order > 0)
			return dtp_fail(err, DTP_REFUSED, "'%s' holds tensor '%.200s', which '%s' does not list", path,
					e[j].name, index);
		if (strcmp(dtp_base_name(path), map[i].shard))
			return dtp_fail(err, DTP_REFUSED, "'%s' names '%s' for tensor '%.200s', which is in '%s'", index,
					map[i].shard, map[i].tensor, path);
		i++;
		j++;
	}
	return DTP_OK;
}

static enum dtp_code open_index(const char *dir, const char *index, struct dtp_st *st, struct dtp_err *err)
{
	struct dtp_json doc;
	struct placed *map = NULL;
	int n = 0;

	enum dtp_code rc = dtp_json_load(index, DTP_JSON_LARGE, &doc, err);
	if (rc)
		return rc;
	rc = read_map(&doc, &map, &n, err);
	if (rc == DTP_OK)
		rc = open_shards(dir, index, map, n, st, err);
	if (rc == DTP_OK) {
		qsort(map, (size_t)n, sizeof *map, by_tensor);
		if (st->nentries)
			qsort(st->entries, (size_t)st->nentries, sizeof *st->entries, by_name);
		rc = compare_map(index, map, n, st, err);
	}
	free(map);
	dtp_json_free(&doc);
	if (rc == DTP_OK && !(st->index = strdup(index)))
		rc = no_memory(index, err);
	return rc;
}

enum dtp_code dtp_st_open_index(const char *path, struct dtp_st *st, struct dtp_err *err)
{
	const char *name = dtp_base_name(path);
	char *dir = name == path ? strdup(".") : strndup(path, (size_t)(name - path > 1 ? name - path - 1 : 1));

	*st = (struct dtp_st){0};
	if (!dir)
		return no_memory(path, err);
	enum dtp_code rc = open_index(dir, path, st, err);
	free(dir);
	if (rc)
		dtp_st_close(st);
	return rc;
}

/* ---- the folder */

static bool ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), m = strlen(tail);
	return n >= m && !strcmp(s + n - m, tail);
}

/* Why there is nothing to open: names what is there instead. */
static enum dtp_code nothing_to_open(const char *dir, const char *single, const char *index, struct dtp_err *err)
{
	static const char *const others[] = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5", ".onnx",
					     ".safetensors", ".safetensors.index.json"};
	char found[512] = "";
	struct dirent *d;
	size_t len = 0;

	DIR *folder = opendir(dir);
	if (!folder)
		return dtp_fail(err, DTP_REFUSED, "cannot open the folder '%s': %s", dir, strerror(errno));
	while ((d = readdir(folder))) {
		bool weights = false;
		for (size_t i = 0; i < sizeof others / sizeof *others; i++)
			weights |= ends_with(d->d_name, others[i]);
		if (weights && len + strlen(d->d_name) + 8 < sizeof found)
			len += (size_t)snprintf(found + len, sizeof found - len, "%s'%s'", len ? ", " : "", d->d_name);
	}
	closedir(folder);
	return dtp_fail(err, DTP_REFUSED, "'%s' has neither '%s' nor '%s'%s%s; weights are "
			"read from safetensors files of these names only (--variant names others)", dir, dtp_base_name(single), dtp_base_name(index), len ? "; it has " : "", found);
}

/* The two names that a checkpoint may have; malloc'd.  False: out of memory. */
static bool names_of(const char *dir, const char *base, const char *variant, char **single, char **index)
{
	const char *dot = variant ? "." : "", *v = variant ? variant : "";

	*single = *index = NULL;
	if (asprintf(single, "%s/%s%s%s.safetensors", dir, base, dot, v) < 0)
		*single = NULL;
	if (asprintf(index, "%s/%s.safetensors.index%s%s.json", dir, base, dot, v) < 0)
		*index = NULL;
	if (*single && *index)
		return true;
	free(*single);
	free(*index);
	return false;
}

bool dtp_st_exists(const char *dir, const char *base, const char *variant)
{
	char *single, *index;
	struct stat s;

	if (!names_of(dir, base, variant, &single, &index))
		return false;
	bool there = !lstat(single, &s) || !lstat(index, &s);
	free(single);
	free(index);
	return there;
}

enum dtp_code dtp_st_open_variant(const char *dir, const char *base, const char *variant, struct dtp_st *st, struct dtp_err *err)
{
	char *single, *index;
	enum dtp_code rc;
	struct stat s;

	*st = (struct dtp_st){0};
	if (!names_of(dir, base, variant, &single, &index))
		return no_memory(dir, err);
	/* A dangling link counts as there, so that its own error is shown. */
	if (!lstat(single, &s)) {
		rc = open_one(st, single, err);
		single = NULL;
	} else if (!lstat(index, &s)) {
		rc = open_index(dir, index, st, err);
	} else {
		rc = nothing_to_open(dir, single, index, err);
	}
	if (rc)
		dtp_st_close(st);
	free(single);
	free(index);
	return rc;
}

enum dtp_code dtp_st_open(const char *dir, const char *base, struct dtp_st *st, struct dtp_err *err)
{
	return dtp_st_open_variant(dir, base, NULL, st, err);
}

/* ---- using it */

const struct dtp_st_entry *dtp_st_find(const struct dtp_st *st, const char *name)
{
	int lo = 0, hi = st->nentries;
	while (lo < hi) {
		int mid = lo + (hi - lo) / 2;
		int order = strcmp(name, st->entries[mid].name);
		if (order == 0)
			return &st->entries[mid];
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

/* A file that is written to while we read gives a mixture of two checkpoints. */
static enum dtp_code check_unchanged(const struct dtp_st_file *f, const struct dtp_st_entry *e, struct dtp_err *err)
{
	struct stat s;
	if (fstat(f->fd, &s))
		return dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': %s", e->name, f->path, strerror(errno));
	if ((uint64_t)s.st_size != f->size)
		return dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': the file had %" PRIu64 " bytes when it "
				"was opened and has %lld now", e->name, f->path, f->size, (long long)s.st_size);
	if (s.st_mtim.tv_sec != f->mtime.tv_sec || s.st_mtim.tv_nsec != f->mtime.tv_nsec)
		return dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': the file was modified since it was "
				"opened", e->name, f->path);
	return DTP_OK;
}

enum dtp_code dtp_st_read(const struct dtp_st *st, const struct dtp_st_entry *e, uint64_t offset, uint64_t len, void *dst,
			  struct dtp_err *err)
{
	const struct dtp_st_file *f = &st->files[e->file];

	if (offset > e->nbytes || len > e->nbytes - offset)
		return dtp_fail(err, DTP_FAILED, "cannot read bytes %" PRIu64 " to %" PRIu64 " of tensor '%.200s' of '%s', which "
				"has %" PRIu64, offset, offset + len, e->name, f->path, e->nbytes);
	for (uint64_t done = 0; done < len;) {
		ssize_t got = pread(f->fd, (char *)dst + done, (size_t)(len - done), (off_t)(e->offset + offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': %s", e->name, f->path,
					strerror(errno));
		if (got == 0) {
			enum dtp_code rc = check_unchanged(f, e, err);
			return rc ? rc : dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': the file ended at "
						  "byte %" PRIu64, e->name, f->path, e->offset + offset + done);
		}
		done += (uint64_t)got;
	}
	return check_unchanged(f, e, err);
}

struct cJSON *dtp_st_metadata_all(const struct dtp_st_file *f)
{
	struct dtp_json doc;
	cJSON *all = NULL;
	char *text;
	size_t len;

	if (dtp_st_header_read(f, &text, &len, NULL))
		return NULL;
	if (!dtp_json_parse(f->path, text, len, &doc, NULL)) {
		all = cJSON_DetachItemFromObjectCaseSensitive(doc.root, "__metadata__");
		dtp_json_free(&doc);
	}
	free(text);
	return all;
}

char *dtp_st_metadata(const struct dtp_st *st, const char *key)
{
	cJSON *all = st->nfiles ? dtp_st_metadata_all(&st->files[0]) : NULL;
	const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(all, key));
	char *value = s ? strdup(s) : NULL;

	cJSON_Delete(all);
	return value;
}
