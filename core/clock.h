/* SPDX-License-Identifier: Apache-2.0 */
/* Time that only moves forward, for durations and deadlines. */
#ifndef DTP_CLOCK_H
#define DTP_CLOCK_H

#include <time.h>

/* Seconds since some moment before the process began. */
static inline double dtp_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#endif
