/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and lists of sizes on the command line: --max-memory, --devices. */
#ifndef DTP_SIZES_H
#define DTP_SIZES_H

#include "err.h"

#include <stdint.h>

#define DTP_MAX_RANKS 1024 /* of a run, and so of each degree */

/* What each rank may take; n == 0: no limit was given. */
struct dtp_limits {
	const char *option;           /* "--max-memory": for messages */
	int n;
	uint64_t bytes[DTP_MAX_RANKS];
};

/* "16GB", "1.5GiB", "512 MB": a number and a unit, from 1 byte to 2^60.  Powers of 1000, or of 1024 with an 'i'. */
enum dtp_code dtp_size_parse(const char *option, const char *text, uint64_t *bytes, struct dtp_err *err);
/* "SIZE[,SIZE]..."; NULL gives no limits. */
enum dtp_code dtp_max_memory_parse(const char *text, struct dtp_limits *out, struct dtp_err *err);
/* "[Nx]SIZE[,[Nx]SIZE]..."; NULL gives no limits. */
enum dtp_code dtp_devices_parse(const char *text, struct dtp_limits *out, struct dtp_err *err);
/* One size stands for every rank; several must be as many as the ranks. */
enum dtp_code dtp_max_memory_check(const struct dtp_limits *l, int degree, struct dtp_err *err);

/* Of a rank; past the end of the list the last one's; UINT64_MAX where none was given. */
uint64_t dtp_limit(const struct dtp_limits *l, int rank);
#endif
