/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "json.h"
#include "safetensors.h"
#include "st_header.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum dtp_code no_memory(const char *path, struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "cannot write '%s': out of memory", path);
}

/* Wide elements first, so that every tensor is aligned to its element, then by name: the order of the reference writer. */
static int in_file_order(const void *a, const void *b)
{
	const struct dtp_st_out *x = *(const struct dtp_st_out *const *)a, *y = *(const struct dtp_st_out *const *)b;
	size_t m = dtp_dtype_size(x->tensor.dtype), n = dtp_dtype_size(y->tensor.dtype);
	if (m != n)
		return m > n ? -1 : 1;
	return strcmp(x->name, y->name);
}

static uint64_t bytes_of(const struct dtp_tensor *t)
{
	return (uint64_t)dtp_numel(t) * dtp_dtype_size(t->dtype);
}

/* "[a,b,...]" as it stands in the file: cJSON would print large numbers as it prints doubles. */
static bool add_numbers(cJSON *obj, const char *key, const int64_t *v, int n)
{
	char text[DTP_ST_MAX_DIMS * 21 + 3];
	size_t len = 0;
	for (int i = 0; i < n; i++)
		len += (size_t)snprintf(text + len, sizeof text - len, "%c%" PRId64, i ? ',' : '[', v[i]);
	snprintf(text + len, sizeof text - len, n ? "]" : "[]");
	return cJSON_AddRawToObject(obj, key, text) != NULL;
}

static bool add_entry(cJSON *root, const struct dtp_st_entry *e, uint64_t begin)
{
	const int64_t range[2] = {(int64_t)begin, (int64_t)(begin + e->nbytes)};
	cJSON *o = cJSON_AddObjectToObject(root, e->name);
	return o && cJSON_AddStringToObject(o, "dtype", e->dtype_name) && add_numbers(o, "shape", e->shape, e->ndim) &&
	       add_numbers(o, "data_offsets", range, 2);
}

static bool add_metadata(cJSON *root, const char *const (*metadata)[2], int nmeta)
{
	cJSON *meta = nmeta ? cJSON_AddObjectToObject(root, "__metadata__") : NULL;
	bool ok = meta || !nmeta;

	for (int i = 0; ok && i < nmeta; i++)
		ok = cJSON_AddStringToObject(meta, metadata[i][0], metadata[i][1]) != NULL;
	return ok;
}

char *dtp_st_header_make(const struct dtp_st_entry *entries, int n, const char *const (*metadata)[2], int nmeta, size_t *len)
{
	cJSON *root = cJSON_CreateObject();
	bool ok = root && add_metadata(root, metadata, nmeta);
	char *text = NULL, *all = NULL;
	uint64_t offset = 0;

	for (int i = 0; ok && i < n; i++) {
		ok = add_entry(root, &entries[i], offset);
		offset += entries[i].nbytes;
	}
	if (ok && (text = cJSON_PrintUnformatted(root))) {
		size_t used = strlen(text), full = (used + 7) / 8 * 8;
		if ((all = malloc(8 + full + 1))) {
			for (int i = 0; i < 8; i++)
				all[i] = (char)(full >> 8 * i);
			memset(all + 8, ' ', full);
			memcpy(all + 8, text, used);
			all[8 + full] = '\0';
			*len = 8 + full;
		}
	}
	cJSON_free(text);
	cJSON_Delete(root);
	return all;
}

/* The names are the tensors' own; NULL: out of memory. */
static struct dtp_st_entry *entries_of(const struct dtp_st_out *const *order, int n)
{
	struct dtp_st_entry *e = calloc((size_t)n + 1, sizeof *e);

	for (int i = 0; e && i < n; i++) {
		const struct dtp_tensor *t = &order[i]->tensor;
		e[i] = (struct dtp_st_entry){.name = (char *)(uintptr_t)order[i]->name, .dtype = t->dtype, .ndim = t->ndim,
					     .nbytes = bytes_of(t)};
		snprintf(e[i].dtype_name, sizeof e[i].dtype_name, "%s", dtp_dtype_name(t->dtype));
		memcpy(e[i].shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
	}
	return e;
}

/* What cannot be written right is a fault of the caller, and found before a file is touched. */
static enum dtp_code check_tensors(const char *path, const struct dtp_st_out *t, int n, struct dtp_err *err)
{
	for (int i = 0; i < n; i++) {
		if (t[i].tensor.dtype == DTP_NO_DTYPE || !dtp_is_dense(&t[i].tensor))
			return dtp_fail(err, DTP_FAILED, "cannot write '%s': tensor '%.200s' is not dense or has no dtype", path,
					t[i].name);
		if (!strcmp(t[i].name, "__metadata__"))
			return dtp_fail(err, DTP_FAILED, "cannot write '%s': no tensor can have the name '%s'", path, t[i].name);
	}
	return DTP_OK;
}

static enum dtp_code write_all(const char *path, struct dtp_outkeep *keep, const char *header, size_t len, const struct dtp_st_out *const *order,
			       int n, struct dtp_err *err)
{
	struct dtp_outfile out;

	enum dtp_code rc = dtp_outfile_open(path, keep, &out, err);
	if (rc)
		return rc;
	bool ok = fwrite(header, len, 1, out.f) == 1;
	for (int i = 0; ok && i < n; i++) {
		uint64_t bytes = bytes_of(&order[i]->tensor);
		ok = !bytes || fwrite(order[i]->tensor.data, bytes, 1, out.f) == 1;
	}
	if (ok)
		return dtp_outfile_commit(&out, err);
	rc = dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", path, strerror(errno));
	dtp_outfile_abandon(&out);
	return rc;
}

static enum dtp_code write_ordered(const char *path, struct dtp_outkeep *keep, const struct dtp_st_out *const *order, int n,
				   const char *const (*metadata)[2], int nmeta, struct dtp_err *err)
{
	struct dtp_st_entry *entries = entries_of(order, n);
	struct dtp_json doc;
	size_t len;
	char *header = entries ? dtp_st_header_make(entries, n, metadata, nmeta, &len) : NULL;
	enum dtp_code rc;

	free(entries);
	if (!header)
		return no_memory(path, err);
	/* Names that are no UTF-8 or occur twice would make a file that nobody can read. */
	rc = dtp_json_parse(path, header + 8, len - 8, &doc, err);
	if (rc == DTP_OK) {
		dtp_json_free(&doc);
		rc = write_all(path, keep, header, len, order, n, err);
	} else if (err) {
		err->code = rc = DTP_FAILED;
		dtp_err_prefix(err, "cannot write the header of ");
	}
	free(header);
	return rc;
}

enum dtp_code dtp_st_write(const char *path, struct dtp_outkeep *keep, const struct dtp_st_out *tensors, int n,
			   const char *const (*metadata)[2], int nmeta, struct dtp_err *err)
{
	enum dtp_code rc = check_tensors(path, tensors, n, err);
	if (rc)
		return rc;
	const struct dtp_st_out **order = malloc(((size_t)n + 1) * sizeof *order);
	if (!order)
		return no_memory(path, err);
	for (int i = 0; i < n; i++)
		order[i] = &tensors[i];
	qsort(order, (size_t)n, sizeof *order, in_file_order);
	rc = write_ordered(path, keep, order, n, metadata, nmeta, err);
	free(order);
	return rc;
}
