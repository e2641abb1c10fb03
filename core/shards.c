/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a sharded folder, and its files. */
#include "shards.h"

#include "folder.h"
#include "json.h"
#include "plan_make.h"
#include "weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_BYTES ((int64_t)1 << 53)

/* ---- the manifest */

static enum dtp_code no_memory(const char *path, struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "cannot read '%s': out of memory", path);
}

/* A string that names a file of one folder. */
static enum dtp_code get_name(const struct dtp_json *doc, const cJSON *obj, const char *key, char **out, struct dtp_err *err)
{
	const char *s;

	if (dtp_json_string(doc, obj, key, &s, err))
		return err->code;
	if (!*s || *s == '.' || strchr(s, '/'))
		return dtp_fail(err, DTP_REFUSED, "%s: '%s' is '%.200s', expected the name of a file", doc->path, key, s);
	*out = strdup(s);
	return *out ? DTP_OK : no_memory(doc->path, err);
}

static enum dtp_code get_digest(const struct dtp_json *doc, const cJSON *obj, const char *key, char out[DTP_DIGEST_TEXT],
				struct dtp_err *err)
{
	const char *s;

	if (dtp_json_string(doc, obj, key, &s, err))
		return err->code;
	if (strlen(s) != DTP_DIGEST_TEXT - 1 || strspn(s, "0123456789abcdef") != DTP_DIGEST_TEXT - 1)
		return dtp_fail(err, DTP_REFUSED, "%s: '%s' is '%.200s', expected 64 hexadecimal digits", doc->path, key, s);
	memcpy(out, s, DTP_DIGEST_TEXT);
	return DTP_OK;
}

static enum dtp_code get_file(const struct dtp_json *doc, const cJSON *obj, struct dtp_shard_file *out, struct dtp_err *err)
{
	int64_t size;

	if (get_name(doc, obj, "file", &out->name, err) || dtp_json_int(doc, obj, "size", 8, MAX_BYTES, &size, err))
		return err->code;
	out->size = (uint64_t)size;
	return get_digest(doc, obj, "sha256", out->sha256, err);
}

static enum dtp_code get_files(const struct dtp_json *doc, const cJSON *obj, const char *key, struct dtp_shard_file **out,
			       int *n, struct dtp_err *err)
{
	const cJSON *c, *array = cJSON_GetObjectItemCaseSensitive(obj, key);

	if (!cJSON_IsArray(array) || !array->child)
		return dtp_fail(err, DTP_REFUSED, "%s: no '%s', expected a list of files", doc->path, key);
	*out = calloc((size_t)cJSON_GetArraySize(array), sizeof **out);
	if (!*out)
		return no_memory(doc->path, err);
	cJSON_ArrayForEach(c, array)
		if (get_file(doc, c, &(*out)[(*n)++], err))
			return err->code;
	return DTP_OK;
}

static enum dtp_code get_plan(const struct dtp_json *doc, const cJSON *obj, struct dtp_plan *plan, struct dtp_err *err)
{
	const cJSON *rules = cJSON_GetObjectItemCaseSensitive(obj, "plan");
	char *text, source[4200];

	if (!cJSON_IsObject(rules))
		return dtp_fail(err, DTP_REFUSED, "%s: no 'plan', expected an object from module names to styles", doc->path);
	text = cJSON_PrintUnformatted(rules);
	if (!text)
		return no_memory(doc->path, err);
	snprintf(source, sizeof source, "plan of '%s'", doc->path);
	enum dtp_code rc = dtp_plan_parse(source, text, strlen(text), plan, err);
	cJSON_free(text);
	return rc;
}

static enum dtp_code get_part(const struct dtp_json *doc, const cJSON *obj, int degree, struct dtp_shards_part *part,
			      struct dtp_err *err)
{
	const cJSON *rest = cJSON_GetObjectItemCaseSensitive(obj, "rest");

	if (get_name(doc, obj, "name", &part->component, err) || get_plan(doc, obj, &part->plan, err) ||
	    get_files(doc, obj, "sources", &part->sources, &part->nsources, err) ||
	    get_files(doc, obj, "ranks", &part->ranks, &part->nranks, err))
		return err->code;
	if (part->nranks != degree)
		return dtp_fail(err, DTP_REFUSED, "%s: '%s' has %d files of ranks, expected %d, the degree", doc->path,
				part->component, part->nranks, degree);
	if (rest && get_file(doc, rest, &part->rest, err))
		return err->code;
	if (cJSON_GetObjectItemCaseSensitive(obj, "index"))
		return get_name(doc, obj, "index", &part->index, err);
	return DTP_OK;
}

static enum dtp_code get_all(const struct dtp_json *doc, struct dtp_shards *s, struct dtp_err *err)
{
	const cJSON *c, *parts = cJSON_GetObjectItemCaseSensitive(doc->root, "components");
	int64_t version, degree;

