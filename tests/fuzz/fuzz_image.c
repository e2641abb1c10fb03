/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: they are refused, or give a picture of the size that they announce.  The formats' own decoders are libraries; what is
 * fuzzed with them is how they are called, the search for the orientation, and that for a text of a PNG. */
#include "image.h"
#include "picture.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MANY_PIXELS (1 << 20) /* what is larger takes a fuzzer's time for nothing */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void find_text(const uint8_t *data, size_t size, const char *key)
{
	struct dtp_err err = DTP_ERR_INIT;
	char *text;

	if (dtp_png_find_text("fuzz", data, size, key, &text, &err) ? text || !err.message[0] : text && strlen(text) > DTP_PNG_MAX_TEXT)
		abort();
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_picture p;
	struct dtp_err err = DTP_ERR_INIT;
	unsigned sum = 0;

	find_text(data, size, "difftp");
	find_text(data, size, "XML:com.adobe.xmp");
	if (dtp_picture_decode("fuzz", data, size, NULL, &p, &err)) {
		if (p.rgb || !err.message[0])
			abort();
		return 0;
	}
	if (p.height < 1 || p.width < 1 || p.height > DTP_PICTURE_MAX_PIXELS / p.width)
		abort();
	for (int64_t i = 0; i < 3 * p.height * p.width && i < MANY_PIXELS; i++)
		sum += p.rgb[i];
	volatile unsigned keep = sum; /* every pixel has been written */
	(void)keep;
	dtp_picture_free(&p);
	return 0;
}
