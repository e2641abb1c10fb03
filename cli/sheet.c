/* SPDX-License-Identifier: Apache-2.0 */
#include "sheet.h"

#include <stdlib.h>
#include <string.h>

static int64_t cell_bytes(const struct dtp_sheet *s)
{
	return 3 * s->height * s->width;
}

/* At least a pixel, at most what is given and what fits `n` times into a side. */
static int64_t fitting(int64_t length, int n)
{
	int64_t most = DTP_SHEET_SIDE / n;

	return length < most ? length : most > 0 ? most : 1;
}

enum dtp_code dtp_sheet_open(struct dtp_sheet *s, int count, int64_t height, int64_t width, struct dtp_err *err)
{
	*s = (struct dtp_sheet){.count = count, .columns = 1};
	while (s->columns * s->columns < count)
		s->columns++;
	s->rows = (count + s->columns - 1) / s->columns;
	s->height = fitting(height, s->rows);
	s->width = fitting(width, s->columns);
	if (s->height * width < s->width * height) /* the side that has to be reduced more decides */
		s->width = s->height * width / height ? s->height * width / height : 1;
	else
		s->height = s->width * height / width ? s->width * height / width : 1;
	s->cells = calloc((size_t)count, (size_t)cell_bytes(s));
	return s->cells ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for a sheet of %d pictures", count);
}

void dtp_sheet_close(struct dtp_sheet *s)
{
	free(s->cells);
	*s = (struct dtp_sheet){0};
}

enum dtp_code dtp_sheet_put(struct dtp_sheet *s, int i, const uint8_t *rgb, int64_t height, int64_t width, struct dtp_err *err)
{
	const struct dtp_picture whole = {height, width, (uint8_t *)(uintptr_t)rgb};
	struct dtp_picture small;
	uint8_t *cell = s->cells + i * cell_bytes(s);

	if (height == s->height && width == s->width) {
		memcpy(cell, rgb, (size_t)cell_bytes(s));
		return DTP_OK;
	}
	if (dtp_picture_resize(&whole, s->height, s->width, &small, err))
		return err->code;
	memcpy(cell, small.rgb, (size_t)cell_bytes(s));
	dtp_picture_free(&small);
	return DTP_OK;
}

enum dtp_code dtp_sheet_share(struct dtp_sheet *s, struct dtp_comm *replicas, struct dtp_err *err)
{
	for (int i = 0; i < s->count && replicas->size > 1; i++)
		if (dtp_broadcast(replicas, s->cells + i * cell_bytes(s), cell_bytes(s), i % replicas->size, err))
			return err->code;
	return DTP_OK;
}

enum dtp_code dtp_sheet_picture(const struct dtp_sheet *s, struct dtp_picture *out, struct dtp_err *err)
{
	size_t row = (size_t)(3 * s->width);

	*out = (struct dtp_picture){s->rows * s->height, s->columns * s->width, NULL};
	out->rgb = calloc((size_t)out->height, (size_t)(3 * out->width));
	if (!out->rgb)
		return dtp_fail(err, DTP_FAILED, "out of memory for a sheet of %lldx%lld", (long long)out->width, (long long)out->height);
	for (int i = 0; i < s->count; i++)
		for (int64_t y = 0; y < s->height; y++)
			memcpy(out->rgb + ((i / s->columns * s->height + y) * s->columns + i % s->columns) * (int64_t)row,
			       s->cells + i * cell_bytes(s) + y * (int64_t)row, row);
	return DTP_OK;
}
