/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

#include "guest.h"

#include <stdlib.h>
#include <string.h>

struct report {
	char machine[64];
	struct dtp_host_memory memory;
};

static bool same_machine(const struct report *a, const struct report *b)
{
	return !strncmp(a->machine, b->machine, sizeof a->machine);
}

static void add_host(struct dtp_hosts *h, const struct dtp_rank *rank, const struct report *all, int first, int *at)
{
	bool gpu = rank->seated.memory.n;
	struct dtp_bound *b = &h->bound[h->n];

	h->memory[h->n] = all[first].memory;
	*b = (struct dtp_bound){.replicas = (int)rank->args->dp_degree, .host = gpu ? NULL : &h->memory[h->n],
				.device = gpu ? &rank->seated.memory : NULL, .here = h->ranks + *at, .limit = &h->limits};
	for (int r = first; r < rank->size; r++)
		if (same_machine(&all[r], &all[first]))
			h->ranks[*at + b->nhere++] = r;
	*at += b->nhere;
	h->n++;
}

static bool seen(const struct report *all, int r)
{
	for (int i = 0; i < r; i++)
		if (same_machine(&all[i], &all[r]))
			return true;
	return false;
}

static enum dtp_code make(struct dtp_hosts *h, const struct dtp_rank *rank, const struct report *all, struct dtp_err *err)
{
	int at = 0, size = rank->size;

	h->bound = calloc((size_t)size, sizeof *h->bound);
	h->memory = calloc((size_t)size, sizeof *h->memory);
	h->ranks = calloc((size_t)size, sizeof *h->ranks);
	if (!h->bound || !h->memory || !h->ranks)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	for (int r = 0; r < size; r++)
		if (!seen(all, r))
			add_host(h, rank, all, r, &at);
	if (h->n == 1) { /* messages then speak of all ranks */
		h->bound[0].here = NULL;
		h->bound[0].nhere = 0;
	}
	return DTP_OK;
}

enum dtp_code dtp_hosts_gather(const struct dtp_rank *rank, struct dtp_hosts *hosts, struct dtp_err *err)
{
	struct report own = {.memory = dtp_host_memory("")}, *all;
	struct dtp_guest self;

	*hosts = (struct dtp_hosts){0};
	dtp_guest_self(&self);
	snprintf(own.machine, sizeof own.machine, "%s", self.machine);
	if (dtp_max_memory_parse(rank->args->max_memory, &hosts->limits, err))
		return err->code;
	all = calloc((size_t)rank->size, sizeof own);
	if (!all)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code code = dtp_all_gather(rank->world, all, &own, sizeof own, DTP_U8, err);
	if (!code)
		code = make(hosts, rank, all, err);
	free(all);
	return code;
}

void dtp_hosts_free(struct dtp_hosts *h)
{
	free(h->bound);
	free(h->memory);
	free(h->ranks);
}
