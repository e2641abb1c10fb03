/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of work that a backend repeats, and when it is asked to. */
#include "op.h"

#include "replay.h"

/* A CPU backend that says it can repeat: it forgets what it gave, but asks as one does that does not. */
static int calls, freed;
static bool fails; /* while it records */
static int recording;

static enum dtp_code replay(struct dtp_backend *be, struct dtp_recording **r, enum dtp_code (*enqueue)(void *, struct dtp_err *), void *arg,
			    struct dtp_err *err)
{
	struct dtp_err lost = DTP_ERR_INIT;

	(void)be;
	*r = (struct dtp_recording *)(void *)&recording;
	if (++calls > 2 && !fails)
		return DTP_OK;
	if (calls == 2 && fails)
		enqueue(arg, &lost);
	return enqueue(arg, err);
}

static const char *replay_refused(struct dtp_backend *be, const struct dtp_recording *r)
{
	(void)be, (void)r;
	return fails ? "it fails" : NULL;
}

static void replay_free(struct dtp_backend *be, struct dtp_recording *r)
{
	(void)be;
	assert_ptr_equal(r, &recording);
	freed++;
}

static struct dtp_backend_ops ops;

static struct dtp_backend *repeater(void)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;

	assert_int_equal(dtp_backend_cpu(DTP_F32, 1, &be, &err), DTP_OK);
	ops = *be->ops;
	ops.replay = replay;
	ops.replay_refused = replay_refused;
	ops.replay_free = replay_free;
	be->ops = &ops;
	calls = freed = 0;
	return be;
}

struct doubling {
	struct dtp_ctx *c;
	struct dtp_tensor x;
	int asked;
	bool breaks; /* the second time */
};

static void twice(void *arg)
{
	struct doubling *d = arg;

	dtp_residual(d->c, d->x, (struct dtp_tensor){0}, d->x);
	if (++d->asked == 2 && d->breaks)
		dtp_fail(&d->c->err, DTP_FAILED, "the second time");
}

static struct dtp_ctx context(struct dtp_backend *be)
{
	return (struct dtp_ctx){.be = be, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
}

static void replay_counts_every_time(void **state)
{
	float v[4] = {1, 2, 3, 4};
	struct dtp_backend *be = repeater();

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct dtp_ctx c = context(be);
		struct dtp_replay r = {0};
		struct doubling d = {&c, dtp_tensor_make(v, DTP_F32, 2, (int64_t[]){2, 2}), 0, i};
		calls = 0;
		fails = i;
		for (uint64_t n = 1; n <= 5; n++) {
			dtp_replay(&c, &r, twice, &d);
			assert_true(dtp_ok(&c));
			assert_int_equal(c.stat[DTP_OP_POINTWISE].calls, n);
		}
		assert_int_equal(d.asked, fails ? 6 : 2);
		assert_true(!dtp_replay_refused(&c, &r) == !fails);
		dtp_replay_free(be, &r);
		assert_int_equal(freed, i + 1);
		assert_null(r.recording);
	}
	be->ops->destroy(be);
}

static bool yes(void *arg)
{
	(void)arg;
	return true;
}

static void replay_is_asked_for_nothing(void **state)
{
	float v[4] = {1, 2, 3, 4};
	struct dtp_backend *be = repeater();
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_observer observer = {0};
	struct dtp_ctx c = context(be);
	struct dtp_replay r = {0};
	struct doubling d = {&c, dtp_tensor_make(v, DTP_F32, 2, (int64_t[]){2, 2}), 0, false};

	(void)state;
	c.observer = &observer; /* of layers, which this work has none of */
	dtp_replay(&c, &r, twice, &d);
	assert_true(dtp_ok(&c) && d.asked == 1 && !calls && !r.recording);
	assert_string_equal(dtp_replay_refused(&c, &r), "layers are compared");
	c.observer = NULL;
	mon.stopped = yes;
	c.mon = &mon;
	dtp_replay(&c, &r, twice, &d);
	assert_int_equal(c.err.code, DTP_INTERRUPTED);
	assert_true(!calls && v[0] == 2);
	dtp_replay_free(be, &r);
	assert_int_equal(freed, 0);
	be->ops->destroy(be);
}

static int32_t others_lost;

static enum dtp_code sum_of_three(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	(void)c, (void)err;
	assert_true(count == 1 && t == DTP_I32);
	*(int32_t *)buf += others_lost;
	return DTP_OK;
}

/* What one rank alone would record anew, while the others repeat what they have, all record anew. */
static void recordings_are_lost_together(void **state)
{
	static const struct dtp_comm_ops sums = {.all_reduce = sum_of_three};
	struct dtp_comm three = {.size = 3, .ops = &sums, .mon = &dtp_monitor_none};
	struct dtp_backend *be = repeater();
	struct dtp_ctx c = context(be);

	(void)state;
	c.tp = &three;
	for (int here = 0; here < 2; here++)
		for (others_lost = 0; others_lost < 3; others_lost++) {
			struct dtp_replay r = {.recording = (struct dtp_recording *)(void *)&recording};
			fails = here;
			assert_int_equal(dtp_replay_agree(&c, &r, &c.err), DTP_OK);
			int lost = here + others_lost;
			assert_int_equal(freed, lost == 1 || lost == 2);
			assert_true(!r.recording == (freed == 1));
			freed = 0;
		}
	fails = false;
	struct dtp_replay none = {0};
	others_lost = 1;
	assert_int_equal(dtp_replay_agree(&c, &none, &c.err), DTP_OK);
	assert_int_equal(freed, 0);
	be->ops->destroy(be);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replay_counts_every_time),
		cmocka_unit_test(replay_is_asked_for_nothing),
		cmocka_unit_test(recordings_are_lost_together),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
