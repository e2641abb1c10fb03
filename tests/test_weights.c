/* SPDX-License-Identifier: Apache-2.0 */
/* The loader against a backend that records every byte, and checkpoints against trees. */
#include "checkpoint.h"
#include "json.h"
#include "plan.h"
#include "recorder.h"
#include "sha256.h"
#include "support.h"
#include "trees.h"
#include "weights.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct layers layers;

static void must(enum dtp_code rc, const struct dtp_err *err)
{
	if (rc)
		fail_msg("%s", err->message);
}

static void plan_tree(struct dtp_tree *t, const char *builtin, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	must(dtp_plan_builtin(builtin, &plan, &err), &err);
	must(dtp_plan_apply(&plan, t, degree, &err), &err);
	dtp_plan_free(&plan);
}

static void plan_text(struct dtp_tree *t, const char *text, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	must(dtp_plan_parse("p.json", text, strlen(text), &plan, &err), &err);
	must(dtp_plan_apply(&plan, t, degree, &err), &err);
	dtp_plan_free(&plan);
}

static void open_fixture(const char *folder, const char *base, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	must(dtp_st_open(fixture("%s", folder), base, st, &err), &err);
}

static void open_file(const char *path, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	must(dtp_st_open_file(path, st, &err), &err);
}

/* ---- what a slice is, said in the plainest way: element by element from the whole tensor */

static uint8_t *naive_slice(const struct dtp_tree *t, const struct dtp_st *st, const char *prefix, const struct dtp_param *p,
			    int rank, int degree, size_t *len)
{
	char name[300];
	snprintf(name, sizeof name, "%s%s", prefix, p->name);
	const struct dtp_st_entry *e = dtp_st_find(st, name);
	assert_non_null(e);
	size_t size = dtp_dtype_size(e->dtype);
	uint8_t *whole = malloc(e->nbytes + 1), *out = malloc(e->nbytes + 1);
	FILE *f = fopen(st->files[e->file].path, "rb");
	assert_non_null(f);
	fseek(f, (long)e->offset, SEEK_SET);
	assert_int_equal(fread(whole, 1, e->nbytes, f), e->nbytes);
	fclose(f);
	struct dtp_split s;
	dtp_placement(t, p, rank, degree, &s);
	int dim = s.dim < 0 ? 0 : s.dim;
	int64_t before = 1, after = 1, n = 0;
	for (int d = 0; d < dim; d++)
		before *= p->shape[d];
	for (int d = dim + 1; d < p->ndim; d++)
		after *= p->shape[d];
	for (int64_t b = 0; b < before; b++)
		for (int r = 0; r < s.nruns; r++)
			for (int64_t k = s.run[r].begin; k < s.run[r].end; k++)
				for (int64_t a = 0; a < after; a++, n++)
					memcpy(out + (size_t)n * size,
					       whole + (size_t)((b * p->shape[dim] + k) * after + a) * size, size);
	free(whole);
	*len = (size_t)n * size;
	return out;
}

/* Every parameter of the tree as it was loaded. */
static uint64_t assert_loaded(const struct dtp_tree *t, const struct dtp_st *st, const char *prefix, int rank, int degree)
{
	struct dtp_param p;
	uint64_t total = 0;

	for (int i = 0; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++) {
			const struct dtp_layer *l = t->modules[i].layer;
			struct recorded *w = (struct recorded *)(which ? l->bias : l->weight);
			size_t len;
			if (!t->modules[i].needed) {
				assert_null(w);
				continue;
			}
			assert_non_null(w);
			uint8_t *want = naive_slice(t, st, prefix, &p, rank, degree, &len);
			if (len) {
				assert_int_equal(len, (size_t)recorded_count(&w->w) * dtp_dtype_size(w->dtype));
				assert_memory_equal(w->data, want, len);
				for (int64_t r = 0; r < w->w.shape[0]; r++)
					assert_int_equal(w->rows[r], 1);
			} else {
				assert_int_equal(w->panels, 0);
			}
			free(want);
			total += len;
		}
	return total;
}

static void load_and_compare(struct dtp_tree *t, const struct dtp_st *st, const char *prefix, int rank, int degree,
			     struct recorder *r, struct dtp_load_stats *stats)
{
	struct dtp_err err = DTP_ERR_INIT;

