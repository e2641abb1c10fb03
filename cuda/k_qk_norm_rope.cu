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

/* Heads that are treated alike, and the weight of their norm. */
template <class T> struct some_heads {
	T *x;
	int64_t token_stride, head_stride, n; /* n: of a token */
	const float *w;
};

/* A token's heads lie side by side in the grid, first q's, then k's.  Where halves are apart, a lane has 16 bytes of each half: of heads of 128
 * in bf16, 8 lanes have the 128 bytes that a half is; where pairs are neighbours, 16 lanes have the head's 256 bytes.  A lane reads again
 * what it has read for the sum: that is in the cache, and nobody else writes it. */
template <class T, int P>
__global__ void __launch_bounds__(THREADS)
qk_norm_rope(some_heads<T> q, some_heads<T> k, float eps, bool apart, const float *cos, const float *sin, int64_t tokens, int64_t d, int lanes)
{
	int64_t i = grid_index() / lanes, lane = threadIdx.x % lanes, token = i / (q.n + k.n), h = i % (q.n + k.n);
	bool inside = token < tokens, of_q = h < q.n, normed = q.w;
	T *head = of_q ? q.x + token * q.token_stride + h * q.head_stride : k.x + token * k.token_stride + (h - q.n) * k.head_stride;
	const float *w = of_q ? q.w : k.w;
	float rms = 0;

	if (normed) {
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
		if (normed) {
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

template <class T> static some_heads<T> heads_of(const struct dtp_tensor &x, const float *w)
{
	return {data<T>(x), x.stride[0], x.stride[1], x.shape[1], w};
}

cudaError_t dtp_k_qk_norm_rope(cudaStream_t stream, struct dtp_tensor q, struct dtp_tensor k, const float *wq, const float *wk, float eps,
			       enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin)
{
	int64_t tokens = q.shape[0], heads = tokens * (q.shape[1] + k.shape[1]), d = q.shape[2];
	bool apart = kind == DTP_ROPE_HALF;

	if (d % 2)
		return cudaErrorInvalidValue;
	if (heads == 0 || d == 0)
		return cudaSuccess;
	return by_type(q.dtype, [&](auto type) {
		using T = decltype(type);
		auto launch = [&](auto pairs) {
			int lanes = lanes_for<pairs>(d);
			cudaLaunchConfig_t c = grid(stream, div_up(heads * lanes, THREADS), THREADS);
			return cudaLaunchKernelEx(&c, qk_norm_rope<T, pairs>, heads_of<T>(q, wq), heads_of<T>(k, wk), eps, apart,
						  data<const float>(cos), data<const float>(sin), tokens, d, lanes);
		};
		/* Half a head must consist of packs: halves move by themselves. */
		return by_width<T>(d / 2, {q, k, vector(wq, d), vector(wk, d), flat(cos), flat(sin)}, [&](auto n) {
			if (n == 8 && apart)
				return launch(n);
			return launch(std::integral_constant<int, n == 1 ? 1 : 4>());
		});
	});
}
