/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels share: element types, packs of elements that move at once, sums over a block, and the way from a tensor's dtype and
 * address to the instance of a kernel that suits it.
 *
 * The same files compile as plain C++ for the emulator of the tests, which sets the rules: kernels are launched by cudaLaunchKernelEx,
 * shared memory is declared by SHARED_ARRAY, there is no inline assembly, and arithmetic is done in float. */
#ifndef DTP_CUDA_DEVICE_CUH
#define DTP_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <initializer_list>
#include <type_traits>

#include "kernels.h"

/* n elements of the block's shared memory. */
#ifndef SHARED_ARRAY
#define SHARED_ARRAY(T, name, n) __shared__ T name[n]
#endif

static constexpr int WARP = 32, MAX_WARPS = 1024 / WARP;
static constexpr int THREADS = 256; /* of a block, where nothing speaks for another number */

/* ---- elements */
static __device__ __forceinline__ float to_float(float x)
{
	return x;
}
static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
	return __bfloat162float(x);
}
static __device__ __forceinline__ float to_float(__half x)
{
	return __half2float(x);
}

/* Rounded to nearest even. */
template <class T> __device__ __forceinline__ T from_float(float x)
{
	if constexpr (std::is_same_v<T, __nv_bfloat16>)
		return __float2bfloat16_rn(x);
	else if constexpr (std::is_same_v<T, __half>)
		return __float2half_rn(x);
	else
		return x;
}

template <class T> __device__ __forceinline__ float rounded(float x)
{
	return to_float(from_float<T>(x));
}

/* The same type is copied bit by bit, NaNs included. */
template <class D, class S> __device__ __forceinline__ D convert(S x)
{
	if constexpr (std::is_same_v<D, S>)
		return x;
	else
		return from_float<D>(to_float(x));
}

static __device__ __forceinline__ float silu(float x)
{
	return x / (1.0f + expf(-x));
}

/* ---- N elements at once, in instructions of 16 bytes at most */
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack {
	T v[N];
};

template <int N, class T> __device__ __forceinline__ void load(float (&dst)[N], const T *src)
{
	pack<T, N> p = *reinterpret_cast<const pack<T, N> *>(src);
#pragma unroll
	for (int i = 0; i < N; i++)
		dst[i] = to_float(p.v[i]);
}

template <int N, class T> __device__ __forceinline__ void store(T *dst, const float (&src)[N])
{
	pack<T, N> p;
#pragma unroll
	for (int i = 0; i < N; i++)
		p.v[i] = from_float<T>(src[i]);
	*reinterpret_cast<pack<T, N> *>(dst) = p;
}

