/* SPDX-License-Identifier: Apache-2.0 */
/* verify names what is broken, and nothing else: one slice of one weight in one rank, one bias, one sum, one norm, the order of
 * heads.  The faults are put into one rank's backend or communicator from outside; the ranks are threads. */
#include "thread_comm.h"

#include "pipeline_internal.h"
#include "verify.h"

#include <math.h>
#include <unistd.h>

/* ---- what is broken */

enum breakage {
	NOTHING,
	WEIGHT,     /* the first row of a rank's slice has the other sign */
	BIAS,       /* its first value is one larger */
	NOT_FINITE, /* a weight holds an infinity */
	LOST_PART,  /* a rank adds nothing to a sum */
	EARLY_BIAS, /* a rank adds the bias to its part of a sum too */
	HEADS       /* the first two heads of a rank are swapped after attention, in the second block */
};

struct fault {
	enum breakage how;
	const char *module; /* whose; not with HEADS */
	int rank;
};

/* A rank's backend and communicator with a fault in them. */
struct broken {
	struct dtp_backend *be;
	struct dtp_backend_ops ops;
	const struct dtp_backend_ops *real;
	struct thread_comm comm;
	struct dtp_comm_ops comm_ops;
	struct dtp_tree *trees[DTP_COMPONENTS];
	int ntrees;
	struct fault fault;
	const struct dtp_weight *running; /* of the last product */
	int attentions;                   /* done */
	int hits;                         /* how often the fault took effect */
};
static struct broken ranks[MAX_THREAD_RANKS];

static struct broken *of(const struct dtp_backend *be)
{
	for (int r = 0; r < MAX_THREAD_RANKS; r++)
		if (ranks[r].be == be)
			return &ranks[r];
	abort();
}

/* The layer that the fault is in. */
static const struct dtp_layer *target(const struct broken *b)
{
	for (int t = 0; t < b->ntrees; t++) {
		int i = dtp_tree_find(b->trees[t], b->fault.module);
		if (i >= 0)
			return b->trees[t]->modules[i].layer;
	}
	abort();
}

static enum dtp_code weight_write(struct dtp_backend *be, struct dtp_weight *w, int64_t row0, int64_t nrows, const void *src,
				  enum dtp_dtype t, struct dtp_err *err)
{
	struct broken *b = of(be);
	bool weight = b->fault.how == WEIGHT || b->fault.how == NOT_FINITE, bias = b->fault.how == BIAS;

	if (row0 || !(weight || bias) || w != (bias ? target(b)->bias : target(b)->weight))
		return b->real->weight_write(be, w, row0, nrows, src, t, err);
	int64_t columns = w->ndim > 1 ? w->shape[1] : 1;
	float *panel = malloc((size_t)(nrows * columns) * sizeof *panel);
	dtp_to_f32(panel, src, t, (size_t)(nrows * columns));
	for (int64_t i = 0; i < columns; i++)
		panel[i] = b->fault.how == NOT_FINITE ? INFINITY : bias ? panel[i] + 1 : -panel[i];
	enum dtp_code rc = b->real->weight_write(be, w, 0, nrows, panel, DTP_F32, err);
	b->hits++;
	free(panel);
	return rc;
}

static enum dtp_code linear(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			    const struct dtp_weight *bias, struct dtp_err *err)
{
	struct broken *b = of(be);

	b->running = w;
	if (b->fault.how == EARLY_BIAS && w == target(b)->weight) {
		bias = target(b)->bias;
		b->hits++;
	}
	return b->real->linear(be, out, x, w, bias, err);
}

static enum dtp_code all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t, struct dtp_err *err)
{
	struct broken *b = &ranks[c->rank];

	if (b->fault.how == LOST_PART && b->running && b->running == target(b)->weight) {
		memset(buf, 0, (size_t)count * dtp_dtype_size(t));
		b->hits++;
	}
	return thread_all_reduce(c, buf, count, t, err);
}

