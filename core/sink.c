/* SPDX-License-Identifier: Apache-2.0 */
#include "sink.h"

#include "folder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum dtp_code dtp_sink_open(struct dtp_sink *s, const char *path, struct dtp_err *err)
{
	*s = (struct dtp_sink){.path = strdup(path)};
	if (!s->path)
		return dtp_fail(err, DTP_FAILED, "cannot write '%s': out of memory", path);
	dtp_hash_begin(&s->hash);
	s->f = fopen(path, "wbxe");
	s->failed = s->f ? 0 : errno;
	return dtp_sink_check(s, err);
}

void dtp_sink_put(struct dtp_sink *s, const void *data, uint64_t len)
{
	if (!len || s->failed)
		return;
	dtp_hash_add(&s->hash, data, len);
	s->size += len;
	if (fwrite(data, len, 1, s->f) != 1)
		s->failed = errno;
}

enum dtp_code dtp_sink_check(const struct dtp_sink *s, struct dtp_err *err)
{
	return s->failed ? dtp_fail(err, DTP_FAILED, "cannot write '%s': %s", s->path, strerror(s->failed)) : DTP_OK;
}

enum dtp_code dtp_sink_close(struct dtp_sink *s, char sha256[DTP_DIGEST_TEXT], struct dtp_err *err)
{
	struct dtp_digest digest;
	int failed = dtp_close_synced(s->f);

	s->f = NULL;
	s->failed = s->failed ? s->failed : failed;
	dtp_hash_end(&s->hash, &digest);
	dtp_digest_text(&digest, sha256);
	return dtp_sink_check(s, err);
}

void dtp_sink_free(struct dtp_sink *s)
{
	if (s->f)
		fclose(s->f);
	free(s->path);
	*s = (struct dtp_sink){0};
}
