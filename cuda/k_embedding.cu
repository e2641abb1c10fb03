/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
embedding(T *out, int64_t out_stride, const int32_t *ids, const T *table, int64_t rows, int64_t first_row, int64_t m, int64_t k)
{
	int64_t i = grid_index() * N, token = i / k, col = i % k;
	pack<T, N> v = {};

	if (token >= m)
		return;
	int64_t row = ids[token] - first_row;
	if (row >= 0 && row < rows)
		v = *reinterpret_cast<const pack<T, N> *>(table + row * k + col);
	*reinterpret_cast<pack<T, N> *>(out + token * out_stride + col) = v;
}

cudaError_t dtp_k_embedding(cudaStream_t stream, struct dtp_tensor out, const int32_t *ids, struct dtp_tensor table,
			    int64_t first_row)
{
	int64_t m = out.shape[0], k = out.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	if (reinterpret_cast<uintptr_t>(ids) % sizeof *ids)
		return cudaErrorInvalidValue;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(k, {out, table}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(m * k / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, embedding<T, n>, data<T>(out), out.stride[0], ids, data<const T>(table), table.shape[0],
						  first_row, m, k);
		});
	});
}
