/* SPDX-License-Identifier: Apache-2.0 */
/* Every plan style with biases, on 1 to 4 ranks: file -> placement -> loader -> operation -> sum, against plain loops over the
 * whole weights.  The ranks are threads here, each with a backend of its own. */
#include "thread_comm.h"

#include "ops.h"
#include "plan.h"
#include "safetensors.h"
#include "weights.h"

#define M 5      /* tokens */
#define IN 10
#define B0 12    /* blocks of the packed layers; 1, 2, 3 and 4 divide them */
#define B1 24
#define OUT 7
#define MAX_RANKS 4

/* ---- the model: two layers that a pair of styles splits, or one that cuts its own input */

struct net {
	struct dtp_tree tree;
	struct dtp_layer first, second;
};

static void declare(struct net *n, bool pair, bool packed)
{
	dtp_tree_init(&n->tree, "test");
	n->tree.even = true;
	if (!pair) {
		dtp_tree_linear(&n->tree, &n->second, OUT, B0 + B1, true, "second");
		return;
	}
	int a = dtp_tree_linear(&n->tree, &n->first, B0 + B1, IN, true, "first");
	int b = dtp_tree_linear(&n->tree, &n->second, OUT, B0 + B1, true, "second");
	dtp_tree_reads(&n->tree, b, 1, &a);
	if (packed) {
		dtp_tree_out_blocks(&n->tree, a, 2, (int64_t[]){B0, B1});
		dtp_tree_in_blocks(&n->tree, b, 2, (int64_t[]){B0, B1});
	}
}

static const struct style_case {
	const char *name, *plan;
	bool pair, packed;
} cases[] = {
	{"colwise_rowwise", "{\"first\":\"colwise\",\"second\":\"rowwise\"}", true, false},
	{"packed_blocks_omitted", "{\"first\":\"packed_colwise\",\"second\":\"packed_rowwise\"}", true, true},
	{"packed_blocks_given", "{\"first\":{\"style\":\"packed_colwise\",\"blocks\":[1,2]},"
				"\"second\":{\"style\":\"packed_rowwise\",\"blocks\":[1,2]}}", true, true},
	{"rowwise_split_input", "{\"second\":\"rowwise_split_input\"}", false, false},
	{"replicated", "{}", true, false},
};
#define NCASES (int)(sizeof cases / sizeof *cases)

struct data {
	float w1[(B0 + B1) * IN], b1[B0 + B1], w2[OUT * (B0 + B1)], b2[OUT], x[M * (B0 + B1)];
	float expected[M * OUT];
};

static void fill(float *v, int n, enum dtp_dtype t)
{
	for (int i = 0; i < n; i++)
		v[i] = dtp_round_to(t, test_normal());
}

static void product(const float *x, int in, const float *w, const float *b, int out, float *y)
{
	for (int m = 0; m < M; m++)
		for (int j = 0; j < out; j++) {
			double s = b[j];
			for (int k = 0; k < in; k++)
				s += (double)x[m * in + k] * w[j * in + k];
			y[m * out + j] = (float)s;
		}
}

static void make_data(struct data *d, enum dtp_dtype t, bool pair)
{
	float hidden[M * (B0 + B1)];

	fill(d->w1, (B0 + B1) * IN, t);
	fill(d->b1, B0 + B1, t);
	fill(d->w2, OUT * (B0 + B1), t);
	fill(d->b2, OUT, t);
	fill(d->x, M * (B0 + B1), t);
	if (pair) {
		product(d->x, IN, d->w1, d->b1, B0 + B1, hidden);
		for (int i = 0; i < M * (B0 + B1); i++)
			hidden[i] = dtp_round_to(t, hidden[i]); /* what the first layer hands over has the compute dtype */
	}
	product(pair ? hidden : d->x, B0 + B1, d->w2, d->b2, OUT, d->expected);
}

static void write_weights(const char *path, const struct data *d, bool pair)
{
	struct dtp_err err = DTP_ERR_INIT;
	const struct dtp_st_out t[] = {
		{"second.weight", dtp_tensor_make((void *)d->w2, DTP_F32, 2, (int64_t[]){OUT, B0 + B1})},
		{"second.bias", dtp_tensor_make((void *)d->b2, DTP_F32, 1, (int64_t[]){OUT})},
		{"first.weight", dtp_tensor_make((void *)d->w1, DTP_F32, 2, (int64_t[]){B0 + B1, IN})},
		{"first.bias", dtp_tensor_make((void *)d->b1, DTP_F32, 1, (int64_t[]){B0 + B1})},
	};
	if (dtp_st_write(path, NULL, t, pair ? 4 : 2, NULL, 0, &err))
		fail_msg("%s", err.message);
}