	if (dtp_json_int(doc, NULL, "version", 1, INT32_MAX, &version, err))
		return err->code;
	if (version != DTP_SHARDS_VERSION)
		return dtp_fail(err, DTP_REFUSED, "%s: 'version' is %" PRId64 ", supported is %d: made by another difftp", doc->path,
				version, DTP_SHARDS_VERSION);
	if (dtp_json_int(doc, NULL, "tp_degree", 1, DTP_SHARDS_MAX_DEGREE, &degree, err) ||
	    get_digest(doc, NULL, "id", s->id, err))
		return err->code;
	s->degree = (int)degree;
	if (cJSON_GetObjectItemCaseSensitive(doc->root, "variant") && get_name(doc, NULL, "variant", &s->variant, err))
		return err->code;
	if (!cJSON_IsArray(parts) || !parts->child)
		return dtp_fail(err, DTP_REFUSED, "%s: no 'components', expected a list", doc->path);
	s->part = calloc((size_t)cJSON_GetArraySize(parts), sizeof *s->part);
	if (!s->part)
		return no_memory(doc->path, err);
	cJSON_ArrayForEach(c, parts)
		if (get_part(doc, c, s->degree, &s->part[s->nparts++], err))
			return err->code;
	return DTP_OK;
}

enum dtp_code dtp_shards_load(const char *model, struct dtp_shards **out, struct dtp_err *err)
{
	struct dtp_json doc;
	char path[4096];

	*out = NULL;
	snprintf(path, sizeof path, "%s/" DTP_SHARDS_MANIFEST, model);
	if (access(path, F_OK))
		return DTP_OK;
	if (dtp_json_load(path, DTP_JSON_LARGE, &doc, err))
		return err->code;
	struct dtp_shards *s = calloc(1, sizeof *s);
	enum dtp_code rc = s && (s->path = strdup(path)) ? get_all(&doc, s, err) : no_memory(path, err);
	dtp_json_free(&doc);
	if (rc)
		dtp_shards_free(s);
	else
		*out = s;
	return rc;
}

static void free_files(struct dtp_shard_file *f, int n)
{
	for (int i = 0; f && i < n; i++)
		free(f[i].name);
	free(f);
}

void dtp_shards_free(struct dtp_shards *s)
{
	for (int i = 0; s && i < s->nparts; i++) {
		struct dtp_shards_part *part = &s->part[i];
		free(part->component);
		dtp_plan_free(&part->plan);
		free_files(part->sources, part->nsources);
		free_files(part->ranks, part->nranks);
		free(part->rest.name);
		free(part->index);
	}
	if (s) {
		free(s->part);
		free(s->variant);
		free(s->path);
	}
	free(s);
}

const struct dtp_shards_part *dtp_shards_part(const struct dtp_shards *s, const char *component)
{
	for (int i = 0; s && i < s->nparts; i++)
		if (!strcmp(s->part[i].component, component))
			return &s->part[i];
	return NULL;
}

enum dtp_code dtp_shards_degree(const char *model, int *degree, struct dtp_err *err)
{
	struct dtp_shards *s;
	enum dtp_code rc = dtp_shards_load(model, &s, err);

	if (s)
		*degree = s->degree;
	dtp_shards_free(s);
	return rc;
}

/* ---- writing it */

static cJSON *file_json(const struct dtp_shard_file *f)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "file", f->name);
	cJSON_AddNumberToObject(o, "size", (double)f->size);
	cJSON_AddStringToObject(o, "sha256", f->sha256);
	return o;
}

static cJSON *part_json(const struct dtp_shards_part *part)
{
	char *plan = dtp_plan_text(&part->plan);
	cJSON *o = cJSON_CreateObject(), *list;

	cJSON_AddStringToObject(o, "name", part->component);
	cJSON_AddRawToObject(o, "plan", plan ? plan : "{}");
	free(plan);
	list = cJSON_AddArrayToObject(o, "sources");
	for (int i = 0; i < part->nsources; i++)
		cJSON_AddItemToArray(list, file_json(&part->sources[i]));
	if (part->index)
		cJSON_AddStringToObject(o, "index", part->index);
	list = cJSON_AddArrayToObject(o, "ranks");
	for (int i = 0; i < part->nranks; i++)
		cJSON_AddItemToArray(list, file_json(&part->ranks[i]));
	if (part->rest.name)
		cJSON_AddItemToObject(o, "rest", file_json(&part->rest));
	return o;
}

enum dtp_code dtp_shards_save(const struct dtp_shards *s, const char *dir, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *parts;
	char path[8192];

	cJSON_AddNumberToObject(o, "version", DTP_SHARDS_VERSION);
	cJSON_AddStringToObject(o, "id", s->id);
	cJSON_AddNumberToObject(o, "tp_degree", s->degree);
	if (s->variant)
		cJSON_AddStringToObject(o, "variant", s->variant);
	parts = cJSON_AddArrayToObject(o, "components");
	for (int i = 0; i < s->nparts; i++)
		cJSON_AddItemToArray(parts, part_json(&s->part[i]));
	char *text = cJSON_Print(o);
	cJSON_Delete(o);
	snprintf(path, sizeof path, "%s/" DTP_SHARDS_MANIFEST, dir);
	enum dtp_code rc = text ? dtp_write_new(path, text, strlen(text), err) : dtp_fail(err, DTP_FAILED, "out of memory");
	cJSON_free(text);
	return rc;
}

