/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with packed weights.  A task is a few blocks of 64 columns; a thread widens them once (where bf16 is
 * widened), small enough to stay in its cache, and multiplies all rows with them, a tile of rows at a time.  Sums along K
 * are oneDNN's, in order, or of fixed pieces, added in order: a result does not depend on the number of threads. */
#include <omp.h>
#include <string.h>

#include "cpu.h"
#include "dnnl.h"
#include "vec.h"

#define TILE_ROWS 256
#define CHUNK_BLOCKS 4                /* at most: 256 columns */
#define CHUNK_BYTES (1u << 20)        /* of weights as they are multiplied, where one block is not more by itself */
#define STRIP_BYTES (40u << 20)       /* of the first operand, where it must be copied ... */
#define STRIP_IN_PLACE (16u << 20)    /* ... and where not: what a cache of the last level holds */
#define STRIP_LEAST 256

static bool widens(const struct dtp_cpu *cpu)
{
	return cpu->base.compute == DTP_BF16 && cpu->method == DTP_CPU_WIDEN;
}

/* Blocks that a task takes: several where the CPU's kernels take several, they fit into the cache, and no thread goes
 * without. */
static int64_t chunk_blocks(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w)
{
	int64_t block = dtp_pack_block_size(cpu->base.compute, w->piece) * (int64_t)dtp_dtype_size(dtp_cpu_operand(cpu));
	int64_t fit = CHUNK_BYTES / (block + 1), share = dtp_pack_blocks(w->n) / cpu->threads;
	int64_t c = cpu->blocked ? CHUNK_BLOCKS : 1;

	c = c < fit ? c : fit;
	c = c < share ? c : share;
	return c > 1 ? c : 1;
}

/* A thread's piece: a tile of the result, then the widened weights. */
static uint64_t tile_bytes(int64_t chunk)
{
	return (uint64_t)(TILE_ROWS * chunk * DTP_NB) * sizeof(float);
}

uint64_t dtp_cpu_gemm_local(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w)
{
	int64_t chunk = chunk_blocks(cpu, w);
	uint64_t wide = widens(cpu) ? (uint64_t)(chunk * dtp_pack_block_size(DTP_BF16, w->k)) * sizeof(float) : 0;
	return tile_bytes(chunk) + wide;
}

struct gemm {
	struct dtp_cpu *cpu;
	const struct dtp_cpu_weight *w;
	const char *a;
	const float *bias;
	struct dtp_cpu_out out;
	int64_t m, tile, chunk;     /* rows, rows per tile, blocks per task */
	struct dtp_mm *mm[3][2][2]; /* [first, next, last piece of several][last tile][last chunk] */
};

/* Tiles of rows [0, m) of even size. */
static int64_t tile_rows(int64_t m)
{
	int64_t tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
	return (m + tiles - 1) / tiles;
}

static int64_t columns_of(const struct gemm *g, int64_t chunk)
{
	int64_t left = g->w->n - chunk * g->chunk * DTP_NB, full = g->chunk * DTP_NB;
	return left < full ? left : full;
}

/* Pieces of the sum along K, and the columns of one. */
static int64_t pieces_of(const struct dtp_cpu_weight *w)
{
	return (w->k + w->piece - 1) / w->piece;
}

static int64_t piece_columns(const struct dtp_cpu_weight *w, int64_t piece)
{
	int64_t left = w->k - piece * w->piece;
	return left < w->piece ? left : w->piece;
}

static int product_of(const struct dtp_cpu_weight *w, int64_t piece)
{
	return piece == 0 ? 0 : piece == pieces_of(w) - 1 ? 2 : 1;
}

static enum dtp_code get_products(struct gemm *g, struct dtp_err *err)
{
	int64_t rows[2] = {g->tile, g->m - (g->m - 1) / g->tile * g->tile};
	int64_t chunks = (dtp_pack_blocks(g->w->n) + g->chunk - 1) / g->chunk;
	int64_t cols[2] = {columns_of(g, 0), columns_of(g, chunks - 1)};
	enum dtp_code rc = DTP_OK;

	for (int64_t p = 0; p < pieces_of(g->w); p++)
		for (int i = 0; i < 4 && !rc; i++) {
			struct dtp_mm_shape s = {rows[i / 2], cols[i % 2], piece_columns(g->w, p), dtp_cpu_operand(g->cpu),
						 DTP_MM_PACKED, p > 0};
			if (!g->cpu->blocked)
				s.n = DTP_NB; /* a plain matrix of 64 columns, the last of which may be padding */
			rc = dtp_mm_get(g->cpu->dnnl, &s, &g->mm[product_of(g->w, p)][i / 2][i % 2], err);
		}
	return rc;
}

