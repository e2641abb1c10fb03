/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the stand-in for cuDNN: cudnn.c stands before the real library and takes the four calls that need a GPU, and the device's
 * properties; cudnn_work.c reads what a finished plan computes, and computes it. */
#ifndef EMU_CUDNN_WORK_H
#define EMU_CUDNN_WORK_H

#include "emu.h"

#include <stdint.h>

struct emu_dnn_tensor {
	int64_t dims[4], strides[4]; /* elements */
	bool bf16, by_value;
	char *p;                     /* NULL: this graph has no such tensor, or it has no memory */
};

/* One operation with all that it reads and writes: softmax(scale q k^T) v, or a convolution and then a bias. */
struct emu_dnn_job {
	bool attention;
	struct emu_dnn_tensor q, k, v, stats, x, w, bias, out;
	float scale;
	int64_t pad[2], stride[2];   /* above and left; of rows and columns */
	char *workspace;
	size_t workspace_size;
};

/* Reads the plan's text (its JSON, len bytes and '\0') and the addresses of its tensors; whatever is not as it must be ends the
 * process.  arch: the compute capability that the plan must be for. */
void emu_dnn_read(const char *text, size_t len, int arch, const int64_t *ids, void *const *pointers, int n, struct emu_dnn_job *job);
/* The work. */
bool emu_dnn_compute(void *job);
#endif
