/* SPDX-License-Identifier: Apache-2.0 */
/* What a person sees while the ranks work: on a terminal one line that is drawn again, elsewhere a plain line per stage and
 * every few seconds.  Notes, warnings and the ranks' own lines pass through here, so that they do not tear it. */
#ifndef DTP_PROGRESS_H
#define DTP_PROGRESS_H

#include "launch.h"

#include <stdbool.h>
#include <stdio.h>

struct dtp_progress {
	FILE *f;
	bool quiet;         /* warnings only */
	bool redraw;        /* a terminal that can move its cursor */
	bool colour;
	int columns;
	double (*now)(void);/* seconds, monotonic */
	bool drawn;         /* the line stands on the screen */
	char stage[128];    /* "load transformer", "step 3/4" */
	enum dtp_phase phase;
	double stage_began, steps_began, printed;
	long step_first;    /* number of the step that was running at steps_began */
	uint64_t done, total;
};

/* Whether a line on this stream can be drawn again: a terminal that is not dumb. */
bool dtp_progress_redraws(FILE *f);
/* From the stream and the environment (TERM, COLUMNS, NO_COLOR). */
void dtp_progress_init(struct dtp_progress *p, FILE *f, bool quiet);
/* An event of a rank: the form of dtp_launch's on_event; arg is a struct dtp_progress. */
void dtp_progress_event(void *arg, const struct dtp_event *event);
void dtp_progress_note(struct dtp_progress *p, const char *text);
void dtp_progress_warn(struct dtp_progress *p, const char *text);
/* Takes the line off the screen. */
void dtp_progress_end(struct dtp_progress *p);
/* The text of the line as it stands, without the cursor's movements; NUL-terminated within len. */
void dtp_progress_line(const struct dtp_progress *p, char *buf, size_t len);
#endif
