/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of somebody else's launcher tell each other: who they are, where they sit, what they were told. */
#include "support.h"
#include "guest.h"
#include "told.h"

static struct dtp_guest guest(int rank, const char *host, const char *machine, const char *net, const char *pids,
			      const char *processors, const char *address)
{
	struct dtp_guest g = {.rank = rank, .size = 4, .pid = 100 + rank};

	snprintf(g.host, sizeof g.host, "%s", host);
	snprintf(g.machine, sizeof g.machine, "%s", machine);
	snprintf(g.net, sizeof g.net, "%s", net);
	snprintf(g.pids, sizeof g.pids, "%s", pids);
	snprintf(g.processors, sizeof g.processors, "%s", processors);
	snprintf(g.address, sizeof g.address, "%s", address);
	snprintf(g.version, sizeof g.version, "1.2.3");
	return g;
}

static void guest_survives_the_wire(void **state)
{
	char args[] = "--steps\0004\0", buf[sizeof(struct dtp_guest)];
	struct dtp_guest g = guest(3, "alpha", "m1", "n1", "p1", "f", "10.0.0.3"), r;

	(void)state;
	g.args = args;
	g.args_len = sizeof args - 1; /* a NUL follows */
	struct dtp_msg m = dtp_guest_message(&g, buf, sizeof buf);
	assert_true(dtp_guest_read(&r, &m));
	assert_int_equal(r.rank, 3);
	assert_int_equal(r.size, 4);
	assert_int_equal(r.pid, 103);
	assert_string_equal(r.host, "alpha");
	assert_string_equal(r.processors, "f");
	assert_string_equal(r.address, "10.0.0.3");
	assert_int_equal(r.args_len, sizeof args - 1);
	assert_memory_equal(r.args, args, sizeof args);
	free(r.args);
}

/* What is known of the sender is there, for the message. */
static void guest_of_another_protocol_is_named(void **state)
{
	char args[] = "", buf[sizeof(struct dtp_guest)];
	struct dtp_guest g = guest(1, "alpha", "m1", "n1", "p1", "f", ""), r;

	(void)state;
	g.args = args;
	struct dtp_msg m = dtp_guest_message(&g, buf, sizeof buf);
	m.n[0]++;
	assert_false(dtp_guest_read(&r, &m));
	assert_string_equal(r.host, "alpha");
	assert_string_equal(r.version, "1.2.3");
	assert_int_equal(r.rank, 1);
	m.n[0]--;
	m.text[0].len = 9; /* cut in the host's name */
	assert_false(dtp_guest_read(&r, &m));
	m.n[1] = UINT64_MAX;
	assert_false(dtp_guest_read(&r, &m));
	assert_int_equal(r.rank, -1);
}

/* Ranks 0 and 2 on one host, 1 and 3 on another whose ranks are bound to processors of their own. */
static void seats_of_two_hosts(void **state)
{
	struct dtp_guest all[] = {
		guest(0, "alpha", "m1", "n1", "p1", "3", "10.0.0.1"), guest(1, "beta", "m2", "n2", "p2", "1", "10.0.0.2"),
		guest(2, "alpha", "m1", "n1", "p1", "3", "127.0.0.1"), guest(3, "beta", "m2", "n2", "p2", "2", "10.0.0.2"),
	};
	struct dtp_seat s, r;
	char buf[256];

	(void)state;
	assert_true(dtp_seat_make(&s, all, 4, 2));
	struct dtp_msg m = dtp_seat_message(&s, buf, sizeof buf);
	assert_true(dtp_seat_read(&r, &m));
	assert_int_equal(r.rank, 2);
	assert_int_equal(r.size, 4);
	assert_int_equal(r.hosts, 2);
	assert_int_equal(r.nlocal, 2);
	assert_int_equal(r.local_rank, 1);
	assert_memory_equal(r.local, ((int[]){0, 2, 1, 1}), 4 * sizeof(int));
	assert_string_equal(r.address, "10.0.0.1"); /* not the loopback by which it came */
	assert_string_equal(r.first_host, "alpha");
	assert_int_equal(r.first_pid, 100);
	dtp_seat_free(&r);
	dtp_seat_free(&s);
	assert_true(dtp_seat_make(&s, all, 4, 3));
	assert_memory_equal(s.local, ((int[]){1, 3, 0, 1}), 4 * sizeof(int));
	assert_string_equal(s.address, "10.0.0.2");
	assert_int_equal(s.first_pid, 0); /* its number means nothing there */
	dtp_seat_free(&s);
}

