/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), to compare shards with the hashes that the reference stored. */
#ifndef TEST_SHA256_H
#define TEST_SHA256_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractional part of the `root`-th root of a prime.  In integers: long double has 64 bits only on
 * some machines. */
static inline uint32_t sha256_fraction(uint32_t prime, int root)
{
	/* floor(prime^(1/root) * 2^32), by bisection; its low half is the fraction. */
	uint64_t lo = 0, hi = (uint64_t)40 << 32;
	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;
		/* mid <= 40 * 2^32; compare mid^root with prime * 2^(32 root) after dropping 2^32 per product, with 128 bits. */
		unsigned __int128 square = (unsigned __int128)mid * mid; /* < 2^75 */
		int less;
		if (root == 2) {
			less = square <= ((unsigned __int128)prime << 64);
		} else {
			/* square * mid <= prime * 2^96, where mid < 2^38: divide instead. */
			unsigned __int128 limit = ((unsigned __int128)prime << 96) / mid;
			less = square <= limit;
		}
		if (less)
			lo = mid;
		else
			hi = mid;
	}
	return (uint32_t)lo;
}

struct sha256 {
	uint32_t h[8], k[64];
};

static inline uint32_t sha256_rotr(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static inline void sha256_init(struct sha256 *s)
{
	uint32_t n = 0;

	for (uint32_t p = 2; n < 64; p++) {
		uint32_t d = 2;
		while (d * d <= p && p % d)
			d++;
		if (d * d <= p)
			continue;
		if (n < 8)
			s->h[n] = sha256_fraction(p, 2);
		s->k[n++] = sha256_fraction(p, 3);
	}
}

static inline void sha256_block(struct sha256 *s, const uint8_t *p)
{
	uint32_t w[64], v[8];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++)
		w[i] = w[i - 16] + (sha256_rotr(w[i - 15], 7) ^ sha256_rotr(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
		       (sha256_rotr(w[i - 2], 17) ^ sha256_rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
	memcpy(v, s->h, sizeof v);
	for (int i = 0; i < 64; i++) {
		uint32_t t1 = v[7] + (sha256_rotr(v[4], 6) ^ sha256_rotr(v[4], 11) ^ sha256_rotr(v[4], 25)) +
			      ((v[4] & v[5]) ^ (~v[4] & v[6])) + s->k[i] + w[i];
		uint32_t t2 = (sha256_rotr(v[0], 2) ^ sha256_rotr(v[0], 13) ^ sha256_rotr(v[0], 22)) +
			      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
		memmove(v + 1, v, 7 * sizeof *v);
		v[4] += t1;
		v[0] = t1 + t2;
	}
	for (int i = 0; i < 8; i++)
		s->h[i] += v[i];
}

static inline void sha256_hex(const void *data, size_t len, char hex[65])
{
	struct sha256 s;
	const uint8_t *p = data;
	uint8_t tail[128] = {0};
	size_t whole = len / 64 * 64, rest = len - whole, padded = rest < 56 ? 64 : 128;

	sha256_init(&s);
	for (size_t i = 0; i < whole; i += 64)
		sha256_block(&s, p + i);
	if (rest)
		memcpy(tail, p + whole, rest);
	tail[rest] = 0x80;
	for (int i = 0; i < 8; i++)
		tail[padded - 1 - (size_t)i] = (uint8_t)((uint64_t)len * 8 >> 8 * i);
	for (size_t i = 0; i < padded; i += 64)
		sha256_block(&s, tail + i);
	for (int i = 0; i < 8; i++)
		snprintf(hex + 8 * i, 9, "%08x", s.h[i]);
}
#endif
