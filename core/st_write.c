/* SPDX-License-Identifier: Apache-2.0 */
#include "file.h"
#include "json.h"
#include "safetensors.h"

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

static bool add_tensor(cJSON *root, const struct dtp_st_out *t, uint64_t begin)
{
	const int64_t range[2] = {(int64_t)begin, (int64_t)(begin + bytes_of(&t->tensor))};
	cJSON *o = cJSON_AddObjectToObject(root, t->name);
	return o && cJSON_AddStringToObject(o, "dtype", dtp_dtype_name(t->tensor.dtype)) &&
	       add_numbers(o, "shape", t->tensor.shape, t->tensor.ndim) && add_numbers(o, "data_offsets", range, 2);
}

/* The header's text, padded with spaces so that the data begins at a multiple of 8; NULL: out of memory. */
static char *make_header(const struct dtp_st_out *const *order, int n, const char *const (*metadata)[2], int nmeta)
{
	char *text = NULL, *padded = NULL;
	uint64_t offset = 0;
	cJSON *root = cJSON_CreateObject(), *meta;
	bool ok = root != NULL;

	if (ok && nmeta) {
		ok = (meta = cJSON_AddObjectToObject(root, "__metadata__")) != NULL;
		for (int i = 0; ok && i < nmeta; i++)
			ok = cJSON_AddStringToObject(meta, metadata[i][0], metadata[i][1]) != NULL;
	}
	for (int i = 0; ok && i < n; i++) {
		ok = add_tensor(root, order[i], offset);
		offset += bytes_of(&order[i]->tensor);
	}
	if (ok && (text = cJSON_PrintUnformatted(root))) {
		size_t len = strlen(text), full = (len + 7) / 8 * 8;
		if ((padded = malloc(full + 1))) {
			memset(padded, ' ', full);
			memcpy(padded, text, len);
			padded[full] = '\0';
		}
	}
	free(text);
	cJSON_Delete(root);
	return padded;
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

static enum dtp_code write_all(const char *path, const char *header, const struct dtp_st_out *const *order, int n,
			       struct dtp_err *err)
{
	struct dtp_outfile out;
	unsigned char len[8];
	uint64_t size = strlen(header);

	for (int i = 0; i < 8; i++)
		len[i] = (unsigned char)(size >> 8 * i);
	enum dtp_code rc = dtp_outfile_open(path, &out, err);
	if (rc)
		return rc;
	bool ok = fwrite(len, sizeof len, 1, out.f) == 1 && fwrite(header, size, 1, out.f) == 1;
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

enum dtp_code dtp_st_write(const char *path, const struct dtp_st_out *tensors, int n, const char *const (*metadata)[2],
			   int nmeta, struct dtp_err *err)
{
	struct dtp_json doc;

	enum dtp_code rc = check_tensors(path, tensors, n, err);
	if (rc)
		return rc;
	const struct dtp_st_out **order = malloc(((size_t)n + 1) * sizeof *order);
	if (!order)
		return no_memory(path, err);
	for (int i = 0; i < n; i++)
		order[i] = &tensors[i];
	qsort(order, (size_t)n, sizeof *order, in_file_order);
	char *header = make_header(order, n, metadata, nmeta);
	if (!header) {
		rc = no_memory(path, err);
	} else {
		/* Names that are no UTF-8 or occur twice would make a file that nobody can read. */
		rc = dtp_json_parse(path, header, strlen(header), &doc, err);
		if (rc == DTP_OK) {
			dtp_json_free(&doc);
			rc = write_all(path, header, order, n, err);
		} else if (err) {
			err->code = rc = DTP_FAILED;
			dtp_err_prefix(err, "cannot write the header of ");
		}
	}
	free(header);
	free(order);
	return rc;
}
