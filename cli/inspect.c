/* SPDX-License-Identifier: Apache-2.0 */
/* The command that shows what is in safetensors files. */
#include "inspect.h"

#include "commands.h"
#include "pipeline.h"
#include "text.h"
#include "units.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- sums */

#define MAX_DTYPES 32

struct sums {
	uint64_t tensors, bytes;
	int n;
	struct {
		const char *dtype;
		uint64_t tensors, bytes;
	} of[MAX_DTYPES];
};

static void add_entry(struct sums *s, const struct dtp_st_entry *e)
{
	int i = 0;

	s->tensors++;
	s->bytes += e->nbytes;
	while (i < s->n && strcmp(s->of[i].dtype, e->dtype_name))
		i++;
	if (i == MAX_DTYPES) /* more than the format has */
		return;
	s->n += i == s->n;
	s->of[i].dtype = e->dtype_name;
	s->of[i].tensors++;
	s->of[i].bytes += e->nbytes;
}

static bool wanted(const struct dtp_args *args, const struct dtp_st_entry *e)
{
	return !args->filter || !fnmatch(args->filter, e->name, 0);
}

/* ---- the table */

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

struct widths {
	int name, shape;
};

static void measure(const struct dtp_args *args, const struct dtp_st *st, struct widths *w)
{
	char shape[256];

	for (int i = 0; i < st->nentries; i++) {
		const struct dtp_st_entry *e = &st->entries[i];
		if (!wanted(args, e))
			continue;
		int name = (int)strnlen(e->name, 100), n = (int)strlen(dtp_shape_text(shape, sizeof shape, e->ndim, e->shape));
		w->name = name > w->name ? name : w->name;
		w->shape = n > w->shape ? n : w->shape;
	}
}

static void print_metadata(const struct dtp_st_file *f)
{
	cJSON *all = dtp_st_metadata_all(f);
	const cJSON *c;
	char name[200], value[400];

	cJSON_ArrayForEach(c, all)
		printf("  %s = %s\n", dtp_clean(name, sizeof name, c->string),
		       dtp_clean(value, sizeof value, cJSON_GetStringValue(c) ? cJSON_GetStringValue(c) : ""));
	cJSON_Delete(all);
}

static void print_entry(const struct dtp_st *st, const struct dtp_st_entry *e, const struct widths *w)
{
	char shape[256], *name = malloc(strlen(e->name) + 1), file[256];

	if (name)
		printf("  %-*s  %-8s %-*s  %14" PRIu64 "  %14" PRIu64, w->name, dtp_clean(name, strlen(e->name) + 1, e->name),
		       e->dtype_name, w->shape, dtp_shape_text(shape, sizeof shape, e->ndim, e->shape), e->nbytes, e->offset);
	if (st->nfiles > 1)
		printf("  %s", dtp_clean(file, sizeof file, dtp_base_name(st->files[e->file].path)));
	putchar('\n');
	free(name);
}

static void print_sums(const struct sums *s)
{
	for (int i = 0; i < s->n; i++)
		printf("  %s: %" PRIu64 " tensor%s, %" PRIu64 " bytes\n", s->of[i].dtype, s->of[i].tensors,
		       plural(s->of[i].tensors), s->of[i].bytes);
}

static void print_checkpoint(const struct dtp_args *args, const struct dtp_checkpoint *c, struct sums *all)
{
	const struct dtp_st *st = &c->st;
	struct widths w = {4, 5};
	struct sums s = {0};
	char path[4096];

	for (int i = 0; i < st->nentries; i++)
		if (wanted(args, &st->entries[i])) {
			add_entry(&s, &st->entries[i]);
			add_entry(all, &st->entries[i]);
		}
	if (args->filter && !s.tensors)
		return;
	printf("%s: %" PRIu64 " tensor%s, %" PRIu64 " bytes (%s)", dtp_clean(path, sizeof path, c->path), s.tensors,
	       plural(s.tensors), s.bytes, dtp_bytes_text(s.bytes).s);
	printf(st->nfiles > 1 ? " in %d files\n" : "\n", st->nfiles);
	if (!args->filter)
		print_metadata(&st->files[0]);
	measure(args, st, &w);
	if (s.tensors)
		printf("  %-*s  %-8s %-*s  %14s  %14s%s\n", w.name, "name", "dtype", w.shape, "shape", "bytes", "offset",
		       st->nfiles > 1 ? "  file" : "");
	for (int i = 0; i < st->nentries; i++)
		if (wanted(args, &st->entries[i]))
			print_entry(st, &st->entries[i], &w);
	print_sums(&s);
}

