/* SPDX-License-Identifier: Apache-2.0 */
/* Bringing the next component's slices into the page cache while another one computes. */
#include "weights_internal.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* So much is asked for at a time, and mapped meanwhile. */
#define PIECE_BYTES (16u << 20)
/* A smaller piece is not worth the megabytes that a huge page reads around it. */
#define HUGE_BYTES (2u << 20)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* since Linux 5.14 */
#endif

struct span {
	int file;
	uint64_t begin, end;
};

/* Owned by the thread: the checkpoint may be closed before it ends. */
struct ahead {
	int *fds;
	bool *remote; /* per file */
	int nfds;
	struct span *spans;
	int n, cap;
	uint64_t bytes; /* of all spans */
};

static void ahead_free(struct ahead *a)
{
	for (int i = 0; i < a->nfds; i++)
		if (a->fds[i] >= 0)
			close(a->fds[i]);
	free(a->fds);
	free(a->remote);
	free(a->spans);
	free(a);
}

/* False when memory is used up: what has been listed so far is read all the same. */
static bool add_range(struct ahead *a, int file, uint64_t gap, uint64_t offset, uint64_t len)
{
	struct span *last = a->n ? &a->spans[a->n - 1] : NULL;
	bool touches = last && last->file == file && offset - last->end < gap;
	uint64_t before = touches ? last->end : offset;

	if (touches) {
		last->end = offset + len; /* a small gap is cached too, and costs */
	} else {
		if (a->n == a->cap) {
			int cap = a->cap ? 2 * a->cap : 256;
			struct span *p = realloc(a->spans, (size_t)cap * sizeof *p);
			if (!p)
				return false;
			a->spans = p;
			a->cap = cap;
		}
		a->spans[a->n++] = (struct span){file, offset, offset + len};
	}
	a->bytes += a->spans[a->n - 1].end - before;
	return true;
}

static bool add_slice(struct ahead *a, const struct dtp_st *st, const struct dtp_slice *s)
{
	uint64_t gap = dtp_gap_bytes(&st->files[s->entry->file]);
	struct dtp_slice_walk w = dtp_slice_walk(s, 0, s->rows);
	uint64_t offset, len;

	while (dtp_slice_next(&w, &offset, &len))
		if (len && !add_range(a, s->entry->file, gap, offset, len))
			return false;
	return true;
}

/* Waits until the piece is in the page cache.  A mapping that wants huge pages is read in large folios, where the file system has them: that takes
 * a tenth of the processor time that the computing ranks lose to posix_fadvise's single pages, and a later read is twice as fast.  Nothing is
 * touched here: a file that has shrunk or a bad disk is an error of the call, and of the load. */
static bool populate(int fd, uint64_t begin, uint64_t len)
{
	uint64_t into_page = begin % (uint64_t)sysconf(_SC_PAGESIZE);
	void *p = mmap(NULL, len + into_page, PROT_READ, MAP_SHARED, fd, (off_t)(begin - into_page));

	if (p == MAP_FAILED)
		return false;
	if (len >= HUGE_BYTES)
		madvise(p, len + into_page, MADV_HUGEPAGE); /* only a hint */
	bool done = !madvise(p, len + into_page, MADV_POPULATE_READ);
	munmap(p, len + into_page);
	return done;
}

/* Over a network many requests are to be on their way at once. */
static void ask_for(int fd, bool remote, uint64_t begin, uint64_t len)
{
	if (remote || !populate(fd, begin, len))
		dtp_ask_ahead(fd, begin, begin + len);
}

static void *ask(void *arg)
{
	struct ahead *a = arg;

	for (const struct span *s = a->spans; s < a->spans + a->n; s++)
		for (uint64_t at = s->begin; at < s->end; at += PIECE_BYTES)
			ask_for(a->fds[s->file], a->remote[s->file], at, s->end - at < PIECE_BYTES ? s->end - at : PIECE_BYTES);
	ahead_free(a);
	return NULL;
}

static struct ahead *ahead_new(const struct dtp_st *st)
{
	struct ahead *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->fds = calloc((size_t)st->nfiles + 1, sizeof *a->fds);
	a->remote = calloc((size_t)st->nfiles + 1, sizeof *a->remote);
	if (!a->fds || !a->remote) {
		ahead_free(a);
		return NULL;
	}
	for (; a->nfds < st->nfiles; a->nfds++) {
		a->fds[a->nfds] = fcntl(st->files[a->nfds].fd, F_DUPFD_CLOEXEC, 0);
		a->remote[a->nfds] = st->files[a->nfds].remote;
	}
	return a;
}

/* Reading ahead is a favour: whatever fails here, the load itself will say. */
uint64_t dtp_weights_readahead(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
			       const struct dtp_sharing *with)
{
	uint64_t bytes;
	struct dtp_item *items;
	pthread_attr_t attr;
	pthread_t thread;
	int n;

	if (dtp_weights_collect(tree, st, prefix, rank, degree, with, &items, &n, NULL))
		return 0;
	struct ahead *a = ahead_new(st);
	for (int i = 0; a && i < n; i++)
		if (items[i].read && !add_slice(a, st, &items[i].slice))
			break;
	free(items);
	if (!a)
		return 0;
	bytes = a->bytes; /* a is the thread's, once there is one */
	bool ok = !pthread_attr_init(&attr);
	if (ok) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ok = !pthread_create(&thread, &attr, ask, a);
		pthread_attr_destroy(&attr);
	}
	if (!ok)
		ahead_free(a);
	return ok ? bytes : 0;
}
