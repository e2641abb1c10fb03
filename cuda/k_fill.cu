/* SPDX-License-Identifier: Apache-2.0 */
/* Values that are computed where they are to lie. */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
fill(T *dst, int64_t stride, int64_t rows, int64_t cols, uint64_t seed, int64_t first_row, uint32_t first_col, float mean, float scale)
{
	int64_t i = grid_index() * N, row = i / cols, col = i % cols;
	float v[N];

	if (row >= rows)
		return;
	uint32_t key = dtp_fill_key(seed, first_row + row), c = first_col + static_cast<uint32_t>(col);
#pragma unroll
	for (int j = 0; j < N; j++)
		v[j] = dtp_fill_value(key, c + static_cast<uint32_t>(j), mean, scale);
	store(dst + row * stride + col, v);
}

cudaError_t dtp_k_fill(cudaStream_t stream, struct dtp_tensor dst, const struct dtp_fill *f, int64_t first_row, int64_t first_col)
{
	int64_t rows = dst.shape[0], cols = dst.shape[1];

	if (dtp_numel(&dst) == 0)
		return cudaSuccess;
	return by_type(dst.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(cols, {dst}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(rows * cols / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, fill<T, n>, data<T>(dst), dst.stride[0], rows, cols, f->seed, first_row,
						  static_cast<uint32_t>(first_col), f->mean, f->scale);
		});
	});
}
