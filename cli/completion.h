/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts for shells, from the tables of options and commands. */
#ifndef DTP_COMPLETION_H
#define DTP_COMPLETION_H

#include "err.h"

#include <stdio.h>

#define DTP_SHELLS "bash zsh fish"

/* The script of one of DTP_SHELLS; DTP_REFUSED: of another. */
enum dtp_code dtp_completion_write(FILE *f, const char *shell, struct dtp_err *err);
#endif