static void print_table(const struct dtp_args *args, const struct dtp_checkpoints *list, struct sums *all)
{
	for (int i = 0; i < list->n; i++)
		print_checkpoint(args, &list->item[i], all);
	if (list->n > 1)
		printf("together: %" PRIu64 " tensor%s, %" PRIu64 " bytes (%s)\n", all->tensors, plural(all->tensors), all->bytes,
		       dtp_bytes_text(all->bytes).s);
}

/* ---- JSON */

static cJSON *file_json(const struct dtp_st_file *f)
{
	cJSON *o = cJSON_CreateObject(), *metadata = dtp_st_metadata_all(f);

	cJSON_AddStringToObject(o, "path", f->path);
	cJSON_AddNumberToObject(o, "size", (double)f->size);
	cJSON_AddNumberToObject(o, "header_bytes", (double)f->header_bytes);
	cJSON_AddItemToObject(o, "metadata", metadata ? metadata : cJSON_CreateNull());
	return o;
}

static cJSON *entry_json(const struct dtp_st *st, const struct dtp_st_entry *e)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "name", e->name);
	cJSON_AddStringToObject(o, "dtype", e->dtype_name);
	cJSON_AddItemToObject(o, "shape", dtp_json_numbers(e->ndim, e->shape));
	cJSON_AddNumberToObject(o, "bytes", (double)e->nbytes);
	cJSON_AddStringToObject(o, "file", st->files[e->file].path);
	cJSON_AddNumberToObject(o, "offset", (double)e->offset);
	return o;
}

static cJSON *sums_json(const struct sums *s)
{
	cJSON *o = cJSON_CreateObject(), *dtypes;

	cJSON_AddNumberToObject(o, "tensors", (double)s->tensors);
	cJSON_AddNumberToObject(o, "bytes", (double)s->bytes);
	dtypes = cJSON_AddObjectToObject(o, "dtypes");
	for (int i = 0; i < s->n; i++) {
		cJSON *d = cJSON_AddObjectToObject(dtypes, s->of[i].dtype);
		cJSON_AddNumberToObject(d, "tensors", (double)s->of[i].tensors);
		cJSON_AddNumberToObject(d, "bytes", (double)s->of[i].bytes);
	}
	return o;
}

static enum dtp_code print_json(const struct dtp_args *args, const struct dtp_checkpoints *list, struct sums *all,
				struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject(), *files, *tensors;

	cJSON_AddStringToObject(o, "path", args->word[0]);
	files = cJSON_AddArrayToObject(o, "files");
	tensors = cJSON_AddArrayToObject(o, "tensors");
	for (int i = 0; i < list->n; i++) {
		const struct dtp_st *st = &list->item[i].st;
		for (int k = 0; k < st->nfiles; k++)
			cJSON_AddItemToArray(files, file_json(&st->files[k]));
		for (int k = 0; k < st->nentries; k++)
			if (wanted(args, &st->entries[k])) {
				add_entry(all, &st->entries[k]);
				cJSON_AddItemToArray(tensors, entry_json(st, &st->entries[k]));
			}
	}
	cJSON_AddItemToObject(o, "sums", sums_json(all));
	return dtp_write_json(stdout, o, err);
}

/* ---- checks */

struct verdicts {
	cJSON *json; /* an array; NULL: lines on stdout */
	int checks, faults;
};

/* One line; error NULL: no fault. */
static void judge(struct verdicts *v, const char *path, const char *error, const char *text)
{
	v->checks++;
	v->faults += error != NULL;
	if (v->json) {
		cJSON *o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "path", path);
		cJSON_AddBoolToObject(o, "ok", !error);
		cJSON_AddStringToObject(o, error ? "error" : "text", error ? error : text);
		cJSON_AddItemToArray(v->json, o);
		return;
	}
	printf("%s ", error ? "FAULT" : "ok   ");
	if (!error) { /* the message of a fault names the file */
		dtp_write_text(stdout, path);
		fputs(": ", stdout);
	}
	dtp_write_text(stdout, error ? error : text);
	putchar('\n');
}

