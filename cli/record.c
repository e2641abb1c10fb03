/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include "hash.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {
	char *file;
	uint64_t bytes;
	char sha256[DTP_DIGEST_TEXT];
	struct dtp_digest parameters;
};

struct dtp_record {
	char *folder, *path;
	int fd;
	struct entry *entries; /* in the order of their files' names */
	size_t n, cap;
	size_t odd;            /* lines that say nothing that we know */
	uint64_t seed;
	bool has_seed;
};

static char *join(const char *folder, const char *name)
{
	char *s;

	return asprintf(&s, "%s/%s", folder, name) < 0 ? NULL : s;
}

static struct dtp_digest digest_of(const char *text)
{
	struct dtp_digest d;
	struct dtp_hash h;

	dtp_hash_begin(&h);
	dtp_hash_add(&h, text, strlen(text));
	dtp_hash_end(&h, &d);
	return d;
}

/* ---- reading */

static const char *text_of(const cJSON *object, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);

	return cJSON_IsString(v) ? v->valuestring : NULL;
}

static bool take_image(struct dtp_record *r, const struct dtp_json *doc)
{
	const cJSON *o = doc->root;
	const char *file = text_of(o, "file"), *sha256 = text_of(o, "sha256");
	const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(o, "parameters");
	int64_t bytes;
	char *text;

	if (!file || !sha256 || dtp_json_int(doc, NULL, "bytes", 0, INT64_MAX, &bytes, NULL) || !cJSON_IsObject(parameters))
		return false;
	if (r->n == r->cap) {
		size_t cap = r->cap ? 2 * r->cap : 64;
		struct entry *more = realloc(r->entries, cap * sizeof *more);
		if (!more)
			return false; /* the image is then drawn again */
		r->entries = more;
		r->cap = cap;
	}
	text = cJSON_PrintUnformatted(parameters);
	struct entry *e = &r->entries[r->n];
	*e = (struct entry){.file = strdup(file), .bytes = (uint64_t)bytes};
	snprintf(e->sha256, sizeof e->sha256, "%s", sha256);
	if (!text || !e->file) {
		cJSON_free(text);
		free(e->file);
		return false;
	}
	e->parameters = digest_of(text);
	cJSON_free(text);
	r->n++;
	return true;
}

static bool take_run(struct dtp_record *r, const cJSON *o)
{
	const char *seed = text_of(o, "seed");
	char *end;

	if (!seed || !text_of(o, "difftp") || !*seed || seed[strspn(seed, "0123456789")])
		return false;
	r->seed = strtoull(seed, &end, 10);
	return r->has_seed = true;
}

/* A process that was killed may have left the last line unfinished. */
static void take_line(struct dtp_record *r, const char *line, size_t len)
{
	struct dtp_json doc;

	if (!len)
		return;
	if (dtp_json_parse("", line, len, &doc, NULL)) {
		r->odd++;
		return;
	}
	if (!take_image(r, &doc) && !take_run(r, doc.root))
		r->odd++;
	dtp_json_free(&doc);
}

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct entry *)a)->file, ((const struct entry *)b)->file);
}

static bool read_all(struct dtp_record *r)
{
	FILE *f = fopen(r->path, "re");
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	if (!f)
		return false;
	while ((n = getline(&line, &cap, f)) > 0)
		take_line(r, line, (size_t)(line[n - 1] == '\n' ? n - 1 : n));
	free(line);
	fclose(f);
	if (r->n)
		qsort(r->entries, r->n, sizeof *r->entries, by_file);
	return true;
}

/* ---- opening */

static enum dtp_code lock(struct dtp_record *r, struct dtp_err *err)
{
	char last;
	struct stat st;

	if (fstat(r->fd, &st) || !S_ISREG(st.st_mode))
		return dtp_fail(err, DTP_REFUSED, "'%s' is no regular file: no record can be kept there", r->path);
	if (flock(r->fd, LOCK_EX | LOCK_NB))
		return errno == EWOULDBLOCK
			? dtp_fail(err, DTP_REFUSED, "another run of difftp is drawing into '%s': wait for its end, or name another folder",
				   r->folder)
			: dtp_fail(err, DTP_REFUSED, "cannot lock '%s': %s", r->path, strerror(errno));
	/* What is appended begins on a line of its own. */
	if (st.st_size > 0 && pread(r->fd, &last, 1, st.st_size - 1) == 1 && last != '\n' &&
	    write(r->fd, "\n", 1) != 1)
		return dtp_fail(err, DTP_REFUSED, "cannot write '%s': %s", r->path, strerror(errno));
	return DTP_OK;
}

static enum dtp_code open_file(struct dtp_record *r, bool lead, bool known, struct dtp_err *err)
{
	r->fd = open(r->path, O_RDWR | O_APPEND | O_CLOEXEC | (lead ? O_CREAT : 0), 0666);
	if (r->fd < 0)
		return dtp_fail(err, DTP_REFUSED, "cannot write '%s': %s", r->path, strerror(errno));
	if (lead && lock(r, err))
		return err->code;
	return known && !read_all(r) ? dtp_fail(err, DTP_REFUSED, "cannot read '%s': %s", r->path, strerror(errno)) : DTP_OK;
}