/* Two containers of one machine: memory is shared, process numbers and addresses are not. */
static void seats_of_two_containers(void **state)
{
	struct dtp_guest all[] = {
		guest(0, "c1", "m1", "n1", "p1", "3", "10.0.0.1"), guest(1, "c2", "m1", "n2", "p2", "3", "10.0.0.2"),
	};
	struct dtp_seat s;

	(void)state;
	assert_true(dtp_seat_make(&s, all, 2, 1));
	assert_int_equal(s.hosts, 2);
	assert_int_equal(s.local_rank, 0);
	assert_int_equal(s.first_pid, 0);
	assert_string_equal(s.address, "10.0.0.2");
	dtp_seat_free(&s);
}

static void seat_that_makes_no_sense_is_refused(void **state)
{
	struct dtp_guest all[] = {guest(0, "a", "m", "n", "p", "3", "")};
	struct dtp_seat s, r;
	char buf[256];

	(void)state;
	assert_true(dtp_seat_make(&s, all, 1, 0));
	struct dtp_msg m = dtp_seat_message(&s, buf, sizeof buf);
	m.n[1] = 7;
	assert_false(dtp_seat_read(&r, &m));
	dtp_seat_free(&r);
	dtp_seat_free(&s);
}

/* ---- what they were told */

static char *record(int argc, char **argv, size_t *len)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_args args;

	if (dtp_args_parse(DTP_CMD_GENERATE, argc, argv, &args, &err))
		fail_msg("%s", err.message);
	char *r = dtp_told_record(&args, len);
	assert_non_null(r);
	return r;
}

#define WORDS(...) ((char *[]){strdup("difftp"), __VA_ARGS__, NULL})

static void expect_told(char **a, char **b, const char *a_says, const char *b_says)
{
	char x[128] = "", y[128] = "";
	size_t na = 0, nb = 0, a_len, b_len;

	while (a[na])
		na++;
	while (b[nb])
		nb++;
	char *p = record((int)na, a, &a_len), *q = record((int)nb, b, &b_len);
	assert_int_equal(dtp_told_same(p, a_len, q, b_len, x, y, sizeof x), a_says == NULL);
	if (a_says) {
		assert_string_equal(x, a_says);
		assert_string_equal(y, b_says);
	}
	free(p);
	free(q);
	free(a[0]);
	free(b[0]);
}

static void told_alike(void **state)
{
	char steps[] = "--steps", n[] = "--num_inference_steps=4", four[] = "4", model[] = "--model", m1[] = "/a", m2[] = "/b",
	     quiet[] = "-q";

	(void)state;
	expect_told(WORDS(steps, four), WORDS(n), NULL, NULL);
	expect_told(WORDS(model, m1, quiet), WORDS(model, m2), NULL, NULL); /* each host's own */
}

static void told_differently(void **state)
{
	char steps[] = "--steps=4", more[] = "--steps=5", dtype[] = "--dtype=fp32", exact[] = "--exact-timesteps", seed[] = "--seed=1",
	     prompt[300] = "--prompt=";

	(void)state;
	expect_told(WORDS(steps), WORDS(more), "'--steps 4'", "'--steps 5'");
	expect_told(WORDS(steps), WORDS(steps, seed), "no '--seed'", "'--seed 1'");
	expect_told(WORDS(steps, dtype), WORDS(steps), "'--dtype fp32'", "no '--dtype'");
	expect_told(WORDS(exact), WORDS(seed), "'--exact-timesteps'", "no '--exact-timesteps'");
	memset(prompt + 9, 'x', 100);
	expect_told(WORDS(prompt), WORDS(steps),
		    "'--prompt xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'", "no '--prompt'");
}

static void told_garbage_ends(void **state)
{
	char x[128], y[128];

	(void)state;
	for (int k = 0; k < 2000; k++) {
		char a[64], b[64];
		for (size_t i = 0; i < sizeof a; i++) {
			a[i] = (char)(test_random() % 3 ? 'a' : 0);
			b[i] = (char)(test_random() % 3 ? 'a' : 0);
		}
		dtp_told_same(a, test_random() % sizeof a, b, test_random() % sizeof b, x, y, sizeof x);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(guest_survives_the_wire),
		cmocka_unit_test(guest_of_another_protocol_is_named),
		cmocka_unit_test(seats_of_two_hosts),
		cmocka_unit_test(seats_of_two_containers),
		cmocka_unit_test(seat_that_makes_no_sense_is_refused),
		cmocka_unit_test(told_alike),
		cmocka_unit_test(told_differently),
		cmocka_unit_test(told_garbage_ends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
