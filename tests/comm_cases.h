/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between real processes, with sums that are known exactly: what every communicator of several ranks must do.  The test
 * that includes this says how a rank opens the one that it tests. */
#ifndef TEST_COMM_CASES_H
#define TEST_COMM_CASES_H

#include "support.h"
#include "comm.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static enum dtp_code open_comm(int rank, int n, const struct dtp_store *store, struct dtp_comm **c, struct dtp_err *err);

/* ---- a store in memory that the forked ranks share */
#define STORE_KEYS 64
struct shared {
	pthread_mutex_t m;
	pthread_cond_t changed;
	int nkeys;
	struct {
		char key[64];
		size_t len;
		char val[4096];
	} keys[STORE_KEYS];
};

static enum dtp_code store_set(void *arg, const char *key, const void *val, size_t len, struct dtp_err *err)
{
	struct shared *s = arg;

	(void)err;
	pthread_mutex_lock(&s->m);
	if (s->nkeys == STORE_KEYS || len > sizeof s->keys[0].val)
		abort();
	snprintf(s->keys[s->nkeys].key, sizeof s->keys[0].key, "%s", key);
	memcpy(s->keys[s->nkeys].val, val, len);
	s->keys[s->nkeys++].len = len;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->m);
	return DTP_OK;
}

static enum dtp_code store_get(void *arg, const char *key, void **val, size_t *len, struct dtp_err *err)
{
	struct shared *s = arg;

	(void)err;
	*val = NULL;
	pthread_mutex_lock(&s->m);
	while (!*val) {
		for (int i = 0; i < s->nkeys && !*val; i++)
			if (!strcmp(s->keys[i].key, key)) {
				*len = s->keys[i].len;
				*val = malloc(*len ? *len : 1);
				memcpy(*val, s->keys[i].val, *len);
			}
		if (!*val)
			pthread_cond_wait(&s->changed, &s->m);
	}
	pthread_mutex_unlock(&s->m);
	return DTP_OK;
}

static struct shared *shared_new(void)
{
	struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t ma;
	pthread_condattr_t ca;

	assert_ptr_not_equal(s, MAP_FAILED);
	pthread_mutexattr_init(&ma);
	pthread_mutexattr_setpshared(&ma, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&s->m, &ma);
	pthread_condattr_init(&ca);
	pthread_condattr_setpshared(&ca, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&s->changed, &ca);
	return s;
}

