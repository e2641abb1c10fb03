/* SPDX-License-Identifier: Apache-2.0 */
/* What a person sees while the ranks work: on a terminal one line that is drawn again, elsewhere a plain line per stage and
 * every few seconds.  Notes, warnings and the ranks' own lines pass through here, so that they do not tear it. */
#ifndef DTP_PROGRESS_H
#define DTP_PROGRESS_H

#include "flags.h"
#include "launch.h"
#include "screen.h"

#include <stdbool.h>
#include <stdio.h>

struct dtp_progress {
	FILE *f;
	enum dtp_arg_progress mode;
	bool quiet;         /* warnings only */
	bool redraw;        /* a terminal that can move its cursor */
	bool colour;
	int columns;
	struct dtp_screen *screen; /* where pictures are drawn; NULL: nowhere */
	bool show, preview; /* which: files that are complete, what is being drawn */
	int picture_lines;  /* of a preview that stands right above the line; 0: none */
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
/* The width of the terminal, or what COLUMNS says. */
int dtp_progress_columns(FILE *f);
/* From the stream and the environment (TERM, COLUMNS, NO_COLOR).  mode: enum dtp_arg_progress. */
void dtp_progress_init(struct dtp_progress *p, FILE *f, int mode, bool quiet);
/* From now on pictures are drawn too, if they can be.  Where they were asked for in this run (and not by a default) and cannot, a
 * warning says why. */
void dtp_progress_pictures(struct dtp_progress *p, const struct dtp_args *args);
/* An event of a rank: the form of dtp_launch's on_event; arg is a struct dtp_progress. */
void dtp_progress_event(void *arg, const struct dtp_event *event);
void dtp_progress_note(struct dtp_progress *p, const char *text);
void dtp_progress_warn(struct dtp_progress *p, const char *text);
/* Takes the line off the screen. */
void dtp_progress_end(struct dtp_progress *p);
/* The command ends with this code and, if err->code says so, a message.  For programs both are the last event, and err->code is
 * DTP_OK then: it has been told.  Returns code. */
enum dtp_code dtp_progress_close(struct dtp_progress *p, enum dtp_code code, struct dtp_err *err);
/* The text of the line as it stands, without the cursor's movements; NUL-terminated within len. */
void dtp_progress_line(const struct dtp_progress *p, char *buf, size_t len);

/* What the line says, in numbers. */
struct dtp_estimate {
	double spent;       /* seconds in this stage */
	long step, steps;   /* 0: not in a step */
	double per_step;    /* seconds; 0: not known yet */
	double left;        /* seconds, of the stage or of all steps; -1: not known */
};
struct dtp_estimate dtp_progress_estimate(const struct dtp_progress *p);

/* The events of --progress json (docs/running.md). */
void dtp_progress_json_state(struct dtp_progress *p, const char *event);
void dtp_progress_json_text(struct dtp_progress *p, const char *event, int rank, const char *text); /* rank -1: none */
void dtp_progress_json_image(struct dtp_progress *p, const struct dtp_event *image);
void dtp_progress_json_memory(struct dtp_progress *p, const struct dtp_event *memory);
void dtp_progress_json_end(struct dtp_progress *p, enum dtp_code code, const struct dtp_err *err);
#endif
