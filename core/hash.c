/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void dtp_hash_begin(struct dtp_hash *h)
{
	sha256_init(&h->sha);
}

void dtp_hash_add(struct dtp_hash *h, const void *data, size_t len)
{
	sha256_update(&h->sha, len, data);
}

void dtp_hash_end(struct dtp_hash *h, struct dtp_digest *out)
{
	sha256_digest(&h->sha, sizeof out->byte, out->byte);
}

enum dtp_code dtp_hash_add_file(struct dtp_hash *h, const char *path, struct dtp_err *err)
{
	char block[65536];
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return dtp_fail(err, DTP_FAILED, "cannot open '%s': %s", path, strerror(errno));
	while ((n = read(fd, block, sizeof block)) > 0 || (n < 0 && errno == EINTR))
		if (n > 0)
			dtp_hash_add(h, block, (size_t)n);
	enum dtp_code rc = n < 0 ? dtp_fail(err, DTP_FAILED, "cannot read '%s': %s", path, strerror(errno)) : DTP_OK;
	close(fd);
	return rc;
}

const char *dtp_digest_text(const struct dtp_digest *d, char buf[DTP_DIGEST_TEXT])
{
	for (size_t i = 0; i < sizeof d->byte; i++)
		snprintf(buf + 2 * i, 3, "%02x", d->byte[i]);
	return buf;
}
