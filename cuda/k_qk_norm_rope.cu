/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

/* Lanes of a warp that share a head: a power of 2. */
template <int P> static int lanes_for(int64_t d)
{
	int lanes = 1;
	while (lanes < WARP && lanes * P * 2 < d)
		lanes *= 2;
	return lanes;
}

/* P of the pairs that the rotation turns, from pair j on: elements half a head apart, or neighbours.  Those move together, but one pair
 * alone may lie where only elements may. */
template <int P, class T>
__device__ __forceinline__ void load_pairs(float (&a)[P], float (&b)[P], const T *head, int64_t j, int64_t d, bool apart)
{
	if (apart || P == 1) {
		load(a, head + (apart ? j : 2 * j));
		load(b, head + (apart ? j + d / 2 : 2 * j + 1));
		return;
	}
	float v[2 * P];
	load(v, head + 2 * j);
	for (int i = 0; i < P; i++) {
		a[i] = v[2 * i];
		b[i] = v[2 * i + 1];
	}
}

template <int P, class T>
__device__ __forceinline__ void store_pairs(T *head, int64_t j, int64_t d, bool apart, const float (&a)[P], const float (&b)[P])
{
	if (apart || P == 1) {
		store(head + (apart ? j : 2 * j), a);
		store(head + (apart ? j + d / 2 : 2 * j + 1), b);
		return;
	}
	float v[2 * P];
	for (int i = 0; i < P; i++) {
		v[2 * i] = a[i];
		v[2 * i + 1] = b[i];
	}
	store(head + 2 * j, v);
}

/* Heads of the same token lie side by side in the grid.  A lane reads again what it has read for the sum: that is in the cache, and
 * nobody else writes it. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
qk_norm_rope(T *x, int64_t token_stride, int64_t head_stride, const float *w, float eps, bool apart, const float *cos,
	     const float *sin, int64_t tokens, int64_t heads, int64_t d, int lanes)
{
	int64_t i = grid_index() / lanes, lane = threadIdx.x % lanes, token = i / heads;
	bool inside = token < tokens;
	T *head = x + (inside ? token * token_stride + i % heads * head_stride : 0);
	float rms = 0;

	if (w) {
		for (int64_t j = lane * P; inside && j < d / 2; j += lanes * P) {
			float a[P], b[P];
			load_pairs(a, b, head, j, d, apart);
			for (int e = 0; e < P; e++)
				rms += a[e] * a[e] + b[e] * b[e];
		}
		for (int s = lanes / 2; s > 0; s /= 2)
			rms += __shfl_xor_sync(0xffffffffu, rms, s);
		rms = 1.0f / sqrtf(rms / static_cast<float>(d) + eps);
	}
	for (int64_t j = lane * P; inside && j < d / 2; j += lanes * P) {
		float a[P], b[P], c[P], s[P];
		load_pairs(a, b, head, j, d, apart);
		if (w) {
			load_pairs(c, s, w, j, d, apart);
			for (int e = 0; e < P; e++) {
				a[e] = rounded<T>(rounded<T>(a[e] * rms) * c[e]);
				b[e] = rounded<T>(rounded<T>(b[e] * rms) * s[e]);
			}
		}
		if (cos) {
			load(c, cos + token * (d / 2) + j);
			load(s, sin + token * (d / 2) + j);
			for (int e = 0; e < P; e++) {
				float turned = a[e] * c[e] - b[e] * s[e];
				b[e] = b[e] * c[e] + a[e] * s[e];
				a[e] = turned;
			}
		}
		store_pairs(head, j, d, apart, a, b);
	}
}

cudaError_t dtp_k_qk_norm_rope(cudaStream_t stream, struct dtp_tensor x, const float *w, float eps, enum dtp_rope kind,
			       struct dtp_tensor cos, struct dtp_tensor sin)
{
	int64_t heads = x.shape[0] * x.shape[1], d = x.shape[2];

	if (d % 2)
		return cudaErrorInvalidValue;
	if (heads == 0 || d == 0)
		return cudaSuccess;
	return by_type(x.dtype, [&](auto type) {
		using T = decltype(type);
		/* Two halves of a head move by themselves: half a head must consist of packs. */
		return by_width<T>(d / 2, {x, vector(w, d), flat(cos), flat(sin)}, [&](auto n) {
			constexpr int P = n > 1 ? 4 : 1;
			int lanes = lanes_for<P>(d);
			cudaLaunchConfig_t c = grid(stream, div_up(heads * lanes, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, qk_norm_rope<T, P>, data<T>(x), x.stride[0], x.stride[1], w, eps, kind == DTP_ROPE_HALF,
						  data<const float>(cos), data<const float>(sin), x.shape[0], x.shape[1], d, lanes);
		});
	});
}
