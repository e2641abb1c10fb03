/* SPDX-License-Identifier: Apache-2.0 */
/* Values for a parameter that no file holds: each follows from the parameter's seed and from its place in the whole parameter, so that
 * every device and every slice of it has the same.  Kernels include this too. */
#ifndef DTP_FILL_H
#define DTP_FILL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DTP_EVERYWHERE static __host__ __device__ __forceinline__
#else
#define DTP_EVERYWHERE static inline
#endif

#define DTP_FILL_RUNS 8

struct dtp_fill {
	uint64_t seed;
	/* Values are mean + scale * u, u a whole number of [-2^23, 2^23), evenly.  One of the two is 0: then a multiplication that is
	 * rounded together with the addition gives the bits that two roundings give. */
	float mean, scale;
	/* The weight's rows, or the columns of each of its rows, are these of the whole parameter, one after the other.  A column is an
	 * element of a row [K] or [C, kh, kw]. */
	bool columns;
	int nruns;
	struct {
		int64_t begin, end;
	} run[DTP_FILL_RUNS];
};

/* What the values of a row have in common. */
DTP_EVERYWHERE uint32_t dtp_fill_key(uint64_t seed, int64_t row)
{
	uint64_t x = seed + (uint64_t)row * UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)(x >> 32);
}

/* Of column c of the row, 32 bits that look random: multiplications and shifts, which vectors do well. */
DTP_EVERYWHERE uint32_t dtp_fill_bits(uint32_t key, uint32_t c)
{
	uint32_t x = key ^ c;

	x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
	x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
	return x ^ x >> 16;
}

DTP_EVERYWHERE float dtp_fill_value(uint32_t key, uint32_t c, float mean, float scale)
{
	return mean + scale * (float)((int32_t)dtp_fill_bits(key, c) >> 8);
}
#endif
