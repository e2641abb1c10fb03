/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
swiglu(T *out, int64_t out_stride, const T *gate, int64_t gate_stride, const T *up, int64_t up_stride, int64_t m, int64_t k)
{
	int64_t i = grid_index() * N, row = i / k, col = i % k;
	float g[N], u[N];

	if (row >= m)
		return;
	load(g, gate + row * gate_stride + col);
	load(u, up + row * up_stride + col);
	for (int j = 0; j < N; j++)
		g[j] = silu(g[j]) * u[j];
	store(out + row * out_stride + col, g);
}

cudaError_t dtp_k_swiglu(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up)
{
	int64_t m = out.shape[0], k = out.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(k, {out, gate, up}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(m * k / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, swiglu<T, n>, data<T>(out), out.stride[0], data<const T>(gate), gate.stride[0],
						  data<const T>(up), up.stride[0], m, k);
		});
	});
}
