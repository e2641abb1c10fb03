/* SPDX-License-Identifier: Apache-2.0 */
/* Whether somebody else's launcher (torchrun, mpirun, srun) has started this process as one rank of its job, and which: from
 * the environment, by one table of launchers. */
#ifndef DTP_PLACE_H
#define DTP_PLACE_H

#include "err.h"

#include <stdbool.h>
#include <sys/types.h>

struct dtp_place {
	const char *launcher; /* "torchrun", ...; NULL: none, this process starts the ranks itself */
	int rank, size;
	bool one_host;        /* the launcher says that all ranks are on this host; */
	bool near;            /* or at least does not say that rank 0 is on another */
	const char *master;   /* MASTER_ADDR; NULL: not set */
	int master_port;
	char job[160];        /* what tells this job of the launcher from its others; "" if it does not say */
	const char *parents;  /* names of the processes that start its ranks, separated by blanks; "pt_*": any that begins so */
};

/* choice: enum dtp_arg_launcher.  Variables that are malformed, contradict each other or are half set are DTP_REFUSED by
 * name.  Strings are the environment's. */
enum dtp_code dtp_place_find(int choice, struct dtp_place *p, struct dtp_err *err);
/* The process that started this one, if it is the launcher's and not a shell in between; else 0. */
pid_t dtp_place_parent(const struct dtp_place *p);
#endif