/* ---- one rank */

/* Sums that were started are made when they are joined: whoever reads or writes earlier what is summed gets another result. */
struct started {
	void *buf;
	int64_t count;
	enum dtp_dtype t;
};

struct rank {
	struct thread_comm comm; /* first: it is cast to the rank */
	struct started started[2];
	int nstarted, starts, joins, fails_at; /* fails_at: which start does, from 1 */
	enum dtp_overlap overlap;
	struct dtp_opstat stat[DTP_NOPS];
	pthread_t thread;
	const struct style_case *c;
	const struct data *d;
	const char *path;
	enum dtp_dtype type;
	float out[M * OUT];
	struct dtp_err err;
};

static enum dtp_code start_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct rank *r = (struct rank *)c;

	if (++r->starts == r->fails_at)
		return dtp_fail(err, DTP_FAILED, "start %d fails", r->starts);
	r->started[r->nstarted++] = (struct started){buf, count, t};
	return DTP_OK;
}

static enum dtp_code join(struct dtp_comm *c, struct dtp_err *err)
{
	struct rank *r = (struct rank *)c;

	for (int i = 0; i < r->nstarted; i++)
		thread_all_reduce(c, r->started[i].buf, r->started[i].count, r->started[i].t, err);
	r->nstarted = 0;
	r->joins++;
	return DTP_OK;
}

static void compute(struct rank *r, struct net *n, struct dtp_backend *be)
{
	struct dtp_ctx c = {.be = be, .tp = &r->comm.base, .tree = &n->tree, .overlap = r->overlap, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};

	if (!dtp_arena_init(&c.scratch, be, 1 << 16, &c.err)) {
		int64_t width = r->c->pair ? IN : B0 + B1;
		struct dtp_tensor x = dtp_from_host(&c, r->type, 2, (int64_t[]){M, width}, r->d->x);
		struct dtp_tensor y = dtp_linear(&c, &n->second, r->c->pair ? dtp_linear(&c, &n->first, x) : x);
		if (dtp_ok(&c))
			be->ops->download(be, r->out, DTP_F32, y, &c.err);
		dtp_arena_free(&c.scratch);
	}
	memcpy(r->stat, c.stat, sizeof r->stat);
	r->err = c.err;
}

static void *run_rank(void *arg)
{
	struct rank *r = arg;
	struct net n = {0};
	struct dtp_plan plan;
	struct dtp_st st;
	struct dtp_backend *be;
	struct dtp_load_stats stats;
	int rank = r->comm.base.rank, size = r->comm.base.size;

	declare(&n, r->c->pair, r->c->packed);
	if (dtp_plan_parse("plan.json", r->c->plan, strlen(r->c->plan), &plan, &r->err))
		return NULL;
	if (!dtp_plan_apply(&plan, &n.tree, size, &r->err) && !dtp_st_open_file(r->path, &st, &r->err)) {
		dtp_plan_bind(&n.tree, rank, size);
		if (!dtp_backend_cpu(r->type, 1, &be, &r->err)) {
			if (!dtp_weights_load(&n.tree, &st, "", rank, size, be, &dtp_monitor_none, &stats, &r->err)) {
				compute(r, &n, be);
				dtp_weights_free(&n.tree, be);
			}
			be->ops->destroy(be);
		}
		dtp_st_close(&st);
	}
	dtp_plan_free(&plan);
	dtp_tree_free(&n.tree);
	return NULL;
}

static void run_ranks(const struct style_case *c, const struct data *d, int size, enum dtp_dtype type, enum dtp_overlap overlap, int fails_at,
		      struct rank *ranks)
{
	struct dtp_comm_ops ops = thread_ops;
	struct hub hub = {0};
	char path[600];

