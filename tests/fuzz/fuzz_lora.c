/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a LoRA file for a small transformer: refused, or every part of every factor can be read. */
#include "lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct dtp_layer layers[4];

static void declare(struct dtp_tree *t)
{
	dtp_tree_init(t, "transformer");
	dtp_tree_list(t, "transformer_blocks");
	dtp_tree_linear(t, &layers[0], 8, 6, false, "transformer_blocks.0.attn.to_q");
	dtp_tree_linear(t, &layers[1], 8, 6, false, "transformer_blocks.0.attn.to_k");
	dtp_tree_linear(t, &layers[2], 8, 6, false, "transformer_blocks.0.attn.to_v");
	dtp_tree_linear(t, &layers[3], 8, 6, false, "norm_out.linear");
}

static void read_all(const struct dtp_tree *t)
{
	static const struct dtp_split splits[] = {{.dim = -1, .nruns = 1, .run = {{0, 8}}},
		{.dim = 0, .nruns = 2, .run = {{1, 3}, {5, 8}}}, {.dim = 1, .nruns = 1, .run = {{2, 6}}}};
	struct dtp_lora_slice *s;
	struct dtp_err err;

	for (int m = 0; m < t->n; m++)
		for (int i = 0; t->modules[m].nlora && i < 3; i++) {
			if (dtp_lora_slice_read(&t->modules[m], &splits[i], &s, &err))
				abort();
			dtp_lora_slice_free(s);
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_tree t;
	struct dtp_lora *l;
	struct dtp_err err;
	char path[64];
	const char *given = path;

	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	declare(&t);
	if (dtp_lora_open(&given, 1, &t, &dtp_monitor_none, &l, &err) == DTP_OK) {
		read_all(&t);
		dtp_lora_close(l);
	}
	dtp_tree_free(&t);
	close(fd);
	return 0;
}
