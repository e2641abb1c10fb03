/* SPDX-License-Identifier: Apache-2.0 */
/* The signals by which a run is asked to end, and those of children, taken as events. */
#ifndef DTP_SIGNALS_H
#define DTP_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

struct dtp_signals {
	int fd; /* readable when one has come; -1: not open */
	sigset_t old_mask;
	struct sigaction old_chld;
	bool int_was_ignored;
};

/* Blocks them and opens fd.  False: errno. */
bool dtp_signals_open(struct dtp_signals *s);
/* Takes all that have come; how many of them ask for the end.  *gently: all of those are SIGINT. */
int dtp_signals_take(struct dtp_signals *s, bool *gently);
/* Closes fd; the mask is what it was if `restore`. */
void dtp_signals_close(struct dtp_signals *s, bool restore);
#endif
