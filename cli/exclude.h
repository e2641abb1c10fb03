/* SPDX-License-Identifier: Apache-2.0 */
/* Options that do not go with prompts that were encoded before, or with weights that are computed. */
#ifndef DTP_EXCLUDE_H
#define DTP_EXCLUDE_H

#include "flags.h"

/* Options that exclude each other where prompts are read from a file or only written to one. */
enum dtp_code dtp_embeds_options_check(const struct dtp_args *args, struct dtp_err *err);
/* Whether the option at this offset has no meaning beside --prompt-embeds. */
bool dtp_embeds_exclude(size_t offset);
/* The same of --synthetic. */
enum dtp_code dtp_synthetic_options_check(const struct dtp_args *args, struct dtp_err *err);
bool dtp_synthetic_excludes(size_t offset);
#endif
