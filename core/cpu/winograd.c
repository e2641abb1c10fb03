/* SPDX-License-Identifier: Apache-2.0 */
/* 3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): a tile of 4x4 results takes 36 products per pair of channels, not
 * 144.  Filters and 6x6 patches are transformed, multiplied point by point (36 matrix products over many tiles), and the
 * products transformed back: Y = A^T [(G g G^T) * (B^T d B)] A with the interpolation points 0, 1, -1, 2, -2 and infinity.
 * All in F32: the rounding errors, some times those of the plain sum, are far below the bf16 in which pictures are kept.
 * Tiles are counted from the picture's corner and never cut, so that results do not depend on how they are grouped. */
#include <omp.h>
#include <string.h>

#include "conv.h"
#include "cpu.h"
#include "dnnl.h"
#include "vec.h"

#define POINTS 36
#define GROUP_TILES 128              /* per matrix product, at most ... */
#define GROUP_LEAST 32               /* ... and at least, for a filter point is read once per group */
#define GROUP_THREADS 8              /* more threads take smaller groups: a thread holds the points of one */
#define CHANNELS 64                  /* transformed at a time: 6x6 of them stay in the first-level cache */

struct winograd {
	struct dtp_cpu *cpu;
	const struct dtp_cpu_weight *w;
	struct dtp_tensor x, out;
	const float *bias;
	int64_t pad, c, n, depth;        /* depth: c as packed */
	int64_t tiles_x, tiles, group;   /* tiles of a row, of the picture, of a group */
	int64_t width;                   /* outputs at a time */
	float *u;                        /* transformed filters [36][n/64][depth][64] */
	struct dtp_mm *mm[2][2];         /* [last group][last columns] */
};

/* ---- the three transforms along one axis; each works on n channels, element i of a vector at p[i * step] */

/* G: 3 taps to 6 points. */
DTP_CLONES static void filter_points(float *restrict dst, int64_t step, const float *restrict a, const float *restrict b,
				     const float *restrict c, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float even = a[i] + c[i], outer = a[i] * (1.0f / 24) + c[i] * (1.0f / 6), mid = b[i] * (1.0f / 12);
		dst[i] = a[i] * 0.25f;
		dst[step + i] = (even + b[i]) * (-1.0f / 6);
		dst[2 * step + i] = (even - b[i]) * (-1.0f / 6);
		dst[3 * step + i] = outer + mid;
		dst[4 * step + i] = outer - mid;
		dst[5 * step + i] = c[i];
	}
}

/* B^T: 6 pixels to 6 points. */
DTP_CLONES static void patch_points(float *restrict dst, int64_t step, const float *restrict p, int64_t from, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float a = p[i], b = p[from + i], c = p[2 * from + i], d = p[3 * from + i], e = p[4 * from + i], f = p[5 * from + i];
		float even = e - 4 * c, odd = d - 4 * b, far_even = e - c, far_odd = 2 * (d - b);
		dst[i] = 4 * a - 5 * c + e;
		dst[step + i] = even + odd;
		dst[2 * step + i] = even - odd;
		dst[3 * step + i] = far_even + far_odd;
		dst[4 * step + i] = far_even - far_odd;
		dst[5 * step + i] = 4 * b - 5 * d + f;
	}
}

/* A^T: 6 points to 4 results. */
DTP_CLONES static void result_pixels(float *restrict dst, int64_t step, const float *restrict p, int64_t from, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float a = p[i], b = p[from + i], c = p[2 * from + i], d = p[3 * from + i], e = p[4 * from + i], f = p[5 * from + i];
		float near_even = b + c, near_odd = b - c, far_even = d + e, far_odd = d - e;
		dst[i] = a + near_even + far_even;
		dst[step + i] = near_odd + 2 * far_odd;
		dst[2 * step + i] = near_even + 4 * far_even;
		dst[3 * step + i] = near_odd + 8 * far_odd + f;
	}
}

/* ---- filters */

/* Row k of a packed bf16 block: 64 outputs. */
DTP_CLONES static void block_row(float *restrict dst, const uint32_t *restrict pairs, bool high)
{
	for (int i = 0; i < DTP_NB; i++) {
		uint32_t u = high ? pairs[i] & 0xffff0000u : pairs[i] << 16;
		memcpy(dst + i, &u, sizeof u);
	}
}

