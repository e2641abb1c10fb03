/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures in a terminal, by libchafa: the graphics of kitty, iTerm2 or sixel where the environment says that the terminal has
 * them, else half-blocks in as many colours as it has.  The library is opened when a picture is wanted, never for anything
 * else: it brings GLib along, and the program runs without it. */
#ifndef DTP_SCREEN_H
#define DTP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct dtp_screen; /* opaque */

/* For the terminal on f.  NULL: none can be drawn there; why says the reason. */
struct dtp_screen *dtp_screen_open(FILE *f, char *why, size_t size);
void dtp_screen_close(struct dtp_screen *s); /* NULL is allowed */
/* "kitty", "iTerm2", "sixel", "half-blocks" */
const char *dtp_screen_kind(const struct dtp_screen *s);

/* Draws rgb [height, width, 3] from the cursor's line on, as large as fits into the terminal's width (at most 80 columns) and
 * `rows` lines (and into the terminal), its proportions kept; the cursor ends at the beginning of the line below.  Returns how
 * many lines the picture takes; 0: nothing was drawn. */
int dtp_screen_draw(struct dtp_screen *s, const uint8_t *rgb, int width, int height, int rows);
#endif
