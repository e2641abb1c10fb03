/* SPDX-License-Identifier: Apache-2.0 */
/* Sums through shared memory.  The buffer goes through in pieces small enough to stay in the caches.  Of each piece every rank
 * copies its addend to its slot, waits for the others', sums its own share of the piece over all slots in the order of the
 * ranks, waits for the others' shares and copies the sum back.  There are two sets of slots: a rank writes the next piece's
 * addend before it waits for the shares of the present one. */
#include "comm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (512u << 10)
#define PIECE (PIECE_BYTES / sizeof(float)) /* elements */
#define MAX_RANKS 128                       /* of one host */
#define SPINS 256                           /* looks before a wait sleeps */
#define LOOK_MS 50                          /* a sleeper looks so often whether its peers live */
#define MEMORY_NAME "difftp-sums"           /* shows in /proc/PID/maps; no file has it */

/* A counter on a line of its own, which others sleep on. */
struct count {
	_Alignas(64) _Atomic uint32_t n;
};

/* What lies in the shared memory, before the slots. */
struct region {
	unsigned char token[16]; /* by which the others know the right memory */
	_Atomic bool broken;     /* a rank has aborted */
	struct count addends[MAX_RANKS], shares[MAX_RANKS];
	_Alignas(4096) float data[]; /* 2 x (a slot per rank, then the sum) of PIECE elements */
};

/* What communicators that descend from one have in common. */
struct family {
	pthread_mutex_t m;           /* guards members and their next */
	struct shared_comm *members;
	_Atomic bool aborted;
};

struct shared_comm {
	struct dtp_comm base;
	struct dtp_comm *inner;
	struct family *family;
	struct shared_comm *next;
	struct region *region; /* NULL: sums are inner's */
	size_t region_bytes;
	int *peer;             /* pidfd of each other rank */
	uint32_t round;        /* pieces begun */
};

static const struct dtp_comm_ops shared_ops;

static struct shared_comm *self(struct dtp_comm *c)
{
	return (struct shared_comm *)c;
}

/* ---- waiting */

