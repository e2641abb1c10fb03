/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JPEG through libjpeg-turbo, with the settings that it has by itself and Pillow leaves as they are. */
#include "image_internal.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <jpeglib.h>
#include <jerror.h>

#define MAX_SCANS 500 /* each goes over the whole picture: thousands in a small file are no picture but an attack */

struct session {
	struct jpeg_error_mgr manager; /* first: libjpeg's pointer to it is also one to the session */
	struct dtp_image_file *f;
	struct dtp_err *err;
	char why[JMSG_LENGTH_MAX];
	jmp_buf end;
};

static void on_error(j_common_ptr c)
{
	struct session *s = (struct session *)c->err;

	c->err->format_message(c, s->why);
	longjmp(s->end, 1);
}

/* The end of the bytes before the end of the picture is only a warning to libjpeg, which then makes up the rest. */
static void on_message(j_common_ptr c, int level)
{
	if (level < 0 && c->err->msg_code == JWRN_JPEG_EOF)
		on_error(c);
}

static void on_progress(j_common_ptr c)
{
	struct session *s = (struct session *)c->err;

	if (((j_decompress_ptr)c)->input_scan_number <= MAX_SCANS)
		return;
	snprintf(s->why, sizeof s->why, "more than %d scans", MAX_SCANS);
	longjmp(s->end, 1);
}

static void take_metadata(struct dtp_image_file *f, const struct jpeg_decompress_struct *c)
{
	static const char xmp[] = "http://ns.adobe.com/xap/1.0/";

	for (jpeg_saved_marker_ptr m = c->marker_list; m; m = m->next) {
		if (m->data_length >= 6 && !memcmp(m->data, "Exif\0\0", 6))
			dtp_image_exif(f, m->data, m->data_length);
		else if (m->data_length >= sizeof xmp && !memcmp(m->data, xmp, sizeof xmp))
			dtp_image_xmp(f, m->data + sizeof xmp, m->data_length - sizeof xmp);
	}
}

static void spread_grey(uint8_t *row, int64_t width)
{
	for (int64_t x = width - 1; x >= 0; x--)
		memset(row + 3 * x, row[x], 3);
}

/* Alone in its function: what it changes after setjmp is not looked at after longjmp. */
static bool read_jpeg(struct jpeg_decompress_struct *c, struct session *s)
{
	struct dtp_image_file *f = s->f;
	struct jpeg_progress_mgr progress = {.progress_monitor = on_progress};

	if (setjmp(s->end))
		return false;
	jpeg_create_decompress(c);
	c->progress = &progress;
	jpeg_mem_src(c, f->bytes, f->n);
	jpeg_save_markers(c, JPEG_APP0 + 1, 0xffff);
	jpeg_read_header(c, TRUE);
	take_metadata(f, c);
	if (c->num_components != 1 && c->num_components != 3)
		return dtp_fail(s->err, DTP_REFUSED, "'%s' is a %s (%d colour components); an RGB or grey one is needed", f->name,
				c->num_components == 4 ? "CMYK picture" : "picture of an unknown kind", c->num_components), false;
	c->out_color_space = c->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
	if (dtp_image_begin(f, c->image_height, c->image_width, s->err))
		return false;
	jpeg_start_decompress(c);
	while (c->output_scanline < c->output_height) {
		JSAMPROW row = f->picture.rgb + (size_t)c->output_scanline * (size_t)f->picture.width * 3;
		jpeg_read_scanlines(c, &row, 1);
		if (c->num_components == 1)
			spread_grey(row, f->picture.width);
	}
	return true;
}

enum dtp_code dtp_jpeg_decode(struct dtp_image_file *f, struct dtp_err *err)
{
	struct jpeg_decompress_struct c = {0};
	struct dtp_err own = DTP_ERR_INIT;
	struct session s = {.f = f, .err = &own};

	c.err = jpeg_std_error(&s.manager);
	s.manager.error_exit = on_error;
	s.manager.emit_message = on_message;
	bool ok = read_jpeg(&c, &s);
	jpeg_destroy_decompress(&c);
	if (ok)
		return DTP_OK;
	if (own.code)
		return dtp_fail(err, own.code, "%s", own.message);
	return dtp_fail(err, DTP_REFUSED, "'%s' is a damaged or truncated JPEG file: %s", f->name, s.why);
}
