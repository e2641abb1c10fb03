/* SPDX-License-Identifier: Apache-2.0 */
/* "did you mean": the nearest of some names. */
#ifndef DTP_SUGGEST_H
#define DTP_SUGGEST_H

#include <stddef.h>

/* Least number of insertions, deletions, replacements and swaps of neighbours that turn a into b; anything over limit counts
 * as limit + 1, and so do names of more than 255 characters. */
int dtp_edit_distance(const char *a, const char *b, int limit);

/* Feeds candidates one by one: keeps the one nearest to `name` that is near enough to be a slip of the pen (a third of its
 * length, at most 4 edits).  best is "" when none is. */
struct dtp_suggest {
	const char *name;
	char best[256];
	int distance;
};
struct dtp_suggest dtp_suggest_begin(const char *name);
void dtp_suggest_try(struct dtp_suggest *s, const char *candidate);
/* Writes ": did you mean 'x'?", or nothing when no candidate is near.  Returns buf. */
const char *dtp_suggest_text(const struct dtp_suggest *s, char *buf, size_t len);
#endif
