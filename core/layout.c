/* SPDX-License-Identifier: Apache-2.0 */
/* How weights lie in a GPU's memory: what the CUDA backend does and what is predicted without one. */
#include "backend.h"

struct dtp_cuda_layout dtp_cuda_layout(enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	struct dtp_cuda_layout l = {.n = shape[0], .k = 1};
	int64_t size = (int64_t)dtp_dtype_size(t);

	for (int d = 1; d < ndim; d++)
		l.k *= shape[d];
	l.pitch = kind == DTP_WEIGHT_MATRIX ? dtp_round_up(l.k, DTP_CUDA_ROW / size) : l.k;
	l.nbytes = (uint64_t)(l.n * l.pitch * size);
	if (kind == DTP_WEIGHT_VECTOR) {
		l.typed = t == DTP_F32 ? 0 : (uint64_t)dtp_round_up(l.n * (int64_t)sizeof(float), DTP_CUDA_ROW);
		l.nbytes = t == DTP_F32 ? (uint64_t)l.n * sizeof(float) : l.typed + (uint64_t)(l.n * size);
	}
	return l;
}
