/* SPDX-License-Identifier: Apache-2.0 */
/* Who is to blame, with a clock of the test's own; and the control channel's messages. */
#include "support.h"
#include "control.h"
#include "supervise.h"

#include <signal.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT 100.0

static struct supervisor_fixture {
	struct dtp_supervisor s;
	double now;
} f;

static void begin(int nranks)
{
	f.now = 1000;
	assert_true(dtp_supervisor_init(&f.s, nranks, TIMEOUT, f.now));
	for (int r = 0; r < nranks; r++) {
		struct dtp_msg hello = dtp_msg_text(DTP_MSG_HELLO, "node7");
		dtp_supervisor_message(&f.s, r, &hello, f.now);
		f.s.ranks[r].pid = 0; /* of another host: nothing to look up */
	}
}

static void stage(int rank, enum dtp_phase phase, const char *text)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_STAGE, text);
	m.n[0] = phase;
	dtp_supervisor_message(&f.s, rank, &m, f.now);
}

static void beat(int rank, uint64_t beats, bool waiting, uint64_t done, uint64_t total)
{
	struct dtp_msg m = {.type = DTP_MSG_BEAT, .n = {beats, waiting, done, total}};
	dtp_supervisor_message(&f.s, rank, &m, f.now);
}

static void fails(int rank, enum dtp_code code, bool secondary, const char *text)
{
	struct dtp_msg m = dtp_msg_text(DTP_MSG_FAIL, text);
	m.n[0] = code;
	m.n[1] = secondary;
	dtp_supervisor_message(&f.s, rank, &m, f.now);
}

/* Every rank says that it is alive, and moves where `moving` has its bit. */
static bool pass(double seconds, unsigned silent, unsigned moving, unsigned waiting)
{
	static uint64_t beats;
	bool verdict = false;

	for (double t = 0; t < seconds && !verdict; t += 0.5) {
		f.now += 0.5;
		beats++;
		for (int r = 0; r < f.s.nranks; r++)
			if (!(silent >> r & 1) && !f.s.ranks[r].ended)
				beat(r, moving >> r & 1 ? beats : 1, waiting >> r & 1, f.s.ranks[r].done,
				     f.s.ranks[r].total);
		verdict = dtp_supervisor_verdict(&f.s, f.now);
	}
	return verdict;
}

static int finish(void **state)
{
	(void)state;
	dtp_supervisor_free(&f.s);
	return 0;
}

static void supervise_moving_ranks_are_never_blamed(void **state)
{
	(void)state;
	begin(3);
	assert_false(pass(10 * TIMEOUT, 0, 7, 0));
	assert_false(pass(10 * TIMEOUT, 0, 1, 6)); /* two wait for a slow one */
}

static void supervise_rank_that_does_not_move_is_blamed(void **state)
{
	(void)state;
	begin(3);
	stage(1, DTP_PHASE_LOAD, "load transformer");
	beat(1, 1, false, 1240000000, 4000000000);
	assert_false(pass(TIMEOUT - 1, 0, 0, 5));
	assert_true(pass(5, 0, 0, 5));
	assert_message(&f.s.err, DTP_FAILED, "rank 1 on node7 made no progress for 10", " seconds in 'load transformer' "
		       "(1.2 GB of 4.0 GB)", NULL);
	assert_int_equal(f.s.err.rank, 1);
}

static void supervise_progress_is_movement(void **state)
{
	(void)state;
	begin(1);
	for (uint64_t i = 1; i < 50; i++) {
		f.now += TIMEOUT * 0.9;
		beat(0, 1, false, i, 50);
		assert_false(dtp_supervisor_verdict(&f.s, f.now));
	}
}

static void supervise_silent_process_is_blamed_even_in_a_wait(void **state)
{
	(void)state;
	begin(3);
	pass(5, 0, 7, 4);
	assert_true(pass(TIMEOUT + 5, 4, 3, 4)); /* the others move on */
	assert_message(&f.s.err, DTP_FAILED, "rank 2 ", "does not answer", NULL);
}

static void supervise_all_waiting_is_a_deadlock(void **state)
{
	(void)state;
	begin(2);
	assert_true(pass(TIMEOUT + 5, 0, 0, 3));
	assert_message(&f.s.err, DTP_FAILED, "rank 0 ", "waited for the others", NULL);
}