static void store_tile(const struct gemm *g, const float *c, int64_t ldc, int64_t row0, int64_t rows, int64_t col0,
		       int64_t cols)
{
	int64_t size = (int64_t)dtp_dtype_size(g->out.dtype);

	for (int64_t r = 0; r < rows; r++) {
		void *d = (char *)g->out.data + ((row0 + r) * g->out.ld + col0) * size;
		if (g->bias)
			dtp_vec_store_sum(d, g->out.dtype, c + r * ldc, g->bias + col0, cols);
		else
			dtp_vec_store(d, g->out.dtype, c + r * ldc, cols);
	}
}

/* Rows from `row` on times one piece after the other: the first operand has its pieces one after the other too. */
static bool multiply(const struct gemm *g, int64_t row, int64_t rows, int64_t block0, bool last_chunk, int thread, const char *wide,
		     float *c)
{
	const struct dtp_cpu_weight *w = g->w;
	int64_t a_size = (int64_t)dtp_dtype_size(dtp_cpu_operand(g->cpu)), size = (int64_t)dtp_dtype_size(g->cpu->base.compute);

	for (int64_t p = 0; p < pieces_of(w); p++) {
		int64_t cols = piece_columns(w, p), before = p * w->piece;
		int64_t at = dtp_pack_blocks(w->n) * DTP_NB * before + block0 * dtp_pack_block_size(g->cpu->base.compute, cols);
		const char *a = g->a + (before * g->m + row * cols) * a_size;
		const char *b = wide ? wide : (const char *)w->data + at * size;
		if (!dtp_mm_run(g->cpu->dnnl, g->mm[product_of(w, p)][rows != g->tile][last_chunk], thread, a, b, c))
			return false;
	}
	return true;
}

/* F32 blocks may be shorter than widened BF16 blocks: their depth is a multiple of 16, not 32. */
static void widen(const struct gemm *g, int64_t block0, int64_t blocks, float *wide)
{
	int64_t k = g->w->k, depth = dtp_pack_depth(DTP_F32, k), block = dtp_pack_block_size(DTP_BF16, k);

	for (int64_t i = 0; i < blocks; i++)
		dtp_pack_widen(wide + i * depth * DTP_NB, (const uint16_t *)g->w->data + (block0 + i) * block, depth);
}

/* Columns of one chunk, rows [begin, end): whole tiles. */
static bool run_task(const struct gemm *g, int64_t chunk, bool last_chunk, int64_t begin, int64_t end)
{
	int thread = omp_get_thread_num();
	float *c = dtp_cpu_local(g->cpu, thread), *wide = widens(g->cpu) ? (float *)((char *)c + tile_bytes(g->chunk)) : NULL;
	int64_t cols = columns_of(g, chunk), block0 = chunk * g->chunk, ldc = g->cpu->blocked ? cols : DTP_NB;

	if (wide)
		widen(g, block0, dtp_pack_blocks(cols), wide);
	for (int64_t row = begin; row < end; row += g->tile) {
		int64_t rows = g->m - row < g->tile ? g->m - row : g->tile;
		if (!multiply(g, row, rows, block0, last_chunk, thread, (const char *)wide, c))
			return false;
		store_tile(g, c, ldc, row, rows, block0 * DTP_NB, cols);
	}
	return true;
}

enum dtp_code dtp_cpu_gemm(struct dtp_cpu *cpu, const void *a, int64_t m, const struct dtp_cpu_weight *w, const float *bias,
			   struct dtp_cpu_out out, struct dtp_err *err)
{
	struct gemm g = {.cpu = cpu, .w = w, .a = a, .bias = bias, .out = out, .m = m};
	bool ok = true;

