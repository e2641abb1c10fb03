/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and texts for people. */
#ifndef DTP_UNITS_H
#define DTP_UNITS_H

#include <stdint.h>
#include <stdio.h>

struct dtp_text {
	char s[32];
};
struct dtp_text dtp_bytes_text(uint64_t n);       /* "512 bytes", "41 kB", "7.8 MB", "16.2 GB"; powers of 1000 */
/* Two sizes that are compared: exact where rounding would make them the same. */
struct dtp_text_pair {
	struct dtp_text a, b;
};
struct dtp_text_pair dtp_bytes_apart(uint64_t a, uint64_t b);
struct dtp_text dtp_seconds_text(double s);       /* "0.14 s", "9.3 s", "75 s", "12:05", "1:02:03" */
#endif