static void announce(_Atomic uint32_t *n)
{
	atomic_fetch_add_explicit(n, 1, memory_order_release);
	syscall(SYS_futex, n, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool reached(_Atomic uint32_t *n, uint32_t target)
{
	return (int32_t)(atomic_load_explicit(n, memory_order_acquire) - target) >= 0;
}

static bool peer_lives(const struct shared_comm *c, int rank)
{
	struct pollfd p = {.fd = c->peer[rank], .events = POLLIN};

	return poll(&p, 1, 0) == 0;
}

/* Sleeps until rank's counter has reached target. */
static enum dtp_code wait_for(struct shared_comm *c, struct count *counts, int rank, uint32_t target, struct dtp_err *err)
{
	_Atomic uint32_t *n = &counts[rank].n;
	const struct timespec look = {0, LOOK_MS * 1000000L};
	const char *why = NULL;

	for (int i = 0; i < SPINS; i++)
		if (reached(n, target))
			return DTP_OK;
	while (!reached(n, target) && !why) {
		uint32_t now = atomic_load(n);
		if (atomic_load(&c->family->aborted) || atomic_load(&c->region->broken))
			why = "was broken off: the run is ending";
		else if (!peer_lives(c, rank) && !reached(n, target))
			why = "lost a peer";
		else if (!reached(n, target))
			syscall(SYS_futex, n, FUTEX_WAIT, now, &look, NULL, 0);
	}
	if (!why)
		return DTP_OK;
	dtp_fail(err, DTP_FAILED, "all-reduce among %d ranks %s", c->base.size, why);
	if (err)
		err->secondary = true;
	return DTP_FAILED;
}

static enum dtp_code wait_for_all(struct shared_comm *c, struct count *counts, uint32_t target, struct dtp_err *err)
{
	enum dtp_code code = DTP_OK;

	for (int i = 1; i < c->base.size && !code; i++)
		code = wait_for(c, counts, (c->base.rank + i) % c->base.size, target, err);
	return code;
}

/* ---- sums */

static float *slot(const struct shared_comm *c, uint32_t round, int rank)
{
	return c->region->data + ((size_t)(round & 1) * ((size_t)c->base.size + 1) + (size_t)rank) * PIECE;
}

static float *sum_of(const struct shared_comm *c, uint32_t round)
{
	return slot(c, round, c->base.size);
}

static void add(float *restrict sum, const float *restrict x, size_t n)
{
#pragma omp simd
	for (size_t i = 0; i < n; i++)
		sum[i] += x[i];
}

/* This rank's share of a piece of n elements. */
static void add_share(const struct shared_comm *c, uint32_t round, size_t n)
{
	size_t each = (n + (size_t)c->base.size - 1) / (size_t)c->base.size, begin = each * (size_t)c->base.rank;
	size_t len = begin >= n ? 0 : n - begin < each ? n - begin : each;
	float *sum = sum_of(c, round) + begin;

	memcpy(sum, slot(c, round, 0) + begin, len * sizeof *sum);
	for (int r = 1; r < c->base.size; r++)
		add(sum, slot(c, round, r) + begin, len);
}

static size_t piece_length(size_t count, size_t piece)
{
	size_t left = count - piece * PIECE;
	return left < PIECE ? left : PIECE;
}

static void put_addend(struct shared_comm *c, const float *buf, size_t count, size_t piece)
{
	memcpy(slot(c, c->round, c->base.rank), buf + piece * PIECE, piece_length(count, piece) * sizeof *buf);
	c->round++;
	announce(&c->region->addends[c->base.rank].n);
}

/* Round r is done with by all who have announced the addend of round r + 2, whose slots are the same. */
static enum dtp_code sum_pieces(struct shared_comm *c, float *buf, size_t count, struct dtp_err *err)
{
	size_t pieces = (count + PIECE - 1) / PIECE;

	put_addend(c, buf, count, 0);
	for (size_t p = 0; p < pieces; p++) {
		uint32_t round = c->round - 1;
		size_t n = piece_length(count, p);
		if (wait_for_all(c, c->region->addends, round + 1, err))
			return err ? err->code : DTP_FAILED;
		add_share(c, round, n);
		announce(&c->region->shares[c->base.rank].n);
		if (p + 1 < pieces)
			put_addend(c, buf, count, p + 1);
		if (wait_for_all(c, c->region->shares, round + 1, err))
			return err ? err->code : DTP_FAILED;
		memcpy(buf + p * PIECE, sum_of(c, round), n * sizeof *buf);
	}
	return DTP_OK;
}

static enum dtp_code shared_all_reduce(struct dtp_comm *base, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct shared_comm *c = self(base);

	if (!c->region || t != DTP_F32)
		return c->inner->ops->all_reduce(c->inner, buf, count, t, err);
	if (count == 0)
		return DTP_OK;
	if (atomic_load(&c->family->aborted)) {
		dtp_fail(err, DTP_FAILED, "all-reduce among %d ranks was broken off: the run is ending", base->size);
		if (err)
			err->secondary = true;
		return DTP_FAILED;
	}
	base->mon->waiting(base->mon->arg, true);
	enum dtp_code code = sum_pieces(c, buf, (size_t)count, err);
	base->mon->waiting(base->mon->arg, false);
	if (code) /* the ranks no longer agree on where they are */
		base->ops->abort(base);
	return code;
}

/* ---- what is inner's */

static enum dtp_code shared_all_gather(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	return self(c)->inner->ops->all_gather(self(c)->inner, dst, src, count, t, err);
}

static enum dtp_code shared_all_to_all(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	return self(c)->inner->ops->all_to_all(self(c)->inner, dst, src, count, t, err);
}

static enum dtp_code shared_ring_shift(struct dtp_comm *c, void *dst, const void *src, int64_t count, enum dtp_dtype t,
				       struct dtp_err *err)
{
	return self(c)->inner->ops->ring_shift(self(c)->inner, dst, src, count, t, err);
}

static enum dtp_code shared_broadcast(struct dtp_comm *c, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	return self(c)->inner->ops->broadcast(self(c)->inner, buf, nbytes, root, err);
}

static enum dtp_code shared_barrier(struct dtp_comm *c, struct dtp_err *err)
{
	return self(c)->inner->ops->barrier(self(c)->inner, err);
}

/* Sleepers, here and in the other ranks, see it when they wake by themselves. */
static void shared_abort(struct dtp_comm *base)
{
	struct family *f = self(base)->family;

	atomic_store(&f->aborted, true);
	pthread_mutex_lock(&f->m);
	for (struct shared_comm *c = f->members; c; c = c->next)
		if (c->region)
			atomic_store(&c->region->broken, true);
	pthread_mutex_unlock(&f->m);
	self(base)->inner->ops->abort(self(base)->inner);
}

/* ---- one memory for all */

/* What a rank tells the others. */
struct card {
	char boot[40]; /* of the kernel that runs */
	unsigned char token[16];
	int32_t pid, fd, ok;
};

static int read_boot_id(char boot[40])
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, boot, 39);

	if (fd >= 0)
		close(fd);
	return n > 0;
}