static void supervise_wait_for_input_excuses_all_that_wait(void **state)
{
	(void)state;
	begin(2);
	stage(0, DTP_PHASE_INPUT, "wait for a prompt");
	assert_false(pass(10 * TIMEOUT, 0, 0, 3));
	stage(0, DTP_PHASE_STEP, "step 1/4");
	assert_false(pass(TIMEOUT - 1, 0, 0, 2));
	assert_true(pass(5, 0, 0, 2));
	assert_message(&f.s.err, DTP_FAILED, "rank 0 ", "'step 1/4'", NULL);
}

/* The wait of the last rank begins anew when a peer has ended. */
static void supervise_wait_for_an_ended_rank_has_its_own_time(void **state)
{
	struct dtp_msg done = {.type = DTP_MSG_DONE};

	(void)state;
	begin(2);
	assert_false(pass(3 * TIMEOUT, 0, 1, 2));
	dtp_supervisor_message(&f.s, 0, &done, f.now);
	dtp_supervisor_exited(&f.s, 0, 0, f.now);
	assert_false(pass(TIMEOUT - 1, 0, 0, 2));
	assert_true(pass(5, 0, 0, 2));
	assert_message(&f.s.err, DTP_FAILED, "rank 1 ", "ranks that have ended", NULL);
}

static void supervise_slow_start_is_not_silence(void **state)
{
	(void)state;
	f.now = 1000;
	assert_true(dtp_supervisor_init(&f.s, 1, 2, f.now));
	assert_false(dtp_supervisor_verdict(&f.s, f.now + 20));
	assert_true(dtp_supervisor_verdict(&f.s, f.now + 31));
	assert_message(&f.s.err, DTP_FAILED, "rank 0 ", "'start'", NULL);
}

static void supervise_time_that_the_watcher_lost_is_excused(void **state)
{
	(void)state;
	begin(2);
	pass(5, 0, 3, 0);
	f.now += 5 * TIMEOUT;
	dtp_supervisor_excuse(&f.s, 5 * TIMEOUT, f.now);
	assert_false(pass(TIMEOUT - 1, 0, 0, 0));
	assert_true(pass(5, 0, 0, 0));
}

static void supervise_consequence_waits_for_its_cause(void **state)
{
	(void)state;
	begin(3);
	fails(0, DTP_FAILED, true, "lost a peer");
	fails(2, DTP_FAILED, true, "lost a peer too");
	assert_false(dtp_supervisor_verdict(&f.s, f.now + 0.5));
	dtp_supervisor_closed(&f.s, 1, f.now + 0.5);
	dtp_supervisor_exited(&f.s, 1, SIGKILL, f.now + 0.6);
	assert_true(dtp_supervisor_verdict(&f.s, f.now + 0.6));
	assert_message(&f.s.err, DTP_FAILED, "rank 1 on node7 was killed by SIGKILL (signal 9)", NULL);
	fails(2, DTP_FAILED, false, "too late");
	assert_message(&f.s.err, DTP_FAILED, "rank 1 ", NULL);
}

static void supervise_consequence_stands_where_no_cause_shows(void **state)
{
	(void)state;
	begin(2);
	fails(1, DTP_FAILED, true, "lost a peer");
	assert_false(dtp_supervisor_verdict(&f.s, f.now + 0.9));
	assert_true(dtp_supervisor_verdict(&f.s, f.now + 1.1));
	assert_message(&f.s.err, DTP_FAILED, "rank 1 on node7 failed in 'start': lost a peer", NULL);
}

static void supervise_interrupt_overrides_a_suspicion_not_a_cause(void **state)
{
	(void)state;
	begin(2);
	fails(1, DTP_FAILED, true, "ended by SIGTERM");
	dtp_supervisor_end(&f.s, DTP_INTERRUPTED, "interrupted");
	assert_true(dtp_supervisor_verdict(&f.s, f.now));
	assert_message(&f.s.err, DTP_INTERRUPTED, "interrupted", NULL);
	finish(NULL);
	begin(2);
	fails(1, DTP_FAILED, false, "the disk is full");
	dtp_supervisor_end(&f.s, DTP_INTERRUPTED, "interrupted");
	assert_message(&f.s.err, DTP_FAILED, "the disk is full", NULL);
}

