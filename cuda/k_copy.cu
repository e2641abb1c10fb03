/* SPDX-License-Identifier: Apache-2.0 */
/* Copies with conversion, and weights as they come from a file. */
#include "device.cuh"

/* The same type is copied bit by bit, NaNs included. */
template <class D, class S> static __device__ __forceinline__ D convert(S x)
{
	if constexpr (std::is_same_v<D, S>)
		return x;
	else
		return from_float<D>(to_float(x));
}

/* Both sides as [a, b, c, n] with strides for the first three. */
struct copy_shape {
	int64_t shape[3], dst[3], src[3], n;
};

template <class D, class S, int N>
__global__ void __launch_bounds__(THREADS)
copy(D *dst, const S *src, copy_shape s)
{
	int64_t i = grid_index() * N, row = i / s.n, col = i % s.n;
	int64_t c = row % s.shape[2], b = row / s.shape[2] % s.shape[1], a = row / s.shape[2] / s.shape[1];
	pack<D, N> to;

	if (a >= s.shape[0])
		return;
	pack<S, N> from = *reinterpret_cast<const pack<S, N> *>(src + a * s.src[0] + b * s.src[1] + c * s.src[2] + col);
#pragma unroll
	for (int j = 0; j < N; j++)
		to.v[j] = convert<D>(from.v[j]);
	*reinterpret_cast<pack<D, N> *>(dst + a * s.dst[0] + b * s.dst[1] + c * s.dst[2] + col) = to;
}

/* Dimensions that follow each other without a gap on both sides are one: rows get as long as they can. */
static void join(struct dtp_tensor *dst, struct dtp_tensor *src)
{
	for (int d = dst->ndim - 2; d >= 0; d--) {
		int64_t inner = dst->shape[d + 1];
		if (dst->stride[d] != inner * dst->stride[d + 1] || src->stride[d] != inner * src->stride[d + 1])
			continue;
		for (struct dtp_tensor *t : {dst, src}) {
			t->shape[d] *= inner;
			for (int e = d; e + 1 < t->ndim; e++) {
				t->stride[e] = t->stride[e + 1];
				if (e > d)
					t->shape[e] = t->shape[e + 1];
			}
			t->ndim--;
		}
	}
}

template <class F> static cudaError_t by_float(enum dtp_dtype t, F f)
{
	return t == DTP_F16 ? f(__half()) : by_type(t, f);
}

template <class D, class S> static cudaError_t launch(cudaStream_t stream, struct dtp_tensor dst, struct dtp_tensor src)
{
	copy_shape s = {{1, 1, 1}, {}, {}, dst.ndim ? dst.shape[dst.ndim - 1] : 1};

	for (int d = 0; d + 1 < dst.ndim; d++) {
		int at = 3 - (dst.ndim - 1) + d;
		s.shape[at] = dst.shape[d];
		s.dst[at] = dst.stride[d];
		s.src[at] = src.stride[d];
	}
	return by_width<std::conditional_t<(sizeof(D) < sizeof(S)), D, S>>(s.n, {dst, src}, [&](auto n) {
		cudaLaunchConfig_t c = grid(stream, div_up(dtp_numel(&dst) / n, THREADS), THREADS);
		return cudaLaunchKernelEx(&c, copy<D, S, n>, data<D>(dst), data<const S>(src), s);
	});
}

cudaError_t dtp_k_copy(cudaStream_t stream, struct dtp_tensor dst, struct dtp_tensor src)
{
	if (dtp_numel(&dst) == 0)
		return cudaSuccess;
	join(&dst, &src);
	return by_float(dst.dtype, [&](auto to) {
		using D = decltype(to);
		return by_float(src.dtype, [&](auto from) {
			using S = decltype(from);
			return launch<D, S>(stream, dst, src);
		});
	});
}

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