static void transform_filters(const struct winograd *g, int64_t block, int64_t c)
{
	float taps[9][DTP_NB], half[3][6][DTP_NB];
	const uint32_t *pairs = (const uint32_t *)g->w->data + block * dtp_pack_block_size(DTP_BF16, g->w->k) / 2;
	int64_t step = dtp_pack_blocks(g->n) * g->depth * DTP_NB;
	float *dst = g->u + (block * g->depth + c) * DTP_NB;

	if (c >= g->c) {
		for (int p = 0; p < POINTS; p++)
			memset(dst + p * step, 0, DTP_NB * sizeof *dst);
		return;
	}
	for (int t = 0; t < 9; t++) {
		int64_t k = t * g->c + c;
		block_row(taps[t], pairs + k / 2 * DTP_NB, k % 2);
	}
	for (int y = 0; y < 3; y++)
		filter_points(half[y][0], DTP_NB, taps[3 * y], taps[3 * y + 1], taps[3 * y + 2], DTP_NB);
	for (int p = 0; p < 6; p++)
		filter_points(dst + p * step, 6 * step, half[0][p], half[1][p], half[2][p], DTP_NB);
}

/* ---- pictures */

/* v [36][group][c]: the points of tile t, the i-th of its group. */
static void transform_patch(const struct winograd *g, int64_t t, int64_t i, float *v)
{
	float pixels[6 * CHANNELS], half[6][6][CHANNELS];
	int64_t h = g->x.shape[0], w = g->x.shape[1], size = (int64_t)dtp_dtype_size(g->x.dtype), step = g->group * g->c;
	int64_t y0 = t / g->tiles_x * 4 - g->pad, x0 = t % g->tiles_x * 4 - g->pad;

	for (int64_t c = 0; c < g->c; c += CHANNELS) {
		int64_t n = g->c - c < CHANNELS ? g->c - c : CHANNELS;
		for (int64_t y = 0; y < 6; y++) {
			for (int64_t x = 0; x < 6; x++) {
				bool inside = y0 + y >= 0 && y0 + y < h && x0 + x >= 0 && x0 + x < w;
				if (inside)
					dtp_vec_load(pixels + x * CHANNELS,
						     (const char *)g->x.data + (((y0 + y) * w + x0 + x) * g->c + c) * size, g->x.dtype, n);
				else
					memset(pixels + x * CHANNELS, 0, (size_t)n * sizeof *pixels);
			}
			patch_points(half[y][0], CHANNELS, pixels, CHANNELS, n);
		}
		for (int64_t p = 0; p < 6; p++)
			patch_points(v + p * step + i * g->c + c, 6 * step, half[0][p], 6 * CHANNELS, n);
	}
}

/* m [36][group][cols]: results of tile t from output channel col0 on. */
static void store_results(const struct winograd *g, int64_t t, int64_t i, int64_t group, const float *m, int64_t col0, int64_t cols)
{
	float half[6][4][CHANNELS], pixels[4][4][CHANNELS];
	int64_t h = g->out.shape[0], w = g->out.shape[1], size = (int64_t)dtp_dtype_size(g->out.dtype), step = group * cols;
	int64_t y0 = t / g->tiles_x * 4, x0 = t % g->tiles_x * 4;

	for (int64_t c = 0; c < cols; c += CHANNELS) {
		int64_t n = cols - c < CHANNELS ? cols - c : CHANNELS;
		for (int64_t y = 0; y < 6; y++)
			result_pixels(half[y][0], CHANNELS, m + 6 * y * step + i * cols + c, step, n);
		for (int64_t x = 0; x < 4; x++)
			result_pixels(pixels[0][x], 4 * CHANNELS, half[0][x], 4 * CHANNELS, n);
		for (int64_t y = 0; y < 4 && y0 + y < h; y++)
			for (int64_t x = 0; x < 4 && x0 + x < w; x++) {
				char *d = (char *)g->out.data + (((y0 + y) * w + x0 + x) * g->n + col0 + c) * size;
				if (g->bias)
					dtp_vec_store_sum(d, g->out.dtype, pixels[y][x], g->bias + col0 + c, n);
				else
					dtp_vec_store(d, g->out.dtype, pixels[y][x], n);
			}
	}
}

static int64_t group_size(const struct winograd *g, int64_t first)
{
	return g->tiles - first < g->group ? g->tiles - first : g->group;
}

static int64_t columns(const struct winograd *g, int64_t col0)
{
	return g->n - col0 < g->width ? g->n - col0 : g->width;
}

