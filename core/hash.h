/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256: what tells one file from another. */
#ifndef DTP_HASH_H
#define DTP_HASH_H

#include "err.h"

#include <nettle/sha2.h>
#include <stddef.h>
#include <stdint.h>

struct dtp_hash {
	struct sha256_ctx sha;
};
struct dtp_digest {
	uint8_t byte[SHA256_DIGEST_SIZE];
};

void dtp_hash_begin(struct dtp_hash *h);
void dtp_hash_add(struct dtp_hash *h, const void *data, size_t len);
void dtp_hash_end(struct dtp_hash *h, struct dtp_digest *out);
/* Adds a file's bytes.  DTP_FAILED names it when it cannot be read. */
enum dtp_code dtp_hash_add_file(struct dtp_hash *h, const char *path, struct dtp_err *err);

#define DTP_DIGEST_TEXT (2 * SHA256_DIGEST_SIZE + 1)
/* In hexadecimal, as sha256sum prints it.  Returns buf. */
const char *dtp_digest_text(const struct dtp_digest *d, char buf[DTP_DIGEST_TEXT]);
#endif
