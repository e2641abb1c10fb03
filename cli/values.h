/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options as text and as JSON: what the command line said, written down and read back. */
#ifndef DTP_VALUES_H
#define DTP_VALUES_H

#include "flags.h"
#include "json.h"

/* As it would be typed, a list's items with ", " between them; "yes" or "no" for a switch; "" for a text that is not there.  malloc'd; NULL:
 * out of memory. */
char *dtp_value_text(const struct dtp_option *o, const struct dtp_args *args);
/* Seeds and choices are strings, lists arrays of strings.  NULL: nothing was given nor filled in, or out of memory. */
cJSON *dtp_value_json(const struct dtp_option *o, const struct dtp_args *args);
/* Gives an option the value, with the checks of the command line; texts are then v's.  DTP_REFUSED names v->string. */
enum dtp_code dtp_value_take(const struct dtp_option *o, const cJSON *v, struct dtp_args *args, struct dtp_err *err);
#endif