/* ---- ranks as forked processes; a check that fails ends the rank with a line that says where */
#define CHECK(cond)                                                                                                     \
	do {                                                                                                            \
		if (!(cond)) {                                                                                          \
			fprintf(stderr, "rank %d of %d: %s:%d: %s\n", c->rank, c->size, __FILE__, __LINE__, #cond);     \
			_exit(1);                                                                                       \
		}                                                                                                       \
	} while (0)
#define OK(call)                                                                                                        \
	do {                                                                                                            \
		struct dtp_err e_ = DTP_ERR_INIT;                                                                       \
		if ((call(&e_)) != DTP_OK) {                                                                            \
			fprintf(stderr, "rank %d of %d: %s:%d: %s\n", c->rank, c->size, __FILE__, __LINE__, e_.message);\
			_exit(1);                                                                                       \
		}                                                                                                       \
	} while (0)

typedef void (*rank_fn)(struct dtp_comm *c);

static void be_rank(int rank, int n, struct shared *s, rank_fn fn)
{
	struct dtp_store store = {s, store_set, store_get};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *c;

	signal(SIGPIPE, SIG_IGN);
	alarm(30); /* a hang is a failure */
	if (n == 1 ? dtp_comm_single(&dtp_monitor_none, &c, &err) : open_comm(rank, n, &store, &c, &err)) {
		fprintf(stderr, "rank %d of %d: %s\n", rank, n, err.message);
		_exit(1);
	}
	fn(c);
	dtp_comm_destroy(c);
	_exit(0);
}

/* The rank `killed` is to end by SIGKILL, all others well. */
static void run_ranks_but(int n, int killed, rank_fn fn)
{
	struct shared *s = shared_new();
	pid_t pid[16];
	int bad = 0;

	fflush(NULL);
	for (int r = 0; r < n; r++) {
		pid[r] = fork();
		assert_int_not_equal(pid[r], -1);
		if (!pid[r])
			be_rank(r, n, s, fn);
	}
	for (int r = 0; r < n; r++) {
		int status;
		assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
		if (status != (r == killed ? SIGKILL : 0)) {
			fprintf(stderr, "rank %d of %d ended with status 0x%x\n", r, n, status);
			bad++;
		}
	}
	munmap(s, sizeof *s);
	assert_int_equal(bad, 0);
}

static void run_ranks(int n, rank_fn fn)
{
	run_ranks_but(n, -1, fn);
}

static const int degrees[] = {1, 2, 3, 4, 8};

static void run_degrees(rank_fn fn)
{
	for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
		run_ranks(degrees[i], fn);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- all-reduce */
static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 255, 1000, 4097, 530003};
#define NCOUNTS (sizeof counts / sizeof *counts)

/* A small integer that depends on the element and the rank: sums of 8 are exact in every dtype. */
static int small(int64_t i, int rank)
{
	return (int)((i * 7 + rank * 13 + i / 5) % 31) - 11;
}

static int small_sum(int64_t i, int n)
{
	int s = 0;
	for (int r = 0; r < n; r++)
		s += small(i, r);
	return s;
}

static void put(void *buf, enum dtp_dtype t, int64_t i, int v)
{
	if (t == DTP_F32)
		((float *)buf)[i] = (float)v;
	else if (t == DTP_BF16)
		((uint16_t *)buf)[i] = dtp_f32_to_bf16((float)v);
	else if (t == DTP_I64)
		((int64_t *)buf)[i] = (int64_t)v * 10000000019;
	else
		((int32_t *)buf)[i] = v * 1009;
}

static bool is(const void *buf, enum dtp_dtype t, int64_t i, int v)
{
	char want[8];
	put(want, t, 0, v);
	return !memcmp((const char *)buf + (size_t)i * dtp_dtype_size(t), want, dtp_dtype_size(t));
}

static void reduce_exact(struct dtp_comm *c)
{
	static const enum dtp_dtype types[] = {DTP_F32, DTP_BF16, DTP_I64, DTP_I32};

	for (size_t t = 0; t < 4; t++)
		for (size_t k = 0; k < NCOUNTS; k++) {
			int64_t n = counts[k];
			char *buf = malloc((size_t)n * 8 + 8);
			for (int64_t i = 0; i <= n; i++) /* one more: must not be touched */
				put(buf, types[t], i, small(i, c->rank));
#define CALL(e) dtp_all_reduce(c, buf, n, types[t], e)
			OK(CALL);
#undef CALL
			for (int64_t i = 0; i < n; i++)
				CHECK(is(buf, types[t], i, small_sum(i, c->size)));
			CHECK(is(buf, types[t], n, small(n, c->rank)));
			free(buf);
		}
}

static void comm_all_reduce_is_exact(void **state)
{
	(void)state;
	run_degrees(reduce_exact);
}

/* Several rounds, the last one short. */
static void reduce_rounds(struct dtp_comm *c)
{
	int64_t n = 9000001;
	int32_t *buf = malloc((size_t)n * sizeof *buf);

	for (int64_t i = 0; i < n; i++)
		buf[i] = (int32_t)(i + c->rank);
#define CALL(e) dtp_all_reduce(c, buf, n, DTP_I32, e)
	OK(CALL);
#undef CALL
	for (int64_t i = 0; i < n; i++)
		CHECK(buf[i] == (int32_t)(i * c->size + c->size * (c->size - 1) / 2));
	free(buf);
}

static void comm_all_reduce_of_several_rounds(void **state)
{
	(void)state;
	run_ranks(2, reduce_rounds);
	run_ranks(3, reduce_rounds);
}

/* ---- the others */
static void move_all(struct dtp_comm *c)
{
	for (size_t k = 0; k < NCOUNTS; k++) {
		int64_t n = counts[k], all = n * c->size;
		int32_t *src = malloc((size_t)all * 4 + 4), *dst = malloc((size_t)all * 4 + 4);
		int left = (c->rank + c->size - 1) % c->size;

		for (int64_t i = 0; i < all; i++)
			src[i] = (int32_t)(i * 16 + c->rank);
#define CALL(e) dtp_all_gather(c, dst, src, n, DTP_I32, e)
		OK(CALL);
#undef CALL
		for (int64_t i = 0; i < all; i++)
			CHECK(dst[i] == (int32_t)(i % n * 16 + i / n));
		memset(dst, 0, (size_t)all * 4);
		if (n)
			memcpy(dst + n * c->rank, src, (size_t)n * 4);
#define CALL(e) dtp_all_gather(c, dst, dst + n * c->rank, n, DTP_I32, e)
		OK(CALL);
#undef CALL
		for (int64_t i = 0; i < all; i++)
			CHECK(dst[i] == (int32_t)(i % n * 16 + i / n));
#define CALL(e) c->ops->all_to_all(c, dst, src, n, DTP_I32, e)
		OK(CALL);
#undef CALL
		for (int64_t i = 0; i < all; i++)
			CHECK(dst[i] == (int32_t)((c->rank * n + i % n) * 16 + i / n));
#define CALL(e) c->ops->ring_shift(c, dst, src, n, DTP_I32, e)
		OK(CALL);
#undef CALL
		for (int64_t i = 0; i < n; i++)
			CHECK(dst[i] == (int32_t)(i * 16 + left));
		free(src);
		free(dst);
	}
}

static void comm_gather_exchange_and_shift_move_the_right_elements(void **state)
{
	(void)state;
	run_degrees(move_all);
}

static void broadcast_all(struct dtp_comm *c)
{
	static const int64_t sizes[] = {0, 1, 13, 70000};

	for (int root = 0; root < c->size; root++)
		for (size_t k = 0; k < 4; k++) {
			unsigned char buf[70001];
			memset(buf, c->rank == root ? 100 + root : 1, sizeof buf);
#define CALL(e) dtp_broadcast(c, buf, sizes[k], root, e)
			OK(CALL);
#undef CALL
			for (int64_t i = 0; i < sizes[k]; i++)
				CHECK(buf[i] == 100 + root);
			CHECK(buf[sizes[k]] == (c->rank == root ? 100 + root : 1));
		}
}

static void comm_broadcast_reaches_all_from_each_root(void **state)
{
	(void)state;
	run_degrees(broadcast_all);
}

static void broadcast_large(struct dtp_comm *c)
{
	int64_t n = (int64_t)150 << 20; /* several messages, the last one short */
	uint32_t *buf = malloc((size_t)n);

	for (int64_t i = 0; i < n / 4; i++)
		buf[i] = c->rank ? 0 : (uint32_t)i * 2654435761u;
#define CALL(e) dtp_broadcast(c, buf, n - 3, 0, e)
	OK(CALL);
#undef CALL
	for (int64_t i = 0; i < n / 4 - 1; i++)
		CHECK(buf[i] == (uint32_t)i * 2654435761u);
	free(buf);
}

static void comm_broadcast_of_several_messages(void **state)
{
	(void)state;
	run_ranks(2, broadcast_large);
}

static struct shared *arrivals;

static void barrier_rank(struct dtp_comm *c)
{
	for (int k = 1; k <= 20; k++) {
		if (c->rank == k % c->size)
			usleep(2000); /* somebody is always late */
		__atomic_fetch_add(&arrivals->nkeys, 1, __ATOMIC_SEQ_CST);
#define CALL(e) dtp_barrier(c, e)
		OK(CALL);
		CHECK(__atomic_load_n(&arrivals->nkeys, __ATOMIC_SEQ_CST) >= k * c->size);
		OK(CALL);
#undef CALL
	}
}

static void comm_barrier_holds_until_all_came(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
		arrivals = shared_new();
		run_ranks(degrees[i], barrier_rank);
		munmap(arrivals, sizeof *arrivals);
	}
}

