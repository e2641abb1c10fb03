/* SPDX-License-Identifier: Apache-2.0 */
/* Names of output files.  A name with braces is a pattern: {seed}, {index} and {prompt} stand for what an image has; "{{" and "}}"
 * for a brace. */
#ifndef DTP_NAMING_H
#define DTP_NAMING_H

#include "err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTP_NAME_INDEX "%04lld" /* of {index}, and of a batch's images that have no name */

bool dtp_name_is_pattern(const char *output);
/* Whether the pattern has this field, "seed" or so. */
bool dtp_name_has(const char *output, const char *field);
/* DTP_REFUSED: an unknown field (with what was probably meant), a brace without its partner. */
enum dtp_code dtp_name_check(const char *output, struct dtp_err *err);

struct dtp_name_values {
	const char *prompt;  /* becomes words with '-' between them, in lower case, at most 60 bytes; "image" where nothing is left */
	uint64_t seed;
	int64_t index;
};
/* The name of image i of count that the same name, or checked pattern, was given for: where there are several and nothing in it
 * tells them apart, "_I" stands before the suffix ("a/b.png" -> "a/b_0.png").  malloc'd; NULL: out of memory. */
char *dtp_name_make(const char *output, const struct dtp_name_values *v, int i, int count);
/* The name with a number before its suffix, after `mark`: "a.png", '-', 2 -> "a-2.png". */
char *dtp_name_number(const char *name, char mark, int number);
/* How many bytes at its beginning name the folder that is there for every image, without the last '/'; 0: this one. */
size_t dtp_name_folder(const char *pattern);

/* Makes the folders that path names, from the byte `from` on, that are missing. */
enum dtp_code dtp_make_folders(const char *path, size_t from, enum dtp_code code, struct dtp_err *err);
/* A file with this name is there and would be replaced: one of its own, no device or pipe. */
bool dtp_name_is_taken(const char *path);
#endif
