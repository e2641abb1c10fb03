/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the verify command. */
#ifndef DTP_CLI_VERIFY_H
#define DTP_CLI_VERIFY_H

#include "job.h"
#include "verify.h"

/* The result on standard output, as text or, with --json, as one object. */
enum dtp_code dtp_verify_print(const struct dtp_rank *r, const struct dtp_verify_report *v, struct dtp_err *err);
/* One line that names the first difference. */
void dtp_verify_verdict(const struct dtp_verify_report *v, char *buf, size_t size);
#endif
