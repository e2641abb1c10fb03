/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper of a rank other than 0 under somebody else's launcher: it brings its rank into the job, carries its messages to
 * rank 0's keeper, which watches over all, and ends it when told to, or when that one is no more. */
#ifndef DTP_MEMBER_H
#define DTP_MEMBER_H

#include "flags.h"
#include "guest.h"
#include "launch.h"
#include "meeting.h"

struct dtp_member;

/* Waits for rank 0 and for its seat in the job.  DTP_FAILED with err->secondary: rank 0 has not come within timeout_s.  err->code
 * is DTP_OK, whatever is returned, when somebody else prints the reason. */
enum dtp_code dtp_member_join(struct dtp_member **m, const struct dtp_place *place, struct dtp_meeting *meeting,
			      const struct dtp_args *args, double timeout_s, struct dtp_err *err);
const struct dtp_seat *dtp_member_seat(const struct dtp_member *m);
/* Starts the rank and keeps it; or, when refusal is not NULL, tells the job that it cannot begin.  Returns the code with which
 * to exit; as above for err. */
enum dtp_code dtp_member_run(struct dtp_member *m, const struct dtp_launch *opts, const struct dtp_err *refusal,
			     struct dtp_err *err);
void dtp_member_free(struct dtp_member *m);
#endif
