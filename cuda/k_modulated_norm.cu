/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(row_part<T, N>::MOST_THREADS, 1)
modulated_norm(T *out, int64_t out_stride, const T *x, int64_t x_stride, const T *shift, const T *scale, int64_t k, float eps)
{
	SHARED_ARRAY(float, sums, 2 * MAX_WARPS);
	row_part<T, N> part(x + blockIdx.x * x_stride, k);
	float sum = 0, squares = 0;

	part.each([&](int64_t, const float(&v)[N]) {
		for (int i = 0; i < N; i++)
			sum += v[i];
	});
	float mean = block_sum(sum, sums) / static_cast<float>(k);
	part.each([&](int64_t, const float(&v)[N]) {
		for (int i = 0; i < N; i++)
			squares += (v[i] - mean) * (v[i] - mean);
	});
	float rstd = 1.0f / sqrtf(block_sum(squares, sums + MAX_WARPS) / static_cast<float>(k) + eps);
	part.each([&](int64_t c, const float(&v)[N]) {
		float y[N], a[N], b[N];
		load(a, scale + c);
		load(b, shift + c);
		for (int i = 0; i < N; i++)
			y[i] = (v[i] - mean) * rstd * (1.0f + a[i]) + b[i];
		store(out + blockIdx.x * out_stride + c, y);
	});
}

cudaError_t dtp_k_modulated_norm(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor shift,
				 struct dtp_tensor scale, float eps)
{
	int64_t m = x.shape[0], k = x.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(k, {out, x, shift, scale}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, m, row_part<T, n>::threads(k));
			return cudaLaunchKernelEx(&c, modulated_norm<T, n>, data<T>(out), out.stride[0], data<const T>(x), x.stride[0],
						  data<const T>(shift), data<const T>(scale), k, eps);
		});
	});
}
