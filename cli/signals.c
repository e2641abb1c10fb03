/* SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

bool dtp_signals_open(struct dtp_signals *s)
{
	struct sigaction dfl = {.sa_handler = SIG_DFL}, old;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaction(SIGINT, NULL, &old);
	s->int_was_ignored = old.sa_handler == SIG_IGN;
	sigaction(SIGHUP, NULL, &old);
	if (old.sa_handler != SIG_IGN) /* else nohup: the run outlives its terminal */
		sigaddset(&set, SIGHUP);
	sigaction(SIGCHLD, &dfl, &s->old_chld); /* ignored, it would take the exit codes away */
	sigprocmask(SIG_BLOCK, &set, &s->old_mask);
	s->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return s->fd >= 0;
}

int dtp_signals_take(struct dtp_signals *s, bool *gently)
{
	struct signalfd_siginfo si;
	int n = 0;

	*gently = true;
	while (read(s->fd, &si, sizeof si) == sizeof si) {
		if (si.ssi_signo == SIGCHLD)
			continue; /* its receiver looks after its children anyway */
		/* A shell starts background jobs with SIGINT ignored, to keep the terminal's from them; a kill is meant. */
		if (si.ssi_signo == SIGINT && s->int_was_ignored && si.ssi_code == SI_KERNEL)
			continue;
		*gently = *gently && si.ssi_signo == SIGINT;
		n++;
	}
	return n;
}

void dtp_signals_close(struct dtp_signals *s, bool restore)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
	if (!restore)
		return;
	sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	sigaction(SIGCHLD, &s->old_chld, NULL);
}
