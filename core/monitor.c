/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor.h"

static void stage(void *arg, enum dtp_phase phase, const char *text)
{
	(void)arg, (void)phase, (void)text;
}

static void progress(void *arg, uint64_t done, uint64_t total)
{
	(void)arg, (void)done, (void)total;
}

static void beat(void *arg)
{
	(void)arg;
}

static void waiting(void *arg, bool yes)
{
	(void)arg, (void)yes;
}

static void say(void *arg, const char *text)
{
	(void)arg, (void)text;
}

static bool stopped(void *arg)
{
	(void)arg;
	return false;
}

const struct dtp_monitor dtp_monitor_none = {0, stage, progress, beat, waiting, say, say, stopped};
