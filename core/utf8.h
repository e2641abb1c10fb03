/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 text: validity, code points, canonical composition. */
#ifndef DTP_UTF8_H
#define DTP_UTF8_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that is no part of a valid sequence (surrogates, overlong forms and values above U+10FFFF
 * are not valid), or len when all are.  NUL is a character like others. */
size_t dtp_utf8_valid(const char *text, size_t len);

/* The most bytes of text, at most max, that end between two characters. */
size_t dtp_utf8_fit(const char *text, size_t max);

/* The code point that begins at text[at] or that ends before text[at]; *n is its length in bytes.  The text is valid,
 * and there is a character on that side. */
uint32_t dtp_utf8_next(const char *text, size_t at, size_t *n);
uint32_t dtp_utf8_prev(const char *text, size_t at, size_t *n);
/* Writes up to 4 bytes, returns their number; cp is a valid code point. */
size_t dtp_utf8_put(char *out, uint32_t cp);

/* A copy in which every maximal malformed sequence is one U+FFFD, malloc'd and NUL-terminated; NULL: out of memory. */
char *dtp_utf8_repair(const char *text, size_t len);

/* Normalization form C of valid text.  *out is malloc'd and not terminated; NULL when text is in that form already by
 * the looks of its lead bytes.  Takes O(n) time whatever the text: a run of marks is sorted by counting. */
enum dtp_code dtp_utf8_nfc(const char *text, size_t len, char **out, size_t *out_len, struct dtp_err *err);

bool dtp_is_space(uint32_t cp); /* White_Space */
bool dtp_is_word(uint32_t cp);  /* Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control: UTS #18's \w */
#endif