static void swap_heads(struct dtp_tensor x)
{
	size_t size = dtp_dtype_size(x.dtype), n = (size_t)x.shape[2] * size;
	char *keep = malloc(n);

	for (int64_t i = 0; i < x.shape[0]; i++) {
		char *row = (char *)x.data + (size_t)(i * x.stride[0]) * size;
		memcpy(keep, row, n);
		memcpy(row, row + n, n);
		memcpy(row + n, keep, n);
	}
	free(keep);
}

/* The attention of the second block: 27 layers of the text encoder and the first block come before. */
#define ATTENTIONS_BEFORE 28
static enum dtp_code attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
			       struct dtp_tensor v, const struct dtp_attention *a, struct dtp_err *err)
{
	struct broken *b = of(be);
	enum dtp_code rc = b->real->attention(be, out, q, k, v, a, err);

	if (b->fault.how == HEADS && b->attentions++ == ATTENTIONS_BEFORE) {
		swap_heads(out);
		b->hits++;
	}
	return rc;
}

static void break_rank(int rank, int size, struct hub *hub, enum dtp_dtype compute, const struct fault *f)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct broken *b = &ranks[rank];

	*b = (struct broken){.comm = thread_comm_make(rank, size, hub)};
	if (dtp_backend_cpu(compute, 1, &b->be, &err))
		fail_msg("%s", err.message);
	if (!f || f->rank != rank)
		return;
	b->fault = *f;
	b->real = b->be->ops;
	b->ops = *b->real;
	b->ops.weight_write = weight_write;
	b->ops.linear = linear;
	b->ops.attention = attention;
	b->be->ops = &b->ops;
	b->comm_ops = thread_ops;
	b->comm_ops.all_reduce = all_reduce;
	b->comm.base.ops = &b->comm_ops;
}

static void mend_rank(int rank)
{
	struct broken *b = &ranks[rank];
	if (b->real)
		b->be->ops = b->real;
	b->be->ops->destroy(b->be);
	b->be = NULL;
}

/* ---- running */

struct setting {
	const char *model;
	int size;
	enum dtp_dtype compute;
	bool free_run;
	const struct fault *fault;
};

struct thread {
	pthread_t thread;
	const struct setting *set;
	int rank;
	struct hub *hub;
	struct dtp_verify_report report;
	struct dtp_err err;
};

static void in_threads(struct thread *threads, const struct setting *set, void *(*run)(void *))
{
	static struct hub hub;

	alarm(120); /* a rank that fails leaves the others in a barrier */
	pthread_barrier_init(&hub.barrier, NULL, (unsigned)set->size);
	for (int r = 0; r < set->size; r++) {
		break_rank(r, set->size, &hub, set->compute, set->fault);
		threads[r] = (struct thread){.set = set, .rank = r, .hub = &hub, .err = DTP_ERR_INIT};
		assert_int_equal(pthread_create(&threads[r].thread, NULL, run, &threads[r]), 0);
	}
	for (int r = 0; r < set->size; r++)
		pthread_join(threads[r].thread, NULL);
	alarm(0);
	for (int r = 0; r < set->size; r++) {
		if (threads[r].err.code)
			fail_msg("rank %d: %s", r, threads[r].err.message);
		if (set->fault && set->fault->rank == r)
			assert_true(ranks[r].hits > 0);
		mend_rank(r);
	}
	pthread_barrier_destroy(&hub.barrier);
}

