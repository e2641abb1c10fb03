/* SPDX-License-Identifier: Apache-2.0 */
/* torch's CPU generator: mt19937 and its normal distribution.  Source of the formulas: docs/architecture.md, "Noise". */
#ifndef DTP_RNG_H
#define DTP_RNG_H

#include "tensor.h"

struct dtp_rng {
	uint32_t state[624];
	int left;          /* outputs left before the next twist */
	bool have_next;    /* a spare value of the scalar path (numel < 16) */
	double next;
};

void dtp_rng_seed(struct dtp_rng *g, uint64_t seed); /* torch uses the low 32 bits */
uint32_t dtp_rng_next(struct dtp_rng *g);
/* torch.randn(n, dtype=t, generator=g): the values as float, rounded to t (F32, BF16 or F16).  Consumes exactly as many
 * engine outputs as torch does for that dtype and size, so that consecutive draws agree as well.  The values are those of
 * torch's x86 builds to the bit. */
void dtp_randn(struct dtp_rng *g, enum dtp_dtype t, int64_t n, float *out);
#endif