/* ---- subgroups */
static void split_rank(struct dtp_comm *c)
{
	struct dtp_comm *part;
	int members = 0, below = 0;
	int64_t sum = c->rank, want = 0;

#define CALL(e) c->ops->split(c, c->rank % 3, -c->rank, &part, e)
	OK(CALL);
#undef CALL
	for (int r = 0; r < c->size; r++)
		if (r % 3 == c->rank % 3) {
			members++;
			below += r > c->rank; /* the keys turn the order around */
			want += r;
		}
	CHECK(part->size == members);
	CHECK(part->rank == below);
#define CALL(e) dtp_all_reduce(part, &sum, 1, DTP_I64, e)
	OK(CALL);
#undef CALL
	CHECK(sum == want);
	dtp_comm_destroy(part);
	sum = 1;
#define CALL(e) dtp_all_reduce(c, &sum, 1, DTP_I64, e)
	OK(CALL); /* the whole still works */
#undef CALL
	CHECK(sum == c->size);
}

static void comm_split_groups_by_color_and_orders_by_key(void **state)
{
	(void)state;
	run_degrees(split_rank);
}

static void mesh_rank(struct dtp_comm *c)
{
	const int sizes[] = {2, 1, 2, 2};
	struct dtp_mesh mesh;
	int32_t dims[4];

#define CALL(e) dtp_mesh_make(c, sizes, &mesh, e)
	OK(CALL);
#undef CALL
	for (int d = 0; d < 4; d++) {
		int32_t sum = 1 << c->rank;
		CHECK(mesh.dim[d]->size == sizes[d]);
#define CALL(e) dtp_all_reduce(mesh.dim[d], &sum, 1, DTP_I32, e)
		OK(CALL);
#undef CALL
		dims[d] = sum; /* the set of ranks that share this dimension */
	}
	CHECK(dims[DTP_MESH_TP] == 3 << (c->rank & ~1));
	CHECK(dims[DTP_MESH_ULYSSES] == 5 << (c->rank & ~2));
	CHECK(dims[DTP_MESH_RING] == 1 << c->rank);
	CHECK(dims[DTP_MESH_DP] == 17 << (c->rank & ~4));
	CHECK(mesh.dim[DTP_MESH_TP]->rank == (c->rank & 1));
	CHECK(mesh.dim[DTP_MESH_DP]->rank == c->rank >> 2);
	dtp_mesh_free(&mesh);
}

