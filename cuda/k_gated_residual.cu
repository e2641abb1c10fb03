/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, class Y, int N>
__global__ void __launch_bounds__(THREADS)
gated_residual(T *x, int64_t x_stride, const T *gate, const Y *y, int64_t y_stride, int64_t m, int64_t k)
{
	int64_t i = grid_index() * N, row = i / k, col = i % k;
	float a[N], b[N], g[N];

	if (row >= m)
		return;
	load(a, x + row * x_stride + col);
	load(b, y + row * y_stride + col);
	if (gate)
		load(g, gate + col);
	for (int j = 0; j < N; j++)
		a[j] += gate ? g[j] * b[j] : b[j];
	store(x + row * x_stride + col, a);
}

cudaError_t dtp_k_gated_residual(cudaStream_t stream, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y)
{
	int64_t m = x.shape[0], k = x.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_type(y.dtype, [&](auto term) {
			using Y = decltype(term);
			if constexpr (sizeof(Y) < sizeof(T))
				return cudaErrorInvalidValue;
			else
				return by_width<T>(k, {x, gate.data ? gate : x, y}, [&](auto n) {
					cudaLaunchConfig_t c = grid(stream, div_up(m * k / n, THREADS), THREADS);
					return cudaLaunchKernelEx(&c, gated_residual<T, Y, n>, data<T>(x), x.stride[0], data<const T>(gate),
								  data<const Y>(y), y.stride[0], m, k);
				});
		});
	});
}
