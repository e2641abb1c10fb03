/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files with random data, for the tests of the loader. */
#ifndef TEST_CHECKPOINT_H
#define TEST_CHECKPOINT_H

#include "module.h"
#include "support.h"

#include <unistd.h>

struct content {
	const char *name, *dtype;
	int ndim;
	int64_t shape[4];
};

static inline size_t content_bytes(const struct content *c)
{
	size_t n = !strcmp(c->dtype, "F32") ? 4 : !strcmp(c->dtype, "I64") ? 8 : strstr(c->dtype, "8") ? 1 : 2;
	for (int d = 0; d < c->ndim; d++)
		n *= (size_t)c->shape[d];
	return n;
}

/* The header of a file with these tensors; returns its length, *data gets that of what follows. */
static inline size_t checkpoint_header(char *header, size_t size, const struct content *c, int n, size_t *data)
{
	size_t len = 8 + (size_t)snprintf(header + 8, size - 8, "{"), at = 0;

	for (int i = 0; i < n; i++) {
		len += (size_t)snprintf(header + len, size - len, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", c[i].name,
					c[i].dtype);
		for (int d = 0; d < c[i].ndim; d++)
			len += (size_t)snprintf(header + len, size - len, "%s%lld", d ? "," : "", (long long)c[i].shape[d]);
		len += (size_t)snprintf(header + len, size - len, "],\"data_offsets\":[%zu,%zu]}", at, at + content_bytes(&c[i]));
		at += content_bytes(&c[i]);
	}
	len += (size_t)snprintf(header + len, size - len, "}");
	while (len % 8)
		header[len++] = ' ';
	for (int i = 0; i < 8; i++)
		header[i] = (char)((len - 8) >> 8 * i);
	*data = at;
	return len;
}

/* Writes temp_dir()/name, with random data.  Returns the path (static, until the next call). */
static inline const char *write_checkpoint(const char *name, const struct content *c, int n)
{
	static char path[700], header[20000];
	size_t data, len = checkpoint_header(header, sizeof header, c, n, &data);
	char *all = malloc(len + data + 8);

	memcpy(all, header, len);
	for (size_t i = 0; i < data; i += 8) {
		uint64_t r = test_random();
		memcpy(all + len + i, &r, 8);
	}
	snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
	write_file(path, all, len + data);
	free(all);
	return path;
}

/* The same as a sparse file of zeros. */
static inline const char *write_sparse_checkpoint(const char *name, const struct content *c, int n)
{
	static char path[700], header[20000];
	size_t data, len = checkpoint_header(header, sizeof header, c, n, &data);

	snprintf(path, sizeof path, "%s/%s", temp_dir(), name);
	write_file(path, header, len);
	if (truncate(path, (off_t)(len + data)))
		exit(1);
	return path;
}
#endif