static size_t region_size(int ranks)
{
	return sizeof(struct region) + 2 * ((size_t)ranks + 1) * PIECE_BYTES;
}

static struct region *map_region(int fd, size_t nbytes)
{
	void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* It counts as a file: one that is too large for the limit would end the process by SIGXFSZ. */
static bool may_be_so_large(size_t nbytes)
{
	struct rlimit most;

	return !getrlimit(RLIMIT_FSIZE, &most) && most.rlim_cur >= nbytes;
}

/* Rank 0's memory, before the others know of it. */
static void make_region(struct shared_comm *c, struct card *mine)
{
	int fd = may_be_so_large(c->region_bytes) ? memfd_create(MEMORY_NAME, MFD_CLOEXEC) : -1;

	if (fd >= 0 && !ftruncate(fd, (off_t)c->region_bytes) &&
	    getrandom(mine->token, sizeof mine->token, 0) == sizeof mine->token && (c->region = map_region(fd, c->region_bytes)))
		memcpy(c->region->token, mine->token, sizeof mine->token);
	mine->fd = fd;
	mine->ok = c->region != NULL;
}

/* The same memory, as rank 0's open file; that it is the right one shows by its token. */
static void find_region(struct shared_comm *c, const struct card *first)
{
	static const char want[] = "/memfd:" MEMORY_NAME;
	char path[64], link[64] = "";
	struct stat st;

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)first->pid, (int)first->fd);
	if (readlink(path, link, sizeof link - 1) < 0 || strncmp(link, want, sizeof want - 1))
		return;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return;
	if (!fstat(fd, &st) && (uint64_t)st.st_size == c->region_bytes)
		c->region = map_region(fd, c->region_bytes);
	close(fd);
	if (c->region && memcmp(c->region->token, first->token, sizeof first->token)) {
		munmap(c->region, c->region_bytes);
		c->region = NULL;
	}
}

static bool watch_peers(struct shared_comm *c, const struct card *cards)
{
	bool ok = true;

	for (int r = 0; r < c->base.size && ok; r++) {
		if (r != c->base.rank)
			ok = (c->peer[r] = (int)syscall(SYS_pidfd_open, cards[r].pid, 0)) >= 0;
	}
	return ok;
}

static void drop_region(struct shared_comm *c)
{
	if (c->region)
		munmap(c->region, c->region_bytes);
	c->region = NULL;
	for (int r = 0; c->peer && r < c->base.size; r++)
		if (c->peer[r] >= 0)
			close(c->peer[r]);
	free(c->peer);
	c->peer = NULL;
}

static enum dtp_code gather_cards(struct shared_comm *c, struct card *cards, const struct card *mine, struct dtp_err *err)
{
	return dtp_all_gather(c->inner, cards, mine, (int64_t)sizeof *mine, DTP_U8, err);
}

static bool all_on_one_host(const struct card *cards, int n)
{
	for (int r = 0; r < n; r++)
		if (!cards[r].ok || strncmp(cards[r].boot, cards[0].boot, sizeof cards->boot))
			return false;
	return true;
}

static bool all_ok(const struct card *cards, int n)
{
	for (int r = 0; r < n; r++)
		if (!cards[r].ok)
			return false;
	return true;
}

/* Maps the region on all ranks or on none; only a broken communicator is a failure. */
static enum dtp_code meet(struct shared_comm *c, struct card *cards, struct dtp_err *err)
{
	struct card mine = {.pid = getpid(), .fd = -1};

