/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

/* Element i of a picture [2h, 2w, C] and the place of the same value in tokens [h*w, 4C]: packed channel c*4 + dy*2 + dx. */
struct patch_place {
	int64_t token, packed;
};

static __device__ patch_place place_of(int64_t i, int64_t width, int64_t channels)
{
	int64_t c = i % channels, x = i / channels % width, y = i / channels / width;
	return {y / 2 * (width / 2) + x / 2, c * 4 + y % 2 * 2 + x % 2};
}

/* A thread per element: latents are small. */
template <class T>
__global__ void __launch_bounds__(THREADS)
unpatchify(T *out, const T *tokens, const float *mean, const float *var, float eps, int64_t n, int64_t width, int64_t channels)
{
	int64_t i = grid_index();

	if (i >= n)
		return;
	patch_place p = place_of(i, width, channels);
	float v = to_float(tokens[p.token * 4 * channels + p.packed]);
	out[i] = from_float<T>(v * sqrtf(var[p.packed] + eps) + mean[p.packed]);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
patchify(T *tokens, const T *x, const float *mean, const float *var, float eps, int64_t n, int64_t width, int64_t channels)
{
	int64_t i = grid_index();

	if (i >= n)
		return;
	patch_place p = place_of(i, width, channels);
	tokens[p.token * 4 * channels + p.packed] = from_float<T>((to_float(x[i]) - mean[p.packed]) / sqrtf(var[p.packed] + eps));
}

static bool aligned_patches(struct dtp_tensor picture, struct dtp_tensor tokens, const float *mean, const float *var)
{
	size_t size = dtp_dtype_size(picture.dtype);
	return size && multiple(flat(picture), size) && multiple(flat(tokens), size) && multiple(vector(mean, 1), sizeof *mean) &&
	       multiple(vector(var, 1), sizeof *var);
}

cudaError_t dtp_k_unpatchify(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor tokens, const float *mean,
			     const float *var, float eps)
{
	int64_t n = dtp_numel(&out);

	if (n == 0)
		return cudaSuccess;
	if (!aligned_patches(out, tokens, mean, var))
		return cudaErrorInvalidValue;
	return by_type(out.dtype, [&](auto type) {
		using T = decltype(type);
		cudaLaunchConfig_t c = grid(stream, div_up(n, THREADS), THREADS);
		return cudaLaunchKernelEx(&c, unpatchify<T>, data<T>(out), data<const T>(tokens), mean, var, eps, n, out.shape[1], out.shape[2]);
	});
}

cudaError_t dtp_k_patchify(cudaStream_t stream, struct dtp_tensor tokens, struct dtp_tensor x, const float *mean, const float *var,
			   float eps)
{
	int64_t n = dtp_numel(&x);

	if (n == 0)
		return cudaSuccess;
	if (!aligned_patches(x, tokens, mean, var))
		return cudaErrorInvalidValue;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		cudaLaunchConfig_t c = grid(stream, div_up(n, THREADS), THREADS);
		return cudaLaunchKernelEx(&c, patchify<T>, data<T>(tokens), data<const T>(x), mean, var, eps, n, x.shape[1], x.shape[2]);
	});
}