static void supervise_exit_after_an_error_adds_nothing(void **state)
{
	(void)state;
	begin(2);
	fails(1, DTP_FAILED, true, "lost a peer");
	dtp_supervisor_closed(&f.s, 1, f.now);
	dtp_supervisor_exited(&f.s, 1, 1 << 8, f.now);
	assert_message(&f.s.err, DTP_FAILED, "failed in 'start': lost a peer", NULL);
}

static void supervise_long_texts_are_cut(void **state)
{
	char text[4000];

	(void)state;
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	begin(1);
	stage(0, DTP_PHASE_STEP, text);
	fails(0, DTP_FAILED, false, text);
	assert_true(strlen(f.s.err.message) < sizeof f.s.err.message);
	assert_true(strlen(f.s.err.stage) < sizeof f.s.err.stage);
	assert_message(&f.s.err, DTP_FAILED, "rank 0 on node7 failed in 'xxxx", NULL);
}

static void supervise_stopped_process_is_seen(void **state)
{
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		for (;;)
			pause();
	}
	assert_false(dtp_process_is_stopped(pid));
	kill(pid, SIGSTOP);
	for (int i = 0; i < 500 && !dtp_process_is_stopped(pid); i++)
		usleep(10000);
	assert_true(dtp_process_is_stopped(pid));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_false(dtp_process_is_stopped(pid));
}

/* ---- messages */
static void control_message_survives_the_wire(void **state)
{
	char blob[100000];
	int fd[2];
	struct dtp_inbox in = {0};
	struct dtp_msg m = {.type = DTP_MSG_SET, .n = {1, 2, UINT64_MAX}, .text = {{"key", 3}, {blob, sizeof blob}}}, r;

	(void)state;
	for (size_t i = 0; i < sizeof blob; i++)
		blob[i] = (char)(i * 7);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	assert_int_equal(dtp_inbox_read(&in, fd[1]), DTP_INBOX_EMPTY);
	for (int round = 0; round < 3; round++) {
		assert_true(dtp_msg_send(fd[0], &m)); /* fits into the socket */
		while (dtp_inbox_next(&in, &r) != DTP_INBOX_OK)
			assert_int_equal(dtp_inbox_read(&in, fd[1]), DTP_INBOX_OK);
		assert_int_equal(r.type, DTP_MSG_SET);
		assert_memory_equal(r.n, m.n, sizeof m.n);
		assert_string_equal(r.text[0].p, "key");
		assert_int_equal(r.text[1].len, sizeof blob);
		assert_memory_equal(r.text[1].p, blob, sizeof blob);
	}
	close(fd[0]);
	assert_int_equal(dtp_inbox_read(&in, fd[1]), DTP_INBOX_CLOSED);
	close(fd[1]);
	dtp_inbox_free(&in);
}

