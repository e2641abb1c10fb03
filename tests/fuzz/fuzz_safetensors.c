/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused, or every tensor lies within the file and can be read. */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_tensors(const struct dtp_st *st)
{
	struct dtp_err err;
	uint64_t total = 0;

	for (int i = 0; i < st->nentries; i++) {
		const struct dtp_st_entry *e = &st->entries[i];
		if (dtp_st_find(st, e->name) != e)
			abort();
		char *b = malloc(e->nbytes + 1);
		if (!b || dtp_st_read(st, e, 0, e->nbytes, b, &err))
			abort();
		if (dtp_st_read(st, e, 1, e->nbytes, b, &err) == DTP_OK)
			abort();
		free(b);
		total += e->nbytes;
	}
	if (total + st->files[0].header_bytes != st->files[0].size)
		abort();
	free(dtp_st_metadata(st, "format"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_st st;
	struct dtp_err err;
	char path[64];

	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (dtp_st_open_file(path, &st, &err) == DTP_OK) {
		use_tensors(&st);
		dtp_st_close(&st);
	} else if (st.files || st.entries) {
		abort();
	}
	close(fd);
	return 0;
}
