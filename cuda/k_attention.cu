/* SPDX-License-Identifier: Apache-2.0 */
/* Plain attention, for what cuDNN does not take: F32 without TF32, head dims of its own, masks where it is too old for them.
 *
 * A block has some queries of one head and goes through the keys by tiles, with a running maximum and sum per query.  Its threads are
 * a grid of ROWS x COLUMNS.  A thread has every ROWS-th query and, of a tile's keys as of the head's columns, every COLUMNS-th, so that
 * what it reads of shared memory serves several products. */
#include "device.cuh"

static constexpr int COLUMNS = 16, ROWS = 8, ATTENTION_THREADS = ROWS * COLUMNS;
static constexpr int KEYS = 64;  /* of a tile */
static constexpr int STRIP = 32; /* columns of keys or values that are in shared memory at once */

/* Strides in elements. */
struct heads_view {
	int64_t row, head;
};

struct attention_shape {
	int64_t sq, d, blocks, begin, end; /* queries, head dim, blocks of queries; keys in [begin, end) count */
	heads_view q, k, v, out;
	int64_t q_head0, kv_head0, group;
	float scale; /* to powers of 2 */
	bool causal;
};

/* The keys that a query attends to end here. */
static __device__ __forceinline__ int64_t keys_end(const attention_shape &s, int64_t query)
{
	return s.causal && query + 1 < s.end ? query + 1 : s.end;
}

