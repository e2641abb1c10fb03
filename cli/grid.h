/* SPDX-License-Identifier: Apache-2.0 */
/* --grid: images as ever, and a sheet of all of them. */
#ifndef DTP_GRID_H
#define DTP_GRID_H

#include "job.h"

/* What a rank does; the form of dtp_rank_fn. */
enum dtp_code dtp_grid_draw(struct dtp_rank *rank, struct dtp_err *err);
#endif
