/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "clock.h"
#include "picture.h"
#include "text.h"
#include "units.h"
#include "utf8.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1 /* faster than the eye reads is wasted on slow links */
#define PLAIN_SECONDS 5.0
#define JSON_SECONDS 0.5
#define PREVIEW_LINES 16
#define SHOW_LINES 40

int dtp_progress_columns(FILE *f)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	long n = columns ? strtol(columns, NULL, 10) : 0;

	if (n > 0 && n <= 1000)
		return (int)n;
	return !ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 80;
}

bool dtp_progress_redraws(FILE *f)
{
	const char *term = getenv("TERM");

	return isatty(fileno(f)) && term && *term && strcmp(term, "dumb");
}

void dtp_progress_init(struct dtp_progress *p, FILE *f, int mode, bool quiet)
{
	const char *no_colour = getenv("NO_COLOR");
	bool able = dtp_progress_redraws(f);

	*p = (struct dtp_progress){
		.f = f,
		.mode = (enum dtp_arg_progress)mode,
		.quiet = quiet,
		.redraw = able && mode == DTP_ARG_PROGRESS_AUTO,
		.colour = able && !(no_colour && *no_colour),
		.columns = dtp_progress_columns(f),
		.now = dtp_seconds,
	};
}

/* The last "i/n" of a stage's text. */
static bool counted(const char *text, long *i, long *n)
{
	bool found = false;

	for (const char *slash = strchr(text, '/'); slash; slash = strchr(slash + 1, '/')) {
		const char *begin = slash;
		while (begin > text && begin[-1] >= '0' && begin[-1] <= '9')
			begin--;
		long a, b;
		if (begin < slash && sscanf(begin, "%9ld/%9ld", &a, &b) == 2 && b > 0) {
			*i = a;
			*n = b;
			found = true;
		}
	}
	return found;
}

/* A step and those to come are judged by the mean of the steps that are done since the clock was started, everything else by
 * its own speed once there is something to judge by. */
struct dtp_estimate dtp_progress_estimate(const struct dtp_progress *p)
{
	struct dtp_estimate e = {.spent = p->now() - p->stage_began, .left = -1};
	double part = p->total ? (double)p->done / (double)p->total : 0;

	if (p->phase == DTP_PHASE_STEP && counted(p->stage, &e.step, &e.steps)) {
		double done = (double)(e.step - p->step_first);
		e.per_step = done > 0 ? (p->stage_began - p->steps_began) / done : 0;
		double left = e.per_step * (double)(e.steps - e.step + 1) - e.spent;
		if (done > 0)
			e.left = left > 0 ? left : 0;
	} else if (part > 0.05 && part < 1 && e.spent > 0.5) {
		e.left = e.spent * (1 - part) / part;
	}
	return e;
}

void dtp_progress_line(const struct dtp_progress *p, char *buf, size_t len)
{
	struct dtp_estimate e = dtp_progress_estimate(p);
	char eta[64] = "";

	if (e.left >= 0)
		snprintf(eta, sizeof eta, ", %s left", dtp_seconds_text(e.left).s);
	if (e.steps && e.left >= 0) {
		snprintf(buf, len, "%s: %s per step%s", p->stage, dtp_seconds_text(e.per_step).s, eta);
	} else if (p->phase == DTP_PHASE_LOAD && p->total) {
		uint64_t rate = e.spent > 0 ? (uint64_t)((double)p->done / e.spent) : 0;
		snprintf(buf, len, "%s: %s of %s, %s/s%s", p->stage, dtp_bytes_text(p->done).s, dtp_bytes_text(p->total).s,
			 dtp_bytes_text(rate).s, eta);
	} else if (p->total && !e.steps) {
		snprintf(buf, len, "%s: %d %%%s", p->stage, (int)(p->done < p->total ? 100 * ((double)p->done / (double)p->total) : 100), eta);
	} else if (e.spent >= 1) {
		snprintf(buf, len, "%s: %s", p->stage, dtp_seconds_text(e.spent).s);
	} else {
		snprintf(buf, len, "%s", p->stage);
	}
}

void dtp_progress_end(struct dtp_progress *p)
{
	if (p->drawn)
		fputs("\r\033[K", p->f);
	p->drawn = false;
	fflush(p->f);
}

enum dtp_code dtp_progress_close(struct dtp_progress *p, enum dtp_code code, struct dtp_err *err)
{
	dtp_progress_end(p);
	dtp_screen_close(p->screen);
	p->screen = NULL;
	if (p->mode == DTP_ARG_PROGRESS_JSON) {
		dtp_progress_json_end(p, code, err);
		err->code = DTP_OK;
	}
	return code;
}

static void draw(struct dtp_progress *p, const char *event)
{
	char line[256];

	p->printed = p->now();
	if (p->mode == DTP_ARG_PROGRESS_NONE)
		return;
	if (p->mode == DTP_ARG_PROGRESS_JSON) {
		dtp_progress_json_state(p, event);
		return;
	}
	dtp_progress_line(p, line, sizeof line);
	if (p->redraw) {
		/* The last column stays free: some terminals wrap as soon as it is filled. */
		fprintf(p->f, "\r%.*s\033[K", (int)dtp_utf8_fit(line, p->columns > 1 ? (size_t)p->columns - 1 : 1), line);
		p->drawn = true;
	} else {
		fprintf(p->f, "%s\n", line);
		p->picture_lines = 0; /* it no longer stands right above */
	}
	fflush(p->f);
}

