/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

static constexpr int ROOM = DTP_K_TAPS; /* packs of a block in shared memory: 16 KiB, or 32 where two bytes become a float */

struct filter_shape {
	int64_t channels, blocks; /* of a filter */
	int taps, pitch;          /* packs of channels of a tap */
};

/* A block turns a part of [channels, taps] of one filter over.  In src that is one run, of which a warp reads 32 packs that follow each other
 * (wide: of 16 bytes each); in dst each tap has a run, which lanes write in packs likewise.  In between lie the rows of shared memory; an odd
 * number of packs apart, wide ones begin in different banks. */
template <class D, class S, int N>
__global__ void __launch_bounds__(THREADS)
filters(D *dst, const S *src, filter_shape s)
{
	using P = pack<D, N>;
	SHARED_ARRAY(P, rows, ROOM); /* [taps][pitch] */
	int64_t filter = blockIdx.x / s.blocks, first = blockIdx.x % s.blocks * s.pitch * N, left = (s.channels - first) / N;
	int packs = left < s.pitch ? static_cast<int>(left) : s.pitch;

	src += (filter * s.channels + first) * s.taps;
	dst += filter * s.channels * s.taps + first;
	for (int i = threadIdx.x; i < packs * s.taps; i += THREADS) {
		pack<S, N> from = *reinterpret_cast<const pack<S, N> *>(src + i * N);
#pragma unroll
		for (int j = 0; j < N; j++) {
			int channel = (i * N + j) / s.taps, tap = (i * N + j) % s.taps;
			rows[tap * s.pitch + channel / N].v[channel % N] = convert<D>(from.v[j]);
		}
	}
	__syncthreads(); /* every tap has its channels */
	for (int i = threadIdx.x; i < packs * s.taps; i += THREADS) {
		int tap = i / packs, c = i % packs;
		*reinterpret_cast<P *>(dst + tap * s.channels + c * N) = rows[tap * s.pitch + c];
	}
}

template <class D, class S> static cudaError_t launch(cudaStream_t stream, struct dtp_tensor dst, struct dtp_tensor src)
{
	int64_t taps = src.shape[2] * src.shape[3];

	if (taps > DTP_K_TAPS)
		return cudaErrorInvalidValue;
	return by_width<std::conditional_t<(sizeof(D) < sizeof(S)), D, S>>(src.shape[1], {flat(dst), flat(src)}, [&](auto n) {
		int pitch = (static_cast<int>(ROOM / taps) - 1) / 2 * 2 + 1; /* the odd number below */
		const filter_shape s = {src.shape[1], div_up(src.shape[1], pitch * n), static_cast<int>(taps), pitch};
		cudaLaunchConfig_t c = grid(stream, src.shape[0] * s.blocks, THREADS);
		return cudaLaunchKernelEx(&c, filters<D, S, n>, data<D>(dst), data<const S>(src), s);
	});
}

cudaError_t dtp_k_filters(cudaStream_t stream, struct dtp_tensor dst, struct dtp_tensor src)
{
	if (dtp_numel(&src) == 0)
		return cudaSuccess;
	return by_type(dst.dtype, [&](auto to) {
		using D = decltype(to);
		return by_float(src.dtype, [&](auto from) {
			using S = decltype(from);
			return launch<D, S>(stream, dst, src);
		});
	});
}
