/* SPDX-License-Identifier: Apache-2.0 */
#include "added.h"

#include "utf8.h"

#include <stdlib.h>
#include <string.h>

enum dtp_code dtp_added_push(struct dtp_added *a, struct dtp_added_token t, struct dtp_err *err)
{
	if (a->n == a->cap) {
		size_t cap = a->cap ? 2 * a->cap : 32;
		struct dtp_added_token *p = realloc(a->token, cap * sizeof *p);
		if (!p) {
			free(t.content);
			return dtp_fail(err, DTP_FAILED, "out of memory: %zu added tokens", cap);
		}
		a->token = p;
		a->cap = cap;
	}
	t.order = a->n;
	a->token[a->n++] = t;
	return DTP_OK;
}

static int compare(const void *pa, const void *pb)
{
	const struct dtp_added_token *a = pa, *b = pb;
	int c = memcmp(a->content, b->content, a->len < b->len ? a->len : b->len);
	if (c)
		return c;
	if (a->len != b->len)
		return a->len < b->len ? -1 : 1;
	return a->order < b->order ? -1 : 1;
}

void dtp_added_sort(struct dtp_added *a)
{
	if (a->n)
		qsort(a->token, a->n, sizeof *a->token, compare);
}

void dtp_added_free(struct dtp_added *a)
{
	for (size_t i = 0; i < a->n; i++)
		free(a->token[i].content);
	free(a->token);
	*a = (struct dtp_added){0};
}

/* The first token of [lo, hi) whose byte at depth is at least c; all of them are longer than depth. */
static size_t lower_bound(const struct dtp_added *a, size_t lo, size_t hi, size_t depth, unsigned c)
{
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if ((unsigned char)a->token[mid].content[depth] < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The longest token that text begins with, or NULL.  Byte by byte this narrows the sorted list to the tokens that agree. */
static const struct dtp_added_token *longest(const struct dtp_added *a, const char *text, size_t len)
{
	const struct dtp_added_token *best = NULL;
	size_t lo = 0, hi = a->n;
	for (size_t depth = 0; depth < len; depth++) {
		unsigned c = (unsigned char)text[depth];
		lo = lower_bound(a, lo, hi, depth, c);
		hi = lower_bound(a, lo, hi, depth, c + 1);
		/* The tokens that end here come first. */
		for (bool first = true; lo < hi && a->token[lo].len == depth + 1; lo++, first = false)
			if (first)
				best = &a->token[lo];
		if (lo == hi)
			break;
	}
	return best;
}

/* White space to the right and to the left of a place in a text. */
static size_t skip_space(const char *text, size_t len, size_t at)
{
	for (size_t n; at < len && dtp_is_space(dtp_utf8_next(text, at, &n));)
		at += n;
	return at;
}

static size_t skip_space_back(const char *text, size_t at, size_t floor)
{
	for (size_t n; at > floor && dtp_is_space(dtp_utf8_prev(text, at, &n));)
		at -= n;
	return at;
}

static bool touches_word(const char *text, size_t len, size_t begin, size_t end)
{
	size_t n;
	return (begin && dtp_is_word(dtp_utf8_prev(text, begin, &n))) ||
	       (end < len && dtp_is_word(dtp_utf8_next(text, end, &n)));
}

bool dtp_added_next(const struct dtp_added *a, struct dtp_added_walk *w, int32_t *id, size_t *begin, size_t *end)
{
	if (!a->n)
		return false;
	while (w->at < w->len) {
		const struct dtp_added_token *t = longest(a, w->text + w->at, w->len - w->at);
		if (!t) {
			w->at++;
			continue;
		}
		*id = t->id;
		*begin = w->at;
		*end = w->at += t->len;
		if (t->single_word && touches_word(w->text, w->len, *begin, *end))
			continue;
		if (t->lstrip)
			*begin = *begin > w->covered ? skip_space_back(w->text, *begin, w->covered) : w->covered;
		if (t->rstrip) /* matches of blanks may all lie in the same white space */
			*end = w->blanks = *end <= w->blanks ? w->blanks : skip_space(w->text, w->len, *end);
		if (*begin >= *end) /* nothing but white space that the match before took */
			continue;
		w->covered = *end;
		return true;
	}
	return false;
}
