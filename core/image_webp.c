/* SPDX-License-Identifier: Apache-2.0 */
/* Reading WebP through libwebp. */
#include "image_internal.h"

#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

static void take_metadata(struct dtp_image_file *f, const WebPDemuxer *d)
{
	WebPChunkIterator chunk;

	if (WebPDemuxGetChunk(d, "EXIF", 1, &chunk))
		dtp_image_exif(f, chunk.chunk.bytes, chunk.chunk.size);
	WebPDemuxReleaseChunkIterator(&chunk);
	if (WebPDemuxGetChunk(d, "XMP ", 1, &chunk))
		dtp_image_xmp(f, chunk.chunk.bytes, chunk.chunk.size);
	WebPDemuxReleaseChunkIterator(&chunk);
}

enum dtp_code dtp_webp_decode(struct dtp_image_file *f, struct dtp_err *err)
{
	WebPData data = {f->bytes, f->n};
	WebPBitstreamFeatures what;

	if (WebPGetFeatures(f->bytes, f->n, &what) != VP8_STATUS_OK)
		return dtp_fail(err, DTP_REFUSED, "'%s' is a damaged or truncated WebP file", f->name);
	if (what.has_animation)
		return dtp_fail(err, DTP_REFUSED, "'%s' is animated; one picture is needed", f->name);
	if (dtp_image_begin(f, what.height, what.width, err))
		return err ? err->code : DTP_FAILED;
	size_t row = (size_t)f->picture.width * 3;
	WebPDemuxer *d = WebPDemux(&data);
	if (!d || !WebPDecodeRGBInto(f->bytes, f->n, f->picture.rgb, row * (size_t)f->picture.height, (int)row)) {
		WebPDemuxDelete(d);
		return dtp_fail(err, DTP_REFUSED, "'%s' is a damaged or truncated WebP file", f->name);
	}
	take_metadata(f, d);
	WebPDemuxDelete(d);
	return DTP_OK;
}
