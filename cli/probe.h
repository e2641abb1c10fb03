/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at one thing of the machine in a process of its own, so that a library that crashes or hangs is a finding and not
 * the end of the command. */
#ifndef DTP_PROBE_H
#define DTP_PROBE_H

#include "flags.h"
#include "json.h"

enum dtp_verdict {
	DTP_VERDICT_OK,
	DTP_VERDICT_WARNING, /* a run works, but slower or with less than it could */
	DTP_VERDICT_FAILURE, /* a run would fail */
	DTP_NVERDICTS
};
const char *dtp_verdict_name(enum dtp_verdict v);

/* Where a probe puts what it finds. */
struct dtp_findings {
	FILE *to;
};
/* One finding: its text, and what to do about it (NULL: nothing).  data, if any, goes into the JSON output, and is freed.  It
 * counts from this moment on, whatever becomes of the probe. */
void dtp_found(struct dtp_findings *f, enum dtp_verdict verdict, cJSON *data, const char *advice, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

struct dtp_probe {
	const char *name;
	/* Runs in a child process whose stdout and stderr go nowhere; it may start processes, which end with it.  argv: main's. */
	void (*look)(const struct dtp_args *args, char **argv, struct dtp_findings *found);
	double deadline_s;       /* then it is killed */
	enum dtp_verdict broken; /* what it means when it crashes, or is killed for that */
};

/* Runs the probe and returns an array of its findings: objects with 'probe', 'verdict' (a name), 'text', and perhaps 'advice'
 * and 'data'.  Returns within its deadline and two seconds, even where the child hangs in the kernel and cannot be killed. */
cJSON *dtp_probe_run(const struct dtp_probe *p, const struct dtp_args *args, char **argv);
#endif
