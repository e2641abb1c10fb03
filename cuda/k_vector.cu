/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

/* A thread per element: a norm's or a bias's few KB, once in a load. */
template <class T, class S>
__global__ void __launch_bounds__(THREADS)
round_vector(float *dst, const S *src, int64_t n)
{
	int64_t i = grid_index();

	if (i < n)
		dst[i] = rounded<T>(to_float(src[i]));
}

cudaError_t dtp_k_vector(cudaStream_t stream, float *dst, enum dtp_dtype t, struct dtp_tensor src)
{
	int64_t n = dtp_numel(&src);

	if (n == 0)
		return cudaSuccess;
	return by_type(t, [&](auto type) {
		using T = decltype(type);
		return by_float(src.dtype, [&](auto from) {
			using S = decltype(from);
			if (!multiple(vector(dst, n), sizeof(float)) || !multiple(flat(src), sizeof(S)))
				return cudaErrorInvalidValue;
			cudaLaunchConfig_t c = grid(stream, div_up(n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, round_vector<T, S>, dst, data<const S>(src), n);
		});
	});
}
