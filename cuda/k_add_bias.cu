/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
add_bias(T *x, int64_t stride, const float *bias, int64_t m, int64_t k)
{
	int64_t i = grid_index() * N, row = i / k, col = i % k;
	float a[N], b[N];

	if (row >= m)
		return;
	load(a, x + row * stride + col);
	load(b, bias + col);
	for (int j = 0; j < N; j++)
		a[j] += b[j];
	store(x + row * stride + col, a);
}

cudaError_t dtp_k_add_bias(cudaStream_t stream, struct dtp_tensor x, const float *bias)
{
	int64_t m = x.shape[0], k = x.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(k, {x, vector(bias, k)}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(m * k / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, add_bias<T, n>, data<T>(x), x.stride[0], bias, m, k);
		});
	});
}
