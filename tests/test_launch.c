/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher with real ranks: this program starts itself; a rank does what its argument says. */
#include "support.h"
#include "launch.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the ranks */
struct self {
	struct dtp_worker *w;
	const struct dtp_monitor *mon;
	struct dtp_comm *world;
	int rank, size;
	const char *dir; /* for files by which the test and the ranks see each other */
	int who;         /* the rank that misbehaves */
};

typedef enum dtp_code (*behaviour)(struct self *s, struct dtp_err *err);

static void leave_mark(const struct self *s, const char *name)
{
	char path[640], pid[16];
	snprintf(path, sizeof path, "%s/%s.%d", s->dir, name, s->rank);
	write_file(path, pid, (size_t)snprintf(pid, sizeof pid, "%d", (int)getpid()));
}

/* Everybody has joined and is about to meet in a barrier; the chosen one does not. */
static bool chosen(struct self *s)
{
	s->mon->stage(s->mon->arg, DTP_PHASE_STEP, "step 2/4");
	s->mon->progress(s->mon->arg, 7, 25);
	usleep(200000); /* longer than a tick of the report */
	leave_mark(s, "ready");
	return s->rank == s->who;
}

static enum dtp_code be_fine(struct self *s, struct dtp_err *err)
{
	int64_t sum = s->rank;
	char text[64];

	s->mon->stage(s->mon->arg, DTP_PHASE_LOAD, "load");
	snprintf(text, sizeof text, "hello from %d", s->rank);
	s->mon->note(s->mon->arg, text);
	s->mon->warn(s->mon->arg, "careful");
	s->mon->progress(s->mon->arg, 3, 10);
	if (dtp_all_reduce(s->world, &sum, 1, DTP_I64, err))
		return err->code;
	if (sum != s->size * (s->size - 1) / 2)
		return dtp_fail(err, DTP_FAILED, "sum is %lld", (long long)sum);
	return DTP_OK;
}