static void *run_pipeline(void *arg)
{
	static const char prompt[] = "a red fox";
	struct thread *t = arg;
	struct broken *b = &ranks[t->rank];
	struct dtp_options o = {.model = fixture("models/%s", t->set->model), .tp_degree = t->set->size, .compute = t->set->compute};
	struct dtp_request q = {.prompt = prompt, .height = 64, .width = 48, .steps = 2, .guidance_scale = -1, .seed = 7,
				.max_sequence_length = 24, .output = DTP_OUTPUT_LATENT};
	const int sizes[DTP_MESH_DIMS] = {1, 1, 1, t->set->size};
	struct dtp_mesh mesh = {0};
	struct dtp_verify_job job = {.options = {.free_run = t->set->free_run}, .request = &q, .backend = b->be, .mesh = &mesh,
				     .mon = &dtp_monitor_none, .node_threads = 1};

	if (!dtp_pipeline_open(&o, &dtp_monitor_none, &job.pipeline, &t->err) && !dtp_pipeline_resolve(job.pipeline, &q, &t->err) &&
	    !dtp_mesh_make(&b->comm.base, sizes, &mesh, &t->err)) {
		b->trees[0] = &job.pipeline->text.tree;
		b->trees[1] = &job.pipeline->transformer.tree;
		b->ntrees = 2;
		o.tp_degree = 1;
		if (t->rank == 0 && !dtp_pipeline_open(&o, &dtp_monitor_none, &job.whole, &t->err))
			dtp_backend_cpu(t->set->compute, 1, &job.whole_backend, &t->err);
		dtp_verify_run(&job, &t->report, &t->err);
	}
	if (job.whole_backend)
		job.whole_backend->ops->destroy(job.whole_backend);
	if (job.whole)
		dtp_pipeline_close(job.whole);
	if (job.pipeline)
		dtp_pipeline_close(job.pipeline);
	dtp_mesh_free(&mesh);
	return NULL;
}

/* Rank 0's report; the caller frees it. */
static struct dtp_verify_report verify(const struct setting *set)
{
	struct thread threads[MAX_THREAD_RANKS];

	in_threads(threads, set, run_pipeline);
	for (int r = 1; r < set->size; r++)
		dtp_verify_report_free(&threads[r].report);
	return threads[0].report;
}

/* Exactly one thing is named: this module, this part of it, on these ranks. */
static void expect_one(const struct dtp_verify_report *v, const char *module, enum dtp_point_kind kind, const char *who)
{
	for (int i = 0; i < v->nfound; i++)
		print_message("  '%s' (%d) on %s, step %d: rms %g max %g\n", v->found[i].module, (int)v->found[i].kind,
			      v->found[i].ranks, v->found[i].step, v->found[i].d.rms, v->found[i].d.max);
	assert_int_equal(v->nfound, 1);
	assert_string_equal(v->found[0].module, module);
	assert_int_equal(v->found[0].kind, kind);
	assert_string_equal(v->found[0].ranks, who);
	int rows = 0;
	for (int i = 0; i < v->nrows; i++)
		rows += v->rows[i].differ > 0;
	assert_int_equal(rows, 1);
}

/* ---- a pipeline */

static void expect_agreement(const struct setting *set)
{
	struct dtp_verify_report v = verify(set);

	for (int i = 0; i < v.nfound; i++)
		print_error("'%s' on %s: rms %g max %g of %g\n", v.found[i].module, v.found[i].ranks, v.found[i].d.rms,
			    v.found[i].d.max, v.found[i].d.tolerance);
	assert_int_equal(v.differ, 0);
	assert_true(v.nrows > 10);
	dtp_verify_report_free(&v);
}

static void agrees(void **state)
{
	(void)state;
#ifdef DTP_SANITIZE
	static const int sizes[] = {1, 2}; /* some ten times slower */
#else
	static const int sizes[] = {1, 2, 4, 8}; /* of 8 ranks half have no head of the text encoder */
#endif
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int bf16 = 0; bf16 < 2; bf16++)
			expect_agreement(&(struct setting){"klein-tiny", sizes[i], bf16 ? DTP_BF16 : DTP_F32, false, NULL});
	/* 12 heads; the text encoder's 4 are divided unevenly. */
	expect_agreement(&(struct setting){"klein-heads12-tiny", 3, DTP_F32, false, NULL});
	expect_agreement(&(struct setting){"klein-heads12-tiny", 6, DTP_BF16, false, NULL});
}

static void free_run_agrees(void **state)
{
	(void)state;
	expect_agreement(&(struct setting){"klein-tiny-sharded", 2, DTP_F32, true, NULL});
	expect_agreement(&(struct setting){"klein-tiny-sharded", 4, DTP_BF16, true, NULL});
}

static void names_one(const char *module, enum breakage how, enum dtp_point_kind kind, int size, int rank, const char *who)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct fault f = {how, module, rank};
		struct dtp_verify_report v =
			verify(&(struct setting){"klein-tiny", size, bf16 ? DTP_BF16 : DTP_F32, false, &f});
		expect_one(&v, module, kind, who);
		dtp_verify_report_free(&v);
	}
}