	mine.ok = read_boot_id(mine.boot) && c->base.size <= MAX_RANKS;
	if (c->base.rank == 0 && mine.ok)
		make_region(c, &mine);
	enum dtp_code code = gather_cards(c, cards, &mine, err);
	if (!code && all_on_one_host(cards, c->base.size)) {
		if (c->base.rank)
			find_region(c, &cards[0]);
		mine.ok = c->region && watch_peers(c, cards);
		code = gather_cards(c, cards, &mine, err);
	}
	if (mine.fd >= 0)
		close(mine.fd);
	if (code || !all_ok(cards, c->base.size))
		drop_region(c);
	return code;
}

/* ---- life */

static struct family *new_family(void)
{
	struct family *f = calloc(1, sizeof *f);

	if (f)
		pthread_mutex_init(&f->m, NULL);
	return f;
}

static void join_family(struct shared_comm *c, struct family *f)
{
	c->family = f;
	pthread_mutex_lock(&f->m);
	c->next = f->members;
	f->members = c;
	if (atomic_load(&f->aborted) && c->region) /* meanwhile */
		atomic_store(&c->region->broken, true);
	pthread_mutex_unlock(&f->m);
}

/* The last to leave turns off the light. */
static void leave_family(struct shared_comm *c)
{
	struct family *f = c->family;
	struct shared_comm **at = &f->members;

	pthread_mutex_lock(&f->m);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	bool empty = !f->members;
	pthread_mutex_unlock(&f->m);
	if (empty) {
		pthread_mutex_destroy(&f->m);
		free(f);
	}
}

static void shared_destroy(struct dtp_comm *base)
{
	struct shared_comm *c = self(base);

	leave_family(c);
	dtp_comm_destroy(c->inner);
	drop_region(c);
	free(c);
}

static enum dtp_code wrap(struct dtp_comm *inner, struct family *of, struct dtp_comm **out, struct dtp_err *err)
{
	struct shared_comm *c = calloc(1, sizeof *c);
	struct card *cards = calloc((size_t)inner->size, sizeof *cards);
	int *peer = malloc((size_t)inner->size * sizeof *peer);
	struct family *f = of ? of : new_family();
	enum dtp_code code;

	if (c && cards && peer && f) {
		for (int r = 0; r < inner->size; r++)
			peer[r] = -1;
		*c = (struct shared_comm){.base = {inner->rank, inner->size, &shared_ops, inner->mon}, .inner = inner,
					  .region_bytes = region_size(inner->size), .peer = peer};
		peer = NULL; /* c's */
		code = meet(c, cards, err);
	} else {
		code = dtp_fail(err, DTP_FAILED, "out of memory for a communicator of %d ranks", inner->size);
	}
	free(cards);
	if (code == DTP_OK) {
		join_family(c, f);
		*out = &c->base;
		return DTP_OK;
	}
	free(peer);
	free(c);
	if (f != of)
		free(f);
	return code;
}

static enum dtp_code shared_split(struct dtp_comm *base, int color, int key, struct dtp_comm **out, struct dtp_err *err)
{
	struct shared_comm *c = self(base);
	struct dtp_comm *part;
	enum dtp_code code = c->inner->ops->split(c->inner, color, key, &part, err);

	if (code)
		return code;
	if (part->size == 1) {
		*out = part;
		return DTP_OK;
	}
	code = wrap(part, c->family, out, err);
	if (code)
		dtp_comm_destroy(part);
	return code;
}

static const struct dtp_comm_ops shared_ops = {
	.name = "shared",
	.all_reduce = shared_all_reduce,
	.all_gather = shared_all_gather,
	.all_to_all = shared_all_to_all,
	.ring_shift = shared_ring_shift,
	.broadcast = shared_broadcast,
	.barrier = shared_barrier,
	.split = shared_split,
	.abort = shared_abort,
	.destroy = shared_destroy,
};

enum dtp_code dtp_comm_shared(struct dtp_comm *inner, struct dtp_comm **out, struct dtp_err *err)
{
	if (inner->size == 1) {
		*out = inner;
		return DTP_OK;
	}
	return wrap(inner, NULL, out, err);
}