static void comm_mesh_has_tp_innermost(void **state)
{
	(void)state;
	run_ranks(8, mesh_rank);
}

static void mesh_world_rank(struct dtp_comm *c)
{
	const int sizes[] = {1, 1, 1, 4};
	struct dtp_mesh mesh;

#define CALL(e) dtp_mesh_make(c, sizes, &mesh, e)
	OK(CALL);
#undef CALL
	CHECK(mesh.dim[DTP_MESH_TP] == c);
	CHECK(mesh.dim[DTP_MESH_DP]->size == 1);
	dtp_mesh_free(&mesh);
#define CALL(e) dtp_barrier(c, e)
	OK(CALL);
#undef CALL
}

static void comm_mesh_of_one_dimension_is_the_world(void **state)
{
	(void)state;
	run_ranks(4, mesh_world_rank);
}

static _Atomic int waits, unbalanced;

static void count_waiting(void *arg, bool yes)
{
	(void)arg;
	if (yes)
		waits++;
	else
		unbalanced += --waits != 0;
}

static void monitor_rank(struct dtp_comm *c)
{
	struct dtp_monitor mon = dtp_monitor_none;
	int64_t x = 1;

	mon.waiting = count_waiting;
	c->mon = &mon;
#define CALL(e) dtp_all_reduce(c, &x, 1, DTP_I64, e)
	OK(CALL);
#undef CALL
	CHECK(waits == 0 && !unbalanced);
}

static void comm_wait_is_told_to_the_monitor(void **state)
{
	(void)state;
	run_ranks(2, monitor_rank);
}

#define COMM_CASES \
	cmocka_unit_test(comm_all_reduce_is_exact), \
	cmocka_unit_test(comm_all_reduce_of_several_rounds), \
	cmocka_unit_test(comm_gather_exchange_and_shift_move_the_right_elements), \
	cmocka_unit_test(comm_broadcast_reaches_all_from_each_root), \
	cmocka_unit_test(comm_broadcast_of_several_messages), \
	cmocka_unit_test(comm_barrier_holds_until_all_came), \
	cmocka_unit_test(comm_split_groups_by_color_and_orders_by_key), \
	cmocka_unit_test(comm_mesh_has_tp_innermost), \
	cmocka_unit_test(comm_mesh_of_one_dimension_is_the_world), \
	cmocka_unit_test(comm_wait_is_told_to_the_monitor)

/* ---- what holds where bytes go through Gloo */