static enum dtp_code be_loud(struct self *s, struct dtp_err *err)
{
	printf("first of %d\nsecond", s->rank);
	fflush(stdout);
	fprintf(stderr, "\nlast");
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_absent(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		exit(3);
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_early(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		exit(0);
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_killed(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		raise(SIGKILL);
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_crashed(struct self *s, struct dtp_err *err)
{
	if (chosen(s)) {
		signal(SIGABRT, SIG_DFL); /* sanitizers have their own way */
		raise(SIGABRT);
	}
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_stopped(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		raise(SIGSTOP);
	return dtp_barrier(s->world, err);
}

/* Stopped while it waits: the others still work, and then wait for it. */
static enum dtp_code be_stopped_waiting(struct self *s, struct dtp_err *err)
{
	if (!chosen(s)) {
		for (int i = 0; i < 10 && !s->mon->stopped(s->mon->arg); i++) {
			s->mon->beat(s->mon->arg);
			usleep(50000);
		}
		return dtp_barrier(s->world, err);
	}
	if (fork() == 0) {
		usleep(200000);
		kill(getppid(), SIGSTOP);
		_exit(0);
	}
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_stuck(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		for (;;)
			pause();
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_crosswise(struct self *s, struct dtp_err *err)
{
	char x[4];
	if (chosen(s))
		return dtp_broadcast(s->world, x, sizeof x, 1 - s->who, err);
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_broken(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		return dtp_fail(err, DTP_FAILED, "the disk is on fire");
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_refused(struct self *s, struct dtp_err *err)
{
	(void)s;
	return dtp_fail(err, DTP_REFUSED, "height 33: not a multiple of 16");
}

static enum dtp_code be_slow(struct self *s, struct dtp_err *err)
{
	if (chosen(s))
		for (int i = 0; i < 20; i++) {
			s->mon->beat(s->mon->arg);
			usleep(100000);
		}
	return dtp_barrier(s->world, err);
}

/* Waits for the user, past the timeout; so do the others, for it. */
static enum dtp_code be_idle(struct self *s, struct dtp_err *err)
{
	if (chosen(s)) {
		s->mon->stage(s->mon->arg, DTP_PHASE_INPUT, "wait for a prompt");
		s->mon->waiting(s->mon->arg, true);
		usleep(2000000);
		s->mon->waiting(s->mon->arg, false);
	}
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_long(struct self *s, struct dtp_err *err)
{
	leave_mark(s, "ready");
	while (!s->mon->stopped(s->mon->arg)) {
		s->mon->beat(s->mon->arg);
		usleep(10000);
	}
	return dtp_fail(err, DTP_INTERRUPTED, "interrupted");
}

static enum dtp_code be_brief(struct self *s, struct dtp_err *err)
{
	leave_mark(s, "ready");
	for (int i = 0; i < 30; i++) {
		s->mon->beat(s->mon->arg);
		usleep(100000);
	}
	return dtp_barrier(s->world, err);
}

static enum dtp_code be_deaf(struct self *s, struct dtp_err *err)
{
	leave_mark(s, "ready");
	for (int i = 0; i < 3000; i++) {
		s->mon->beat(s->mon->arg);
		usleep(10000);
	}
	return dtp_fail(err, DTP_FAILED, "nobody ended me");
}

static enum dtp_code be_storing(struct self *s, struct dtp_err *err)
{
	const struct dtp_store *st = dtp_worker_store(s->w);
	char key[32];
	void *val;
	size_t len;
	int one = 1;

	if (s->rank == 0)
		usleep(100000); /* the others ask first */
	snprintf(key, sizeof key, "key %d", s->rank);
	if (st->set(st->arg, key, &s->rank, sizeof s->rank, err) || (s->rank == 0 && st->set(st->arg, "none", &one, 0, err)))
		return err->code;
	for (int r = 0; r < s->size; r++) {
		snprintf(key, sizeof key, "key %d", r);
		if (st->get(st->arg, key, &val, &len, err))
			return err->code;
		if (len != sizeof r || memcmp(val, &r, len))
			return dtp_fail(err, DTP_FAILED, "wrong value of '%s'", key);
		free(val);
	}
	if (st->get(st->arg, "none", &val, &len, err))
		return err->code;
	free(val);
	return len ? dtp_fail(err, DTP_FAILED, "%zu bytes in an empty value", len) : DTP_OK;
}

static enum dtp_code be_asking(struct self *s, struct dtp_err *err)
{
	const struct dtp_store *st = dtp_worker_store(s->w);
	void *val;
	size_t len;

	if (chosen(s))
		return dtp_fail(err, DTP_FAILED, "the disk is on fire");
	return st->get(st->arg, "never set", &val, &len, err);
}

static enum dtp_code be_placed(struct self *s, struct dtp_err *err)
{
	const char *omp = getenv("OMP_NUM_THREADS"), *wait = getenv("OMP_WAIT_POLICY"), *spin = getenv("GOMP_SPINCOUNT"),
		   *extra = getenv("TEST_EXTRA");

	if (!omp || strcmp(omp, "3") || !wait || strcmp(wait, "passive") || !spin || strcmp(spin, "7") || !extra ||
	    strcmp(extra, "a=b"))
		return dtp_fail(err, DTP_FAILED, "wrong environment");
	if (s->size != 3 || s->world->size != 3 || s->world->rank != s->rank || dtp_worker_local_rank(s->w) != s->rank)
		return dtp_fail(err, DTP_FAILED, "wrong place");
	if (s->rank && read(STDIN_FILENO, &s, 1) != 0)
		return dtp_fail(err, DTP_FAILED, "stdin is not empty");
	return DTP_OK;
}

static const struct {
	const char *name;
	behaviour fn;
} behaviours[] = {
	{"fine", be_fine},     {"loud", be_loud},       {"absent", be_absent},   {"early", be_early},
	{"killed", be_killed}, {"crashed", be_crashed}, {"stopped", be_stopped}, {"stopped-waiting", be_stopped_waiting},
	{"stuck", be_stuck},   {"crosswise", be_crosswise}, {"broken", be_broken}, {"refused", be_refused},
	{"slow", be_slow},     {"idle", be_idle},       {"long", be_long},       {"deaf", be_deaf},
	{"brief", be_brief},   {"storing", be_storing}, {"asking", be_asking}, {"placed", be_placed},
};

/* argv: program, behaviour, folder, rank that misbehaves */
static int rank_main(char **argv)
{
	struct self s = {.dir = argv[2], .who = atoi(argv[3])};
	struct dtp_err err = DTP_ERR_INIT;
	enum dtp_code code;

	s.rank = atoi(getenv("DIFFTP_RANK"));
	leave_mark(&s, "started");
	if (!strcmp(argv[1], "unborn") && s.rank == s.who)
		exit(4);
	code = dtp_worker_open(&s.w, &err);
	if (code)
		return code;
	s.rank = dtp_worker_rank(s.w);
	s.size = dtp_worker_size(s.w);
	s.mon = dtp_worker_monitor(s.w);
	s.world = dtp_worker_world(s.w);
	for (size_t i = 0; i < sizeof behaviours / sizeof *behaviours; i++)
		if (!strcmp(behaviours[i].name, argv[1]))
			code = behaviours[i].fn(&s, &err);
	return dtp_worker_close(s.w, code, &err);
}

/* ---- running them */
static struct {
	char text[8192]; /* a line for each event */
	int progress;    /* events */
	uint64_t done, total;
} seen;

static void see(void *arg, const struct dtp_event *e)
{
	static const char *const kinds[] = {"stage", "progress", "note", "warn", "stdout", "stderr"};
	size_t n = strlen(seen.text);

	assert_string_equal(arg, "arg");
	assert_in_range(e->kind, DTP_EVENT_STAGE, DTP_EVENT_STDERR);
	if (e->kind == DTP_EVENT_PROGRESS) {
		seen.progress++;
		seen.done = e->done;
		seen.total = e->total;
		return;
	}
	snprintf(seen.text + n, sizeof seen.text - n, "%d %s %s\n", e->rank, kinds[e->kind], e->text);
}

static bool saw(const char *line)
{
	const char *p = strstr(seen.text, line);
	return p && (p == seen.text || p[-1] == '\n') && p[strlen(line)] == '\n';
}

static const char *fresh_dir(void)
{
	static char dir[600];
	static int n;
	snprintf(dir, sizeof dir, "%s/%d.%d", temp_dir(), (int)getpid(), n++);
	mkdir(dir, 0700);
	return dir;
}

static pid_t marked(const char *dir, const char *name, int rank)
{
	char path[640], buf[16] = "";
	int fd;
	snprintf(path, sizeof path, "%s/%s.%d", dir, name, rank);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, buf, sizeof buf - 1);
	close(fd);
	return n > 0 ? atoi(buf) : 0;
}

struct outcome {
	enum dtp_code code;
	struct dtp_err err;
	double seconds;
	int progress; /* events of that kind, and the last one */
	uint64_t done, total;
	bool clean;   /* no process was left */
};

static const char *dir; /* of the last launch */

static enum dtp_code launch(const char *what, int n, int who, double timeout, struct dtp_err *err)
{
	char number[16];
	char *argv[] = {(char *)"test_launch", (char *)what, (char *)dir, number, NULL};
	const char *env[] = {"TEST_EXTRA=a=b", NULL};
	struct dtp_launch o = {.nranks = n, .argv = argv, .env = env, .threads_per_rank = 3, .timeout_s = timeout,
			       .on_event = see, .arg = (void *)"arg"};

	snprintf(number, sizeof number, "%d", who);
	memset(&seen, 0, sizeof seen);
	return dtp_launch(&o, err);
}

static struct outcome run(const char *what, int n, int who, double timeout)
{
	struct outcome o = {.err = DTP_ERR_INIT, .clean = true};
	double start = now();

	dir = fresh_dir();
	o.code = launch(what, n, who, timeout, &o.err);
	o.seconds = now() - start;
	o.progress = seen.progress;
	o.done = seen.done;
	o.total = seen.total;
	for (int r = 0; r < n; r++) {
		pid_t pid = marked(dir, "started", r);
		if (!pid || kill(pid, 0) != -1 || errno != ESRCH)
			o.clean = false;
	}
	return o;
}

/* Runs that mostly wait for a deadline all begin together, each under a launcher in a process of its own; the tests then
 * look at how they ended. */
static struct waiter {
	const char *what;
	int n, who;
	pid_t pid;
} waiters[] = {{"slow", 2, 1, 0},	   {"idle", 2, 1, 0},  {"stopped", 2, 1, 0},
	       {"stopped-waiting", 2, 0, 0}, {"stuck", 3, 2, 0}, {"crosswise", 2, 1, 0}};
#define NWAITERS (sizeof waiters / sizeof *waiters)

static struct outcome *outcomes; /* shared with the launchers */

static int start_waiters(void **state)
{
	(void)state;
	outcomes = mmap(NULL, NWAITERS * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (outcomes == MAP_FAILED)
		return -1;
	temp_dir();
	for (size_t i = 0; i < NWAITERS; i++) {
		fflush(NULL);
		waiters[i].pid = fork();
		if (waiters[i].pid == 0) {
			outcomes[i] = run(waiters[i].what, waiters[i].n, waiters[i].who, 0.5);
			_exit(0);
		}
	}
	return 0;
}

static void expect_failure(const struct outcome *o, int rank, double within)
{
	char name[128], host[64] = "";

	gethostname(host, sizeof host - 1);
	snprintf(name, sizeof name, "rank %d on %s ", rank, host);
	assert_int_equal(o->code, DTP_FAILED);
	assert_true(o->clean);
	assert_message(&o->err, DTP_FAILED, name, "'step 2/4' (7 of 25 done)", NULL);
	assert_int_equal(o->err.rank, rank);
	assert_string_equal(o->err.stage, "step 2/4");
	if (o->seconds > within)
		fail_msg("ended after %.2f s, not %.2f", o->seconds, within);
}

static int ended_within(pid_t pid, double seconds)
{
	double start = now();
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now() - start > seconds) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			fail_msg("process %d did not end within %.1f s", (int)pid, seconds);
		}
		usleep(5000);
	}
	return status;
}

static struct outcome run_of(const char *what)
{
	size_t i = 0;

	while (strcmp(waiters[i].what, what))
		i++;
	assert_int_equal(ended_within(waiters[i].pid, 10), 0);
	assert_true(outcomes[i].clean);
	return outcomes[i];
}

/* ---- good runs */
static void launch_events_reach_the_caller(void **state)
{
	(void)state;
	struct outcome o = run("fine", 3, -1, 0);
	assert_true(o.clean);
	if (o.code)
		fail_msg("%s", o.err.message);
	assert_true(saw("0 stage rendezvous"));
	assert_true(saw("2 stage load"));
	for (int r = 0; r < 3; r++) {
		char line[32];
		snprintf(line, sizeof line, "%d note hello from %d", r, r);
		assert_true(saw(line));
		snprintf(line, sizeof line, "%d warn careful", r);
		assert_true(saw(line));
	}
}

static void launch_one_rank_needs_no_peers(void **state)
{
	(void)state;
	struct outcome o = run("fine", 1, -1, 0);
	assert_int_equal(o.code, DTP_OK);
	assert_true(saw("0 note hello from 0"));
}

static void launch_lines_of_other_ranks_are_passed_on(void **state)
{
	int null = open("/dev/null", O_WRONLY), saved[2] = {dup(1), dup(2)};
	(void)state;
	fflush(NULL);
	dup2(null, 1); /* rank 0 writes to ours */
	dup2(null, 2);
	struct outcome o = run("loud", 3, -1, 0);
	dup2(saved[0], 1);
	dup2(saved[1], 2);
	close(saved[0]);
	close(saved[1]);
	close(null);
	assert_int_equal(o.code, DTP_OK);
	assert_true(saw("1 stdout first of 1"));
	assert_true(saw("2 stdout first of 2"));
	assert_true(saw("2 stdout second"));
	assert_true(saw("1 stderr "));
	assert_true(saw("1 stderr last"));
	assert_null(strstr(seen.text, "first of 0"));
}

static void launch_ranks_know_their_place(void **state)
{
	(void)state;
	setenv("GOMP_SPINCOUNT", "7", 1); /* the user's wins */
	struct outcome o = run("placed", 3, -1, 0);
	unsetenv("GOMP_SPINCOUNT");
	assert_true(o.clean);
	if (o.code)
		fail_msg("%s", o.err.message);
}

static void launch_store_answers_before_and_after_set(void **state)
{
	(void)state;
	struct outcome o = run("storing", 4, -1, 0);
	assert_true(o.clean);
	if (o.code)
		fail_msg("%s", o.err.message);
}

static void launch_slow_rank_with_beats_outlives_the_timeout(void **state)
{
	(void)state;
	struct outcome o = run_of("slow");
	assert_true(o.clean);
	if (o.code)
		fail_msg("%s", o.err.message);
	assert_true(o.seconds > 2);
	assert_true(o.progress > 0);
	assert_int_equal(o.done, 7);
	assert_int_equal(o.total, 25);
}

static void launch_wait_for_input_has_no_deadline(void **state)
{
	(void)state;
	struct outcome o = run_of("idle");
	assert_true(o.clean);
	if (o.code)
		fail_msg("%s", o.err.message);
}

static void launch_eight_ranks_join_quickly(void **state)
{
	(void)state;
	struct outcome o = run("fine", 8, -1, 0);
	assert_int_equal(o.code, DTP_OK);
	printf("8 ranks started, joined and left in %.0f ms\n", o.seconds * 1e3);
	assert_true(o.seconds < 5); /* the machine may be busy */
}

/* ---- failures */
static void launch_exit_code_of_a_rank_is_reported(void **state)
{
	(void)state;
	for (int who = 0; who < 2; who++) {
		struct outcome o = run("absent", 3, who, 0);
		expect_failure(&o, who, 8);
		assert_message(&o.err, DTP_FAILED, "exited with code 3", NULL);
	}
}

static void launch_early_exit_of_a_rank_is_a_failure(void **state)
{
	(void)state;
	struct outcome o = run("early", 2, 1, 0);
	expect_failure(&o, 1, 8);
	assert_message(&o.err, DTP_FAILED, "exited with code 0", NULL);
}

static void launch_rank_that_never_joins_ends_the_rendezvous(void **state)
{
	(void)state;
	struct outcome o = run("unborn", 3, 1, 0);
	assert_int_equal(o.code, DTP_FAILED);
	assert_message(&o.err, DTP_FAILED, "rank 1 on ", "exited with code 4", "'start'", NULL);
	assert_true(o.seconds < 8);
}

static void launch_killed_rank_is_named_with_its_signal(void **state)
{
	(void)state;
	for (int who = 0; who < 2; who++) {
		struct outcome o = run("killed", 3, who, 0);
		expect_failure(&o, who, 8);
		assert_message(&o.err, DTP_FAILED, "SIGKILL", "out-of-memory killer", NULL);
	}
}

static void launch_crashed_rank_is_named_with_its_signal(void **state)
{
	(void)state;
	struct outcome o = run("crashed", 2, 0, 0);
	expect_failure(&o, 0, 8);
	assert_message(&o.err, DTP_FAILED, "SIGABRT", NULL);
}

static void launch_error_of_a_rank_wins_over_its_consequences(void **state)
{
	(void)state;
	for (int who = 0; who < 3; who += 2) {
		struct outcome o = run("broken", 3, who, 0);
		expect_failure(&o, who, 8);
		assert_message(&o.err, DTP_FAILED, ": the disk is on fire", NULL);
	}
}

static void launch_failure_wakes_a_wait_on_the_store(void **state)
{
	(void)state;
	struct outcome o = run("asking", 2, 1, 0);
	expect_failure(&o, 1, 8);
	assert_message(&o.err, DTP_FAILED, ": the disk is on fire", NULL);
}

static void launch_refusal_is_told_as_it_is(void **state)
{
	(void)state;
	struct outcome o = run("refused", 4, -1, 0);
	assert_int_equal(o.code, DTP_REFUSED);
	assert_string_equal(o.err.message, "height 33: not a multiple of 16");
}

static void launch_stopped_rank_is_found_and_ended(void **state)
{
	(void)state;
	struct outcome o = run_of("stopped");
	expect_failure(&o, 1, 8);
	assert_message(&o.err, DTP_FAILED, "no progress", "SIGSTOP", NULL);
}

static void launch_rank_stopped_in_a_wait_is_found(void **state)
{
	(void)state;
	struct outcome o = run_of("stopped-waiting");
	expect_failure(&o, 0, 8);
	assert_message(&o.err, DTP_FAILED, "SIGSTOP", NULL);
}

static void launch_stuck_rank_is_named_not_those_that_wait(void **state)
{
	(void)state;
	struct outcome o = run_of("stuck");
	expect_failure(&o, 2, 8);
	assert_message(&o.err, DTP_FAILED, "no progress", "--timeout", NULL);
}

static void launch_ranks_that_wait_for_each_other_are_found(void **state)
{
	(void)state;
	struct outcome o = run_of("crosswise");
	expect_failure(&o, 0, 8);
	assert_message(&o.err, DTP_FAILED, "waited for the others", NULL);
}

static void launch_missing_program_is_reported(void **state)
{
	char *argv[] = {(char *)"x", NULL};
	struct dtp_launch o = {.nranks = 2, .argv = argv, .program = "/no/such/program"};
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	assert_int_equal(dtp_launch(&o, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "/no/such/program", "No such file", NULL);
}

/* ---- the launcher's own end: it runs in a process of its own */
static pid_t launcher(const char *what, int n, bool ignore_int)
{
	pid_t pid;

	dir = fresh_dir();
	fflush(NULL);
	pid = fork();
	assert_int_not_equal(pid, -1);
	if (!pid) {
		struct dtp_err err = DTP_ERR_INIT;
		if (ignore_int)
			signal(SIGINT, SIG_IGN);
		enum dtp_code code = launch(what, n, -1, 1, &err);
		_exit(code == DTP_INTERRUPTED && strcmp(err.message, "interrupted") ? 99 : (int)code);
	}
	for (int r = 0; r < n; r++)
		for (int i = 0; !marked(dir, "ready", r); i++) {
			if (i > 1000)
				fail_msg("rank %d did not start", r);
			usleep(10000);
		}
	return pid;
}

static void ranks_gone(int n)
{
	for (int r = 0; r < n; r++)
		assert_true(kill(marked(dir, "ready", r), 0) == -1 && errno == ESRCH);
}

static void launch_signals_end_the_run_with_130(void **state)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

	(void)state;
	for (int i = 0; i < 3; i++) {
		pid_t pid = launcher("long", 2, false);
		kill(pid, signals[i]);
		int status = ended_within(pid, 5);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 130);
		ranks_gone(2);
	}
}

static void launch_interrupt_ends_ranks_that_do_not_listen(void **state)
{
	(void)state;
	pid_t pid = launcher("deaf", 2, false);
	kill(pid, SIGINT);
	int status = ended_within(pid, 8);
	assert_int_equal(WEXITSTATUS(status), 130);
	ranks_gone(2);
}

/* As a shell starts jobs in the background. */
static void launch_interrupt_by_name_works_where_it_was_ignored(void **state)
{
	(void)state;
	pid_t pid = launcher("long", 2, true);
	kill(pid, SIGINT);
	int status = ended_within(pid, 5);
	assert_int_equal(WEXITSTATUS(status), 130);
}

static void launch_death_of_the_launcher_ends_the_ranks(void **state)
{
	pid_t pid, ranks[2];

	(void)state;
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* they become ours */
	for (int i = 0; i < 2; i++) {
		pid = launcher(i ? "deaf" : "long", 2, false);
		for (int r = 0; r < 2; r++)
			ranks[r] = marked(dir, "ready", r);
		kill(pid, SIGKILL);
		ended_within(pid, 5);
		for (int r = 0; r < 2; r++)
			ended_within(ranks[r], 5);
	}
	prctl(PR_SET_CHILD_SUBREAPER, 0);
}

/* As a terminal does with Ctrl-Z: nobody is to blame for that time. */
static void launch_pause_of_the_launcher_counts_for_nothing(void **state)
{
	(void)state;
	pid_t pid = launcher("brief", 2, false); /* ends by itself */
	kill(pid, SIGSTOP);
	usleep(2500000); /* past the timeout of a second */
	kill(pid, SIGCONT);
	int status = ended_within(pid, 8);
	assert_int_equal(WEXITSTATUS(status), DTP_OK);
}

/* One rank is told to end, the job is not. */
static void launch_sigterm_to_a_rank_is_a_failure(void **state)
{
	(void)state;
	pid_t pid = launcher("long", 2, false);
	kill(marked(dir, "ready", 1), SIGTERM);
	int status = ended_within(pid, 8);
	assert_int_equal(WEXITSTATUS(status), DTP_FAILED);
	ranks_gone(2);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(launch_events_reach_the_caller),
		cmocka_unit_test(launch_one_rank_needs_no_peers),
		cmocka_unit_test(launch_lines_of_other_ranks_are_passed_on),
		cmocka_unit_test(launch_ranks_know_their_place),
		cmocka_unit_test(launch_store_answers_before_and_after_set),
		cmocka_unit_test(launch_slow_rank_with_beats_outlives_the_timeout),
		cmocka_unit_test(launch_wait_for_input_has_no_deadline),
		cmocka_unit_test(launch_eight_ranks_join_quickly),
		cmocka_unit_test(launch_exit_code_of_a_rank_is_reported),
		cmocka_unit_test(launch_early_exit_of_a_rank_is_a_failure),
		cmocka_unit_test(launch_rank_that_never_joins_ends_the_rendezvous),
		cmocka_unit_test(launch_killed_rank_is_named_with_its_signal),
		cmocka_unit_test(launch_crashed_rank_is_named_with_its_signal),
		cmocka_unit_test(launch_error_of_a_rank_wins_over_its_consequences),
		cmocka_unit_test(launch_failure_wakes_a_wait_on_the_store),
		cmocka_unit_test(launch_refusal_is_told_as_it_is),
		cmocka_unit_test(launch_stopped_rank_is_found_and_ended),
		cmocka_unit_test(launch_rank_stopped_in_a_wait_is_found),
		cmocka_unit_test(launch_stuck_rank_is_named_not_those_that_wait),
		cmocka_unit_test(launch_ranks_that_wait_for_each_other_are_found),
		cmocka_unit_test(launch_missing_program_is_reported),
		cmocka_unit_test(launch_signals_end_the_run_with_130),
		cmocka_unit_test(launch_interrupt_ends_ranks_that_do_not_listen),
		cmocka_unit_test(launch_interrupt_by_name_works_where_it_was_ignored),
		cmocka_unit_test(launch_death_of_the_launcher_ends_the_ranks),
		cmocka_unit_test(launch_pause_of_the_launcher_counts_for_nothing),
		cmocka_unit_test(launch_sigterm_to_a_rank_is_a_failure),
	};

	if (argc == 4 && dtp_worker_is_rank())
		return rank_main(argv);
	return cmocka_run_group_tests(tests, start_waiters, NULL);
}
