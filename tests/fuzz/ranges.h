/* SPDX-License-Identifier: Apache-2.0 */
/* What holds of options that foreign text has given: they are of those that it may give, with values within their ranges. */
#ifndef FUZZ_RANGES_H
#define FUZZ_RANGES_H

#include "flags.h"

#include <stdlib.h>

static inline void check_ranges(const struct dtp_args *args, unsigned may)
{
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *o = &dtp_options[i];
		const void *at = (const char *)args + o->offset;
		if (!dtp_args_given(args, o->offset))
			continue;
		if (!(o->commands & may))
			abort();
		if (o->kind == DTP_OPT_INT && (*(const int64_t *)at < (int64_t)o->min || *(const int64_t *)at > (int64_t)o->max))
			abort();
		if (o->kind == DTP_OPT_FLOAT && !(*(const double *)at >= o->min && *(const double *)at <= o->max))
			abort();
		if ((o->kind == DTP_OPT_STRING || o->kind == DTP_OPT_PATH) && !*(const char *const *)at)
			abort();
		if (o->kind == DTP_OPT_LIST && ((const struct dtp_list *)at)->n > (int)o->max)
			abort();
	}
}
#endif
