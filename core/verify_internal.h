/* SPDX-License-Identifier: Apache-2.0 */
/* Between verify.c, verify_report.c and verify_stages.c only. */
#ifndef DTP_VERIFY_INTERNAL_H
#define DTP_VERIFY_INTERNAL_H

#include "verify.h"

/* Sums of differences; of one rank, they travel as whole numbers of 64 bits. */
struct dtp_sums {
	double square, max;
	int64_t values, broken;
};
void dtp_sums_add(struct dtp_sums *s, double ours, double theirs, double rms); /* rms: of all of theirs */
double dtp_sums_rms(const struct dtp_sums *s, double rms);                     /* relative */

/* Adds a comparison to its row, and to what was found if it differs. */
enum dtp_code dtp_verify_note(struct dtp_verify_report *r, const char *row, const struct dtp_finding *f, struct dtp_err *err);
/* A picture that nobody wants. */
enum dtp_code dtp_verify_no_image(void *arg, const struct dtp_image *image, struct dtp_err *err);
#endif
