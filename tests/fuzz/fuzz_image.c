/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: they are refused, or give a picture of the size that they announce.  The formats' own decoders are libraries; what is
 * fuzzed with them is how they are called, and the search for the orientation. */
#include "picture.h"

#include <stdint.h>
#include <stdlib.h>

#define MANY_PIXELS (1 << 20) /* what is larger takes a fuzzer's time for nothing */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_picture p;
	struct dtp_err err = DTP_ERR_INIT;
	unsigned sum = 0;

	if (dtp_picture_decode("fuzz", data, size, &p, &err)) {
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