/* COLUMNS lanes that lie side by side. */
static __device__ __forceinline__ float columns_max(float x)
{
#pragma unroll
	for (int d = COLUMNS / 2; d > 0; d /= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
	return x;
}

static __device__ __forceinline__ float columns_sum(float x)
{
#pragma unroll
	for (int d = COLUMNS / 2; d > 0; d /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	return x;
}

/* strip [n, STRIP + 1] = columns [col, col + STRIP) of the rows from `row` on; zeros past d columns and `rows` rows. */
template <class T>
__device__ __forceinline__ void load_strip(float *strip, int n, const T *x, int64_t stride, int64_t rows, int64_t col, int64_t d)
{
	for (int i = threadIdx.x; i < n * STRIP; i += ATTENTION_THREADS) {
		int r = i / STRIP, c = i % STRIP;
		strip[r * (STRIP + 1) + c] = r < rows && col + c < d ? to_float(x[r * stride + col + c]) : 0;
	}
}

/* One block of a multiprocessor at least: for more of them, the compiler would keep registers in memory. */
template <class T, int DIM>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
attention(T *out, float *lse, const T *q, const T *k, const T *v, attention_shape s)
{
	constexpr int QUERIES = 4096 / DIM, MINE = QUERIES / ROWS, MY_KEYS = KEYS / COLUMNS, MY_COLUMNS = STRIP / COLUMNS, STRIPS = DIM / STRIP;
	SHARED_ARRAY(float, queries, QUERIES * (DIM + 1));
	SHARED_ARRAY(float, strip, KEYS * (STRIP + 1));
	SHARED_ARRAY(float, weights, QUERIES * (KEYS + 1));
	int ty = threadIdx.x / COLUMNS, tx = threadIdx.x % COLUMNS;
	int64_t head = blockIdx.x / s.blocks, first = (s.blocks - 1 - blockIdx.x % s.blocks) * QUERIES; /* the longest rows first */
	int64_t kv = (s.q_head0 + head) / s.group - s.kv_head0, last = first + QUERIES < s.sq ? first + QUERIES : s.sq;
	float max[MINE], sum[MINE] = {}, acc[MINE][STRIPS][MY_COLUMNS] = {};

	q += head * s.q.head;
	for (int i = threadIdx.x; i < QUERIES * DIM; i += ATTENTION_THREADS) {
		int r = i / DIM, c = i % DIM;
		queries[r * (DIM + 1) + c] = first + r < s.sq && c < s.d ? to_float(q[(first + r) * s.q.row + c]) * s.scale : 0;
	}
#pragma unroll
	for (int i = 0; i < MINE; i++)
		max[i] = -INFINITY;

	int64_t end = keys_end(s, last - 1);
	for (int64_t tile = s.begin; tile < end; tile += KEYS) {
		float score[MINE][MY_KEYS] = {};
#pragma unroll 1
		for (int64_t col = 0; col < s.d; col += STRIP) {
			__syncthreads(); /* the strip was read */
			load_strip(strip, KEYS, k + kv * s.k.head + tile * s.k.row, s.k.row, s.end - tile, col, s.d);
			__syncthreads();
#pragma unroll 8
			for (int c = 0; c < STRIP; c++) {
				float b[MY_KEYS];
#pragma unroll
				for (int j = 0; j < MY_KEYS; j++)
					b[j] = strip[(tx + j * COLUMNS) * (STRIP + 1) + c];
#pragma unroll
				for (int i = 0; i < MINE; i++) {
					float a = queries[(ty + i * ROWS) * (DIM + 1) + col + c];
#pragma unroll
					for (int j = 0; j < MY_KEYS; j++)
						score[i][j] += a * b[j];
				}
			}
		}
#pragma unroll
		for (int i = 0; i < MINE; i++) {
			int64_t key_end = keys_end(s, first + ty + i * ROWS);
			float most = -INFINITY;
#pragma unroll
			for (int j = 0; j < MY_KEYS; j++)
				if (tile + tx + j * COLUMNS < key_end)
					most = fmaxf(most, score[i][j]);
			most = fmaxf(max[i], columns_max(most));
			/* Nothing so far, or nothing that is a number: what stands there is 0, or NaN, and stays so. */
			float shrink = max[i] == most ? 1.0f : exp2f(max[i] - most);
			max[i] = most;
			sum[i] *= shrink;
#pragma unroll
			for (int j = 0; j < MY_KEYS; j++) {
				float p = tile + tx + j * COLUMNS < key_end ? exp2f(score[i][j] - most) : 0;
				sum[i] += p;
				weights[(ty + i * ROWS) * (KEYS + 1) + tx + j * COLUMNS] = p;
			}
#pragma unroll
			for (int t = 0; t < STRIPS; t++)
#pragma unroll
				for (int c = 0; c < MY_COLUMNS; c++)
					acc[i][t][c] *= shrink;
		}
#pragma unroll
		for (int t = 0; t < STRIPS; t++) {
			if (t * STRIP >= s.d)
				break;
			__syncthreads();
			load_strip(strip, KEYS, v + kv * s.v.head + tile * s.v.row, s.v.row, s.end - tile, t * STRIP, s.d);
			__syncthreads();
#pragma unroll 4
			for (int key = 0; key < KEYS; key++)
#pragma unroll
				for (int i = 0; i < MINE; i++) {
					float p = weights[(ty + i * ROWS) * (KEYS + 1) + key];
#pragma unroll
					for (int c = 0; c < MY_COLUMNS; c++)
						acc[i][t][c] += p * strip[key * (STRIP + 1) + tx + c * COLUMNS];
				}
		}
	}

	for (int i = 0; i < MINE; i++) {
		int64_t query = first + ty + i * ROWS;
		float total = columns_sum(sum[i]);
		bool any = s.begin < keys_end(s, query);
		if (query >= s.sq)
			continue;
		for (int t = 0; t < STRIPS; t++)
			for (int c = 0; c < MY_COLUMNS; c++) {
				int64_t col = t * STRIP + c * COLUMNS + tx;
				if (col < s.d)
					out[query * s.out.row + head * s.out.head + col] = from_float<T>(any ? acc[i][t][c] / total : 0);
			}
		if (lse && tx == 0)
			lse[head * s.sq + query] = any ? (max[i] + log2f(total)) * 0x1.62e430p-1f /* ln 2 */ : -INFINITY;
	}
}

template <class T, int DIM>
static cudaError_t launch(cudaStream_t stream, T *out, float *lse, const T *q, const T *k, const T *v, int64_t heads,
			  attention_shape s)
{
	s.blocks = div_up(s.sq, 4096 / DIM);
	cudaLaunchConfig_t c = grid(stream, heads * s.blocks, ATTENTION_THREADS);
	return cudaLaunchKernelEx(&c, attention<T, DIM>, out, lse, q, k, v, s);
}

static heads_view strides(const struct dtp_tensor &t)
{
	return {t.stride[0], t.stride[1]};
}

cudaError_t dtp_k_attention(cudaStream_t stream, struct dtp_tensor out, float *lse, struct dtp_tensor q, struct dtp_tensor k,
			    struct dtp_tensor v, const struct dtp_attention *a)
{
	int64_t heads = q.shape[1], d = q.shape[2];
	attention_shape s = {};

	if (d > DTP_K_HEAD_DIM || !multiple(vector(lse, 1), sizeof *lse))
		return cudaErrorInvalidValue;
	if (q.shape[0] == 0 || heads == 0 || d == 0)
		return cudaSuccess;
	s.sq = q.shape[0];
	s.d = d;
	s.begin = a->key_begin > 0 ? a->key_begin : 0;
	s.end = a->key_end < k.shape[0] ? a->key_end : k.shape[0];
	s.q = strides(q), s.k = strides(k), s.v = strides(v), s.out = strides(out);
	s.q_head0 = a->q_head0, s.kv_head0 = a->kv_head0, s.group = a->group;
	s.scale = a->scale * 0x1.715476p0f; /* log2(e) */
	s.causal = a->causal;
	return by_type(q.dtype, [&](auto type) {
		using T = decltype(type);
		for (const struct dtp_tensor &t : {out, q, k, v})
			if (!multiple(t, sizeof(T)))
				return cudaErrorInvalidValue;
		T *to = data<T>(out);
		const T *from = data<const T>(q), *keys = data<const T>(k), *values = data<const T>(v);
		return d <= 64    ? launch<T, 64>(stream, to, lse, from, keys, values, heads, s)
		       : d <= 128 ? launch<T, 128>(stream, to, lse, from, keys, values, heads, s)
		       : d <= 256 ? launch<T, 256>(stream, to, lse, from, keys, values, heads, s)
				  : launch<T, 512>(stream, to, lse, from, keys, values, heads, s);
	});
}