static void names_a_slice_of_columns(void **state)
{
	(void)state;
	names_one("transformer_blocks.1.attn.to_k", WEIGHT, DTP_POINT_OUTPUT, 4, 2, "rank 2");
	names_one("transformer_blocks.0.ff_context.linear_in", WEIGHT, DTP_POINT_OUTPUT, 2, 0, "rank 0");
	names_one("single_transformer_blocks.2.attn.to_qkv_mlp_proj", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "rank 1");
	names_one("layers.20.self_attn.v_proj", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "rank 1");
}

static void names_a_slice_of_a_sum(void **state)
{
	(void)state;
	names_one("transformer_blocks.1.attn.to_out.0", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "all ranks");
	names_one("single_transformer_blocks.0.attn.to_out", WEIGHT, DTP_POINT_OUTPUT, 4, 3, "all ranks");
	names_one("layers.26.mlp.down_proj", WEIGHT, DTP_POINT_OUTPUT, 2, 0, "all ranks");
}

static void names_a_replicated_weight(void **state)
{
	(void)state;
	names_one("x_embedder", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "rank 1");
	names_one("transformer_blocks.0.attn.norm_added_k", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "rank 1");
	names_one("layers.3.post_attention_layernorm", WEIGHT, DTP_POINT_OUTPUT, 2, 1, "rank 1");
}

static void names_a_sum(void **state)
{
	(void)state;
	names_one("transformer_blocks.0.ff.linear_out", LOST_PART, DTP_POINT_OUTPUT, 4, 1, "all ranks");
	names_one("transformer_blocks.1.attn.to_add_out", LOST_PART, DTP_POINT_OUTPUT, 2, 0, "all ranks");
	names_one("layers.0.self_attn.o_proj", LOST_PART, DTP_POINT_OUTPUT, 2, 1, "all ranks");
}

static void names_what_is_not_finite(void **state)
{
	(void)state;
	struct fault f = {NOT_FINITE, "single_transformer_blocks.1.attn.to_out", 1};
	struct dtp_verify_report v = verify(&(struct setting){"klein-tiny", 2, DTP_BF16, false, &f});
	expect_one(&v, f.module, DTP_POINT_OUTPUT, "all ranks");
	assert_true(v.found[0].d.broken > 0);
	dtp_verify_report_free(&v);
}

/* No layer is wrong here: the input of both output layers is, and what stands before it is said. */
static void names_attention(void **state)
{
	(void)state;
	struct fault f = {HEADS, NULL, 1};
	struct dtp_verify_report v = verify(&(struct setting){"klein-tiny", 2, DTP_F32, false, &f});
	assert_int_equal(v.nfound, 2);
	assert_string_equal(v.found[0].module, "transformer_blocks.1.attn.to_out.0");
	assert_int_equal(v.found[0].kind, DTP_POINT_INPUT);
	assert_string_equal(v.found[0].ranks, "rank 1");
	assert_string_equal(v.found[0].after, "transformer_blocks.1.attn.norm_added_k");
	assert_string_equal(v.found[1].module, "transformer_blocks.1.attn.to_add_out");
	dtp_verify_report_free(&v);
}

static void free_run_sees_a_slice(void **state)
{
	(void)state;
	struct fault f = {WEIGHT, "transformer_blocks.1.attn.to_out.0", 1};
	struct dtp_verify_report v = verify(&(struct setting){"klein-tiny", 2, DTP_F32, true, &f});
	assert_true(v.nfound > 0);
	assert_string_equal(v.found[0].module, "double.1.img"); /* the first stage behind it */
	assert_int_equal(v.found[0].step, 1);
	dtp_verify_report_free(&v);
}

