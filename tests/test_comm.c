/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of CPU ranks: Gloo, and sums through shared memory over it. */
#include "comm_cases.h"

#include <sys/resource.h>

static bool through_memory; /* the communicator whose sums go through shared memory ... */
static bool no_memory;      /* ... which rank 0 cannot have */

static enum dtp_code open_comm(int rank, int n, const struct dtp_store *store, struct dtp_comm **c, struct dtp_err *err)
{
	enum dtp_code code = dtp_comm_gloo(rank, n, store, "test", NULL, &dtp_monitor_none, c, err);

	if (no_memory && rank == 0)
		setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
	return !code && through_memory ? dtp_comm_shared(*c, c, err) : code;
}

static void comm_mesh_that_does_not_fit_is_refused(void **state)
{
	struct dtp_comm world = {.rank = 0, .size = 6};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_mesh mesh;

	(void)state;
	assert_int_equal(dtp_mesh_make(&world, (const int[]){2, 1, 1, 2}, &mesh, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "6 ranks", "dp 2", "ring 1", "ulysses 1", "tp 2", NULL);
	assert_int_equal(dtp_mesh_make(&world, (const int[]){-2, 1, -1, 3}, &mesh, &err), DTP_REFUSED);
	assert_int_equal(dtp_mesh_make(&world, (const int[]){0, 1, 1, 6}, &mesh, &err), DTP_REFUSED);
}

static void comm_arguments_are_checked(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *c;
	float x = 1;

	(void)state;
	assert_int_equal(dtp_comm_single(&dtp_monitor_none, &c, &err), DTP_OK);
	assert_int_equal(dtp_all_reduce(c, &x, -1, DTP_F32, &err), DTP_FAILED);
	assert_int_equal(dtp_all_reduce(c, &x, 1, DTP_F16, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "F16", NULL);
	assert_int_equal(dtp_all_gather(c, &x, &x, INT64_MAX, DTP_F32, &err), DTP_FAILED);
	assert_int_equal(dtp_broadcast(c, &x, 4, 1, &err), DTP_FAILED);
	assert_int_equal(dtp_all_reduce(c, &x, 1, DTP_F32, &err), DTP_OK);
	dtp_comm_destroy(c);
	dtp_comm_destroy(NULL);
}

static void comm_unknown_interface_is_refused(void **state)
{
	struct dtp_store store = {NULL, store_set, store_get};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *c;

	(void)state;
	assert_int_equal(dtp_comm_gloo(0, 2, &store, "x", "no-such-if0", NULL, &c, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "no-such-if0", NULL);
}

static void interface_rank(struct dtp_comm *c)
{
	struct dtp_store store = {arrivals, store_set, store_get};
	struct dtp_comm *other;
	int64_t x = 1;

#define CALL(e) dtp_comm_gloo(c->rank, c->size, &store, "other", "lo", NULL, &other, e)
	OK(CALL);
#undef CALL
#define CALL(e) dtp_all_reduce(other, &x, 1, DTP_I64, e)
	OK(CALL);
#undef CALL
	CHECK(x == c->size);
	dtp_comm_destroy(other);
}

static void comm_binds_to_an_interface_by_name(void **state)
{
	(void)state;
	arrivals = shared_new();
	run_ranks(2, interface_rank);
	munmap(arrivals, sizeof *arrivals);
}

/* Whether this process has the memory of a shared communicator. */
static bool maps_sums(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	bool found = false;

	while (f && fgets(line, sizeof line, f))
		found |= strstr(line, "/memfd:difftp-sums") != NULL;
	if (f)
		fclose(f);
	return found;
}

static void uses_memory(struct dtp_comm *c)
{
	CHECK(maps_sums());
	reduce_exact(c);
}

static void does_without(struct dtp_comm *c)
{
	CHECK(!maps_sums());
	reduce_exact(c);
}

static void comm_shared_sums_go_through_memory_or_else_through_sockets(void **state)
{
	(void)state;
	run_ranks(3, uses_memory);
	no_memory = true;
	run_ranks(3, does_without);
	no_memory = false;
}

/* Group by group. */
static void split_sums(struct dtp_comm *c)
{
	struct dtp_comm *part;
	float x = (float)c->rank;

#define CALL(e) c->ops->split(c, c->rank % 2, c->rank, &part, e)
	OK(CALL);
#undef CALL
	CHECK(!strcmp(part->ops->name, "shared"));
	for (int i = 0; i < 1000; i++) {
		x = (float)c->rank;
#define CALL(e) dtp_all_reduce(part, &x, 1, DTP_F32, e)
		OK(CALL);
#undef CALL
		CHECK(x == (c->rank % 2 ? 4 : 2));
	}
	dtp_comm_destroy(part);
}

static void comm_shared_groups_sum_by_themselves(void **state)
{
	(void)state;
	run_ranks(4, split_sums);
}

/* Rank 1 ends while the others look for the memory that all share. */
static void lost_while_meeting(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_comm *shared = NULL;

#define CALL(e) dtp_barrier(c, e)
	OK(CALL);
#undef CALL
	if (c->rank == 1)
		raise(SIGKILL);
	CHECK(dtp_comm_shared(c, &shared, &err) == DTP_FAILED);
	CHECK(err.secondary);
	CHECK(!shared);
}

static void comm_shared_fails_where_a_peer_is_lost(void **state)
{
	(void)state;
	through_memory = false;
	run_ranks_but(3, 1, lost_while_meeting);
	through_memory = true;
}

/* Rank 0 waits in a sum; `by` aborts. */
static int by;

static void abort_of_sum(struct dtp_comm *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	double start = now();
	pthread_t t;
	float x = 1;

	if (c->rank == by)
		pthread_create(&t, NULL, abort_soon, c);
	if (c->rank == 0) {
		CHECK(dtp_all_reduce(c, &x, 1, DTP_F32, &err) == DTP_FAILED);
		CHECK(err.secondary);
		CHECK(now() - start < 1.0);
		err = (struct dtp_err)DTP_ERR_INIT;
		CHECK(dtp_all_reduce(c, &x, 1, DTP_F32, &err) == DTP_FAILED);
	} else {
		usleep(600000); /* lives on, but does not come */
	}
	if (c->rank == by)
		pthread_join(t, NULL);
}

static void comm_shared_abort_ends_a_sum(void **state)
{
	(void)state;
	for (by = 0; by < 2; by++)
		run_ranks(2, abort_of_sum);
}

static int shared_setup(void **state)
{
	(void)state;
	through_memory = true;
	return 0;
}

#define CASES COMM_CASES, GLOO_CASES, \
	cmocka_unit_test(comm_mesh_that_does_not_fit_is_refused), \
	cmocka_unit_test(comm_arguments_are_checked), \
	cmocka_unit_test(comm_unknown_interface_is_refused), \
	cmocka_unit_test(comm_binds_to_an_interface_by_name)

int main(void)
{
	const struct CMUnitTest gloo[] = {CASES}, shared[] = {CASES,
		cmocka_unit_test(comm_shared_sums_go_through_memory_or_else_through_sockets),
		cmocka_unit_test(comm_shared_groups_sum_by_themselves),
		cmocka_unit_test(comm_shared_fails_where_a_peer_is_lost),
		cmocka_unit_test(comm_shared_abort_ends_a_sum),
	};
	int failed = cmocka_run_group_tests_name("gloo", gloo, NULL, NULL);
	return failed + cmocka_run_group_tests_name("shared", shared, shared_setup, NULL);
}
