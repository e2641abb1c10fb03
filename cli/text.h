/* SPDX-License-Identifier: Apache-2.0 */
/* What several commands print. */
#ifndef DTP_TEXT_H
#define DTP_TEXT_H

#include "json.h"

#include <stdio.h>

/* A name from a file, on one line: control characters, which terminals obey, and bytes of no UTF-8 become '?'.  Returns buf. */
const char *dtp_clean(char *buf, size_t size, const char *name);
/* A text that may hold such names, with newlines and tabs as they are: a checkpoint must not steer the terminal. */
void dtp_write_text(FILE *f, const char *s);
/* Numbers as a JSON array. */
cJSON *dtp_json_numbers(int n, const int64_t *v);
/* Before an error is told, so that it does not stand in the middle of the output. */
enum dtp_code dtp_flush(FILE *f, struct dtp_err *err);
/* The text of a value, with a newline; the value is freed. */
enum dtp_code dtp_write_json(FILE *f, cJSON *value, struct dtp_err *err);
#endif