static bool run_group(const struct winograd *g, int64_t first)
{
	int thread = omp_get_thread_num();
	int64_t tiles = group_size(g, first), block = g->depth * DTP_NB;
	float *v = dtp_cpu_local(g->cpu, thread), *m = v + POINTS * g->group * g->c;

	for (int64_t i = 0; i < tiles; i++)
		transform_patch(g, first + i, i, v);
	for (int64_t col = 0; col < g->n; col += g->width) {
		int64_t cols = columns(g, col);
		struct dtp_mm *mm = g->mm[tiles != g->group][cols != columns(g, 0)];
		for (int p = 0; p < POINTS; p++) {
			const float *u = g->u + (p * dtp_pack_blocks(g->n) + col / DTP_NB) * block;
			if (!dtp_mm_run(g->cpu->dnnl, mm, thread, v + p * g->group * g->c, u, m + p * tiles * cols))
				return false;
		}
		for (int64_t i = 0; i < tiles; i++)
			store_results(g, first + i, i, tiles, m, col, cols);
	}
	return true;
}

static enum dtp_code get_products(struct winograd *g, struct dtp_err *err)
{
	int64_t rows[2] = {g->group, group_size(g, (g->tiles - 1) / g->group * g->group)};
	int64_t cols[2] = {columns(g, 0), columns(g, (g->n - 1) / g->width * g->width)};
	enum dtp_code rc = DTP_OK;

	for (int i = 0; i < 2; i++)
		for (int j = 0; !rc && j < 2; j++) {
			struct dtp_mm_shape s = {rows[i], cols[j], g->c, DTP_F32, DTP_MM_PACKED, false};
			rc = dtp_mm_get(g->cpu->dnnl, &s, &g->mm[i][j], err);
		}
	return rc;
}

/* Four groups or more where there are enough tiles, and up to 8 threads always the same ones: oneDNN's kernels for CPUs
 * without AVX-512 sum in an order that depends on the number of rows. */
static int64_t group_tiles(int64_t tiles, int threads)
{
	int64_t most = threads > GROUP_THREADS ? GROUP_TILES * GROUP_THREADS / threads : GROUP_TILES;
	int64_t n = tiles / 4 < most ? tiles / 4 : most;

	n = n < GROUP_LEAST ? GROUP_LEAST : n;
	int64_t groups = (tiles + n - 1) / n;
	return (tiles + groups - 1) / groups;
}

bool dtp_winograd_fits(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w, int stride)
{
	return cpu->base.compute == DTP_BF16 && !cpu->bf16_fastest && stride == 1 && w->base.shape[2] == 3 &&
	       w->base.shape[3] == 3 && w->base.shape[0] >= 16 && w->base.shape[1] >= 16;
}

enum dtp_code dtp_winograd(struct dtp_cpu *cpu, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_cpu_weight *w,
			   const float *bias, int pad, struct dtp_err *err)
{
	struct winograd g = {.cpu = cpu, .w = w, .x = x, .out = out, .bias = bias, .pad = pad, .c = x.shape[2], .n = out.shape[2]};
	int64_t blocks = dtp_pack_blocks(g.n);
	bool ok = true;

	g.depth = dtp_pack_depth(DTP_F32, g.c);
	g.width = cpu->blocked ? 2 * DTP_NB : DTP_NB;
	g.tiles_x = (out.shape[1] + 3) / 4;
	g.tiles = g.tiles_x * ((out.shape[0] + 3) / 4);
	g.group = group_tiles(g.tiles, cpu->threads);
	uint64_t local = (uint64_t)(POINTS * g.group * (g.c + g.width)) * sizeof(float);
	enum dtp_code rc = dtp_cpu_scratch(cpu, (uint64_t)(POINTS * blocks * g.depth * DTP_NB) * sizeof(float), local, err);
	if (rc)
		return rc;
	g.u = cpu->shared;
	dtp_dnnl_begin(cpu->dnnl);
	rc = get_products(&g, err);
	if (rc)
		return rc;
#pragma omp parallel num_threads(cpu->threads) reduction(&& : ok)
	{
#pragma omp for collapse(2)
		for (int64_t b = 0; b < blocks; b++)
			for (int64_t c = 0; c < g.depth; c++)
				transform_filters(&g, b, c);
#pragma omp for schedule(dynamic)
		for (int64_t t = 0; t < g.tiles; t += g.group)
			ok = run_group(&g, t) && ok;
	}
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "oneDNN failed to multiply");
}
