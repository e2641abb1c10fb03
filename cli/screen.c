/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include "progress.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define MOST_COLUMNS 80
#define CELL_WIDTH 8 /* pixels, where the terminal does not say */
#define CELL_HEIGHT 16

/* What is used of the library's interface (libchafa.so.0, 1.6 and later), whose headers need GLib's. */
enum { SEQ_FG_DIRECT = 31, SEQ_FGBG_256 = 36, SEQ_FGBG_16 = 39, SEQ_SIXELS = 40, SEQ_KITTY = 43, SEQ_ITERM2 = 47 };
enum { MODE_TRUECOLOR = 0, MODE_256 = 1, MODE_16 = 3, MODE_FGBG = 5 };
enum { PIXELS_SYMBOLS, PIXELS_SIXELS, PIXELS_KITTY, PIXELS_ITERM2 };
#define PIXEL_RGB8 8
#define SYMBOLS_SPACE_SOLID_HALF (1 << 0 | 1 << 1 | 1 << 8 | 1 << 9)
struct gstring {
	char *str;
	size_t len, allocated;
};

struct chafa {
	void *(*db)(void);
	void *(*detect)(void *db, char **environment);
	int (*have)(const void *info, int seq);
	void (*info_free)(void *info);
	void *(*config_new)(void);
	void (*config_geometry)(void *config, int columns, int rows);
	void (*config_cell)(void *config, int width, int height);
	void (*config_mode)(void *config, int mode);
	void (*config_pixels)(void *config, int pixels);
	void (*config_symbols)(void *config, const void *map);
	void (*config_free)(void *config);
	void *(*map_new)(void);
	void (*map_add)(void *map, int tags);
	void (*map_free)(void *map);
	void *(*canvas_new)(const void *config);
	void (*canvas_draw)(void *canvas, int type, const uint8_t *pixels, int width, int height, int stride);
	struct gstring *(*canvas_print)(void *canvas, void *info);
	void (*canvas_free)(void *canvas);
	void (*fit)(int width, int height, int *columns, int *rows, float ratio, int zoom, int stretch);
	char *(*string_free)(struct gstring *s, int all);
};

static const struct {
	const char *name;
	size_t offset;
} symbols[] = {
	{"chafa_term_db_get_default", offsetof(struct chafa, db)},
	{"chafa_term_db_detect", offsetof(struct chafa, detect)},
	{"chafa_term_info_have_seq", offsetof(struct chafa, have)},
	{"chafa_term_info_unref", offsetof(struct chafa, info_free)},
	{"chafa_canvas_config_new", offsetof(struct chafa, config_new)},
	{"chafa_canvas_config_set_geometry", offsetof(struct chafa, config_geometry)},
	{"chafa_canvas_config_set_cell_geometry", offsetof(struct chafa, config_cell)},
	{"chafa_canvas_config_set_canvas_mode", offsetof(struct chafa, config_mode)},
	{"chafa_canvas_config_set_pixel_mode", offsetof(struct chafa, config_pixels)},
	{"chafa_canvas_config_set_symbol_map", offsetof(struct chafa, config_symbols)},
	{"chafa_canvas_config_unref", offsetof(struct chafa, config_free)},
	{"chafa_symbol_map_new", offsetof(struct chafa, map_new)},
	{"chafa_symbol_map_add_by_tags", offsetof(struct chafa, map_add)},
	{"chafa_symbol_map_unref", offsetof(struct chafa, map_free)},
	{"chafa_canvas_new", offsetof(struct chafa, canvas_new)},
	{"chafa_canvas_draw_all_pixels", offsetof(struct chafa, canvas_draw)},
	{"chafa_canvas_print", offsetof(struct chafa, canvas_print)},
	{"chafa_canvas_unref", offsetof(struct chafa, canvas_free)},
	{"chafa_calc_canvas_geometry", offsetof(struct chafa, fit)},
	{"g_string_free", offsetof(struct chafa, string_free)}, /* GLib's, found through it */
};

struct dtp_screen {
	FILE *f;
	struct chafa chafa;
	void *info;
	int pixels, mode;
};

static bool load(struct chafa *c, char *why, size_t size)
{
	void *lib = dlopen("libchafa.so.0", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(why, size, "libchafa is not there (Debian: apt-get install libchafa0): %s", dlerror());
		return false;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
		void *p = dlsym(lib, symbols[i].name);
		if (!p) {
			snprintf(why, size, "libchafa is too old: it has no '%s'", symbols[i].name);
			return false;
		}
		memcpy((char *)c + symbols[i].offset, &p, sizeof p);
	}
	return true; /* it stays open: GLib cannot be unloaded */
}