/* ---- the files */

/* Whether the file says of itself that it is what the manifest says. */
static enum dtp_code check_owner(const struct dtp_shards *s, const struct dtp_shards_part *part, int rank, const struct dtp_st *st,
				 struct dtp_err *err)
{
	char *id = dtp_st_metadata(st, DTP_SHARDS_META_ID), *whose = dtp_st_metadata(st, DTP_SHARDS_META_RANK), want[64];
	const char *path = st->files[0].path;
	enum dtp_code rc = DTP_OK;

	dtp_shards_owner(s->degree, part->component, rank, want, sizeof want);
	if (!id || !whose)
		rc = dtp_fail(err, DTP_REFUSED, "'%s' is no file that 'difftp shard' wrote: its metadata lacks '%s'", path,
			      id ? DTP_SHARDS_META_RANK : DTP_SHARDS_META_ID);
	else if (strcmp(id, s->id))
		rc = dtp_fail(err, DTP_REFUSED, "'%s' belongs to other shards (%.16s) than '%s' (%.16s): files of different runs of "
			      "'difftp shard' do not go together", path, id, s->path, s->id);
	else if (strcmp(whose, want))
		rc = dtp_fail(err, DTP_REFUSED, "'%s' is for '%s', expected '%s': the file has been renamed", path, whose, want);
	free(id);
	free(whose);
	return rc;
}

enum dtp_code dtp_shards_open(const struct dtp_shards *s, const struct dtp_shards_part *part, int rank, struct dtp_st *st,
				   struct dtp_err *err)
{
	const struct dtp_shard_file *f = rank < 0 ? &part->rest : &part->ranks[rank];
	char path[8192];

	snprintf(path, sizeof path, "%.*s/%s/%s", (int)(strlen(s->path) - sizeof DTP_SHARDS_MANIFEST), s->path, part->component,
		 f->name);
	*st = (struct dtp_st){0};
	if (access(path, F_OK))
		return dtp_fail(err, DTP_REFUSED, "'%s' names the file '%s' of %s, which is missing", s->path, path,
				part->component);
	if (dtp_st_open_file(path, st, err))
		return err->code;
	enum dtp_code rc = DTP_OK;
	if (st->files[0].size != f->size)
		rc = dtp_fail(err, DTP_REFUSED, "'%s' has %" PRIu64 " bytes, '%s' says %" PRIu64, path, st->files[0].size, s->path,
			      f->size);
	if (!rc)
		rc = check_owner(s, part, rank, st, err);
	if (rc)
		dtp_st_close(st);
	return rc;
}

static enum dtp_code bind_tensor(const struct dtp_tree *tree, const struct dtp_param *p, const char *prefix, int rank, int degree,
				 struct dtp_st *st, struct dtp_err *err)
{
	const struct dtp_st_entry *found = dtp_weights_entry(st, prefix, p);
	int64_t shape[DTP_MAX_DIMS];
	char have[192], want[128];
	struct dtp_split split;

	dtp_placement(tree, p, rank, degree, &split);
	dtp_split_shape(p, &split, shape);
	if (!found)
		return dtp_fail(err, DTP_REFUSED, "'%s' lacks tensor '%s%s' of shape %s", st->files[0].path, prefix, p->name,
				dtp_shape_text(want, sizeof want, p->ndim, shape));
	struct dtp_st_entry *e = &st->entries[found - st->entries];
	if (e->ndim != p->ndim || memcmp(e->shape, shape, (size_t)p->ndim * sizeof *shape))
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the shape %s, expected %s, the part of rank %d",
				st->files[0].path, e->name, dtp_shape_text(have, sizeof have, e->ndim, e->shape),
				dtp_shape_text(want, sizeof want, p->ndim, shape), rank);
	memcpy(e->shape, p->shape, (size_t)p->ndim * sizeof *shape);
	e->part = true;
	return DTP_OK;
}

enum dtp_code dtp_shards_bind(const struct dtp_tree *tree, const char *prefix, int rank, int degree, struct dtp_st *st,
			      struct dtp_err *err)
{
	struct dtp_param p;
	enum dtp_code rc;

	for (int i = 0; i < tree->n; i++)
		for (int which = 0; tree->modules[i].needed && dtp_module_param(&tree->modules[i], which, &p); which++)
			if ((rc = bind_tensor(tree, &p, prefix, rank, degree, st, err)))
				return rc;
	return DTP_OK;
}

void dtp_shards_owner(int degree, const char *component, int rank, char *buf, size_t size)
{
	if (rank < 0)
		snprintf(buf, size, "%s, rest", component);
	else
		snprintf(buf, size, "%s, rank %d of %d", component, rank, degree);
}
