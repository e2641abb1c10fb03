/* SPDX-License-Identifier: Apache-2.0 */
/* --grid: all images of a request on one sheet. */
#ifndef DTP_SHEET_H
#define DTP_SHEET_H

#include "comm.h"
#include "picture.h"

#define DTP_SHEET_SIDE 4096 /* pixels that neither side exceeds */

/* Cells in rows, about as many as columns; each a picture of the same size, reduced where the sheet would be too large.  What no cell
 * covers is black. */
struct dtp_sheet {
	int count, columns, rows;
	int64_t height, width; /* of a cell */
	uint8_t *cells;        /* [count, height, width, 3] */
};

enum dtp_code dtp_sheet_open(struct dtp_sheet *s, int count, int64_t height, int64_t width, struct dtp_err *err);
void dtp_sheet_close(struct dtp_sheet *s);
/* rgb: [height, width, 3] as opened. */
enum dtp_code dtp_sheet_put(struct dtp_sheet *s, int i, const uint8_t *rgb, int64_t height, int64_t width, struct dtp_err *err);
/* Collective over the replicas' first ranks, of which rank i mod size has put cell i: all have all of them then. */
enum dtp_code dtp_sheet_share(struct dtp_sheet *s, struct dtp_comm *replicas, struct dtp_err *err);
/* The sheet as one picture; rgb is malloc'd. */
enum dtp_code dtp_sheet_picture(const struct dtp_sheet *s, struct dtp_picture *out, struct dtp_err *err);
#endif
