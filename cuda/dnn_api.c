/* SPDX-License-Identifier: Apache-2.0 */
#include "dnn_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plans from a device's properties alone. */
#define OLDEST 90800

enum dtp_code dtp_cudnn_load(struct dtp_cudnn *api, struct dtp_err *err)
{
	static const struct dtp_symbol symbols[] = {
#define SYMBOL(name) {#name, offsetof(struct dtp_cudnn, name)},
		DTP_CUDNN_FUNCTIONS(SYMBOL)
#undef SYMBOL
	};
	enum dtp_code rc = dtp_cuda_table(DTP_LIB_CUDNN, symbols, sizeof symbols / sizeof *symbols, api, err);
	size_t v;

	if (rc)
		return rc;
	v = api->cudnnGetVersion();
	if (v >= OLDEST)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "cuDNN %zu.%zu.%zu is too old: expected %d.%d or newer of major version %d", v / 10000, v / 100 % 100,
			v % 100, OLDEST / 10000, OLDEST / 100 % 100, CUDNN_MAJOR);
}

const char *dtp_cudnn_text(const struct dtp_cudnn *api, cudnnStatus_t s, const char *call, const char *file, int line, char *buf, size_t size)
{
	char last[400] = "";

	api->cudnnGetLastErrorString(last, sizeof last);
	last[strcspn(last, "\n")] = '\0';
	snprintf(buf, size, "%.*s: %s%s%s (%d), %s:%d", (int)strcspn(call, "("), call, last, *last ? ", " : "", api->cudnnGetErrorString(s), (int)s,
		 file, line);
	return buf;
}

enum dtp_code dtp_cudnn_status(const struct dtp_cudnn *api, cudnnStatus_t s, const char *call, const char *file, int line, struct dtp_err *err)
{
	char text[600];

	return s ? dtp_fail(err, DTP_FAILED, "%s", dtp_cudnn_text(api, s, call, file, line, text, sizeof text)) : DTP_OK;
}

/* ---- descriptors */

void dtp_dnn_begin(struct dtp_dnn_build *b, const struct dtp_cudnn *api)
{
	b->api = api;
	b->n = 0;
	b->status = CUDNN_STATUS_SUCCESS;
	b->said[0] = '\0';
}

static void note_at(struct dtp_dnn_build *b, cudnnStatus_t s, const char *call, int line)
{
	if (s && !b->status) {
		b->status = s;
		dtp_cudnn_text(b->api, s, call, __FILE__, line, b->said, sizeof b->said);
	}
}
/* The build's cuDNN does the call, unless one before has failed. */
#define NOTE(b, call) note_at(b, (b)->api->call, #call, __LINE__)

cudnnBackendDescriptor_t dtp_dnn_make(struct dtp_dnn_build *b, cudnnBackendDescriptorType_t type)
{
	cudnnBackendDescriptor_t d = NULL;

	if (!b->status && b->n == (int)(sizeof b->made / sizeof *b->made)) {
		b->status = CUDNN_STATUS_INTERNAL_ERROR;
		snprintf(b->said, sizeof b->said, "more than %d descriptors in one graph", b->n);
	}
	if (b->status)
		return NULL;
	NOTE(b, cudnnBackendCreateDescriptor(type, &d));
	if (!b->status)
		b->made[b->n++] = d;
	return b->status ? NULL : d;
}

void dtp_dnn_set(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		 cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
	if (!b->status)
		NOTE(b, cudnnBackendSetAttribute(d, name, type, n, values));
}

void dtp_dnn_set_part(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		      cudnnBackendDescriptor_t part)
{
	dtp_dnn_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

int64_t dtp_dnn_get(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
		    cudnnBackendAttributeType_t type, int64_t n, void *values)
{
	int64_t there = 0;

	if (!b->status)
		NOTE(b, cudnnBackendGetAttribute(d, name, type, n, &there, values));
	return b->status ? 0 : there;
}

void dtp_dnn_finish(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d)
{
	if (!b->status)
		NOTE(b, cudnnBackendFinalize(d));
}

char *dtp_dnn_get_text(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, size_t *len)
{
	int64_t n = dtp_dnn_get(b, d, name, CUDNN_TYPE_CHAR, 0, NULL);
	char *text = b->status ? NULL : calloc(1, (size_t)n + 1);

	if (!b->status && !text) {
		b->status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
		snprintf(b->said, sizeof b->said, "out of memory for %lld bytes", (long long)n);
	}
	dtp_dnn_get(b, d, name, CUDNN_TYPE_CHAR, n, text);
	if (b->status) {
		free(text);
		return NULL;
	}
	*len = strlen(text);
	return text;
}

void dtp_dnn_keep(struct dtp_dnn_build *b, cudnnBackendDescriptor_t d)
{
	for (int i = 0; i < b->n; i++)
		if (b->made[i] == d)
			b->made[i] = NULL;
}

void dtp_dnn_end(struct dtp_dnn_build *b)
{
	while (b->n > 0)
		if (b->made[--b->n])
			b->api->cudnnBackendDestroyDescriptor(b->made[b->n]);
}
