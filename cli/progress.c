/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include "clock.h"
#include "units.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1 /* faster than the eye reads is wasted on slow links */
#define PLAIN_SECONDS 5.0

static int width(int fd)
{
	const char *columns = getenv("COLUMNS");
	struct winsize size;
	long n = columns ? strtol(columns, NULL, 10) : 0;

	if (n > 0 && n <= 1000)
		return (int)n;
	return !ioctl(fd, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 80;
}

bool dtp_progress_redraws(FILE *f)
{
	const char *term = getenv("TERM");

	return isatty(fileno(f)) && term && *term && strcmp(term, "dumb");
}

void dtp_progress_init(struct dtp_progress *p, FILE *f, bool quiet)
{
	const char *no_colour = getenv("NO_COLOR");
	bool able = dtp_progress_redraws(f);

	*p = (struct dtp_progress){
		.f = f,
		.quiet = quiet,
		.redraw = able,
		.colour = able && !(no_colour && *no_colour),
		.columns = width(fileno(f)),
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

/* " (12 s left)" once there is something to judge by. */
static void left(char *buf, size_t len, double seconds, double fraction)
{
	buf[0] = '\0';
	if (fraction > 0.05 && fraction < 1 && seconds > 0.5)
		snprintf(buf, len, ", %s left", dtp_seconds_text(seconds * (1 - fraction) / fraction).s);
}

/* A step and those to come, by the mean of the steps that are done since the clock was started. */
static void step_line(const struct dtp_progress *p, long i, long n, double spent, char *buf, size_t len)
{
	double done = (double)(i - p->step_first), mean = done > 0 ? (p->stage_began - p->steps_began) / done : 0;
	double todo = mean * (double)(n - i + 1) - spent;

	if (done > 0)
		snprintf(buf, len, "%s: %s per step, %s left", p->stage, dtp_seconds_text(mean).s,
			 dtp_seconds_text(todo > 0 ? todo : 0).s);
	else if (spent >= 1)
		snprintf(buf, len, "%s: %s", p->stage, dtp_seconds_text(spent).s);
	else
		snprintf(buf, len, "%s", p->stage);
}

void dtp_progress_line(const struct dtp_progress *p, char *buf, size_t len)
{
	double spent = p->now() - p->stage_began, part = p->total ? (double)p->done / (double)p->total : 0;
	char eta[64];
	long i, n;

	part = part > 1 ? 1 : part;
	left(eta, sizeof eta, spent, part);
	if (p->phase == DTP_PHASE_STEP && counted(p->stage, &i, &n)) {
		step_line(p, i, n, spent, buf, len);
	} else if (p->phase == DTP_PHASE_LOAD && p->total) {
		uint64_t rate = spent > 0 ? (uint64_t)((double)p->done / spent) : 0;
		snprintf(buf, len, "%s: %s of %s, %s/s%s", p->stage, dtp_bytes_text(p->done).s, dtp_bytes_text(p->total).s,
			 dtp_bytes_text(rate).s, eta);
	} else if (p->total) {
		snprintf(buf, len, "%s: %d %%%s", p->stage, (int)(100 * part), eta);
	} else if (spent >= 1) {
		snprintf(buf, len, "%s: %s", p->stage, dtp_seconds_text(spent).s);
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

static void draw(struct dtp_progress *p)
{
	char line[256];

	dtp_progress_line(p, line, sizeof line);
	if (p->redraw) {
		/* The last column stays free: some terminals wrap as soon as it is filled. */
		fprintf(p->f, "\r%.*s\033[K", p->columns > 1 ? p->columns - 1 : 1, line);
		p->drawn = true;
	} else {
		fprintf(p->f, "%s\n", line);
	}
	fflush(p->f);
	p->printed = p->now();
}

static void print(struct dtp_progress *p, const char *colour, const char *label, int rank, const char *text)
{
	bool again = p->drawn;

	dtp_progress_end(p);
	if (rank >= 0)
		fprintf(p->f, "rank %d: ", rank);
	if (*label)
		fprintf(p->f, "%s%s%s ", p->colour ? colour : "", label, p->colour ? "\033[0m" : "");
	dtp_write_text(p->f, text);
	fputc('\n', p->f);
	if (again)
		draw(p);
	fflush(p->f);
}

void dtp_progress_note(struct dtp_progress *p, const char *text)
{
	if (!p->quiet)
		print(p, "", "", -1, text);
}

void dtp_progress_warn(struct dtp_progress *p, const char *text)
{
	print(p, "\033[33m", "warning:", -1, text);
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
	draw(p);
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
		if (!p->quiet && p->stage[0] && p->now() - p->printed >= (p->redraw ? REDRAW_SECONDS : PLAIN_SECONDS))
			draw(p);
		break;
	case DTP_EVENT_NOTE:
		dtp_progress_note(p, e->text);
		break;
	case DTP_EVENT_WARN:
		print(p, "\033[33m", "warning:", e->rank ? e->rank : -1, e->text);
		break;
	case DTP_EVENT_STDOUT: /* stdout is for results, and those are rank 0's */
	case DTP_EVENT_STDERR:
		print(p, "", "", e->rank, e->text);
		break;
	}
}
