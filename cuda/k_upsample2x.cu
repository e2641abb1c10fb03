/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

/* A thread has a pack of out [rows, 2w + 2, channels], which begins with row `first` of x [h, w, channels], doubled. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS)
upsample2x(T *out, const T *x, int64_t first, int64_t rows, int64_t h, int64_t w, int64_t channels)
{
	int64_t i = grid_index() * N, channel = i % channels, pixel = i / channels;
	int64_t col = pixel % (2 * w + 2) - 1, row = pixel / (2 * w + 2) + first;
	pack<T, N> v = {};

	if (row - first >= rows)
		return;
	if (row >= 0 && row < 2 * h && col >= 0 && col < 2 * w)
		v = *reinterpret_cast<const pack<T, N> *>(x + (row / 2 * w + col / 2) * channels + channel);
	*reinterpret_cast<pack<T, N> *>(out + i) = v;
}

cudaError_t dtp_k_upsample2x(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, int64_t first)
{
	int64_t n = dtp_numel(&out);

	if (n == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(x.shape[2], {flat(out), flat(x)}, [&](auto width) {
			cudaLaunchConfig_t c = grid(stream, div_up(n / width, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, upsample2x<T, width>, data<T>(out), data<const T>(x), first, out.shape[0], x.shape[0],
						  x.shape[1], x.shape[2]);
		});
	});
}
