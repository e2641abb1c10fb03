/* SPDX-License-Identifier: Apache-2.0 */
/* A new file that grows from its beginning to its end, and is hashed meanwhile. */
#ifndef DTP_SINK_H
#define DTP_SINK_H

#include "hash.h"

#include <stdio.h>

struct dtp_sink {
	FILE *f;
	char *path;
	struct dtp_hash hash;
	uint64_t size;
	int failed; /* errno of the first failure, after which nothing is written */
};

/* The file must not exist.  dtp_sink_free is to be called in any case. */
enum dtp_code dtp_sink_open(struct dtp_sink *s, const char *path, struct dtp_err *err);
void dtp_sink_put(struct dtp_sink *s, const void *data, uint64_t len);
/* DTP_FAILED names the file and what failed. */
enum dtp_code dtp_sink_check(const struct dtp_sink *s, struct dtp_err *err);
/* Synced; sha256: of all that was put. */
enum dtp_code dtp_sink_close(struct dtp_sink *s, char sha256[DTP_DIGEST_TEXT], struct dtp_err *err);
void dtp_sink_free(struct dtp_sink *s);
#endif
