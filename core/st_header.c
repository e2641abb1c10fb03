/* SPDX-License-Identifier: Apache-2.0 */
#include "st_header.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every dtype of the format; those that dtp_dtype_parse does not know are carried by name. */
static const struct {
	const char *name;
	int bits;
} formats[] = {
	{"F64", 64}, {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"C64", 64}, {"I64", 64}, {"U64", 64}, {"I32", 32},
	{"U32", 32}, {"I16", 16}, {"U16", 16}, {"I8", 8}, {"U8", 8}, {"BOOL", 8}, {"F8_E4M3", 8}, {"F8_E5M2", 8},
	{"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

static int bits_of(const char *dtype)
{
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (!strcmp(formats[i].name, dtype))
			return formats[i].bits;
	return 0;
}

static bool whole(const cJSON *v, uint64_t *out)
{
	/* Written so that NaN fails too. */
	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < DTP_JSON_EXACT) ||
	    v->valuedouble != floor(v->valuedouble))
		return false;
	*out = (uint64_t)v->valuedouble;
	return true;
}

static enum dtp_code refuse(const char *path, const char *tensor, const char *what, struct dtp_err *err)
{
	return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%.200s': %s", path, tensor, what);
}

static enum dtp_code parse_shape(const char *path, const cJSON *array, struct dtp_st_entry *e, struct dtp_err *err)
{
	const cJSON *c;

	if (!cJSON_IsArray(array))
		return refuse(path, e->name, "no 'shape', expected an array of whole numbers", err);
	cJSON_ArrayForEach(c, array) {
		uint64_t d;
		if (e->ndim == DTP_ST_MAX_DIMS)
			return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%.200s' has %d dimensions, at most %d are supported",
					path, e->name, cJSON_GetArraySize(array), DTP_ST_MAX_DIMS);
		if (!whole(c, &d))
			return dtp_fail(err, DTP_REFUSED,
					"'%s': tensor '%.200s': dimension %d of its shape is no whole number below 2^53",
					path, e->name, e->ndim);
		e->shape[e->ndim++] = (int64_t)d;
	}
	return DTP_OK;
}

/* Offsets as they stand: relative to the data. */
static enum dtp_code parse_offsets(const char *path, const cJSON *array, struct dtp_st_entry *e, struct dtp_err *err)
{
	uint64_t begin, end;

	if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != 2)
		return refuse(path, e->name, "no 'data_offsets', expected an array of two whole numbers", err);
	if (!whole(array->child, &begin) || !whole(array->child->next, &end))
		return refuse(path, e->name, "its data_offsets are no whole numbers below 2^53", err);
	if (begin > end)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%.200s': its data begins at %" PRIu64 " and ends before, at %"
				PRIu64, path, e->name, begin, end);
	e->offset = begin;
	e->nbytes = end - begin;
	return DTP_OK;
}

static enum dtp_code check_length(const char *path, const struct dtp_st_entry *e, int bits, struct dtp_err *err)
{
	int64_t n = 1;
	uint64_t total;
	bool over = false;

	for (int d = 0; d < e->ndim; d++)
		over |= __builtin_mul_overflow(n, e->shape[d], &n);
	over |= __builtin_mul_overflow((uint64_t)n, (uint64_t)bits, &total);
	if (over)
		return refuse(path, e->name, "the product of its shape is too large", err);
	if (total % 8)
		return refuse(path, e->name, "its elements do not fill whole bytes", err);
	if (total / 8 != e->nbytes)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%.200s' has %" PRIu64 " bytes of data, its shape and dtype %s "
				"need %" PRIu64, path, e->name, e->nbytes, e->dtype_name, total / 8);
	return DTP_OK;
}

static enum dtp_code parse_entry(const char *path, const cJSON *item, struct dtp_st_entry *e, struct dtp_err *err)
{
	e->name = strdup(item->string);
	if (!e->name)
		return dtp_fail(err, DTP_FAILED, "'%s': out of memory", path);
	if (!cJSON_IsObject(item))
		return refuse(path, e->name, "expected an object with dtype, shape and data_offsets", err);
	const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
	if (!dtype)
		return refuse(path, e->name, "no 'dtype', expected a string", err);
	int bits = bits_of(dtype);
	if (!bits)
		return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%.200s' has the unknown dtype '%.40s'; supported are "
				"F32, BF16 and F16", path, e->name, dtype);
	e->dtype = dtp_dtype_parse(dtype);
	memcpy(e->dtype_name, dtype, strlen(dtype) + 1); /* a name of the table: it fits */
	enum dtp_code rc = parse_shape(path, cJSON_GetObjectItemCaseSensitive(item, "shape"), e, err);
	if (rc == DTP_OK)
		rc = parse_offsets(path, cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), e, err);
	if (rc == DTP_OK)
		rc = check_length(path, e, bits, err);
	return rc;
}

static enum dtp_code check_metadata(const char *path, const cJSON *item, struct dtp_err *err)
{
	const cJSON *c;

	if (!cJSON_IsObject(item))
		return dtp_fail(err, DTP_REFUSED, "'%s': '__metadata__' is no object", path);
	cJSON_ArrayForEach(c, item)
		if (!cJSON_IsString(c))
			return dtp_fail(err, DTP_REFUSED, "'%s': the value of '%.200s' in '__metadata__' is no string", path,
					c->string);
	return DTP_OK;
}

static int by_offset(const void *a, const void *b)
{
	const struct dtp_st_entry *x = a, *y = b;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes; /* an empty one goes before what follows it */
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct dtp_st_entry *)a)->name, ((const struct dtp_st_entry *)b)->name);
}

