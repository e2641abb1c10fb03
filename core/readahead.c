/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing the next component's slices into the page cache while another one computes. */
#include "weights_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* The kernel is asked for this much at a time: the call waits while the disk's queue is full. */
#define PIECE_BYTES (4u << 20)

struct span {
	int file;
	uint64_t begin, end;
};

/* Owned by the thread: the checkpoint may be closed before it ends. */
struct ahead {
	int *fds;
	int nfds;
	struct span *spans;
	int n, cap;
};

static void ahead_free(struct ahead *a)
{
	for (int i = 0; i < a->nfds; i++)
		if (a->fds[i] >= 0)
			close(a->fds[i]);
	free(a->fds);
	free(a->spans);
	free(a);
}

/* False when the budget is used up (or memory: what has been listed so far is read all the same). */
static bool add_range(struct ahead *a, int file, uint64_t gap, uint64_t offset, uint64_t len, uint64_t *budget)
{
	struct span *last = a->n ? &a->spans[a->n - 1] : NULL;
	bool touches = last && last->file == file && offset - last->end < gap;
	uint64_t begin = touches ? last->end : offset; /* a small gap is cached too, and costs */
	uint64_t cost = offset + len - begin, granted = cost < *budget ? cost : *budget;

	if (touches) {
		last->end += granted;
	} else {
		if (a->n == a->cap) {
			int cap = a->cap ? 2 * a->cap : 256;
			struct span *p = realloc(a->spans, (size_t)cap * sizeof *p);
			if (!p)
				return false;
			a->spans = p;
			a->cap = cap;
		}
		a->spans[a->n++] = (struct span){file, begin, begin + granted};
	}
	*budget -= granted;
	return granted == cost;
}

static bool add_slice(struct ahead *a, const struct dtp_st *st, const struct dtp_slice *s, uint64_t *budget)
{
	uint64_t gap = dtp_gap_bytes(&st->files[s->entry->file]);
	struct dtp_slice_walk w = dtp_slice_walk(s, 0, s->rows);
	uint64_t offset, len;

	while (dtp_slice_next(&w, &offset, &len))
		if (len && !add_range(a, s->entry->file, gap, offset, len, budget))
			return false;
	return true;
}

static void *ask(void *arg)
{
	struct ahead *a = arg;

	for (int i = 0; i < a->n; i++)
		for (uint64_t at = a->spans[i].begin; at < a->spans[i].end; at += PIECE_BYTES) {
			uint64_t left = a->spans[i].end - at;
			posix_fadvise(a->fds[a->spans[i].file], (off_t)at, (off_t)(left < PIECE_BYTES ? left : PIECE_BYTES),
				      POSIX_FADV_WILLNEED);
		}
	ahead_free(a);
	return NULL;
}

static struct ahead *ahead_new(const struct dtp_st *st)
{
	struct ahead *a = calloc(1, sizeof *a);

	if (!a || !(a->fds = calloc((size_t)st->nfiles + 1, sizeof *a->fds))) {
		free(a);
		return NULL;
	}
	for (; a->nfds < st->nfiles; a->nfds++)
		a->fds[a->nfds] = fcntl(st->files[a->nfds].fd, F_DUPFD_CLOEXEC, 0);
	return a;
}

/* Reading ahead is a favour: whatever fails here, the load itself will say. */
uint64_t dtp_weights_readahead(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree, bool shared,
			       uint64_t budget)
{
	uint64_t left = budget;
	struct dtp_item *items;
	pthread_attr_t attr;
	pthread_t thread;
	int n;

	if (dtp_weights_collect(tree, st, prefix, rank, degree, shared && degree > 1, &items, &n, NULL))
		return 0;
	struct ahead *a = ahead_new(st);
	for (int i = 0; a && i < n; i++)
		if (dtp_item_is_read(&items[i], rank) && !add_slice(a, st, &items[i].slice, &left))
			break;
	free(items);
	if (!a)
		return 0;
	bool ok = !pthread_attr_init(&attr);
	if (ok) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ok = !pthread_create(&thread, &attr, ask, a);
		pthread_attr_destroy(&attr);
	}
	if (!ok)
		ahead_free(a);
	return ok ? budget - left : 0;
}