static void control_garbage_is_recognised(void **state)
{
	(void)state;
	for (int k = 0; k < 300; k++) {
		struct dtp_msg m = dtp_msg_text(DTP_MSG_NOTE, "hello"), r;
		struct dtp_inbox in = {0};
		char wire[256];
		int fd[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		assert_true(dtp_msg_send(fd[0], &m));
		ssize_t n = recv(fd[1], wire, sizeof wire, 0);
		assert_true(n > 0);
		wire[test_random() % (size_t)n] ^= (char)(1 + test_random() % 255); /* a length, a type, a text, an end */
		assert_int_equal(send(fd[0], wire, (size_t)n, 0), n);
		assert_int_equal(dtp_inbox_read(&in, fd[1]), DTP_INBOX_OK);
		while (dtp_inbox_next(&in, &r) == DTP_INBOX_OK)
			for (int i = 0; i < DTP_MSG_TEXTS; i++)
				assert_int_equal(r.text[i].p[r.text[i].len], '\0');
		dtp_inbox_free(&in);
		close(fd[0]);
		close(fd[1]);
	}
}

struct heard {
	int messages, closed;
};

static void hear(void *arg, int peer, const struct dtp_msg *m)
{
	struct heard *h = arg;
	assert_int_equal(peer, 1);
	assert_int_equal(m->type, DTP_MSG_NOTE);
	h->messages++;
}

static void hear_end(void *arg, int peer)
{
	struct heard *h = arg;
	assert_int_equal(peer, 1);
	h->closed++;
}

/* What a peer said before it died is heard, then its end, once; sending to it does no harm. */
static void control_server_hears_the_last_words(void **state)
{
	struct heard h = {0};
	struct dtp_server_events ev = {&h, hear, hear_end, false};
	struct dtp_server *s = dtp_server_new(2, &ev);
	struct dtp_msg m = dtp_msg_text(DTP_MSG_NOTE, "last words");
	int fd[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	dtp_server_add(s, 1, fd[0]);
	assert_true(dtp_msg_send(fd[1], &m));
	assert_true(dtp_msg_send(fd[1], &m));
	close(fd[1]);
	dtp_server_send(s, 1, &m);
	dtp_server_drain(s, 1);
	assert_int_equal(h.messages, 2);
	assert_int_equal(h.closed, 1);
	dtp_server_send(s, 1, &m);
	dtp_server_drain(s, 1);
	assert_int_equal(h.closed, 1);
	dtp_server_free(s);
}

/* Whether this is what comes next to a peer, all messages before it having been handled. */
static void hears(struct dtp_server *s, int fd, struct dtp_inbox *in, enum dtp_msg_type type, const char *value)
{
	struct dtp_msg m;

	for (int i = 0; i < 3; i++)
		dtp_server_drain(s, i);
	while (dtp_inbox_next(in, &m) != DTP_INBOX_OK)
		assert_int_equal(dtp_inbox_read(in, fd), DTP_INBOX_OK);
	assert_int_equal(m.type, type);
	if (value)
		assert_string_equal(m.text[1].p, value);
}

static void says(int fd, enum dtp_msg_type type, uint64_t takers, const char *key, const char *value)
{
	struct dtp_msg m = {.type = type, .n = {takers}, .text = {{key, strlen(key)}, {value, strlen(value)}}};

	assert_true(dtp_msg_send(fd, &m));
}

/* What two are to get is gone after the second, whether they waited for it or not, and its owner is told; all else stays. */
static void control_store_forgets_what_all_have_taken(void **state)
{
	struct dtp_server_events ev = {NULL, hear, hear_end, false};
	struct dtp_server *s = dtp_server_new(3, &ev);
	struct dtp_inbox in[3] = {0};
	int fd[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		int pair[2];
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
		dtp_server_add(s, i, pair[0]);
		fd[i] = pair[1];
	}
	says(fd[0], DTP_MSG_SET, 0, "stays", "s");
	for (int round = 0; round < 3; round++) {
		if (round) /* else they are there before it */
			says(fd[0], DTP_MSG_SET, 2, "line", round == 1 ? "1" : "2");
		dtp_server_drain(s, 0);
		says(fd[1], DTP_MSG_GET, 0, "line", "");
		says(fd[2], DTP_MSG_GET, 0, "line", "");
		dtp_server_drain(s, 1);
		dtp_server_drain(s, 2);
		if (!round) {
			struct dtp_msg none;
			dtp_inbox_read(&in[1], fd[1]);
			assert_int_equal(dtp_inbox_next(&in[1], &none), DTP_INBOX_EMPTY);
			says(fd[0], DTP_MSG_SET, 2, "line", "0");
		}
		for (int i = 1; i < 3; i++)
			hears(s, fd[i], &in[i], DTP_MSG_VALUE, round == 0 ? "0" : round == 1 ? "1" : "2");
		hears(s, fd[0], &in[0], DTP_MSG_TAKEN, NULL);
	}
	says(fd[2], DTP_MSG_GET, 0, "line", ""); /* waits: it is gone */
	dtp_server_drain(s, 2);
	for (int i = 0; i < 3; i++) {
		says(fd[1], DTP_MSG_GET, 0, "stays", "");
		hears(s, fd[1], &in[1], DTP_MSG_VALUE, "s");
	}
	says(fd[0], DTP_MSG_SET, 0, "line", "3");
	hears(s, fd[2], &in[2], DTP_MSG_VALUE, "3");
	for (int i = 0; i < 3; i++) {
		dtp_inbox_free(&in[i]);
		close(fd[i]);
	}
	dtp_server_free(s);
}

/* A peer that does not read is waited for; one without a queue has nothing to move (a sanitizer says so). */
static void control_server_flushes_what_is_queued(void **state)
{
	struct dtp_server_events ev = {NULL, hear, hear_end, false};
	struct dtp_server *s = dtp_server_new(2, &ev);
	static char much[1 << 20];
	struct dtp_msg m = {.type = DTP_MSG_NOTE, .text = {{much, sizeof much}}}, r;
	struct dtp_inbox in = {0};
	int fd[2], idle[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, idle), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	dtp_server_add(s, 0, idle[0]);
	dtp_server_add(s, 1, fd[0]);
	dtp_server_send(s, 1, &m);
	do
		dtp_server_flush(s, 0.02);
	while (dtp_inbox_next(&in, &r) != DTP_INBOX_OK && dtp_inbox_read(&in, fd[1]) != DTP_INBOX_CLOSED);
	assert_int_equal(r.type, DTP_MSG_NOTE);
	assert_int_equal(r.text[0].len, sizeof much);
	dtp_inbox_free(&in);
	close(fd[1]);
	close(idle[1]);
	dtp_server_free(s);
}

/* Without a descriptor for it a connection waits, and poll waits too, instead of returning for it over and over. */
static void control_server_waits_where_descriptors_run_out(void **state)
{
	struct dtp_server_events ev = {NULL, hear, hear_end, false};
	struct dtp_server *s = dtp_server_new(1, &ev);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	struct pollfd *fds = calloc((size_t)dtp_server_entries(s), sizeof *fds);
	struct rlimit all, none;

	(void)state;
	assert_int_equal(bind(listener, (struct sockaddr *)&at, size), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
	assert_int_equal(connect(client, (struct sockaddr *)&at, size), 0);
	dtp_server_listen(s, listener, "token");
	int n = dtp_server_entries(s);
	assert_non_null(fds);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
	none = all;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	dtp_server_poll(s, fds);
	assert_int_equal(fds[n - 1].fd, listener);
	fds[n - 1].revents = POLLIN;
	dtp_server_handle(s, fds);
	dtp_server_poll(s, fds);
	assert_int_equal(fds[n - 1].fd, -1);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
	for (int tries = 0; fds[n - 1].fd < 0 && tries < 1000; tries++) {
		usleep(10000);
		dtp_server_poll(s, fds);
	}
	assert_int_equal(fds[n - 1].fd, listener);
	fds[n - 1].revents = POLLIN;
	dtp_server_handle(s, fds);
	char c;
	assert_int_equal(read(client, &c, 1), 1); /* of the token */
	close(client);
	free(fds);
	dtp_server_free(s);
}

#define judged(fn) cmocka_unit_test_teardown(fn, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		judged(supervise_moving_ranks_are_never_blamed),
		judged(supervise_rank_that_does_not_move_is_blamed),
		judged(supervise_progress_is_movement),
		judged(supervise_silent_process_is_blamed_even_in_a_wait),
		judged(supervise_all_waiting_is_a_deadlock),
		judged(supervise_wait_for_input_excuses_all_that_wait),
		judged(supervise_wait_for_an_ended_rank_has_its_own_time),
		judged(supervise_slow_start_is_not_silence),
		judged(supervise_time_that_the_watcher_lost_is_excused),
		judged(supervise_consequence_waits_for_its_cause),
		judged(supervise_consequence_stands_where_no_cause_shows),
		judged(supervise_interrupt_overrides_a_suspicion_not_a_cause),
		judged(supervise_exit_after_an_error_adds_nothing),
		judged(supervise_long_texts_are_cut),
		cmocka_unit_test(supervise_stopped_process_is_seen),
		cmocka_unit_test(control_message_survives_the_wire),
		cmocka_unit_test(control_garbage_is_recognised),
		cmocka_unit_test(control_server_hears_the_last_words),
		cmocka_unit_test(control_store_forgets_what_all_have_taken),
		cmocka_unit_test(control_server_flushes_what_is_queued),
		cmocka_unit_test(control_server_waits_where_descriptors_run_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
