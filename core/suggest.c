/* SPDX-License-Identifier: Apache-2.0 */
#include "suggest.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME 255

static int least(int a, int b)
{
	return a < b ? a : b;
}

int dtp_edit_distance(const char *a, const char *b, int limit)
{
	/* Rows i-2, i-1 and i of the table of distances between prefixes. */
	int rows[3][MAX_NAME + 1];
	size_t n = strlen(a), m = strlen(b);

	if (n > MAX_NAME || m > MAX_NAME || (n > m ? n - m : m - n) > (size_t)limit)
		return limit + 1;
	for (size_t j = 0; j <= m; j++)
		rows[0][j] = (int)j;
	for (size_t i = 1; i <= n; i++) {
		int *now = rows[i % 3], *last = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
		now[0] = (int)i;
		for (size_t j = 1; j <= m; j++) {
			int d = last[j - 1] + (a[i - 1] != b[j - 1]);
			d = least(d, least(last[j], now[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d = least(d, before[j - 2] + 1);
			now[j] = d;
		}
	}
	return least(rows[n % 3][m], limit + 1);
}

struct dtp_suggest dtp_suggest_begin(const char *name)
{
	int limit = least((int)strnlen(name, MAX_NAME) / 3, 4);
	return (struct dtp_suggest){name, "", limit + 1};
}

void dtp_suggest_try(struct dtp_suggest *s, const char *candidate)
{
	int d = dtp_edit_distance(s->name, candidate, s->distance - 1);
	if (d < s->distance) {
		s->distance = d;
		snprintf(s->best, sizeof s->best, "%s", candidate);
	}
}

const char *dtp_suggest_text(const struct dtp_suggest *s, char *buf, size_t len)
{
	if (s->best[0])
		snprintf(buf, len, ": did you mean '%s'?", s->best);
	else
		buf[0] = '\0';
	return buf;
}