static struct dtp_record *new_record(const char *folder)
{
	struct dtp_record *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->fd = -1;
	r->folder = strdup(folder);
	r->path = join(folder, DTP_RECORD_NAME);
	if (r->folder && r->path)
		return r;
	dtp_record_close(r);
	return NULL;
}

enum dtp_code dtp_record_open(const char *folder, bool lead, bool known, const struct dtp_monitor *mon, struct dtp_record **out,
			      struct dtp_err *err)
{
	struct dtp_record *r = new_record(folder);
	char text[4200];

	*out = NULL;
	if (!r)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (open_file(r, lead, known, err)) {
		dtp_record_close(r);
		return err->code;
	}
	if (lead && r->odd) {
		snprintf(text, sizeof text, "%s: %zu line%s cannot be read (was a run killed?); what they stood for is drawn again",
			 r->path, r->odd, r->odd == 1 ? "" : "s");
		mon->warn(mon->arg, text);
	}
	*out = r;
	return DTP_OK;
}

void dtp_record_close(struct dtp_record *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n; i++)
		free(r->entries[i].file);
	free(r->entries);
	if (r->fd >= 0)
		close(r->fd);
	free(r->folder);
	free(r->path);
	free(r);
}

bool dtp_record_seed(const char *folder, uint64_t *seed)
{
	struct stat st;
	struct dtp_record *r = new_record(folder);
	bool has = r && !stat(r->path, &st) && S_ISREG(st.st_mode) && read_all(r) && r->has_seed;

	*seed = has ? r->seed : 0;
	dtp_record_close(r);
	return has;
}

bool dtp_record_is_new(const struct dtp_record *r)
{
	struct stat st;

	return !fstat(r->fd, &st) && !st.st_size;
}

/* ---- writing */

/* One call, so that lines of several replicas do not mix; on the disk before anything builds on it. */
static enum dtp_code append(struct dtp_record *r, cJSON *o, struct dtp_err *err)
{
	char *text = cJSON_PrintUnformatted(o), *line = NULL;
	int n = text ? asprintf(&line, "%s\n", text) : -1;
	enum dtp_code code = DTP_OK;

	cJSON_Delete(o);
	cJSON_free(text);
	if (n < 0)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	ssize_t written = write(r->fd, line, (size_t)n);
	if (written != n)
		code = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", r->path, strerror(written < 0 ? errno : ENOSPC));
	else if (fsync(r->fd) && errno != EINVAL && errno != ENOSYS)
		code = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", r->path, strerror(errno));
	free(line);
	return code;
}

static void add_number_text(cJSON *o, const char *key, uint64_t v)
{
	char text[24]; /* a JSON number holds 53 bits */

	snprintf(text, sizeof text, "%" PRIu64, v);
	cJSON_AddStringToObject(o, key, text);
}

enum dtp_code dtp_record_begin(struct dtp_record *r, uint64_t seed, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	add_number_text(o, "seed", seed);
	return append(r, o, err);
}

/* Of a file as it is now; false: it cannot be read. */
static bool look(const struct dtp_record *r, const char *file, uint64_t *bytes, char sha256[DTP_DIGEST_TEXT])
{
	char *path = join(r->folder, file);
	struct stat st;
	struct dtp_hash h;
	struct dtp_digest d;

	dtp_hash_begin(&h);
	bool ok = path && !stat(path, &st) && S_ISREG(st.st_mode) && !dtp_hash_add_file(&h, path, NULL);
	free(path);
	if (!ok)
		return false;
	dtp_hash_end(&h, &d);
	*bytes = (uint64_t)st.st_size;
	dtp_digest_text(&d, sha256);
	return true;
}

bool dtp_record_has(const struct dtp_record *r, const char *file, const char *parameters)
{
	struct entry key = {.file = (char *)(uintptr_t)file};
	struct dtp_digest wanted = digest_of(parameters);
	char sha256[DTP_DIGEST_TEXT] = "";
	uint64_t bytes = 0;
	bool looked = false;

	const struct entry *e = r->n ? bsearch(&key, r->entries, r->n, sizeof *e, by_file) : NULL;
	while (e && e > r->entries && !by_file(e - 1, &key))
		e--;
	for (; e && e < r->entries + r->n && !by_file(e, &key); e++) {
		if (memcmp(&e->parameters, &wanted, sizeof wanted))
			continue;
		if (!looked && !look(r, file, &bytes, sha256))
			return false;
		looked = true;
		if (e->bytes == bytes && !strcmp(e->sha256, sha256))
			return true;
	}
	return false;
}

enum dtp_code dtp_record_add(struct dtp_record *r, const char *file, const char *parameters, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject();
	char sha256[DTP_DIGEST_TEXT];
	uint64_t bytes;

	if (!look(r, file, &bytes, sha256)) {
		cJSON_Delete(o);
		return dtp_fail(err, DTP_FAILED, "'%s/%s' is not there any more", r->folder, file);
	}
	cJSON_AddStringToObject(o, "file", file);
	cJSON_AddNumberToObject(o, "bytes", (double)bytes);
	cJSON_AddStringToObject(o, "sha256", sha256);
	cJSON_AddItemToObject(o, "parameters", cJSON_CreateRaw(parameters));
	return append(r, o, err);
}