	ops.start_all_reduce = start_all_reduce;
	ops.join = join;
	snprintf(path, sizeof path, "%s/styles.safetensors", temp_dir());
	write_weights(path, d, c->pair);
	pthread_barrier_init(&hub.barrier, NULL, (unsigned)size);
	for (int i = 0; i < size; i++) {
		ranks[i] = (struct rank){.comm = thread_comm_make(i, size, &hub), .c = c, .d = d, .path = path, .type = type,
					 .overlap = overlap, .fails_at = fails_at, .err = DTP_ERR_INIT};
		ranks[i].comm.base.ops = &ops;
		assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
	}
	for (int i = 0; i < size; i++)
		pthread_join(ranks[i].thread, NULL);
	pthread_barrier_destroy(&hub.barrier);
}

static void check(const struct style_case *c, int size, enum dtp_dtype type, enum dtp_overlap overlap, struct rank *ranks)
{
	static struct data d;
	double max;

	make_data(&d, type, c->pair);
	run_ranks(c, &d, size, type, overlap, 0, ranks);
	for (int i = 0; i < size; i++) {
		if (ranks[i].err.code)
			fail_msg("%s, rank %d of %d: %s", c->name, i, size, ranks[i].err.message);
		compare(ranks[i].out, d.expected, M * OUT, &max, NULL);
		if (!(max <= tolerance(type, B0 + B1)))
			fail_msg("%s, rank %d of %d: differs by %g of its RMS, %g is allowed", c->name, i, size, max,
				 tolerance(type, B0 + B1));
		assert_memory_equal(ranks[i].out, ranks[0].out, sizeof ranks[i].out);
	}
}

static void styles_f32(void **state)
{
	struct rank ranks[MAX_RANKS];

	(void)state;
	for (int i = 0; i < NCASES; i++)
		for (int size = 1; size <= MAX_RANKS; size++)
			check(&cases[i], size, DTP_F32, DTP_OVERLAP_OFF, ranks);
}

static void styles_bf16(void **state)
{
	struct rank ranks[MAX_RANKS];

	(void)state;
	for (int i = 0; i < NCASES; i++)
		for (int size = 1; size <= MAX_RANKS; size++)
			check(&cases[i], size, DTP_BF16, DTP_OVERLAP_OFF, ranks);
}

/* The second layer is summed in two parts, which count as one; so few tokens as here only where it was asked for. */
static void styles_summed_in_parts(void **state)
{
	struct rank off[MAX_RANKS], on[MAX_RANKS];

	(void)state;
	for (int i = 0; i < NCASES; i++)
		for (int size = 1; size <= MAX_RANKS; size++) {
			check(&cases[i], size, DTP_F32, DTP_OVERLAP_OFF, off);
			check(&cases[i], size, DTP_F32, DTP_OVERLAP_ON, on);
			bool summed = size > 1 && strcmp(cases[i].name, "replicated") != 0;
			assert_int_equal(off[0].starts, 0);
			assert_int_equal(on[0].starts, summed ? 2 : 0);
			assert_int_equal(on[0].joins, summed ? 1 : 0);
			assert_int_equal(off[0].stat[DTP_OP_REDUCE].calls, summed ? 1 : 0);
			for (int op = 0; op < DTP_NOPS; op++) {
				assert_int_equal(on[0].stat[op].calls, off[0].stat[op].calls);
				assert_true(on[0].stat[op].flops == off[0].stat[op].flops && on[0].stat[op].bytes == off[0].stat[op].bytes);
			}
			check(&cases[i], size, DTP_F32, DTP_OVERLAP_AUTO, on);
			assert_int_equal(on[0].starts, 0);
		}
}

/* What was started before a failure is joined. */
static void styles_join_what_was_started(void **state)
{
	static struct data d;
	struct rank ranks[MAX_RANKS];

	(void)state;
	make_data(&d, DTP_F32, true);
	for (int at = 1; at <= 2; at++) {
		run_ranks(&cases[0], &d, 2, DTP_F32, DTP_OVERLAP_ON, at, ranks);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(ranks[i].joins, 1);
			assert_int_equal(ranks[i].nstarted, 0);
			assert_string_equal(ranks[i].err.message, at == 1 ? "start 1 fails" : "start 2 fails");
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(styles_f32),
		cmocka_unit_test(styles_bf16),
		cmocka_unit_test(styles_summed_in_parts),
		cmocka_unit_test(styles_join_what_was_started),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