	g.tile = tile_rows(m);
	g.chunk = chunk_blocks(cpu, w);
	dtp_dnnl_begin(cpu->dnnl);
	enum dtp_code rc = get_products(&g, err);
	if (rc)
		return rc;
	int64_t chunks = (dtp_pack_blocks(w->n) + g.chunk - 1) / g.chunk, tiles = (m + g.tile - 1) / g.tile, parts = 1;
	/* Few columns: the rows are divided too, at the price of widening a block more than once. */
	while (chunks * parts < 4 * cpu->threads && parts < tiles && cpu->threads > 1)
		parts++;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads) reduction(&& : ok)
	for (int64_t task = 0; task < chunks * parts; task++) {
		int64_t chunk = task / parts, part = task % parts, end = tiles * (part + 1) / parts * g.tile;
		ok = run_task(&g, chunk, chunk == chunks - 1, tiles * part / parts * g.tile, end < m ? end : m) && ok;
	}
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "oneDNN failed to multiply");
}

static int64_t rows_in(int64_t bytes, const struct dtp_cpu *cpu, int64_t k)
{
	int64_t rows = bytes / (k * (int64_t)dtp_dtype_size(dtp_cpu_operand(cpu)) + 1);
	return rows < STRIP_LEAST ? STRIP_LEAST : rows / STRIP_LEAST * STRIP_LEAST;
}

int64_t dtp_cpu_strip_rows(const struct dtp_cpu *cpu, int64_t k)
{
	return rows_in(STRIP_BYTES, cpu, k);
}

/* Strips of even size, in whole tiles where there are several. */
static int64_t even_strip(int64_t m, int64_t most)
{
	int64_t strips = (m + most - 1) / most;
	return strips > 1 ? dtp_round_up((m + strips - 1) / strips, TILE_ROWS) : m;
}

/* Zeros, or the bias: what a sum over nothing gives. */
static void fill_empty(struct dtp_tensor out, const float *bias)
{
	for (int64_t i = 0; i < out.shape[0]; i++) {
		if (bias)
			dtp_vec_store(dtp_row(&out, i), out.dtype, bias, out.shape[1]);
		else
			memset(dtp_row(&out, i), 0, (size_t)out.shape[1] * dtp_dtype_size(out.dtype));
	}
}

/* The rows of x, piece by piece, as operands in the shared scratch. */
static void copy_rows(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w, struct dtp_tensor x)
{
	enum dtp_dtype operand = dtp_cpu_operand(cpu);
	int64_t size = (int64_t)dtp_dtype_size(operand), x_size = (int64_t)dtp_dtype_size(x.dtype), m = x.shape[0];

#pragma omp parallel for num_threads(cpu->threads)
	for (int64_t r = 0; r < m; r++)
		for (int64_t k = 0; k < w->k; k += w->piece) {
			int64_t cols = w->k - k < w->piece ? w->k - k : w->piece;
			char *dst = (char *)cpu->shared + (k * m + r * cols) * size;
			const char *src = (const char *)dtp_row(&x, r) + k * x_size;
			if (x.dtype == operand)
				memcpy(dst, src, (size_t)(cols * size));
			else
				dtp_vec_load((float *)dst, src, x.dtype, cols);
		}
}

enum dtp_code dtp_cpu_linear(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *weight,
			     const struct dtp_weight *bias, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	const struct dtp_cpu_weight *w = dtp_cpu_weight_of(weight);
	enum dtp_dtype operand = dtp_cpu_operand(cpu);
	int64_t m = x.shape[0], k = w->k, row = k * (int64_t)dtp_dtype_size(operand);
	/* The operand must be dense, piece by piece, and of the right type; else it is copied, a strip of rows at a time. */
	bool copy = x.dtype != operand || (m > 1 && x.stride[0] != k) || w->piece != k;
	int64_t strip = copy ? dtp_cpu_strip_rows(cpu, k) : rows_in(STRIP_IN_PLACE, cpu, k);

	if (m == 0 || w->n == 0)
		return DTP_OK;
	if (k == 0) {
		fill_empty(out, dtp_cpu_vector(bias));
		return DTP_OK;
	}
	strip = even_strip(m, strip);
	enum dtp_code rc = dtp_cpu_scratch(cpu, copy ? (uint64_t)(strip * row) : 0, dtp_cpu_gemm_local(cpu, w), err);
	for (int64_t i = 0; !rc && i < m; i += strip) {
		int64_t rows = m - i < strip ? m - i : strip;
		const void *a = dtp_row(&x, i);
		if (copy) {
			copy_rows(cpu, w, dtp_narrow(x, 0, i, rows));
			a = cpu->shared;
		}
		struct dtp_cpu_out o = {dtp_row(&out, i), out.dtype, out.stride[0]};
		rc = dtp_cpu_gemm(cpu, a, rows, w, dtp_cpu_vector(bias), o, err);
	}
	return rc;
}
