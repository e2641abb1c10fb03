/* SPDX-License-Identifier: Apache-2.0 */
/* The images of a batch: lines become requests with names, seeds and numbers as if one process drew all of them in turn.  A
 * line that cannot be drawn is told and left out. */
#ifndef DTP_ITEMS_H
#define DTP_ITEMS_H

#include "job.h"
#include "line.h"
#include "lines.h"
#include "offload.h"
#include "record.h"

/* A line, and those of its images that this replica is to draw. */
struct dtp_item {
	int64_t number;             /* of the line, from 1 */
	int64_t first;              /* of its first image among all of the batch, from 0 */
	char *text;                 /* the line */
	size_t len;
	struct dtp_line line;
	struct dtp_request request; /* resolved; its seed is that of image 0 */
	const struct dtp_offload *offload; /* what stays loaded while it is drawn; dtp_items' */
	int *todo, ntodo;           /* indices of images within the line */
};
void dtp_item_free(struct dtp_item *item);
char *dtp_item_file(const struct dtp_item *item, int image); /* name within the folder, malloc'd */
char *dtp_item_parameters(const struct dtp_item *item, int image, const struct dtp_rank *rank,
			  const struct dtp_sources *sources);

/* Of this replica's images. */
struct dtp_tally {
	int64_t drawn, present /* found as the record says */, failed, left /* not drawn: interrupted */;
};

struct dtp_items {
	struct dtp_rank *rank;
	struct dtp_lines *lines;
	const struct dtp_record *record;  /* NULL: nothing is left out */
	const struct dtp_sources *sources;
	struct dtp_tally tally;
	int64_t nimages;                  /* until now */
	int64_t good;                     /* lines that can be drawn */
	char complaint[2048];             /* of the line that failed last */
	int64_t complained;               /* its number */
	void *names;                      /* a tree of those that are taken */
	struct dtp_fit_memo *memo;
};

/* What is asked for in a line, resolved but for memory: the same on every rank.  number, first: see dtp_item. */
enum dtp_code dtp_item_request(const struct dtp_rank *rank, const char *text, size_t len, int64_t first, struct dtp_line *line,
			       struct dtp_request *request, struct dtp_err *err);
/* The next line with images for this replica (LINE: *item, the caller's). */
enum dtp_lines_got dtp_items_next(struct dtp_items *items, bool wait, struct dtp_item **item, struct dtp_err *err);
void dtp_items_free(struct dtp_items *items);
/* Tells what is wrong with a line, once for all replicas or, with `own`, what only this one knows. */
void dtp_items_complain(struct dtp_items *items, int64_t number, bool own, const struct dtp_err *why);
#endif
