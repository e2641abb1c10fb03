/* SPDX-License-Identifier: Apache-2.0 */
/* Lanczos resampling in 8 bits, as Pillow does it: along the one axis, rounded to 8 bits, then along the other.  A result is the
 * sum of the source values under a window, which is stretched when the picture shrinks; the weights of a window sum up to 1 and
 * are whole multiples of 2^-22. */
#include "picture.h"

#include <math.h>
#include <stdlib.h>

#define LOBES 3.0
#define WEIGHT_BITS 22

/* The windows of all results along one axis: result i takes source values [first[i], first[i] + count[i]). */
struct windows {
	int64_t n, most; /* results; weights that a window can have */
	int64_t *first, *count;
	int32_t *weight; /* [n, most] */
};

static double sinc(double x)
{
	return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x);
}

static double lanczos(double x)
{
	return x >= -LOBES && x < LOBES ? sinc(x) * sinc(x / LOBES) : 0;
}

/* Half away from zero. */
static int32_t fixed_point(double w)
{
	double v = w * (1 << WEIGHT_BITS);

	return (int32_t)(w < 0 ? v - 0.5 : v + 0.5);
}

static void free_windows(struct windows *w)
{
	free(w->first);
	free(w->count);
	free(w->weight);
}

/* The window around the middle of result i. */
static void make_window(struct windows *w, int64_t i, int64_t from, double scale, double *real)
{
	double stretch = scale > 1 ? scale : 1, reach = LOBES * stretch, centre = ((double)i + 0.5) * scale, sum = 0;
	int64_t begin = (int64_t)(centre - reach + 0.5), end = (int64_t)(centre + reach + 0.5);

	begin = begin > 0 ? begin : 0;
	end = end < from ? end : from;
	for (int64_t k = begin; k < end; k++) {
		real[k - begin] = lanczos(((double)k - centre + 0.5) * (1 / stretch));
		sum += real[k - begin];
	}
	for (int64_t k = begin; k < end; k++)
		w->weight[i * w->most + k - begin] = fixed_point(sum != 0 ? real[k - begin] / sum : real[k - begin]);
	w->first[i] = begin;
	w->count[i] = end - begin;
}

static bool make_windows(struct windows *w, int64_t from, int64_t to)
{
	double scale = (double)from / (double)to;

	w->n = to;
	w->most = 2 * (int64_t)ceil(LOBES * (scale > 1 ? scale : 1)) + 1;
	w->first = calloc((size_t)to, sizeof *w->first);
	w->count = calloc((size_t)to, sizeof *w->count);
	w->weight = calloc((size_t)(to * w->most), sizeof *w->weight);
	double *real = calloc((size_t)w->most, sizeof *real);
	bool ok = w->first && w->count && w->weight && real;
	for (int64_t i = 0; ok && i < to; i++)
		make_window(w, i, from, scale, real);
	free(real);
	return ok;
}

/* One value: n weighted source values that lie `step` bytes apart. */
static uint8_t weigh(const uint8_t *src, int64_t step, const int32_t *weight, int64_t n)
{
	int64_t sum = INT64_C(1) << (WEIGHT_BITS - 1);

	for (int64_t k = 0; k < n; k++)
		sum += (int64_t)src[k * step] * weight[k];
	sum >>= WEIGHT_BITS;
	return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void along_rows(uint8_t *dst, const uint8_t *src, int64_t rows, int64_t width, const struct windows *w)
{
	for (int64_t y = 0; y < rows; y++)
		for (int64_t x = 0; x < w->n; x++)
			for (int c = 0; c < 3; c++)
				dst[(y * w->n + x) * 3 + c] =
					weigh(src + (y * width + w->first[x]) * 3 + c, 3, w->weight + x * w->most, w->count[x]);
}

static void along_columns(uint8_t *dst, const uint8_t *src, int64_t width, const struct windows *w)
{
	for (int64_t y = 0; y < w->n; y++)
		for (int64_t i = 0; i < 3 * width; i++)
			dst[y * 3 * width + i] = weigh(src + w->first[y] * 3 * width + i, 3 * width, w->weight + y * w->most,
						       w->count[y]);
}

/* Pillow 13 begins with the columns where that takes away more than twice as many rows as the other way columns; before, it always
 * began with the rows.  The order is seen in single values that the rounding in between moves by one or two. */
static bool columns_first(const struct dtp_picture *src, int64_t height, int64_t width)
{
	return height < src->height && src->height - height > 2 * (src->width - width);
}

enum dtp_code dtp_picture_resize(const struct dtp_picture *src, int64_t height, int64_t width, struct dtp_picture *dst,
				 struct dtp_err *err)
{
	struct windows x = {0}, y = {0};
	bool columns = columns_first(src, height, width);
	uint8_t *between = malloc((size_t)(columns ? 3 * height * src->width : 3 * src->height * width));

	*dst = (struct dtp_picture){height, width, malloc((size_t)(3 * height * width))};
	bool ok = between && dst->rgb && make_windows(&x, src->width, width) && make_windows(&y, src->height, height);
	if (ok && columns) {
		along_columns(between, src->rgb, src->width, &y);
		along_rows(dst->rgb, between, height, src->width, &x);
	} else if (ok) {
		along_rows(between, src->rgb, src->height, src->width, &x);
		along_columns(dst->rgb, between, width, &y);
	} else {
		dtp_picture_free(dst);
	}
	free_windows(&x);
	free_windows(&y);
	free(between);
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for a picture of %lld x %lld", (long long)width, (long long)height);
}
