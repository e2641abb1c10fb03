/* SPDX-License-Identifier: Apache-2.0 */
/* Group norm: sums per channel over slices of the picture, then a scale and a shift per channel, then those applied. */
#include "device.cuh"
#include "footprint.h"

/* Sums [2][slices][channels] of x and of x^2.  A block has `across` packs of channels and THREADS / across rows of pixels.  A thread sums
 * what its pixels differ from its first one, so that a mean far from 0 does not eat the variance; it is added back in double. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS)
channel_sums(double *sums, const T *x, int64_t pixels, int64_t channels, int64_t slices, int across)
{
	SHARED_ARRAY(double, shared, 2 * THREADS);
	int column = threadIdx.x % across, row = threadIdx.x / across, rows = THREADS / across;
	int64_t slice = blockIdx.x % slices, channel = (blockIdx.x / slices * across + column) * N;
	int64_t begin = pixels * slice / slices + row, end = pixels * (slice + 1) / slices;
	bool inside = row < rows && channel < channels && begin < end;
	float first[N], sum[N] = {}, squares[N] = {};
	double count = inside ? static_cast<double>((end - begin + rows - 1) / rows) : 0;

	if (inside)
		load(first, x + begin * channels + channel);
	for (int64_t p = begin; inside && p < end; p += rows) {
		float v[N];
		load(v, x + p * channels + channel);
		for (int i = 0; i < N; i++) {
			float d = v[i] - first[i];
			sum[i] += d;
			squares[i] += d * d;
		}
	}
#pragma unroll
	for (int i = 0; i < N; i++) {
		double s = sum[i], f = inside ? first[i] : 0;
		shared[threadIdx.x] = s + count * f;
		shared[THREADS + threadIdx.x] = squares[i] + 2 * f * s + count * f * f;
		__syncthreads(); /* all have given theirs */
		if (row == 0 && channel < channels) {
			double total = 0, total_squares = 0;
			for (int r = 0; r < rows; r++) {
				total += shared[r * across + column];
				total_squares += shared[THREADS + r * across + column];
			}
			sums[slice * channels + channel + i] = total;
			sums[(slices + slice) * channels + channel + i] = total_squares;
		}
		__syncthreads(); /* all were taken */
	}
}

/* A block per group: scale = w / deviation, shift = b - mean * scale. */
static __global__ void __launch_bounds__(THREADS)
group_maps(float *maps, const double *sums, const float *w, const float *b, int64_t slices, int64_t channels, int64_t per,
	   double count, float eps)
{
	SHARED_ARRAY(double, shared, 2 * MAX_WARPS);
	int64_t first = blockIdx.x * per;
	double sum = 0, squares = 0;

	for (int64_t i = threadIdx.x; i < slices * per; i += blockDim.x) {
		int64_t at = i / per * channels + first + i % per;
		sum += sums[at];
		squares += sums[slices * channels + at];
	}
	double mean = block_sum(sum, shared) / count, var = block_sum(squares, shared + MAX_WARPS) / count - mean * mean;
	double rstd = 1 / sqrt((var < 0 ? 0 : var) + static_cast<double>(eps));
	for (int64_t c = first + threadIdx.x; c < first + per; c += blockDim.x) {
		maps[c] = static_cast<float>(rstd * static_cast<double>(w[c]));
		maps[channels + c] = static_cast<float>(static_cast<double>(b[c]) - mean * rstd * static_cast<double>(w[c]));
	}
}

cudaError_t dtp_k_group_maps(cudaStream_t stream, float *maps, void *scratch, struct dtp_tensor x, const float *w, const float *b,
			     int groups, float eps)
{
	int64_t pixels = x.shape[0] * x.shape[1], channels = x.shape[2], per = channels / groups, slices = dtp_cuda_norm_slices(pixels);

	if (pixels == 0 || channels == 0)
		return cudaSuccess;
	if (reinterpret_cast<uintptr_t>(scratch) % sizeof(double) || !multiple(vector(maps, 1), 4) || !multiple(vector(w, 1), 4) ||
	    !multiple(vector(b, 1), 4))
		return cudaErrorInvalidValue;
	cudaError_t e = by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(channels, {flat(x)}, [&](auto n) {
			int64_t packs = channels / n;
			int across = static_cast<int>(packs < THREADS ? packs : THREADS);
			cudaLaunchConfig_t c = grid(stream, slices * div_up(packs, across), THREADS);
			return cudaLaunchKernelEx(&c, channel_sums<T, n>, static_cast<double *>(scratch), data<const T>(x), pixels, channels,
						  slices, across);
		});
	});
	if (e)
		return e;
	cudaLaunchConfig_t c = grid(stream, groups, THREADS);
	return cudaLaunchKernelEx(&c, group_maps, maps, static_cast<const double *>(scratch), w, b, slices, channels, per,
				  static_cast<double>(pixels) * static_cast<double>(per), eps);
}

/* v = v * scale + shift, then silu if so. */
template <int N>
static __device__ __forceinline__ void apply(float (&v)[N], const float *maps, int64_t channel, int64_t channels, bool act)
{
	float a[N], b[N];

	load(a, maps + channel);
	load(b, maps + channels + channel);
	for (int j = 0; j < N; j++) {
		v[j] = fmaf(v[j], a[j], b[j]);
		v[j] = act ? silu(v[j]) : v[j];
	}
}

template <class T, int N>
__global__ void __launch_bounds__(THREADS)
group_apply(T *out, const T *x, const float *maps, int64_t n, int64_t channels, bool act)
{
	int64_t i = grid_index() * N;
	float v[N];

	if (i >= n)
		return;
	load(v, x + i);
	apply(v, maps, i % channels, channels, act);
	store(out + i, v);
}

cudaError_t dtp_k_group_apply(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, const float *maps, bool silu)
{
	int64_t n = dtp_numel(&x), channels = x.shape[2];

	if (n == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(channels, {flat(out), flat(x), vector(maps, 2 * channels)}, [&](auto width) {
			cudaLaunchConfig_t c = grid(stream, div_up(n / width, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, group_apply<T, width>, data<T>(out), data<const T>(x), maps, n, channels, silu);
		});
	});
}

/* out [rows, w + 2, channels] of x [h, w, channels] from row `first` on. */
template <class T, int N>
__global__ void __launch_bounds__(THREADS)
window(T *out, const T *x, const float *maps, int64_t first, int64_t rows, int64_t h, int64_t w, int64_t channels)
{
	int64_t i = grid_index() * N, channel = i % channels, pixel = i / channels;
	int64_t col = pixel % (w + 2) - 1, row = pixel / (w + 2) + first;
	float v[N] = {};

	if (row - first >= rows)
		return;
	if (row >= 0 && row < h && col >= 0 && col < w) {
		load(v, x + (row * w + col) * channels + channel);
		apply(v, maps, channel, channels, true);
	}
	store(out + i, v);
}

cudaError_t dtp_k_window(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, const float *maps, int64_t first)
{
	int64_t n = dtp_numel(&out), channels = x.shape[2];

	if (n == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		return by_width<T>(channels, {flat(out), flat(x), vector(maps, 2 * channels)}, [&](auto width) {
			cudaLaunchConfig_t c = grid(stream, div_up(n / width, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, window<T, width>, data<T>(out), data<const T>(x), maps, first, out.shape[0], x.shape[0],
						  x.shape[1], channels);
		});
	});
}