/* One rank holds one layer of the whole model at a time. */
static void holds_one_layer(void **state)
{
	(void)state;
	struct dtp_verify_report v = verify(&(struct setting){"klein-tiny", 2, DTP_F32, false, NULL});
	struct dtp_options o = {.model = fixture("models/klein-tiny"), .tp_degree = 1, .compute = DTP_F32};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;
	struct dtp_pipeline *p;
	uint64_t largest = 0, all = 0;

	if (dtp_pipeline_open(&o, &dtp_monitor_none, &p, &err) || dtp_backend_dry(DTP_F32, DTP_DEVICE_CPU, &be, &err))
		fail_msg("%s", err.message);
	for (int c = 0; c < DTP_VAE; c++)
		for (int i = 0; i < p->component[c].tree->n; i++) {
			const struct dtp_module *m = &p->component[c].tree->modules[i];
			uint64_t bytes = 0;
			struct dtp_param param;
			struct dtp_split s;
			for (int k = 0; m->needed && dtp_module_param(m, k, &param); k++) {
				dtp_placement(p->component[c].tree, &param, 0, 1, &s);
				bytes += dtp_weights_param_memory(&param, &s, be);
			}
			largest = bytes > largest ? bytes : largest;
			all += bytes;
		}
	assert_int_equal(v.whole.peak, largest);
	assert_true(v.whole.read >= all && largest < all / 8);
	be->ops->destroy(be);
	dtp_pipeline_close(p);
	dtp_verify_report_free(&v);
}

/* ---- two layers with biases, as no pipeline here has them */

#define M 5
#define IN 12
#define MID 24
#define OUT 40

struct net {
	struct dtp_tree tree;
	struct dtp_layer first, second;
	struct dtp_st st;
	struct dtp_backend *be;
	struct dtp_comm *comm;
};

static float input[M * IN];
static char weights[600];

static void net_pass(struct net *n, const struct dtp_observer *o, struct dtp_err *err)
{
	struct dtp_ctx c = {.be = n->be, .tp = n->comm, .tree = &n->tree, .mon = &dtp_monitor_none, .observer = o,
			    .err = DTP_ERR_INIT};

	if (!dtp_arena_init(&c.scratch, n->be, 1 << 16, &c.err)) {
		struct dtp_tensor x = dtp_from_host(&c, n->be->compute, 2, (int64_t[]){M, IN}, input);
		dtp_linear_sum(&c, &n->second, dtp_linear(&c, &n->first, x));
		dtp_arena_free(&c.scratch);
	}
	*err = c.err;
}

static enum dtp_code open_net(struct net *n, int rank, int degree, struct dtp_err *err)
{
	static const char plan_text[] = "{\"first\":\"colwise\",\"second\":\"rowwise\"}";
	struct dtp_plan plan;

	dtp_tree_init(&n->tree, "net");
	n->tree.even = true;
	int a = dtp_tree_linear(&n->tree, &n->first, MID, IN, true, "first");
	int b = dtp_tree_linear(&n->tree, &n->second, OUT, MID, true, "second");
	dtp_tree_reads(&n->tree, b, 1, &a);
	if (dtp_plan_parse("plan", plan_text, strlen(plan_text), &plan, err))
		return err->code;
	if (!dtp_plan_apply(&plan, &n->tree, degree, err))
		dtp_plan_bind(&n->tree, rank, degree);
	dtp_plan_free(&plan);
	return err->code ? err->code : dtp_st_open_file(weights, &n->st, err);
}

static void close_net(struct net *n)
{
	dtp_st_close(&n->st);
	dtp_tree_free(&n->tree);
}

static enum dtp_code whole_net(void *arg, const struct dtp_observer *o, struct dtp_err *err)
{
	net_pass(arg, o, err);
	return err->code;
}