	dtp_plan_bind(t, rank, degree);
	must(dtp_weights_load(t, st, prefix, rank, degree, &r->be, &dtp_monitor_none, stats, &err), &err);
	uint64_t total = assert_loaded(t, st, prefix, rank, degree);
	assert_int_equal(stats->wanted, total);
	assert_int_equal(dtp_weights_file_bytes(t, st, prefix, rank, degree), total);
	assert_true(stats->staging <= DTP_STAGING_BYTES);
	if (r->low)
		assert_true((uint64_t)(r->high - r->low) <= stats->staging);
	dtp_weights_free(t, &r->be);
	assert_int_equal(r->live, 0);
}

/* ---- goldens */

static void compare_hash(const cJSON *hashes, int rank, const void *data, size_t len, const char *name)
{
	char hex[65];
	const cJSON *want = cJSON_GetArrayItem(hashes, rank);

	assert_true(cJSON_IsString(want));
	sha256_hex(data, len, hex);
	if (strcmp(hex, want->valuestring))
		fail_msg("%s of rank %d: %s, expected %s", name, rank, hex, want->valuestring);
}

static void compare_shards(struct dtp_tree *t, const struct dtp_st *st, int degree, const cJSON *golden)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_param p;
	int found = 0;

	plan_tree(t, "flux2", degree);
	for (int i = 0; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++) {
			const cJSON *g = cJSON_GetObjectItemCaseSensitive(golden, p.name);
			struct dtp_split s;
			dtp_placement(t, &p, 0, degree, &s);
			if (!g) { /* not listed: replicated */
				assert_int_equal(s.dim, -1);
				continue;
			}
			found++;
			assert_int_equal(s.dim, cJSON_GetObjectItem(g, "dim")->valueint);
			assert_string_equal(dtp_style_name(t->modules[i].style), cJSON_GetObjectItem(g, "style")->valuestring);
			int64_t shape[DTP_MAX_DIMS];
			dtp_split_shape(&p, &s, shape);
			size_t n = (size_t)(shape[0] * shape[1]);
			void *shard = malloc(n * 2);
			float *wide = malloc(n * sizeof *wide);
			for (int rank = 0; rank < degree; rank++) {
				must(dtp_weights_slice(t, st, "", &p, rank, degree, shard, &err), &err);
				dtp_to_f32(wide, shard, DTP_BF16, n);
				compare_hash(cJSON_GetObjectItem(g, "sha256"), rank, shard, n * 2, p.name);
				compare_hash(cJSON_GetObjectItem(g, "sha256_float32"), rank, wide, n * 4, p.name);
			}
			free(shard);
			free(wide);
		}
	assert_int_equal(found, cJSON_GetArraySize(golden));
}

