/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void remove_at(struct dtp_pool *pool, int i)
{
	memmove(pool->ranges + i, pool->ranges + i + 1, (size_t)(pool->n - i - 1) * sizeof *pool->ranges);
	pool->n--;
}

void *dtp_pool_take(struct dtp_pool *pool, uint64_t nbytes)
{
	for (int i = 0; i < pool->n; i++) {
		struct dtp_pool_range *r = &pool->ranges[i];
		if (r->nbytes < nbytes)
			continue;
		void *p = r->p;
		r->p += nbytes;
		r->nbytes -= nbytes;
		pool->total -= nbytes;
		if (r->nbytes == 0)
			remove_at(pool, i);
		return p;
	}
	return NULL;
}

static int grow(struct dtp_pool *pool)
{
	if (pool->n < pool->capacity)
		return 1;
	int capacity = pool->capacity ? 2 * pool->capacity : 64;
	struct dtp_pool_range *r = realloc(pool->ranges, (size_t)capacity * sizeof *r);
	if (!r)
		return 0;
	pool->ranges = r;
	pool->capacity = capacity;
	return 1;
}

void dtp_pool_give(struct dtp_pool *pool, void *p, uint64_t nbytes)
{
	char *begin = p, *end = begin + nbytes;
	int i = 0;

	while (i < pool->n && pool->ranges[i].p < begin)
		i++;
	struct dtp_pool_range *before = i > 0 ? &pool->ranges[i - 1] : NULL, *after = i < pool->n ? &pool->ranges[i] : NULL;
	pool->total += nbytes;
	if (before && before->p + before->nbytes == begin) {
		before->nbytes += nbytes;
		if (after && after->p == end) {
			before->nbytes += after->nbytes;
			remove_at(pool, i);
		}
	} else if (after && after->p == end) {
		after->p = begin;
		after->nbytes += nbytes;
	} else if (grow(pool)) {
		memmove(pool->ranges + i + 1, pool->ranges + i, (size_t)(pool->n - i) * sizeof *pool->ranges);
		pool->ranges[i] = (struct dtp_pool_range){begin, nbytes};
		pool->n++;
	} else {
		pool->total -= nbytes;
		munmap(p, nbytes);
	}
}

void dtp_pool_trim(struct dtp_pool *pool, uint64_t keep)
{
	while (pool->total > keep && pool->n) {
		struct dtp_pool_range *last = &pool->ranges[pool->n - 1];
		uint64_t excess = pool->total - keep, page = 4096;
		uint64_t cut = (excess + page - 1) / page * page;
		cut = cut < last->nbytes ? cut : last->nbytes;
		last->nbytes -= cut;
		pool->total -= cut;
		munmap(last->p + last->nbytes, cut);
		if (last->nbytes == 0)
			pool->n--;
	}
}

void dtp_pool_free(struct dtp_pool *pool)
{
	dtp_pool_trim(pool, 0);
	free(pool->ranges);
	memset(pool, 0, sizeof *pool);
}
