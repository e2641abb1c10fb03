/* SPDX-License-Identifier: Apache-2.0 */
/* How reading and writing with libpng fails: a jump, with the first reason kept.  libpng's error pointer is that text.  <png.h> comes before it: its files alone
 * include that. */
#ifndef DTP_PNG_ERROR_H
#define DTP_PNG_ERROR_H

#include <stdio.h>

#define DTP_PNG_WHY 128 /* bytes of the text; "" before the first failure */

static inline void dtp_png_on_error(png_structp png, png_const_charp message)
{
	char *why = png_get_error_ptr(png);

	if (!why[0])
		snprintf(why, DTP_PNG_WHY, "%s", message);
	png_longjmp(png, 1);
}

static inline void dtp_png_on_warning(png_structp png, png_const_charp message)
{
	(void)png, (void)message;
}
#endif
