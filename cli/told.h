/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks of a job must have been told alike: the options, as a text that travels from rank to rank. */
#ifndef DTP_TOLD_H
#define DTP_TOLD_H

#include "flags.h"

/* The command, its words and every given option whose row does not say that ranks may differ in it.  malloc'd; NULL: out of
 * memory. */
char *dtp_told_record(const struct dtp_args *args, size_t *len);
/* True if both say the same.  Else what each of them says about the first thing in which they differ: "'--steps 4'",
 * "no '--steps'". */
bool dtp_told_same(const char *a, size_t a_len, const char *b, size_t b_len, char *a_says, char *b_says, size_t size);
#endif
