/* SPDX-License-Identifier: Apache-2.0 */
/* tool_cells FILE.png: what a picture of the demo model shows, as words: the ground, which is the colour of most of the border,
 * then the colours in the middle of the cells of a 3 x 3 grid whose centres are at a quarter, a half and three quarters of each
 * side, row by row.  Colours are those that scripts/train_demo_model.py draws with, by the nearest. */
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	int rgb[3];
} colours[] = {
	{"red", {214, 40, 40}}, {"orange", {245, 130, 32}}, {"yellow", {250, 215, 50}}, {"green", {40, 150, 70}},
	{"blue", {35, 85, 200}}, {"purple", {125, 50, 165}}, {"pink", {245, 140, 185}}, {"black", {35, 35, 40}},
	{"white", {246, 246, 244}}, {"gray", {150, 152, 156}},
};
enum { NCOLOURS = sizeof colours / sizeof *colours };

static int nearest(const unsigned char *p)
{
	long best = -1;
	int which = 0;

	for (int i = 0; i < NCOLOURS; i++) {
		long d = 0;
		for (int c = 0; c < 3; c++)
			d += (long)(p[c] - colours[i].rgb[c]) * (p[c] - colours[i].rgb[c]);
		if (best < 0 || d < best)
			best = d, which = i;
	}
	return which;
}

int main(int argc, char **argv)
{
	png_image png = {.version = PNG_IMAGE_VERSION};
	int votes[NCOLOURS] = {0}, ground = 0;

	if (argc != 2 || !png_image_begin_read_from_file(&png, argv[1])) {
		fprintf(stderr, "tool_cells: %s\n", argc == 2 ? png.message : "one file, please");
		return 2;
	}
	png.format = PNG_FORMAT_RGB;
	unsigned char *rgb = malloc(PNG_IMAGE_SIZE(png));
	if (!rgb || !png_image_finish_read(&png, NULL, rgb, 0, NULL)) {
		fprintf(stderr, "tool_cells: %s\n", rgb ? png.message : "out of memory");
		return 2;
	}
	size_t w = png.width, h = png.height;
	for (size_t i = 0; i < w; i++)
		votes[nearest(rgb + 3 * i)]++, votes[nearest(rgb + 3 * ((h - 1) * w + i))]++;
	for (int i = 0; i < NCOLOURS; i++)
		ground = votes[i] > votes[ground] ? i : ground;
	printf("%s:", colours[ground].name);
	for (size_t row = 1; row <= 3; row++)
		for (size_t col = 1; col <= 3; col++)
			printf(" %s", colours[nearest(rgb + 3 * (h * row / 4 * w + w * col / 4))].name);
	putchar('\n');
	free(rgb);
	return 0;
}