static void choose(struct dtp_screen *s)
{
	static const struct {
		int seq, pixels;
	} graphics[] = {{SEQ_KITTY, PIXELS_KITTY}, {SEQ_ITERM2, PIXELS_ITERM2}, {SEQ_SIXELS, PIXELS_SIXELS}};
	const struct chafa *c = &s->chafa;
	const char *no_colour = getenv("NO_COLOR"), *direct = getenv("COLORTERM");

	for (size_t i = 0; i < sizeof graphics / sizeof graphics[0] && !s->pixels; i++)
		if (c->have(s->info, graphics[i].seq))
			s->pixels = graphics[i].pixels;
	if (no_colour && *no_colour && !s->pixels)
		s->mode = MODE_FGBG;
	else if (s->pixels || c->have(s->info, SEQ_FG_DIRECT) || (direct && (!strcmp(direct, "truecolor") || !strcmp(direct, "24bit"))))
		s->mode = MODE_TRUECOLOR;
	else
		s->mode = c->have(s->info, SEQ_FGBG_256) ? MODE_256 : c->have(s->info, SEQ_FGBG_16) ? MODE_16 : MODE_FGBG;
}

struct dtp_screen *dtp_screen_open(FILE *f, char *why, size_t size)
{
	struct dtp_screen *s;

	if (!dtp_progress_redraws(f)) {
		snprintf(why, size, "stderr is no terminal that can draw (TERM is '%s')", isatty(fileno(f)) && getenv("TERM") ? getenv("TERM") : "");
		return NULL;
	}
	if (!(s = calloc(1, sizeof *s))) {
		snprintf(why, size, "out of memory");
		return NULL;
	}
	s->f = f;
	if (!load(&s->chafa, why, size)) {
		free(s);
		return NULL;
	}
	s->info = s->chafa.detect(s->chafa.db(), environ);
	choose(s);
	return s;
}

void dtp_screen_close(struct dtp_screen *s)
{
	if (s)
		s->chafa.info_free(s->info);
	free(s);
}

const char *dtp_screen_kind(const struct dtp_screen *s)
{
	static const char *const names[] = {"half-blocks", "sixel", "kitty", "iTerm2"};

	return names[s->pixels];
}

/* The area in cells, and the pixels of one. */
static void measure(const struct dtp_screen *s, int width, int height, int *columns, int *rows, int cell[2])
{
	struct winsize w = {0};

	ioctl(fileno(s->f), TIOCGWINSZ, &w);
	cell[0] = w.ws_col && w.ws_xpixel ? w.ws_xpixel / w.ws_col : CELL_WIDTH;
	cell[1] = w.ws_row && w.ws_ypixel ? w.ws_ypixel / w.ws_row : CELL_HEIGHT;
	cell[0] = cell[0] ? cell[0] : CELL_WIDTH;
	cell[1] = cell[1] ? cell[1] : CELL_HEIGHT;
	*columns = dtp_progress_columns(s->f) - 1;
	*columns = *columns < MOST_COLUMNS ? *columns : MOST_COLUMNS;
	if (w.ws_row > 3 && *rows > w.ws_row - 3) /* the progress line stays in sight */
		*rows = w.ws_row - 3;
	s->chafa.fit(width, height, columns, rows, (float)cell[0] / (float)cell[1], 1, 0);
}

static void *make_config(const struct dtp_screen *s, int columns, int rows, const int cell[2])
{
	const struct chafa *c = &s->chafa;
	void *config = c->config_new(), *map = c->map_new();

	c->map_add(map, SYMBOLS_SPACE_SOLID_HALF);
	c->config_geometry(config, columns, rows);
	c->config_cell(config, cell[0], cell[1]);
	c->config_mode(config, s->mode);
	c->config_pixels(config, s->pixels);
	c->config_symbols(config, map);
	c->map_free(map);
	return config;
}

int dtp_screen_draw(struct dtp_screen *s, const uint8_t *rgb, int width, int height, int rows)
{
	const struct chafa *c = &s->chafa;
	int columns, cell[2];

	measure(s, width, height, &columns, &rows, cell);
	if (columns < 1 || rows < 1)
		return 0;
	void *config = make_config(s, columns, rows, cell), *canvas = c->canvas_new(config);
	c->canvas_draw(canvas, PIXEL_RGB8, rgb, width, height, 3 * width);
	struct gstring *text = c->canvas_print(canvas, s->info);
	/* Room first, so that nothing scrolls while it is drawn: kinds of pictures leave the cursor at different places. */
	for (int i = 0; i < rows; i++)
		fputc('\n', s->f);
	fprintf(s->f, "\033[%dA\r\0337", rows);
	fwrite(text->str, 1, text->len, s->f);
	fprintf(s->f, "\0338\033[%dB\r", rows);
	fflush(s->f);
	c->string_free(text, 1);
	c->canvas_free(canvas);
	c->config_free(config);
	return rows;
}
