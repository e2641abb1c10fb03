/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>

#define MIN_SIDE 64
#define MAX_ASPECT 8

static enum dtp_code check(const char *path, int64_t height, int64_t width, struct dtp_err *err)
{
	int64_t less = height < width ? height : width, more = height + width - less;

	if (less < MIN_SIDE)
		return dtp_fail(err, DTP_REFUSED, "'%s' has %lldx%lld pixels; a reference image needs at least %d on each side", path,
				(long long)width, (long long)height, MIN_SIDE);
	if (more > MAX_ASPECT * less)
		return dtp_fail(err, DTP_REFUSED,
				"'%s' has %lldx%lld pixels, one side is %.1f times the other; a reference image may have %d times at most",
				path, (long long)width, (long long)height, (double)more / (double)less, MAX_ASPECT);
	return DTP_OK;
}

static enum dtp_code reduce(struct dtp_picture *p, struct dtp_err *err)
{
	double scale = sqrt((double)DTP_REFERENCE_PIXELS / (double)(p->width * p->height));
	struct dtp_picture small;

	if (p->height * p->width <= DTP_REFERENCE_PIXELS)
		return DTP_OK;
	if (dtp_picture_resize(p, (int64_t)((double)p->height * scale), (int64_t)((double)p->width * scale), &small, err))
		return err->code;
	dtp_picture_free(p);
	*p = small;
	return DTP_OK;
}

enum dtp_code dtp_reference_read(const char *path, struct dtp_picture *p, struct dtp_err *err)
{
	if (dtp_picture_read(path, check, p, err))
		return err->code;
	if (reduce(p, err)) {
		dtp_picture_free(p);
		return err->code;
	}
	return DTP_OK;
}

void dtp_reference_size(const struct dtp_picture *p, int64_t unit, int64_t *height, int64_t *width)
{
	*height = p->height / unit * unit;
	*width = p->width / unit * unit;
}

void dtp_reference_values(const struct dtp_picture *p, int64_t unit, float *out)
{
	int64_t h, w;

	dtp_reference_size(p, unit, &h, &w);
	const uint8_t *from = p->rgb + ((p->height - h) / 2 * p->width + (p->width - w) / 2) * 3;
	for (int64_t y = 0; y < h; y++, from += p->width * 3)
		for (int64_t i = 0; i < w * 3; i++)
			*out++ = (float)from[i] / 255.0f * 2.0f - 1.0f;
}
