/* SPDX-License-Identifier: Apache-2.0 */
/* Models that Hugging Face's tools have downloaded: found in their cache by name.  Nothing is ever fetched or written. */
#ifndef DTP_HUB_H
#define DTP_HUB_H

#include "err.h"

#include <limits.h>
#include <stddef.h>

/* The cache's folder, from HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME; "" when none of them says. */
void dtp_hub_cache(char *buf, size_t size);

/* What --model names -> a folder in buf.  A path that exists is taken as it is, and so is what cannot be the name of a
 * model, for the checks of folders to complain about.  Else "ORGANISATION/NAME" is looked for in the cache, at its revision
 * "main", or at "@REVISION": a branch, a tag or a commit.  DTP_REFUSED: it is not there; the message has the command that would
 * fetch it, and what of the cache was perhaps meant. */
enum dtp_code dtp_hub_find(const char *model, char buf[PATH_MAX], struct dtp_err *err);
#endif
