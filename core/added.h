/* SPDX-License-Identifier: Apache-2.0 */
/* Added tokens: strings that are cut out of a text before it is split into words. */
#ifndef DTP_ADDED_H
#define DTP_ADDED_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

struct dtp_added_token {
	char *content; /* what the text is searched for, malloc'd, not empty */
	size_t len;
	int32_t id;
	bool single_word;    /* no word character may stand next to it */
	bool lstrip, rstrip; /* takes the white space on that side too */
	size_t order;        /* set by dtp_added_push */
};

/* Tokens that are searched together. */
struct dtp_added {
	struct dtp_added_token *token; /* sorted by content */
	size_t n, cap;
};
/* Takes over t.content, on failure too. */
enum dtp_code dtp_added_push(struct dtp_added *a, struct dtp_added_token t, struct dtp_err *err);
/* After the last push.  Of two equal contents the first one counts. */
void dtp_added_sort(struct dtp_added *a);
void dtp_added_free(struct dtp_added *a);

/* A walk through a text; zero but for text and len at first.  Matches are found leftmost, of several at one place the
 * longest. */
struct dtp_added_walk {
	const char *text;
	size_t len;
	size_t at;      /* where the search goes on */
	size_t covered; /* end of what the last match took, white space included */
	size_t blanks;  /* end of the white space that was looked through last, which begins before `at` */
};
/* The next token that takes text[*begin, *end); what lies between the last end and *begin, if that is larger, is plain text.
 * With rstrip a match may begin inside of the white space that the one before took. */
bool dtp_added_next(const struct dtp_added *a, struct dtp_added_walk *w, int32_t *id, size_t *begin, size_t *end);
#endif
