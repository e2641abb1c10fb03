/* SPDX-License-Identifier: Apache-2.0 */
/* --help and the man page, from the tables of options and commands. */
#ifndef DTP_HELP_H
#define DTP_HELP_H

#include "commands.h"

#include <stdio.h>

/* Usage of one command, its options by group, and where to read on; at most 80 columns.  The general help (no command
 * was named) also lists the commands. */
void dtp_help_write(FILE *f, const struct dtp_command *command, bool general);
/* The whole manual page in roff. */
void dtp_man_write(FILE *f);
#endif