/* A pipeline folder is more than its files: configurations, and the tensors that they ask for. */
static void check_pipeline(struct verdicts *v, const char *model, const char *variant)
{
	struct dtp_options o = {.model = model, .variant = variant, .compute = DTP_BF16, .no_tokenizer = true};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_pipeline *p = NULL;
	char text[200], path[4096];
	bool known;

	snprintf(path, sizeof path, "%s/model_index.json", model);
	if (access(path, F_OK))
		return;
	if (!dtp_pipeline_known(model, &known, &err) && !known) {
		judge(v, model, NULL, "its pipeline class is not supported, so the tensors are not compared with the configuration");
		return;
	}
	if (err.code || dtp_pipeline_open(&o, &dtp_monitor_none, &p, &err)) {
		judge(v, model, err.message, NULL);
		return;
	}
	snprintf(text, sizeof text, "all that %s needs is there", dtp_pipeline_class(p));
	judge(v, model, NULL, text);
	dtp_pipeline_close(p);
}

static enum dtp_code check(const struct dtp_args *args, const struct dtp_checkpoints *list, struct dtp_err *err)
{
	struct verdicts v = {.json = args->json ? cJSON_CreateArray() : NULL};
	char text[200];

	for (int i = 0; i < list->n; i++) {
		const struct dtp_checkpoint *c = &list->item[i];
		struct sums s = {0};
		for (int k = 0; k < c->st.nentries; k++)
			add_entry(&s, &c->st.entries[k]);
		snprintf(text, sizeof text, "%" PRIu64 " tensor%s, %" PRIu64 " bytes, %d file%s", s.tensors, plural(s.tensors), s.bytes,
			 c->st.nfiles, plural((uint64_t)c->st.nfiles));
		judge(&v, c->path, c->err.code ? c->err.message : NULL, text);
	}
	check_pipeline(&v, args->word[0], args->variant);
	if (args->json) {
		cJSON *o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "path", args->word[0]);
		cJSON_AddBoolToObject(o, "ok", !v.faults);
		cJSON_AddItemToObject(o, "checks", v.json);
		if (dtp_write_json(stdout, o, err))
			return err->code;
	}
	if (dtp_flush(stdout, err))
		return err->code;
	if (v.faults)
		return dtp_fail(err, DTP_REFUSED, "%d of %d checks failed", v.faults, v.checks);
	return DTP_OK;
}

/* ---- the command */

static enum dtp_code list_all(const struct dtp_args *args, const struct dtp_checkpoints *list, struct dtp_err *err)
{
	struct sums all = {0};
	uint64_t there = 0;

	for (int i = 0; i < list->n; i++) {
		const struct dtp_checkpoint *c = &list->item[i];
		if (c->err.code) {
			*err = c->err;
			return err->code;
		}
		for (int k = 0; k < c->st.nentries; k++)
			there += wanted(args, &c->st.entries[k]);
	}
	if (args->filter && !there)
		return dtp_fail(err, DTP_REFUSED, "no tensor's name matches '%s'", args->filter);
	if (args->json)
		return print_json(args, list, &all, err);
	print_table(args, list, &all);
	return DTP_OK;
}

enum dtp_code dtp_cmd_inspect(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	struct dtp_checkpoints list;

	(void)argv;
	if (!args->nwords)
		return dtp_fail(err, DTP_REFUSED, "nothing to inspect: name a safetensors file, a folder, or a PNG file of difftp");
	if (args->check && args->filter)
		return dtp_fail(err, DTP_REFUSED, "option '--check' looks at every tensor: --filter does not go with it");
	if (DTP_GIVEN(args, variant) && !args->check)
		return dtp_fail(err, DTP_REFUSED, "option '--variant' says what --check is to look for: all files are listed without it");
	if (dtp_is_png(args->word[0])) {
		if (args->check || args->filter)
			return dtp_fail(err, DTP_REFUSED, "'%s' is a picture: --%s is about tensors", args->word[0], args->check ? "check" : "filter");
		return dtp_inspect_png(args->word[0], args->json, err);
	}
	if (dtp_checkpoints_find(args->word[0], &list, err))
		return err->code;
	enum dtp_code code = args->check ? check(args, &list, err) : list_all(args, &list, err);
	dtp_checkpoints_free(&list);
	return code;
}
