/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens [h*w, 4C] to a picture [2h, 2w, C] and back: a token has the four pixels of a square, packed channel c*4 + dy*2 + dx.
 *
 * Tokens are quads in memory: the values of one channel in the four pixels.  A block has as many packs of either side as it has threads.
 * Tokens move as they lie: a warp's 512 bytes (wide) follow each other.  In shared memory the block's quads lie as four rows, one for each
 * pixel of the squares, of which a pack is N channels of a pixel.  A warp has packs of one row: of the picture it moves every second pixel,
 * whole sectors (64 bytes of bf16, 128 of f32 where C is 32), and other warps of the block move those between.  Single values of
 * shared memory, too, lie side by side for the lanes of a warp: no bank is asked for two words. */
#include "device.cuh"

struct patches {
	int64_t n, width, channels; /* elements, tokens in a row, C */
};

/* Where quad i's value for pixel q of the square lies in the picture. */
static __device__ __forceinline__ int64_t place_of(int64_t i, int q, const patches &p)
{
	int64_t c = i % p.channels, token = i / p.channels;
	int64_t y = token / p.width * 2 + q / 2, x = token % p.width * 2 + q % 2;
	return (y * 2 * p.width + x) * p.channels + c;
}

/* This thread's elements of tokens, of which `first` is the first, and its pack of the picture, which is pack threadIdx.x of the rows in
 * shared memory. */
template <int N> struct share {
	static constexpr int PACKS = THREADS / 4; /* of a row */
	int64_t first, quad;
	int q;

	__device__ __forceinline__ share()
	    : first(grid_index() * N), quad(static_cast<int64_t>(blockIdx.x) * PACKS * N + threadIdx.x % PACKS * N), q(threadIdx.x / PACKS)
	{
	}
	/* The value that element first + j of the tokens is in the rows. */
	template <class T> static __device__ __forceinline__ T &in_rows(pack<T, N> *rows, int j)
	{
		int i = threadIdx.x * N + j, at = i % 4 * PACKS * N + i / 4;
		return rows[at / N].v[at % N];
	}
};

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
unpatchify(T *picture, const T *tokens, const float *mean, const float *var, float eps, patches p)
{
	using P = pack<T, N>;
	SHARED_ARRAY(P, rows, THREADS); /* [4][PACKS] */
	share<N> s;

	if (s.first < p.n) {
		float v[N], m[N], d[N];
		load(v, tokens + s.first);
		load(m, mean + s.first % (4 * p.channels));
		load(d, var + s.first % (4 * p.channels));
#pragma unroll
		for (int j = 0; j < N; j++)
			s.in_rows(rows, j) = from_float<T>(v[j] * sqrtf(d[j] + eps) + m[j]);
	}
	__syncthreads(); /* every value is in its row */
	if (s.quad * 4 < p.n)
		*reinterpret_cast<P *>(picture + place_of(s.quad, s.q, p)) = rows[threadIdx.x];
}

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
patchify(T *tokens, const T *picture, const float *mean, const float *var, float eps, patches p)
{
	using P = pack<T, N>;
	SHARED_ARRAY(P, rows, THREADS); /* [4][PACKS] */
	share<N> s;

	if (s.quad * 4 < p.n)
		rows[threadIdx.x] = *reinterpret_cast<const P *>(picture + place_of(s.quad, s.q, p));
	__syncthreads(); /* every pack is in its row */
	if (s.first < p.n) {
		float v[N], m[N], d[N];
		load(m, mean + s.first % (4 * p.channels));
		load(d, var + s.first % (4 * p.channels));
#pragma unroll
		for (int j = 0; j < N; j++)
			v[j] = (to_float(s.in_rows(rows, j)) - m[j]) / sqrtf(d[j] + eps);
		store(tokens + s.first, v);
	}
}

cudaError_t dtp_k_unpatchify(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor tokens, const float *mean, const float *var, float eps)
{
	const patches p = {dtp_numel(&out), out.shape[1] / 2, out.shape[2]};

	if (p.n == 0)
		return cudaSuccess;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(p.channels, {flat(out), flat(tokens), vector(mean, 1), vector(var, 1)}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(p.n / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, unpatchify<T, n>, data<T>(out), data<const T>(tokens), mean, var, eps, p);
		});
	});
}

cudaError_t dtp_k_patchify(cudaStream_t stream, struct dtp_tensor tokens, struct dtp_tensor x, const float *mean, const float *var, float eps)
{
	const patches p = {dtp_numel(&x), x.shape[1] / 2, x.shape[2]};

	if (p.n == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(p.channels, {flat(tokens), flat(x), vector(mean, 1), vector(var, 1)}, [&](auto n) {
			cudaLaunchConfig_t c = grid(stream, div_up(p.n / n, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, patchify<T, n>, data<T>(tokens), data<const T>(x), mean, var, eps, p);
		});
	});
}
