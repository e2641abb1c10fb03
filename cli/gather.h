/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 under somebody else's launcher: waits for the other ranks at the meeting place and checks that they belong to one
 * job. */
#ifndef DTP_GATHER_H
#define DTP_GATHER_H

#include "control.h"
#include "flags.h"
#include "guest.h"
#include "meeting.h"
#include "signals.h"

struct dtp_gathering {
	int size;
	struct dtp_server *server; /* peers are the ranks: 1 and up are their keepers, 0 is free for this one's own process */
	struct dtp_guest *guests;  /* [size] */
	struct dtp_seat seat;      /* rank 0's own */
	struct dtp_signals signals; /* open from here on */
};

/* Returns when all ranks have come and been given their seats.  DTP_FAILED with err->secondary: some have not come within
 * timeout_s.  DTP_REFUSED: they do not belong together (numbers, versions, options).  DTP_INTERRUPTED: a signal.  On
 * failure those that are there are to be dismissed.  err->code is DTP_OK, whatever is returned, when somebody else prints the
 * reason. */
enum dtp_code dtp_gather(struct dtp_gathering *g, const struct dtp_place *place, struct dtp_meeting *m,
			 const struct dtp_args *args, double timeout_s, struct dtp_err *err);
/* Ends the job before it has begun: all others exit with err->code, once this process has ended. */
void dtp_gathering_dismiss(struct dtp_gathering *g, const struct dtp_err *err);
/* The sockets stay open until the process ends: the others leave when they see that, so that their end cannot move the
 * launcher to end this process before it has said why. */
void dtp_gathering_free(struct dtp_gathering *g);
#endif