/* The number of this thread in the grid. */
static __device__ __forceinline__ int64_t grid_index()
{
	return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/* The sum of every thread's x, the same in all of them; sums: MAX_WARPS shared values, of this call only. */
template <class T> __device__ __forceinline__ T block_sum(T x, T *sums)
{
	int warps = blockDim.x / WARP;

#pragma unroll
	for (int d = WARP / 2; d > 0; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	if (threadIdx.x % WARP == 0)
		sums[threadIdx.x / WARP] = x;
	__syncthreads();
	x = sums[0];
	for (int i = 1; i < warps; i++)
		x += sums[i];
	return x;
}

/* A thread's part of a row of k elements: packs that lie a block apart.  The first few stay in registers, so that an ordinary row is read
 * once; what is beyond is read again each time. */
template <class T, int N> struct row_part {
	static constexpr int HELD = 4, MOST_THREADS = 512; /* kernels ask for one such block at least: more would keep registers in memory */
	const T *x;
	int64_t k;
	float held[HELD][N];

	__device__ __forceinline__ row_part(const T *row, int64_t length) : x(row), k(length)
	{
#pragma unroll
		for (int i = 0; i < HELD; i++)
			if (column(i) < k)
				load(held[i], x + column(i));
	}
	__device__ __forceinline__ int64_t column(int i) const
	{
		return (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * N;
	}
	/* f(column of the pack, its values) */
	template <class F> __device__ __forceinline__ void each(F f) const
	{
#pragma unroll
		for (int i = 0; i < HELD; i++)
			if (column(i) < k)
				f(column(i), held[i]);
		for (int64_t c = column(HELD); c < k; c += static_cast<int64_t>(blockDim.x) * N) {
			float v[N];
			load(v, x + c);
			f(c, v);
		}
	}
	/* Threads for rows of so many elements. */
	static int threads(int64_t k)
	{
		int64_t warps = (k + HELD * N * WARP - 1) / (HELD * N * WARP);
		return WARP * static_cast<int>(warps < MOST_THREADS / WARP ? warps : MOST_THREADS / WARP);
	}
};

/* ---- the host's side */
static inline int64_t div_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* More blocks than a grid can have are none: an invalid configuration. */
static inline cudaLaunchConfig_t grid(cudaStream_t stream, int64_t blocks, int threads)
{
	cudaLaunchConfig_t c = {};
	c.gridDim = dim3(blocks <= INT32_MAX ? static_cast<unsigned>(blocks) : 0);
	c.blockDim = dim3(static_cast<unsigned>(threads));
	c.stream = stream;
	return c;
}

static inline struct dtp_tensor vector(const float *p, int64_t n)
{
	return dtp_tensor_make(const_cast<float *>(p), DTP_F32, 1, &n);
}

/* A dense tensor as one run of elements. */
static inline struct dtp_tensor flat(const struct dtp_tensor &t)
{
	int64_t n = dtp_numel(&t);
	return dtp_tensor_make(t.data, t.dtype, 1, &n);
}

template <class T> T *data(const struct dtp_tensor &t)
{
	return static_cast<T *>(t.data);
}

static inline bool multiple(const struct dtp_tensor &t, uint64_t bytes)
{
	bool ok = reinterpret_cast<uintptr_t>(t.data) % bytes == 0;
	for (int d = 0; d + 1 < t.ndim; d++)
		ok = ok && static_cast<uint64_t>(t.stride[d]) * dtp_dtype_size(t.dtype) % bytes == 0;
	return ok;
}

/* f(T()) for the T of t. */
template <class F> cudaError_t by_type(enum dtp_dtype t, F f)
{
	switch (t) {
	case DTP_F32:
		return f(float());
	case DTP_BF16:
		return f(__nv_bfloat16());
	default:
		return cudaErrorInvalidValue;
	}
}

/* The same with F16, which files have too. */
template <class F> cudaError_t by_float(enum dtp_dtype t, F f)
{
	return t == DTP_F16 ? f(__half()) : by_type(t, f);
}

/* f(N) with N elements of T in 16 bytes, where the runs of `length` elements that the tensors consist of allow it; else with 1. */
template <class T, class F> cudaError_t by_width(int64_t length, std::initializer_list<struct dtp_tensor> tensors, F f)
{
	constexpr int N = 16 / sizeof(T);
	bool wide = length % N == 0;

	for (const struct dtp_tensor &t : tensors) {
		if (!t.data) /* an argument that was left out */
			continue;
		if (reinterpret_cast<uintptr_t>(t.data) % dtp_dtype_size(t.dtype))
			return cudaErrorInvalidValue;
		wide = wide && multiple(t, 16);
	}
	return wide ? f(std::integral_constant<int, N>()) : f(std::integral_constant<int, 1>());
}

/* ---- out = f(a, b), each element of dense tensors by itself */
template <class T, int N, class F>
__global__ void __launch_bounds__(THREADS)
pointwise(T *out, const T *a, const T *b, int64_t n, F f)
{
	int64_t i = grid_index() * N;
	float x[N], y[N];

	if (i >= n)
		return;
	load(x, a + i);
	load(y, b + i);
	for (int j = 0; j < N; j++)
		x[j] = f(x[j], y[j]);
	store(out + i, x);
}

template <class F>
cudaError_t launch_pointwise(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b, F f)
{
	int64_t n = dtp_numel(&out);

	if (n == 0)
		return cudaSuccess;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(n, {flat(out), flat(a), flat(b)}, [&](auto width) {
			cudaLaunchConfig_t c = grid(stream, div_up(n / width, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, pointwise<T, width, F>, data<T>(out), data<const T>(a), data<const T>(b), n, f);
		});
	});
}
#endif
