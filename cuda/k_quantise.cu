/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
quantise(uint8_t *rgb, const T *x, int64_t n)
{
	int64_t i = grid_index() * N;
	float v[N];
	pack<uint8_t, N> bytes;

	if (i >= n)
		return;
	load(v, x + i);
	for (int j = 0; j < N; j++) {
		/* The reference halves and shifts in T, and scales in F32.  fmaxf makes a NaN 0. */
		float y = fminf(fmaxf(rounded<T>(rounded<T>(v[j] / 2) + 0.5f), 0.0f), 1.0f);
		bytes.v[j] = static_cast<uint8_t>(rintf(y * 255.0f));
	}
	*reinterpret_cast<pack<uint8_t, N> *>(rgb + i) = bytes;
}

cudaError_t dtp_k_quantise(cudaStream_t stream, uint8_t *rgb, struct dtp_tensor x)
{
	int64_t n = dtp_numel(&x);

	if (n == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		/* Bytes are asked to lie at multiples of 16 too: they come from an allocation of their own. */
		return by_width<T>(n, {flat(x), dtp_tensor_make(rgb, DTP_U8, 1, &n)}, [&](auto width) {
			cudaLaunchConfig_t c = grid(stream, div_up(n / width, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, quantise<T, width>, rgb, data<const T>(x), n);
		});
	});
}