/* The tensors fill the data without overlap or hole.  Offsets become absolute, entries end up sorted by name. */
static enum dtp_code check_layout(const char *path, struct dtp_st_entry *e, int n, uint64_t start, uint64_t size,
				  struct dtp_err *err)
{
	uint64_t data = size - start, end = 0;

	if (n)
		qsort(e, (size_t)n, sizeof *e, by_offset);
	for (int i = 0; i < n; i++) {
		/* Both are at most 2^53: the sum cannot overflow. */
		if (e[i].offset + e[i].nbytes > data)
			return dtp_fail(err, DTP_REFUSED, "'%s' is truncated: it has %" PRIu64 " bytes, tensor '%.200s' needs "
					"%" PRIu64, path, size, e[i].name, start + e[i].offset + e[i].nbytes);
	}
	for (int i = 0; i < n; i++) {
		if (e[i].offset < end)
			return dtp_fail(err, DTP_REFUSED, "'%s': the data of tensors '%.200s' and '%.200s' overlap at byte %"
					PRIu64, path, e[i - 1].name, e[i].name, start + e[i].offset);
		if (e[i].offset > end)
			return dtp_fail(err, DTP_REFUSED, "'%s': %" PRIu64 " bytes before tensor '%.200s', at byte %" PRIu64
					", belong to no tensor", path, e[i].offset - end, e[i].name, start + end);
		end = e[i].offset + e[i].nbytes;
		e[i].offset += start;
	}
	if (end != data)
		return dtp_fail(err, DTP_REFUSED, "'%s' has %" PRIu64 " bytes, its tensors end at byte %" PRIu64, path, size,
				start + end);
	if (n)
		qsort(e, (size_t)n, sizeof *e, by_name);
	return DTP_OK;
}

enum dtp_code dtp_st_header_parse(const char *path, const char *text, size_t len, uint64_t size, int file,
				  struct dtp_st_entry **entries, int *n, struct dtp_err *err)
{
	struct dtp_json doc;
	struct dtp_st_entry *e = NULL;
	const cJSON *c;
	int count = 0;

	*entries = NULL;
	*n = 0;
	if (len == 0 || text[0] != '{')
		return dtp_fail(err, DTP_REFUSED, "'%s' is no safetensors file: its header does not begin with '{'", path);
	enum dtp_code rc = dtp_json_parse(path, text, len, &doc, err);
	if (rc)
		return err ? dtp_err_prefix(err, "header of the safetensors file ") : rc;
	int all = cJSON_GetArraySize(doc.root);
	if (all && !(e = calloc((size_t)all, sizeof *e))) {
		rc = dtp_fail(err, DTP_FAILED, "'%s': out of memory", path);
		goto out;
	}
	cJSON_ArrayForEach(c, doc.root) {
		if (!strcmp(c->string, "__metadata__"))
			rc = check_metadata(path, c, err);
		else {
			e[count].file = file;
			rc = parse_entry(path, c, &e[count++], err);
		}
		if (rc)
			goto out;
	}
	rc = check_layout(path, e, count, 8 + (uint64_t)len, size, err);
out:
	dtp_json_free(&doc);
	if (rc || !count) {
		dtp_st_entries_free(e, count);
		return rc;
	}
	*entries = e;
	*n = count;
	return DTP_OK;
}

void dtp_st_entries_free(struct dtp_st_entry *entries, int n)
{
	for (int i = 0; i < n; i++)
		free(entries[i].name);
	free(entries);
}

static enum dtp_code read_exactly(const struct dtp_st_file *f, void *dst, size_t len, uint64_t offset,
				  struct dtp_err *err)
{
	for (size_t done = 0; done < len;) {
		ssize_t got = pread(f->fd, (char *)dst + done, len - done, (off_t)(offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return dtp_fail(err, DTP_FAILED, "cannot read '%s': %s", f->path, strerror(errno));
		if (got == 0)
			return dtp_fail(err, DTP_FAILED, "cannot read '%s': it ended at byte %" PRIu64 " while being read",
					f->path, offset + done);
		done += (size_t)got;
	}
	return DTP_OK;
}

enum dtp_code dtp_st_header_read(const struct dtp_st_file *f, char **text, size_t *len, struct dtp_err *err)
{
	unsigned char b[8];
	uint64_t n = 0;

	*text = NULL;
	if (f->size < 8)
		return dtp_fail(err, DTP_REFUSED, "'%s' is no safetensors file or is truncated: it has %" PRIu64 " bytes, the "
				"length of the header alone needs 8", f->path, f->size);
	enum dtp_code rc = read_exactly(f, b, sizeof b, 0, err);
	if (rc)
		return rc;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | b[i];
	if (n > DTP_ST_MAX_HEADER)
		return dtp_fail(err, DTP_REFUSED, "'%s' is no safetensors file: it claims a header of %" PRIu64 " bytes, at "
				"most %u are allowed", f->path, n, DTP_ST_MAX_HEADER);
	if (n > f->size - 8)
		return dtp_fail(err, DTP_REFUSED, "'%s' is truncated: it has %" PRIu64 " bytes, its header needs %" PRIu64,
				f->path, f->size, n + 8);
	*text = malloc((size_t)n + 1);
	if (!*text)
		return dtp_fail(err, DTP_FAILED, "'%s': out of memory", f->path);
	rc = read_exactly(f, *text, (size_t)n, 8, err);
	if (rc) {
		free(*text);
		*text = NULL;
		return rc;
	}
	(*text)[n] = '\0';
	*len = (size_t)n;
	return DTP_OK;
}
