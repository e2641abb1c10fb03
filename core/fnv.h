/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTP_FNV_H
#define DTP_FNV_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a: short, and good for names. */
static inline uint64_t dtp_fnv1a(const void *bytes, size_t len)
{
	const unsigned char *p = bytes;
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * UINT64_C(0x100000001b3);
	return h;
}
#endif
