/* SPDX-License-Identifier: Apache-2.0 */
/* Split patterns of tokenizers: Oniguruma's expressions, run by PCRE2; and PEFT's keys of modules, which are Python's.
 *
 * The first two engines read most of an expression alike.  What they read differently is translated where PCRE2 has a spelling
 * for it (\s without U+180E, general categories as Unicode 16 has them) and refused by name elsewhere, so that a
 * pattern that compiles splits text exactly as Hugging Face's tokenizers do. */
#ifndef DTP_REGEX_H
#define DTP_REGEX_H

#include "err.h"

#include <stddef.h>

struct dtp_regex;
/* pattern is NUL-terminated UTF-8; literal: a text to be found as it stands.  DTP_REFUSED says what and at which offset. */
enum dtp_code dtp_regex_new(const char *pattern, bool literal, struct dtp_regex **re, struct dtp_err *err);
void dtp_regex_free(struct dtp_regex *re);

/* A key that fits the names of modules that end with it behind a dot, or are it: re.match(rf"(.*\.)?({key})$", name).  PCRE2 reads
 * Python's expressions as Python does, but for rare escapes. */
enum dtp_code dtp_regex_new_key(const char *key, struct dtp_regex **re, struct dtp_err *err);
/* DTP_REFUSED: it takes too many steps. */
enum dtp_code dtp_regex_key_fits(const struct dtp_regex *re, const char *name, bool *fits, struct dtp_err *err);

/* All matches in a text, from left to right.  A regex may be shared by threads, a matcher not; it outlives no regex. */
struct dtp_matcher;
enum dtp_code dtp_matcher_new(const struct dtp_regex *re, struct dtp_matcher **m, struct dtp_err *err);
void dtp_matcher_free(struct dtp_matcher *m);
/* text is valid UTF-8 and stays in place until the last match is taken. */
void dtp_matcher_start(struct dtp_matcher *m, const char *text, size_t len);
/* The next match is text[*begin, *end), maybe empty, though never right behind the one before; *found is false when there
 * is none.  A pattern that takes too many steps is DTP_REFUSED. */
enum dtp_code dtp_matcher_next(struct dtp_matcher *m, bool *found, size_t *begin, size_t *end, struct dtp_err *err);
#endif
