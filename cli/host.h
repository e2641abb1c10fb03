/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine, or the part of it that this process may use, has. */
#ifndef DTP_HOST_H
#define DTP_HOST_H

#include <stdint.h>

/* root stands before every path below /proc and /sys ("" for the machine itself): tests give a folder of their own. */

/* Processors that this process may use: its affinity mask, and no more than its control groups' CPU limits (rounded up). */
int dtp_host_threads(const char *root);
/* The part of `total` that one of `ranks` gets: an equal share, the first ranks one more where it does not divide; at least
 * one thread each. */
int dtp_host_share(int total, int ranks, int rank);

struct dtp_host_memory {
	uint64_t available; /* bytes that can still be taken without swapping; UINT64_MAX: unknown */
	uint64_t machine;   /* /proc/meminfo's MemAvailable */
	uint64_t cgroup;    /* room below the tightest control group's limit; UINT64_MAX: no limit */
};
struct dtp_host_memory dtp_host_memory(const char *root);
#endif
