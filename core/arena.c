/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <string.h>

#define ALIGN 64u

enum dtp_code dtp_arena_init(struct dtp_arena *a, struct dtp_backend *be, uint64_t size, struct dtp_err *err)
{
	void *p;

	memset(a, 0, sizeof *a);
	enum dtp_code rc = be->ops->alloc(be, size, &p, err);
	if (rc)
		return rc;
	a->be = be;
	a->base = p;
	a->size = size;
	return DTP_OK;
}

enum dtp_code dtp_arena_init_for_sums(struct dtp_arena *a, struct dtp_backend *be, struct dtp_comm *sums, uint64_t size, struct dtp_err *err)
{
	void *p = NULL;

	if (sums && sums->ops->buffer_new && sums->ops->buffer_new(sums, size, &p, err))
		return err->code;
	if (!p)
		return dtp_arena_init(a, be, size, err);
	*a = (struct dtp_arena){.be = be, .sums = sums, .base = p, .size = size};
	return DTP_OK;
}

void dtp_arena_measure(struct dtp_arena *a)
{
	memset(a, 0, sizeof *a);
	/* Not NULL, which means "none" in places; nothing is ever read there. */
	a->base = (char *)(uintptr_t)ALIGN;
	a->size = (uint64_t)INT64_MAX / 2;
	a->measuring = true;
}

void dtp_arena_free(struct dtp_arena *a)
{
	if (a->sums)
		a->sums->ops->buffer_free(a->sums, a->base);
	else if (a->be && a->base && !a->measuring)
		a->be->ops->free(a->be, a->base, a->size);
	memset(a, 0, sizeof *a);
}

void *dtp_arena_alloc(struct dtp_arena *a, uint64_t nbytes)
{
	/* A tensor of no elements has an address of its own too. */
	uint64_t n = nbytes ? nbytes : 1;

	if (n > a->size - a->used)
		return NULL;
	n = (n + ALIGN - 1) / ALIGN * ALIGN;
	char *p = a->base + a->used;
	/* The last one need not be followed by a gap. */
	a->used = n > a->size - a->used ? a->size : a->used + n;
	if (a->used > a->peak)
		a->peak = a->used;
	return p;
}

uint64_t dtp_arena_mark(const struct dtp_arena *a)
{
	return a->used;
}

void dtp_arena_release(struct dtp_arena *a, uint64_t mark)
{
	a->used = mark;
}
