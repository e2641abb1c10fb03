/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

/* The largest of every thread's x, the same in all of them; shared: MAX_WARPS values, of this call only. */
static __device__ __forceinline__ float block_max(float x, float *shared)
{
	int warps = blockDim.x / WARP;

#pragma unroll
	for (int d = WARP / 2; d > 0; d /= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
	if (threadIdx.x % WARP == 0)
		shared[threadIdx.x / WARP] = x;
	__syncthreads();
	x = shared[0];
	for (int i = 1; i < warps; i++)
		x = fmaxf(x, shared[i]);
	return x;
}

/* scale: to powers of 2. */
template <class T, int N>
__global__ void __launch_bounds__(row_part<float, N>::MOST_THREADS, 1)
softmax(T *out, int64_t out_stride, const float *x, int64_t x_stride, int64_t k, float scale)
{
	SHARED_ARRAY(float, shared, 2 * MAX_WARPS);
	row_part<float, N> part(x + blockIdx.x * x_stride, k);
	float most = -INFINITY, sum = 0;

	part.each([&](int64_t, const float(&v)[N]) {
		for (int i = 0; i < N; i++)
			most = fmaxf(most, v[i]);
	});
	most = block_max(most, shared);
	part.each([&](int64_t, const float(&v)[N]) {
		for (int i = 0; i < N; i++)
			sum += exp2f((v[i] - most) * scale);
	});
	float part_of_1 = 1.0f / block_sum(sum, shared + MAX_WARPS);
	part.each([&](int64_t c, const float(&v)[N]) {
		float y[N];
		for (int i = 0; i < N; i++)
			y[i] = exp2f((v[i] - most) * scale) * part_of_1;
		store(out + blockIdx.x * out_stride + c, y);
	});
}

cudaError_t dtp_k_softmax(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, float scale)
{
	const float log2_e = 1.44269504f;
	int64_t m = x.shape[0], k = x.shape[1];

	if (m == 0 || k == 0)
		return cudaSuccess;
	if (x.dtype != DTP_F32)
		return cudaErrorInvalidValue;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(k, {out, x}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, m, row_part<float, n>::threads(k));
			return cudaLaunchKernelEx(&c, softmax<T, n>, data<T>(out), out.stride[0], data<const float>(x), x.stride[0], k,
						  scale * log2_e);
		});
	});
}
