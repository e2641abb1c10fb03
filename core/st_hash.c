/* SPDX-License-Identifier: Apache-2.0 */
#include "st_hash.h"

#include "st_header.h"

#include <fcntl.h>
#include <stdlib.h>

static enum dtp_code add_header(struct dtp_hash *h, const struct dtp_st_file *f, struct dtp_err *err)
{
	char *text;
	size_t len;
	enum dtp_code rc = dtp_st_header_read(f, &text, &len, err);

	if (rc)
		return rc;
	dtp_hash_add(h, &f->size, sizeof f->size);
	dtp_hash_add(h, text, len);
	free(text);
	return DTP_OK;
}

/* Where the sample of entry i lies: spread, so that not the same part of every tensor is compared. */
static uint64_t sample(const struct dtp_st_entry *e, int i, uint64_t *len)
{
	uint64_t spread = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15) >> 48; /* 16 bits */

	*len = e->nbytes < DTP_ST_SAMPLE_BYTES ? e->nbytes : DTP_ST_SAMPLE_BYTES;
	return (e->nbytes - *len) / 65536 * spread;
}

enum dtp_code dtp_st_hash(const struct dtp_st *st, struct dtp_hash *h, struct dtp_err *err)
{
	char block[DTP_ST_SAMPLE_BYTES];
	uint64_t at, len;
	enum dtp_code rc = DTP_OK;

	/* All are asked for at once, so that a disk can serve them side by side. */
	for (int i = 0; i < st->nentries; i++) {
		at = sample(&st->entries[i], i, &len);
		posix_fadvise(st->files[st->entries[i].file].fd, (off_t)(st->entries[i].offset + at), (off_t)len,
			      POSIX_FADV_WILLNEED);
	}
	for (int i = 0; !rc && i < st->nfiles; i++)
		rc = add_header(h, &st->files[i], err);
	for (int i = 0; !rc && i < st->nentries; i++) {
		at = sample(&st->entries[i], i, &len);
		rc = dtp_st_read(st, &st->entries[i], at, len, block, err);
		if (!rc)
			dtp_hash_add(h, block, len);
	}
	return rc;
}