static void *run_net(void *arg)
{
	struct thread *t = arg;
	struct broken *b = &ranks[t->rank];
	struct net mine = {.be = b->be, .comm = &b->comm.base}, all = {0};
	struct dtp_verify_options o = {0};
	struct dtp_whole_source source = {&all.tree, &all.st, ""};
	struct dtp_whole_job job = {whole_net, &all, &source, 1, false};
	struct dtp_whole *whole = NULL;
	struct dtp_load_stats stats;
	struct dtp_verify *v = NULL;

	b->trees[0] = &mine.tree;
	b->ntrees = 1;
	if (t->rank == 0 && !dtp_comm_single(&dtp_monitor_none, &all.comm, &t->err) && !open_net(&all, 0, 1, &t->err) &&
	    !dtp_backend_cpu(t->set->compute, 1, &all.be, &t->err))
		dtp_whole_start(&job, &whole, &t->err);
	if (!t->err.code && !open_net(&mine, t->rank, t->set->size, &t->err) &&
	    !dtp_weights_load(&mine.tree, &mine.st, "", t->rank, t->set->size, mine.be, &dtp_monitor_none, &stats, &t->err) &&
	    !dtp_verify_new(&o, mine.comm, mine.be, whole, all.be, &t->report, &v, &t->err))
		net_pass(&mine, dtp_verify_observer(v), &t->err);
	dtp_verify_free(v);
	dtp_whole_stop(whole);
	dtp_weights_free(&mine.tree, mine.be);
	close_net(&mine);
	if (t->rank == 0) {
		all.be->ops->destroy(all.be);
		dtp_comm_destroy(all.comm);
		close_net(&all);
	}
	return NULL;
}

static void fill(float *v, int n)
{
	for (int i = 0; i < n; i++)
		v[i] = dtp_round_to(DTP_BF16, test_normal());
}

static void make_net_weights(void)
{
	static float w1[MID * IN], b1[MID], w2[OUT * MID], b2[OUT];
	struct dtp_err err = DTP_ERR_INIT;
	const struct dtp_st_out t[] = {
		{"first.weight", dtp_tensor_make(w1, DTP_F32, 2, (int64_t[]){MID, IN})},
		{"first.bias", dtp_tensor_make(b1, DTP_F32, 1, (int64_t[]){MID})},
		{"second.weight", dtp_tensor_make(w2, DTP_F32, 2, (int64_t[]){OUT, MID})},
		{"second.bias", dtp_tensor_make(b2, DTP_F32, 1, (int64_t[]){OUT})},
	};

	fill(w1, MID * IN);
	fill(b1, MID);
	fill(w2, OUT * MID);
	fill(b2, OUT);
	fill(input, M * IN);
	snprintf(weights, sizeof weights, "%s/net.safetensors", temp_dir());
	if (dtp_st_write(weights, NULL, t, 4, NULL, 0, &err))
		fail_msg("%s", err.message);
}

static void net_case(const char *module, enum breakage how, int size, int rank, const char *who)
{
	for (int bf16 = 0; bf16 < 2; bf16++) {
		struct fault f = {how, module, rank};
		struct setting set = {.size = size, .compute = bf16 ? DTP_BF16 : DTP_F32, .fault = how ? &f : NULL};
		struct thread threads[MAX_THREAD_RANKS];

		in_threads(threads, &set, run_net);
		if (how)
			expect_one(&threads[0].report, module, DTP_POINT_OUTPUT, who);
		else
			assert_int_equal(threads[0].report.differ, 0);
		assert_int_equal(threads[0].report.nrows, 2);
		for (int r = 0; r < size; r++)
			dtp_verify_report_free(&threads[r].report);
	}
}

static void names_a_bias(void **state)
{
	(void)state;
	make_net_weights();
	net_case(NULL, NOTHING, 3, 0, NULL);
	net_case("first", BIAS, 3, 2, "rank 2");
	net_case("second", BIAS, 2, 1, "rank 1");
	net_case("second", EARLY_BIAS, 3, 1, "all ranks");
	net_case("second", LOST_PART, 3, 0, "all ranks");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees),
		cmocka_unit_test(free_run_agrees),
		cmocka_unit_test(names_a_slice_of_columns),
		cmocka_unit_test(names_a_slice_of_a_sum),
		cmocka_unit_test(names_a_replicated_weight),
		cmocka_unit_test(names_a_sum),
		cmocka_unit_test(names_a_bias),
		cmocka_unit_test(names_what_is_not_finite),
		cmocka_unit_test(names_attention),
		cmocka_unit_test(free_run_sees_a_slice),
		cmocka_unit_test(holds_one_layer),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
