/* SPDX-License-Identifier: Apache-2.0 */
/* How weights lie in a GPU's memory, and what else is taken of it: what the CUDA backend does and what is predicted without one. */
#include "backend.h"
#include "footprint.h"

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
	uint64_t gap = t == DTP_F32 ? 0 : 255; /* between the two, at most */
	int64_t most = (int64_t)((room > gap ? room - gap : 0) / (score + weight ? score + weight : 1));

	if (most > 128) /* whole tiles of a product */
		most = most / 128 * 128;
	s.rows = most < 1 ? 1 : most < queries ? most : queries;
	/* Weights of F32 take the place of their scores. */
	s.weights = t == DTP_F32 ? 0 : (uint64_t)dtp_round_up(s.rows * (int64_t)score, 256);
	s.nbytes = s.weights + (uint64_t)s.rows * (t == DTP_F32 ? score : weight);
	return s;
}

bool dtp_cuda_fits(struct dtp_tensor x)
{
	uint64_t row = (uint64_t)x.stride[0] * dtp_dtype_size(x.dtype);

	return (uintptr_t)x.data % DTP_CUDA_ALIGN == 0 && row % DTP_CUDA_ALIGN == 0;
}

uint64_t dtp_cuda_fitting_bytes(struct dtp_tensor x)
{
	uint64_t row = (uint64_t)dtp_round_up(x.shape[1] * (int64_t)dtp_dtype_size(x.dtype), DTP_CUDA_ALIGN);

	return dtp_cuda_fits(x) ? 0 : (uint64_t)x.shape[0] * row;
}

#define SLICE 1024 /* pixels, about */
#define MOST_SLICES 1024

int64_t dtp_cuda_norm_slices(int64_t pixels)
{
	int64_t n = (pixels + SLICE - 1) / SLICE;

	return n < MOST_SLICES ? n : MOST_SLICES;
}

struct dtp_cuda_norm_scratch dtp_cuda_norm_scratch(struct dtp_tensor x, bool own_maps)
{
	int64_t channels = x.shape[2];

	return (struct dtp_cuda_norm_scratch){
		.maps = own_maps ? (uint64_t)dtp_round_up(2 * channels * (int64_t)sizeof(float), 256) : 0,
		.sums = 2 * (uint64_t)(dtp_cuda_norm_slices(x.shape[0] * x.shape[1]) * channels) * sizeof(double),
	};
}