static void weights_slice_goldens(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_json doc;
	struct dtp_tree t;
	struct dtp_st st;
	int degrees = 0;

	(void)state;
	must(dtp_json_load(fixture("reference/tp_shards_klein-tiny.json"), 0, &doc, &err), &err);
	open_fixture("models/klein-tiny/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	for (const cJSON *tp = cJSON_GetObjectItem(doc.root, "tp")->child; tp; tp = tp->next, degrees++)
		compare_shards(&t, &st, atoi(tp->string), tp);
	assert_int_equal(degrees, 2);
	dtp_tree_free(&t);
	dtp_st_close(&st);
	dtp_json_free(&doc);
}

/* ---- whole loads */

static void weights_load_transformer(void **state)
{
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	open_fixture("models/klein-tiny/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	for (int degree = 1; degree <= 8; degree *= 2)
		for (int rank = 0; rank < degree; rank++) {
			struct recorder r;
			struct dtp_load_stats stats;
			recorder_init(&r);
			r.align[DTP_WEIGHT_MATRIX] = 48;
			plan_tree(&t, "flux2", degree);
			load_and_compare(&t, &st, "", rank, degree, &r, &stats);
		}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void weights_load_sharded_f32(void **state)
{
	const struct flux2_size z = {8, 16, 256, 128, 120, 1, 3};
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	open_fixture("models/klein-tiny-sharded/transformer", "diffusion_pytorch_model", &st);
	assert_true(st.nfiles > 1);
	flux2_tree(&t, &layers, &z);
	plan_tree(&t, "flux2", 4);
	for (int rank = 0; rank < 4; rank++) {
		struct recorder r;
		struct dtp_load_stats stats;
		recorder_init(&r);
		load_and_compare(&t, &st, "", rank, 4, &r, &stats);
	}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* 4 query heads on up to 9 ranks: some ranks own no head, and no row or column of its layers. */
static void weights_load_text_encoder_uneven(void **state)
{
	static const int degrees[] = {3, 4, 9};
	struct dtp_tree t;
	struct dtp_st st;
	bool empty = false;

	(void)state;
	open_fixture("models/klein-tiny/text_encoder", "model", &st);
	qwen3_tree(&t, &layers, &qwen3_tiny);
	for (int d = 0; d < 3; d++)
		for (int rank = 0; rank < degrees[d]; rank += d == 2 ? 4 : 1) {
			struct recorder r;
			struct dtp_load_stats stats;
			recorder_init(&r);
			plan_tree(&t, "qwen3", degrees[d]);
			load_and_compare(&t, &st, "", rank, degrees[d], &r, &stats);
			empty = empty || layers.l[2].out == 0; /* q_proj of layer 0 */
		}
	assert_true(empty);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* Odd shapes, every dtype, biases, a convolution, batch norm, a prefix; blocks whose runs a panel spans. */
static const struct content mixed[] = {
	{"net.a.weight", "F16", 2, {6, 5}},        {"net.a.bias", "F32", 1, {6}},
	{"net.b.weight", "F32", 2, {7, 6}},        {"net.b.bias", "BF16", 1, {7}},
	{"net.c.weight", "BF16", 2, {3000, 401}},  {"net.c.bias", "F16", 1, {3000}},
	{"net.d.weight", "F32", 2, {401, 2040}},   {"net.d.bias", "F32", 1, {401}},
	{"net.conv.weight", "BF16", 4, {5, 3, 3, 3}}, {"net.conv.bias", "BF16", 1, {5}},
	{"net.bn.running_mean", "F32", 1, {9}},    {"net.bn.running_var", "F32", 1, {9}},
	{"net.bn.num_batches_tracked", "I64", 0, {0}},
	{"net.table.weight", "F16", 2, {11, 3}},   {"net.one.weight", "BF16", 2, {1, 1}},
};
#define NMIXED (int)(sizeof mixed / sizeof *mixed)

static void mixed_tree(struct dtp_tree *t)
{
	layers.n = 0;
	dtp_tree_init(t, "net");
	int a = dtp_tree_linear(t, next_layer(&layers), 6, 5, true, "a");
	int b = dtp_tree_linear(t, next_layer(&layers), 7, 6, true, "b");
	int c = dtp_tree_linear(t, next_layer(&layers), 3000, 401, true, "c");
	int d = dtp_tree_linear(t, next_layer(&layers), 401, 2040, true, "d");
	dtp_tree_reads(t, b, 1, &a);
	dtp_tree_out_blocks(t, c, 3, (int64_t[]){600, 1200, 1200});
	dtp_tree_in_blocks(t, d, 2, (int64_t[]){840, 1200});
	dtp_tree_reads(t, d, 1, &c);
	dtp_tree_conv(t, next_layer(&layers), 5, 3, 3, true, "conv");
	int bn = dtp_tree_norm(t, next_layer(&layers), 9, true, "bn");
	t->modules[bn].param[0] = "running_mean";
	t->modules[bn].param[1] = "running_var";
	dtp_tree_embedding(t, next_layer(&layers), 11, 3, "table");
	dtp_tree_linear(t, next_layer(&layers), 1, 1, false, "one");
}

#define MIXED_PLAN "{\"a\":\"colwise\",\"b\":\"rowwise\",\"c\":\"packed_colwise\",\"d\":\"packed_rowwise\"," \
	"\"table\":\"rowwise\",\"one\":\"rowwise_split_input\"}"

static void weights_load_mixed(void **state)
{
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	open_file(write_checkpoint("mixed.safetensors", mixed, NMIXED), &st);
	mixed_tree(&t);
	for (int degree = 1; degree <= 4; degree++)
		for (int rank = 0; rank < degree; rank++) {
			struct recorder r;
			struct dtp_load_stats stats;
			recorder_init(&r);
			r.align[DTP_WEIGHT_MATRIX] = 64;
			r.align[DTP_WEIGHT_CONV] = 1000;
			plan_text(&t, MIXED_PLAN, degree);
			load_and_compare(&t, &st, "net.", rank, degree, &r, &stats);
			if (degree == 1)
				assert_int_equal(stats.gaps, 0);
		}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* ---- counting */

/* Two column blocks of rows of 200 KB: the gap between neighbouring rows' parts is 150 KB, so they are read apart. */
static void weights_load_gaps_counted(void **state)
{
	static const struct content c[] = {{"w.weight", "F32", 2, {20, 50000}}, {"v.weight", "BF16", 2, {20, 4000}}};
	struct dtp_tree t;
	struct dtp_st st;
	struct recorder r;
	struct dtp_load_stats stats;

	(void)state;
	open_file(write_checkpoint("gaps.safetensors", c, 2), &st);
	layers.n = 0;
	dtp_tree_init(&t, "net");
	dtp_tree_linear(&t, next_layer(&layers), 20, 50000, false, "w");
	dtp_tree_linear(&t, next_layer(&layers), 20, 4000, false, "v");
	recorder_init(&r);
	plan_text(&t, "{\"w\":\"rowwise_split_input\"}", 4);
	load_and_compare(&t, &st, "", 1, 4, &r, &stats);
	assert_int_equal(stats.gaps, 0);
	assert_int_equal(stats.requests, 20 + 1);
	assert_int_equal(stats.wanted, 20 * 50000 + 20 * 8000);
	recorder_init(&r);
	plan_text(&t, "{\"v\":\"rowwise_split_input\"}", 4);
	load_and_compare(&t, &st, "", 1, 4, &r, &stats);
	assert_int_equal(stats.gaps, 19 * 6000); /* between the rows' parts, not before the first or after the last */
	assert_int_equal(stats.wanted, 20 * 200000 + 20 * 2000);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* Bytes that this process got from read calls, or -1 where the system does not count them. */
static int64_t bytes_read(void)
{
	char buf[1024], *p;
	int fd = open("/proc/self/io", O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return -1;
	buf[n] = '\0';
	p = strstr(buf, "rchar: ");
	return p ? strtoll(p + 7, NULL, 10) : -1;
}

static void weights_load_reads_nothing_else(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_load_stats stats;
	struct dtp_tree t;
	struct dtp_st st;
	struct recorder r;

	(void)state;
	int64_t first = bytes_read(), second = bytes_read(), overhead = second - first;
	if (first < 0 || overhead <= 0)
		skip();
	open_fixture("models/klein-tiny/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	plan_tree(&t, "flux2", 4);
	recorder_init(&r);
	int64_t before = bytes_read();
	must(dtp_weights_load(&t, &st, "", 1, 4, &r.be, &dtp_monitor_none, &stats, &err), &err);
	int64_t after = bytes_read();
	/* The length of what /proc says may change by a digit per line. */
	int64_t said = (int64_t)(stats.wanted + stats.gaps);
	assert_in_range(after - before - overhead + 16, said, said + 32);
	dtp_weights_free(&t, &r.be);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void weights_memory_predicted(void **state)
{
	struct dtp_tree t;
	struct recorder r;

	(void)state;
	recorder_init(&r);
	mixed_tree(&t);
	plan_text(&t, MIXED_PLAN, 2);
	/* bf16 matrices, f32 vectors */
	uint64_t matrices = 3 * 5 + 7 * 3 + 1500 * 401 + 401 * 1020 + 5 * 27 + 5 * 3, vectors = 3 + 7 + 1500 + 401 + 5 + 18;
	assert_int_equal(dtp_weights_memory(&t, 0, 2, &r.be), matrices * 2 + vectors * 4);      /* table: rows 0..5, one: none */
	assert_int_equal(dtp_weights_memory(&t, 1, 2, &r.be), (matrices + 3 + 1) * 2 + vectors * 4);
	dtp_tree_free(&t);
}

/* ---- staging */

static void weights_load_staging_bounded(void **state)
{
	static const struct content c[] = {{"w.weight", "BF16", 2, {4000, 5000}}}; /* 40 MB */
	static const int64_t aligns[] = {1, 64, 1024, 3000};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_load_stats stats;
	struct dtp_tree t;
	struct dtp_st st;
	struct recorder r;

	(void)state;
	open_file(write_checkpoint("staging.safetensors", c, 1), &st);
	layers.n = 0;
	dtp_tree_init(&t, "net");
	dtp_tree_linear(&t, next_layer(&layers), 4000, 5000, false, "w");
	for (int i = 0; i < 4; i++) {
		recorder_init(&r);
		r.align[DTP_WEIGHT_MATRIX] = aligns[i];
		must(dtp_weights_load(&t, &st, "", 0, 1, &r.be, &dtp_monitor_none, &stats, &err), &err);
		assert_true(stats.staging <= DTP_STAGING_BYTES);
		assert_true((uint64_t)(r.high - r.low) <= stats.staging);
		assert_true(r.largest <= 30000000);
		assert_int_equal(((struct recorded *)layers.l[0].weight)->rows[3999], 1);
		dtp_weights_free(&t, &r.be);
	}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void weights_load_panel_too_large(void **state)
{
	static const struct content c[] = {{"w.weight", "F32", 2, {8, 2200000}}};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_load_stats stats;
	struct dtp_tree t;
	struct dtp_st st;
	struct recorder r;

	(void)state;
	open_file(write_sparse_checkpoint("wide.safetensors", c, 1), &st);
	layers.n = 0;
	dtp_tree_init(&t, "net");
	dtp_tree_linear(&t, next_layer(&layers), 8, 2200000, false, "w");
	recorder_init(&r);
	r.align[DTP_WEIGHT_MATRIX] = 8;
	assert_int_equal(dtp_weights_load(&t, &st, "", 0, 1, &r.be, &dtp_monitor_none, &stats, &err), DTP_FAILED);
	assert_message(&err, DTP_FAILED, "8 rows of 'w.weight' take 70400000 bytes", (char *)NULL);
	assert_int_equal(r.live, 0);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* ---- what goes wrong */

struct meddler {
	struct dtp_monitor mon;
	const char *path;
	off_t size;       /* the file gets it at the first panel */
	int calls, stop_at;
	uint64_t done, total;
	bool backwards;
	char warning[1024];
	int warnings;
};

static void meddle(void *arg, uint64_t done, uint64_t total)
{
	struct meddler *m = arg;

	if (m->calls++ == 0 && m->path)
		assert_int_equal(truncate(m->path, m->size), 0);
	m->backwards = m->backwards || done < m->done || done > total;
	m->done = done;
	m->total = total;
}

static bool meddle_stop(void *arg)
{
	struct meddler *m = arg;
	return m->stop_at && m->calls >= m->stop_at;
}

static void meddle_warn(void *arg, const char *text)
{
	struct meddler *m = arg;

	m->warnings++;
	snprintf(m->warning, sizeof m->warning, "%s", text);
}

static void meddler_init(struct meddler *m)
{
	*m = (struct meddler){.mon = dtp_monitor_none};
	m->mon.arg = m;
	m->mon.progress = meddle;
	m->mon.stopped = meddle_stop;
	m->mon.warn = meddle_warn;
}

/* Forty tensors of 2 MB: more panels than buffers. */
static void large_net(struct dtp_tree *t, struct dtp_st *st, const char **path)
{
	static char names[40][16];
	struct content c[40];

	layers.n = 0;
	dtp_tree_init(t, "net");
	for (int i = 0; i < 40; i++) {
		snprintf(names[i], sizeof names[i], "l%02d.weight", i);
		c[i] = (struct content){names[i], "BF16", 2, {1000, 1000}};
		dtp_tree_linear(t, next_layer(&layers), 1000, 1000, false, "l%02d", i);
	}
	*path = write_checkpoint("large.safetensors", c, 40);
	open_file(*path, st);
}

static void load_meddled(struct meddler *m, struct recorder *r, enum dtp_code code, struct dtp_err *err)
{
	struct dtp_load_stats stats;
	const char *path;
	struct dtp_tree t;
	struct dtp_st st;

	large_net(&t, &st, &path);
	if (m->size)
		m->path = path;
	assert_int_equal(dtp_weights_load(&t, &st, "", 0, 1, &r->be, &m->mon, &stats, err), code);
	for (int i = 0; i < 40 && code; i++)
		assert_null(layers.l[i].weight);
	if (!code)
		dtp_weights_free(&t, &r->be);
	assert_int_equal(r->live, 0);
	assert_false(m->backwards);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void weights_load_progress(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	meddler_init(&m);
	recorder_init(&r);
	load_meddled(&m, &r, DTP_OK, &err);
	assert_int_equal(m.done, 40 * 2000000);
	assert_int_equal(m.total, 40 * 2000000);
	assert_true(m.calls >= 40);
}

static void weights_load_file_truncated(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	meddler_init(&m);
	recorder_init(&r);
	m.size = 30000000;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_message(&err, DTP_FAILED, "large.safetensors'", "tensor 'l", "30000000", (char *)NULL);
}

static void weights_load_file_grown(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	meddler_init(&m);
	recorder_init(&r);
	m.size = 90000000;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_message(&err, DTP_FAILED, "large.safetensors'", "tensor 'l", "90000000", (char *)NULL);
}

static void weights_load_stopped(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	meddler_init(&m);
	recorder_init(&r);
	m.stop_at = 5;
	load_meddled(&m, &r, DTP_INTERRUPTED, &err);
	assert_int_equal(m.calls, 5);
}

static void weights_load_backend_fails(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	meddler_init(&m);
	recorder_init(&r);
	r.fail_new = 17;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_string_equal(err.message, "while making room for 'l16.weight': no room");
	recorder_init(&r);
	r.fail_write = 12;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_message(&err, DTP_FAILED, "while loading 'l", "no reason", (char *)NULL);
}

/* ---- checks */

static void check_mixed(const struct content *c, int n, struct meddler *m, enum dtp_code code, struct dtp_err *err)
{
	struct dtp_tree t;
	struct dtp_st st;

	meddler_init(m);
	open_file(write_checkpoint("check.safetensors", c, n), &st);
	mixed_tree(&t);
	t.modules[dtp_tree_find(&t, "one")].needed = false;
	assert_int_equal(dtp_weights_check(&t, &st, "net.", &m->mon, err), code);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* The mixed checkpoint with its first tensor replaced. */
static void check_first(struct content first, const char *const *parts)
{
	struct content c[NMIXED];
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;

	memcpy(c, mixed, sizeof mixed);
	c[0] = first;
	check_mixed(c, NMIXED, &m, DTP_REFUSED, &err);
	for (; *parts; parts++)
		assert_message(&err, DTP_REFUSED, "check.safetensors'", *parts, (char *)NULL);
}

static void weights_check_refusals(void **state)
{
	(void)state;
	check_first((struct content){"net.x.weight", "F16", 2, {6, 5}},
		    (const char *[]){" lacks tensor 'net.a.weight' of shape [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "F16", 2, {5, 6}},
		    (const char *[]){": tensor 'net.a.weight' has the shape [5, 6], expected [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "F16", 1, {30}},
		    (const char *[]){": tensor 'net.a.weight' has the shape [30], expected [6, 5]", NULL});
	check_first((struct content){"net.a.weight", "I64", 2, {6, 5}},
		    (const char *[]){": tensor 'net.a.weight' has the dtype I64; supported are BF16, F16 and F32", NULL});
	check_first((struct content){"net.a.weight", "F8_E4M3", 2, {6, 5}},
		    (const char *[]){": tensor 'net.a.weight' has the dtype F8_E4M3: quantised checkpoints are not supported; "
				     "supported are BF16, F16 and F32", NULL});
	check_first((struct content){"net.a.weight", "U8", 2, {6, 3}}, /* two values a byte: named for what it is, not its shape */
		    (const char *[]){"has the dtype U8: quantised checkpoints are not supported", NULL});
	check_first((struct content){"net.a.qweight", "U8", 2, {6, 3}},
		    (const char *[]){" lacks tensor 'net.a.weight', but 'net.a.qweight' is there: quantised checkpoints are not "
				     "supported; supported are BF16, F16 and F32", NULL});
}

static void weights_check_extras_warned(void **state)
{
	struct content c[NMIXED + 5];
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;

	(void)state;
	memcpy(c, mixed, sizeof mixed);
	check_mixed(c, NMIXED, &m, DTP_OK, &err); /* num_batches_tracked and the module that is not needed: no extras */
	assert_int_equal(m.warnings, 0);
	check_mixed(c, NMIXED - 1, &m, DTP_OK, &err); /* what is not needed may be missing */
	c[NMIXED] = (struct content){"vision.x", "I64", 0, {0}};
	check_mixed(c, NMIXED + 1, &m, DTP_OK, &err);
	assert_int_equal(m.warnings, 1);
	assert_string_equal(m.warning, "1 tensor of the checkpoint that the net does not use: 'vision.x'");
	c[NMIXED + 1] = (struct content){"a.weight", "F32", 1, {2}}; /* outside the prefix */
	c[NMIXED + 2] = (struct content){"vision.y", "F8_E4M3", 1, {3}};
	c[NMIXED + 3] = (struct content){"vision.z", "U8", 1, {3}};
	check_mixed(c, NMIXED + 4, &m, DTP_OK, &err);
	assert_int_equal(m.warnings, 1);
	assert_string_equal(m.warning, "4 tensors of the checkpoint that the net does not use: 'a.weight', 'vision.x', "
			    "'vision.y', ...");
}

static void weights_check_fixtures(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	meddler_init(&m);
	open_fixture("models/klein-tiny/text_encoder", "model", &st);
	qwen3_tree(&t, &layers, &qwen3_tiny);
	must(dtp_weights_check(&t, &st, "", &m.mon, &err), &err);
	assert_int_equal(m.warnings, 0);
	dtp_tree_free(&t);
	dtp_st_close(&st);
	/* Of another size: the shape is named; with several files, the folder is. */
	open_fixture("models/klein-tiny-sharded/transformer", "diffusion_pytorch_model", &st);
	flux2_tree(&t, &layers, &klein_tiny);
	assert_int_equal(dtp_weights_check(&t, &st, "", &m.mon, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "transformer_blocks.0.ff.linear_in.weight", "[512, 128], expected [768, 128]",
		       (char *)NULL);
	assert_int_equal(dtp_weights_check(&t, &st, "no.", &m.mon, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "none of the 5 files of '", "klein-tiny-sharded/transformer' holds tensor 'no.x_embedder",
		       (char *)NULL);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* ---- reading ahead */

static size_t cached_pages(const char *path, size_t *pages)
{
	int fd = open(path, O_RDONLY);
	struct stat s;
	size_t n = 0;

	assert_true(fd >= 0 && !fstat(fd, &s));
	*pages = ((size_t)s.st_size + 4095) / 4096;
	void *map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
	unsigned char *in = malloc(*pages);
	assert_true(map != MAP_FAILED && !mincore(map, (size_t)s.st_size, in));
	for (size_t i = 0; i < *pages; i++)
		n += in[i] & 1;
	free(in);
	munmap(map, (size_t)s.st_size);
	close(fd);
	return n;
}

static void drop_cache(const char *path)
{
	int fd = open(path, O_RDONLY);

	assert_true(fd >= 0);
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static void weights_readahead_within_budget(void **state)
{
	const struct timespec moment = {0, 5000000};
	size_t pages, cached = 0;
	const char *path;
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	large_net(&t, &st, &path);
	drop_cache(path);
	bool drops = cached_pages(path, &pages) < pages / 10; /* not on tmpfs */
	dtp_weights_readahead(&t, &st, "", 0, 1, 40000000);
	dtp_st_close(&st); /* while it is at work */
	for (int i = 0; i < 1000 && cached < 40000000 / 4096; i++) {
		cached = cached_pages(path, &pages);
		nanosleep(&moment, NULL);
	}
	assert_true(cached >= 40000000 / 4096);
	if (drops) /* the kernel may round up to its own unit */
		assert_true(cached <= pages * 6 / 10);
	dtp_tree_free(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_slice_goldens),
		cmocka_unit_test(weights_load_transformer),
		cmocka_unit_test(weights_load_sharded_f32),
		cmocka_unit_test(weights_load_text_encoder_uneven),
		cmocka_unit_test(weights_load_mixed),
		cmocka_unit_test(weights_load_gaps_counted),
		cmocka_unit_test(weights_load_reads_nothing_else),
		cmocka_unit_test(weights_memory_predicted),
		cmocka_unit_test(weights_load_staging_bounded),
		cmocka_unit_test(weights_load_panel_too_large),
		cmocka_unit_test(weights_load_progress),
		cmocka_unit_test(weights_load_file_truncated),
		cmocka_unit_test(weights_load_file_grown),
		cmocka_unit_test(weights_load_stopped),
		cmocka_unit_test(weights_load_backend_fails),
		cmocka_unit_test(weights_check_refusals),
		cmocka_unit_test(weights_check_extras_warned),
		cmocka_unit_test(weights_check_fixtures),
		cmocka_unit_test(weights_readahead_within_budget),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
