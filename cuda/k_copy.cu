/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

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
