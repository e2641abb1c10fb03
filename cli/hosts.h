/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks know of the memory of all their hosts, so that they judge alike what fits. */
#ifndef DTP_HOSTS_H
#define DTP_HOSTS_H

#include "fit.h"
#include "job.h"

struct dtp_hosts {
	int n;
	struct dtp_bound *bound;      /* [n] */
	struct dtp_host_memory *memory;
	int *ranks;                   /* host by host */
	struct dtp_limits limits;     /* --max-memory */
};
/* Collective over all ranks; before anything is loaded, as memory is looked at now.  dtp_hosts_free in any case. */
enum dtp_code dtp_hosts_gather(const struct dtp_rank *rank, struct dtp_hosts *hosts, struct dtp_err *err);
void dtp_hosts_free(struct dtp_hosts *hosts);
#endif
