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

struct dtp_cuda_scores dtp_cuda_scores(enum dtp_dtype t, int64_t queries, int64_t keys, uint64_t room)
{
	struct dtp_cuda_scores s = {.pitch = dtp_round_up(keys, DTP_CUDA_ROW / 2)};
	uint64_t score = (uint64_t)s.pitch * sizeof(float), weight = t == DTP_F32 ? 0 : (uint64_t)s.pitch * dtp_dtype_size(t);
	int64_t most = (int64_t)(room / (score + weight ? score + weight : 1));

	if (most > 128) /* whole tiles of a product */
		most = most / 128 * 128;
	s.rows = most < 1 ? 1 : most < queries ? most : queries;
	/* Weights of F32 take the place of their scores. */
	s.weights = t == DTP_F32 ? 0 : (uint64_t)dtp_round_up(s.rows * (int64_t)score, 256);
	s.nbytes = s.weights + (uint64_t)s.rows * (t == DTP_F32 ? score : weight);
	return s;
}
