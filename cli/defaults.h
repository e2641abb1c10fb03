/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line does not say: environment variables of options, then the user's file of defaults.  A value that comes
 * from there is in args as if it had been given, but counts as a default wherever that matters (DTP_GIVEN, DTP_HAS). */
#ifndef DTP_DEFAULTS_H
#define DTP_DEFAULTS_H

#include "flags.h"

/* The file: XDG_CONFIG_HOME/difftp/config, else HOME/.config/difftp/config; "" when neither is set.  It need not exist. */
void dtp_defaults_path(char *buf, size_t size);

/* Completes what dtp_args_parse made of the command line.  *text is malloc'd, args points into it.  In a rank the first process
 * has decided (through the environment), so that all ranks have the same whatever happens to the file meanwhile.  DTP_REFUSED:
 * the file or a variable is wrong; the message names the line or the variable. */
enum dtp_code dtp_defaults_read(struct dtp_args *args, char **text, struct dtp_err *err);
#endif