/* event: its name for programs; a warning is labelled for people too. */
static void print(struct dtp_progress *p, const char *event, int rank, const char *text)
{
	bool again = p->drawn;

	if (p->mode == DTP_ARG_PROGRESS_JSON) {
		dtp_progress_json_text(p, event, rank, text);
		return;
	}
	dtp_progress_end(p);
	p->picture_lines = 0; /* it scrolls away */
	if (rank >= 0)
		fprintf(p->f, "rank %d: ", rank);
	if (!strcmp(event, "warning"))
		fputs(p->colour ? "\033[33mwarning:\033[0m " : "warning: ", p->f);
	dtp_write_text(p->f, text);
	fputc('\n', p->f);
	if (again)
		draw(p, "progress");
	fflush(p->f);
}

void dtp_progress_pictures(struct dtp_progress *p, const struct dtp_args *args)
{
	char why[300] = "progress is told to programs", text[400];
	bool asked = DTP_GIVEN(args, show) || DTP_GIVEN(args, preview);

	if (!args->show && !args->preview)
		return;
	if (p->mode != DTP_ARG_PROGRESS_JSON)
		p->screen = dtp_screen_open(p->f, why, sizeof why);
	p->show = p->screen && args->show;
	p->preview = p->screen && args->preview;
	if (p->screen || !asked)
		return;
	snprintf(text, sizeof text, "--%s has no effect: %s", args->preview ? "preview" : "show", why);
	dtp_progress_warn(p, text);
}

/* In the place of the preview before it, if that still stands there. */
static void draw_picture(struct dtp_progress *p, const uint8_t *rgb, int width, int height, int lines)
{
	bool again = p->drawn;

	dtp_progress_end(p);
	if (p->picture_lines)
		fprintf(p->f, "\033[%dA\033[J", p->picture_lines);
	p->picture_lines = dtp_screen_draw(p->screen, rgb, width, height, lines);
	if (again)
		draw(p, "progress");
}

static void show_file(struct dtp_progress *p, const char *path)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_picture picture;
	char text[400];

	if (dtp_picture_read(path, NULL, &picture, &err)) {
		snprintf(text, sizeof text, "not shown: %.350s", err.message);
		dtp_progress_warn(p, text);
		return;
	}
	draw_picture(p, picture.rgb, (int)picture.width, (int)picture.height, SHOW_LINES);
	p->picture_lines = 0; /* it stays */
	dtp_picture_free(&picture);
}

void dtp_progress_note(struct dtp_progress *p, const char *text)
{
	if (!p->quiet)
		print(p, "note", -1, text);
}

void dtp_progress_warn(struct dtp_progress *p, const char *text)
{
	print(p, "warning", -1, text);
}

static void new_stage(struct dtp_progress *p, const struct dtp_event *e)
{
	long i, n, last_i, last_n;
	double now = p->now();
	bool goes_on = e->phase == DTP_PHASE_STEP && p->phase == DTP_PHASE_STEP && counted(p->stage, &last_i, &last_n) &&
		       counted(e->text, &i, &n) && n == last_n && i == last_i + 1;

	if (e->phase == DTP_PHASE_STEP && counted(e->text, &i, &n)) {
		if (!goes_on) {
			p->steps_began = now;
			p->step_first = i;
		} else if (i == 3 && p->step_first == 1) {
			/* The first step also compiles kernels and touches memory anew: once there is another, that counts. */
			p->steps_began = p->stage_began;
			p->step_first = 2;
		}
	}
	snprintf(p->stage, sizeof p->stage, "%s", e->text);
	p->phase = e->phase;
	p->stage_began = now;
	p->done = p->total = 0;
	draw(p, "stage");
}

static double pace(const struct dtp_progress *p)
{
	return p->redraw ? REDRAW_SECONDS : p->mode == DTP_ARG_PROGRESS_JSON ? JSON_SECONDS : PLAIN_SECONDS;
}

void dtp_progress_event(void *arg, const struct dtp_event *e)
{
	struct dtp_progress *p = arg;

	switch (e->kind) {
	case DTP_EVENT_STAGE: /* the ranks march in step: the first stands for all */
		if (e->rank == 0 && !p->quiet)
			new_stage(p, e);
		break;
	case DTP_EVENT_PROGRESS:
		if (e->rank)
			break;
		p->done = e->done;
		p->total = e->total;
		if (!p->quiet && p->stage[0] && p->now() - p->printed >= pace(p))
			draw(p, "progress");
		break;
	case DTP_EVENT_NOTE:
		dtp_progress_note(p, e->text);
		break;
	case DTP_EVENT_WARN:
		print(p, "warning", e->rank ? e->rank : -1, e->text);
		break;
	case DTP_EVENT_PREVIEW:
		if (p->preview && e->rank == 0)
			draw_picture(p, e->rgb, e->width, e->height, PREVIEW_LINES);
		break;
	case DTP_EVENT_IMAGE: /* people have a note of it */
		if (p->show)
			show_file(p, e->text);
		if (p->mode == DTP_ARG_PROGRESS_JSON && !p->quiet)
			dtp_progress_json_image(p, e);
		break;
	case DTP_EVENT_MEMORY: /* people have a note where it is more than was foreseen */
		if (p->mode == DTP_ARG_PROGRESS_JSON && !p->quiet)
			dtp_progress_json_memory(p, e);
		break;
	case DTP_EVENT_STDOUT: /* stdout is for results, and those are rank 0's */
	case DTP_EVENT_STDERR:
		print(p, "output", e->rank, e->text);
		break;
	}
}
