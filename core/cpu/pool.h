/* SPDX-License-Identifier: Apache-2.0 */
/* Large memory that was freed and not yet given back to the system.  Getting zeroed pages costs more than reading a
 * checkpoint into them: when one component goes and the next one loads, it gets the pages of the first. */
#ifndef DTP_CPU_POOL_H
#define DTP_CPU_POOL_H

#include <stdint.h>

struct dtp_pool_range {
	char *p;
	uint64_t nbytes;
};

/* All zero: empty.  Ranges are whole pages, in the order of their addresses, no two of them adjacent. */
struct dtp_pool {
	struct dtp_pool_range *ranges;
	int n, capacity;
	uint64_t total;
};

/* nbytes (whole pages) of one range, their contents undefined; NULL where no range has them. */
void *dtp_pool_take(struct dtp_pool *pool, uint64_t nbytes);
/* Takes over a mapping, or a part of one. */
void dtp_pool_give(struct dtp_pool *pool, void *p, uint64_t nbytes);
/* Gives memory back to the system until at most `keep` bytes are left. */
void dtp_pool_trim(struct dtp_pool *pool, uint64_t keep);
void dtp_pool_free(struct dtp_pool *pool);
#endif
