/* SPDX-License-Identifier: Apache-2.0 */
/* Whole input files in memory. */
#ifndef DTP_INFILE_H
#define DTP_INFILE_H

#include "err.h"

#include <stdbool.h>
#include <stddef.h>

/* Reads to the end, so that pipes work too.  *bytes is malloc'd and ends in a '\0' that *len does not count.  what: "a JSON file",
 * for messages.  DTP_REFUSED when the file cannot be opened, is a folder, or has more than max bytes. */
enum dtp_code dtp_infile_read(const char *path, const char *what, size_t max, char **bytes, size_t *len, struct dtp_err *err);

/* Whether there is this name at all: a link counts, wherever it leads. */
bool dtp_path_exists(const char *path);
/* A pipe or a device: its bytes come once, so that it is nothing for what several processes read, or one reads again. */
bool dtp_path_reads_once(const char *path);
/* DTP_REFUSED with "cannot open 'path': ", then what errno says, or where a link leads that leads nowhere. */
enum dtp_code dtp_cannot_open(const char *path, struct dtp_err *err);
#endif
