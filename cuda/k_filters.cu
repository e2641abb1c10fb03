/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class D, class S>
__global__ void __launch_bounds__(THREADS)
filters(D *dst, const S *src, int64_t n, int64_t channels, int64_t taps)
{
	int64_t i = grid_index(), c = i % channels, tap = i / channels % taps, filter = i / channels / taps;

	if (i < n)
		dst[i] = convert<D>(src[(filter * channels + c) * taps + tap]);
}

cudaError_t dtp_k_filters(cudaStream_t stream, struct dtp_tensor dst, struct dtp_tensor src)
{
	int64_t n = dtp_numel(&src);

	if (n == 0)
		return cudaSuccess;
	return by_type(dst.dtype, [&](auto to) {
		using D = decltype(to);
		return by_float(src.dtype, [&](auto from) {
			using S = decltype(from);
			if (!multiple(flat(dst), sizeof(D)) || !multiple(flat(src), sizeof(S)))
				return cudaErrorInvalidValue;
			cudaLaunchConfig_t c = grid(stream, div_up(n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, filters<D, S>, data<D>(dst), data<const S>(src), n, src.shape[1], src.shape[2] * src.shape[3]);
		});
	});
}