/* A float that another rank can compute too. */
static float noise(int64_t i, int rank)
{
	uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 1u;
	x ^= x >> 15;
	x *= 2246822519u;
	x ^= x >> 13;
	return ((float)(x >> 8) / 16777216.0f - 0.5f) * (float)(1 << (x & 15));
}

static void reduce_order(struct dtp_comm *c)
{
	int64_t n = 100003;
	float *f = malloc((size_t)n * sizeof *f);
	uint16_t *b = malloc((size_t)n * sizeof *b);

	for (int64_t i = 0; i < n; i++) {
		f[i] = noise(i, c->rank);
		b[i] = dtp_f32_to_bf16(f[i]);
	}
	f[5] = c->rank == c->size - 1 ? NAN : 1;
	b[6] = c->rank == 0 ? 0x7f80 : dtp_f32_to_bf16(1); /* infinity */
#define CALL(e) dtp_all_reduce(c, f, n, DTP_F32, e)
	OK(CALL);
#undef CALL
#define CALL(e) dtp_all_reduce(c, b, n, DTP_BF16, e)
	OK(CALL);
#undef CALL
	for (int64_t i = 7; i < n; i++) {
		float s = noise(i, 0), sb = dtp_round_to(DTP_BF16, s);
		for (int r = 1; r < c->size; r++) {
			s += noise(i, r);
			sb += dtp_round_to(DTP_BF16, noise(i, r));
		}
		CHECK(!memcmp(&f[i], &s, sizeof s));
		CHECK(b[i] == dtp_f32_to_bf16(sb));
	}
	CHECK(f[5] != f[5]);
	CHECK(b[6] == 0x7f80);
	free(f);
	free(b);
}

/* The same bits whatever the number of elements and on every rank: the sum runs over the ranks in order. */
static void comm_all_reduce_sums_in_rank_order(void **state)
{
	(void)state;
	run_degrees(reduce_order);
}

/* ---- ends */
static void *abort_soon(void *arg)
{
	struct dtp_comm *c = arg;
	usleep(100000);
	c->ops->abort(c);
	return NULL;
}

static void abort_rank(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *part;
	pthread_t t;
	double start = now();

#define CALL(e) c->ops->split(c, 0, c->rank, &part, e)
	OK(CALL);
#undef CALL
	if (c->rank == 0) { /* waits for rank 1, which does not come: ended by its own thread */
		pthread_create(&t, NULL, abort_soon, c);
		CHECK(dtp_barrier(part, &err) == DTP_FAILED);
		pthread_join(t, NULL);
	} else { /* waits for rank 0 by something else: ended by the closed connection */
		char buf[8];
		CHECK(dtp_broadcast(part, buf, sizeof buf, 0, &err) == DTP_FAILED);
	}
	CHECK(err.secondary);
	CHECK(now() - start < 1.0);
	err = (struct dtp_err)DTP_ERR_INIT;
	CHECK(dtp_barrier(c, &err) == DTP_FAILED);
	CHECK(err.secondary);
	CHECK(dtp_barrier(part, &err) == DTP_FAILED);
	dtp_comm_destroy(part);
}

static void comm_abort_wakes_a_waiting_call(void **state)
{
	(void)state;
	run_ranks(2, abort_rank);
}

static void death_rank(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	int64_t n = 1 << 20;
	float *buf = calloc((size_t)n, sizeof *buf);
	double start = now();

	if (c->rank == 1) {
		usleep(50000);
		raise(SIGKILL);
	}
	if (c->rank == 2) { /* waits for rank 0 only: the end must spread */
		CHECK(dtp_broadcast(c, buf, n, 0, &err) == DTP_FAILED);
	} else {
		CHECK(dtp_all_reduce(c, buf, n, DTP_F32, &err) == DTP_FAILED);
	}
	CHECK(err.secondary);
	CHECK(strstr(err.message, "lost a peer"));
	CHECK(now() - start < 1.0);
	free(buf);
}

static void comm_death_of_a_peer_fails_the_call_at_once(void **state)
{
	(void)state;
	run_ranks_but(2, 1, death_rank);
	run_ranks_but(3, 1, death_rank);
}

#define GLOO_CASES \
	cmocka_unit_test(comm_all_reduce_sums_in_rank_order), \
	cmocka_unit_test(comm_abort_wakes_a_waiting_call), \
	cmocka_unit_test(comm_death_of_a_peer_fails_the_call_at_once)
#endif
