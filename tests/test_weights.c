/* SPDX-License-Identifier: Apache-2.0 */
/* The loader against a backend that records every byte. */
#include "loading.h"
#include "lora.h"
#include "recorder.h"
#include "remote.h"
#include "thread_comm.h"
#include "weights_internal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct layers layers;
static const struct dtp_sharing alone; /* each rank reads its own */

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
	assert_int_equal(dtp_weights_file_bytes(t, st, prefix, rank, degree, &alone), total);
	assert_true(stats->staging <= DTP_STAGING_BYTES);
	if (r->low)
		assert_true((uint64_t)(r->high - r->low) <= stats->staging);
	dtp_weights_free(t, &r->be);
	assert_int_equal(r->live, 0);
	assert_int_equal(r->hosts, 0);
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
			r.threads = degree;
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
			plan_tree(&t, "text", degrees[d]);
			load_and_compare(&t, &st, "model.", rank, degrees[d], &r, &stats);
			empty = empty || layers.l[2].out == 0; /* q_proj of layer 0 */
		}
	assert_true(empty);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

static void weights_load_mixed(void **state)
{
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	open_file(write_checkpoint("mixed.safetensors", mixed, NMIXED), &st);
	mixed_tree(&t, &layers);
	for (int degree = 1; degree <= 4; degree++)
		for (int rank = 0; rank < degree; rank++) {
			struct recorder r;
			struct dtp_load_stats stats;
			recorder_init(&r);
			r.align[DTP_WEIGHT_MATRIX] = 64;
			r.align[DTP_WEIGHT_CONV] = 1000;
			r.threads = rank;
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

/* Two ranks take half of the columns each, of a file that is here or on a network: what each of them reads through, by how many requests,
 * and into how many panels. */
static void check_gaps(int64_t columns, bool remote, uint64_t gaps, uint64_t requests, int writes)
{
	const struct content c = {"w.weight", "BF16", 2, {4, columns}};
	struct dtp_load_stats stats;
	struct recorder r;
	struct dtp_tree t;
	struct dtp_st st;

	open_file(write_checkpoint("gaps.safetensors", &c, 1), &st);
	st.files[0].remote = remote;
	layers.n = 0;
	dtp_tree_init(&t, "net");
	dtp_tree_linear(&t, next_layer(&layers), 4, columns, false, "w");
	plan_text(&t, "{\"w\":\"rowwise_split_input\"}", 2);
	for (int rank = 0; rank < 2; rank++) {
		recorder_init(&r);
		load_and_compare(&t, &st, "", rank, 2, &r, &stats);
		assert_int_equal(stats.gaps, gaps);
		assert_int_equal(stats.requests, requests);
		assert_int_equal(r.writes, writes);
	}
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* One byte below 64 KB would do, but columns are two bytes wide. */
static void weights_load_gap_limit(void **state)
{
	(void)state;
	check_gaps(65536, false, 0, 4, 1);
	check_gaps(65534, false, 3 * 65534, 1, 1);
}

/* Over a network more is read through, by larger requests: a gap of less than 1 MiB, in pieces.  A panel is of 4 MiB. */
static void weights_load_gaps_over_a_network(void **state)
{
	(void)state;
	check_gaps(65536, true, 3 * 65536, 1, 1);
	check_gaps(1000000, true, 3 * 1000000, 1, 1);
	check_gaps(1048574, true, 3 * 1048574, 1, 1);
	check_gaps(1048576, true, 0, 4, 1);
}

static void weights_remote_file_systems(void **state)
{
	static const uint32_t remote[] = {0x6969, 0xff534d42, 0xfe534d42, 0x0bd00bd0, 0x00c36400, 0x65735546, 0x01021997, 0x47504653};
	static const uint32_t local[] = {0xef53 /* ext4 */, 0x58465342 /* xfs */, 0x9123683e /* btrfs */, 0x01021994 /* tmpfs */,
					 0x794c7630 /* overlay */, 0x2fc12fc1 /* zfs */, 0};

	(void)state;
	for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
		assert_true(dtp_remote_type(remote[i]));
	for (size_t i = 0; i < sizeof local / sizeof *local; i++)
		assert_false(dtp_remote_type(local[i]));
	assert_false(dtp_remote_file(-1));
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

/* ---- what is added */

/* Eight layers of several panels, and a file with a LoRA of rank 1 for each: row i gets i % 256 in every column. */
enum { LORA_LAYERS = 8, LORA_ROWS = 1600, LORA_COLUMNS = 1000 };

static void lora_net(struct dtp_tree *t, struct dtp_st *st, char given[400])
{
	static uint16_t a[LORA_COLUMNS], b[LORA_ROWS];
	static char names[3 * LORA_LAYERS][80];
	struct content c[LORA_LAYERS];
	struct dtp_st_out out[2 * LORA_LAYERS];
	struct dtp_err err = DTP_ERR_INIT;

	for (int i = 0; i < LORA_COLUMNS; i++)
		a[i] = dtp_f32_to_bf16(0.5f);
	for (int i = 0; i < LORA_ROWS; i++)
		b[i] = dtp_f32_to_bf16((float)(i % 256));
	layers.n = 0;
	dtp_tree_init(t, "transformer");
	dtp_tree_list(t, "transformer_blocks");
	for (int i = 0; i < LORA_LAYERS; i++) {
		char *weight = names[3 * i], *down = names[3 * i + 1], *up = names[3 * i + 2];
		dtp_tree_linear(t, next_layer(&layers), LORA_ROWS, LORA_COLUMNS, false, "transformer_blocks.%d.attn.to_q", i);
		snprintf(weight, sizeof *names, "transformer_blocks.%d.attn.to_q.weight", i);
		snprintf(down, sizeof *names, "transformer.transformer_blocks.%d.attn.to_q.lora_A.weight", i);
		snprintf(up, sizeof *names, "transformer.transformer_blocks.%d.attn.to_q.lora_B.weight", i);
		c[i] = (struct content){weight, "BF16", 2, {LORA_ROWS, LORA_COLUMNS}};
		out[2 * i] = (struct dtp_st_out){down, dtp_tensor_make(a, DTP_BF16, 2, (int64_t[]){1, LORA_COLUMNS})};
		out[2 * i + 1] = (struct dtp_st_out){up, dtp_tensor_make(b, DTP_BF16, 2, (int64_t[]){LORA_ROWS, 1})};
	}
	open_file(write_sparse_checkpoint("zeros.safetensors", c, LORA_LAYERS), st);
	snprintf(given, 400, "%s/lora.safetensors", temp_dir());
	must(dtp_st_write(given, NULL, out, 2 * LORA_LAYERS, NULL, 0, &err), &err);
}

/* Cut: the file of the factors ends too early, which shows only when they are read. */
static enum dtp_code load_with_lora(int threads, bool cut, struct dtp_err *err)
{
	char path[400], given[410];
	struct dtp_load_stats stats;
	struct dtp_lora *lora;
	struct recorder r;
	struct dtp_tree t;
	struct dtp_st st;
	const char *list = given;

	lora_net(&t, &st, path);
	snprintf(given, sizeof given, "%s:2", path);
	must(dtp_lora_open(&list, 1, &t, &dtp_monitor_none, &lora, err), err);
	recorder_init(&r);
	r.threads = threads;
	r.align[DTP_WEIGHT_MATRIX] = 64;
	if (cut && truncate(path, 8000))
		fail_msg("cannot cut '%s'", path);
	enum dtp_code rc = dtp_weights_load(&t, &st, "", 0, 1, &r.be, &dtp_monitor_none, &stats, err);
	for (int i = 0; i < LORA_LAYERS && !rc; i++) {
		const struct recorded *w = (struct recorded *)layers.l[i].weight;
		const uint16_t *got = (const uint16_t *)w->data;
		assert_true(w->panels > 2);
		for (int64_t j = 0; j < LORA_ROWS * LORA_COLUMNS; j++)
			assert_true(dtp_bf16_to_f32(got[j]) == (float)(j / LORA_COLUMNS % 256));
	}
	if (!rc)
		dtp_weights_free(&t, &r.be);
	assert_int_equal(r.live, 0);
	dtp_lora_close(lora);
	dtp_tree_free(&t);
	dtp_st_close(&st);
	return rc;
}

static void weights_load_adds_what_readers_read(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;

	(void)state;
	for (int threads = 0; threads <= 4; threads += 2)
		must(load_with_lora(threads, false, &err), &err);
}

/* Whoever waits for factors that cannot be read is told so, about the layer that wants them, and the load ends. */
static void weights_load_factors_that_are_missing(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	int layer, factors;

	(void)state;
	for (int i = 0; i < 20; i++) {
		assert_int_equal(load_with_lora(i % 3 * 2, true, &err), DTP_FAILED);
		assert_message(&err, DTP_FAILED, "while loading 'transformer_blocks.", "lora.safetensors'", (char *)NULL);
		const char *tensor = strstr(err.message, "'transformer.transformer_blocks.");
		assert_non_null(tensor);
		assert_int_equal(sscanf(err.message, "while loading 'transformer_blocks.%d", &layer), 1);
		assert_int_equal(sscanf(tensor, "'transformer.transformer_blocks.%d", &factors), 1);
		assert_int_equal(layer, factors);
	}
}

/* ---- what is read once for all ranks */

enum { MOST_RANKS = 4, MOST_COPIES = 3 };

struct sharing {
	struct thread_comm sums, copies;
	const char *path;
	struct dtp_load_stats stats;
	uint64_t slices, whole;           /* bytes of its slices of what is split, and of what is not */
	uint64_t read_slices, read_whole; /* of them, what this rank has read */
	struct dtp_err err;
	char wrong[200];           /* name of a parameter that is not what the file says */
	pthread_t thread;
};

static void compare_shared(struct sharing *s, const struct dtp_tree *t, const struct dtp_st *st)
{
	int rank = s->sums.base.rank, degree = s->sums.base.size;
	struct dtp_param p;

	for (int i = 0; i < t->n; i++)
		for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++) {
			const struct dtp_layer *l = t->modules[i].layer;
			const struct recorded *w = (struct recorded *)(which ? l->bias : l->weight);
			struct dtp_split split;
			size_t len;
			uint8_t *want = naive_slice(t, st, "net.", &p, rank, degree, &len);
			dtp_placement(t, &p, rank, degree, &split);
			*(split.dim < 0 ? &s->whole : &s->slices) += len;
			if (w->panels)
				*(split.dim < 0 ? &s->read_whole : &s->read_slices) += len;
			if (memcmp(w->data, want, len))
				snprintf(s->wrong, sizeof s->wrong, "%.180s", p.name);
			free(want);
		}
}

static void *load_shared(void *arg)
{
	struct sharing *s = arg;
	int rank = s->sums.base.rank, degree = s->sums.base.size;
	const struct dtp_sharing with = {&s->sums.base, s->copies.base.size > 1 ? &s->copies.base : NULL};
	struct layers *ls = calloc(1, sizeof *ls);
	struct recorder r;
	struct dtp_tree t;
	struct dtp_st st;

	s->err = (struct dtp_err)DTP_ERR_INIT;
	open_file(s->path, &st);
	mixed_tree(&t, ls);
	plan_text(&t, MIXED_PLAN, degree);
	dtp_plan_bind(&t, rank, degree);
	recorder_init(&r);
	if (!dtp_weights_load_shared(&t, &st, "net.", rank, degree, &r.be, &with, &dtp_monitor_none, &s->stats, &s->err)) {
		compare_shared(s, &t, &st);
		if (dtp_weights_file_bytes(&t, &st, "net.", rank, degree, &with) != s->stats.wanted)
			snprintf(s->wrong, sizeof s->wrong, "the prediction");
		dtp_weights_free(&t, &r.be);
	}
	dtp_tree_free(&t);
	dtp_st_close(&st);
	free(ls);
	return NULL;
}

/* The same tensors, the last one first: a rank's file need not be a copy of another's. */
static const char *write_reversed(const char *path)
{
	static char reversed[700], header[20000];
	struct dtp_err err = DTP_ERR_INIT;
	struct content c[NMIXED];
	struct dtp_st st;
	size_t data;

	for (int i = 0; i < NMIXED; i++)
		c[i] = mixed[NMIXED - 1 - i];
	size_t len = checkpoint_header(header, sizeof header, c, NMIXED, &data);
	char *all = malloc(len + data), *at = all + len;
	memcpy(all, header, len);
	open_file(path, &st);
	for (int i = 0; i < NMIXED; at += content_bytes(&c[i]), i++)
		must(dtp_st_read(&st, dtp_st_find(&st, c[i].name), 0, content_bytes(&c[i]), at, &err), &err);
	dtp_st_close(&st);
	snprintf(reversed, sizeof reversed, "%s/reversed.safetensors", temp_dir());
	write_file(reversed, all, len + data);
	free(all);
	return reversed;
}

/* Every byte that several ranks have alike is read by one of them, and is right on each. */
static void check_shared(const struct sharing ranks[MOST_COPIES][MOST_RANKS], int copies, int degree)
{
	uint64_t whole = 0;

	for (int i = 0; i < degree; i++) {
		uint64_t slices = 0;
		for (int k = 0; k < copies; k++) {
			const struct sharing *s = &ranks[k][i];
			must(s->err.code, &s->err);
			assert_string_equal(s->wrong, "");
			assert_int_equal(s->stats.wanted, s->read_slices + s->read_whole);
			assert_true((s->stats.received > 0) == (copies * degree > 1));
			if (copies > 1) /* not all by the same one */
				assert_in_range(s->stats.wanted, 1, s->slices + s->whole - 1);
			slices += s->read_slices;
			whole += s->read_whole;
			assert_true(copies * degree == 1 || s->read_whole < s->whole);
		}
		assert_int_equal(slices, ranks[0][i].slices);
	}
	assert_int_equal(whole, ranks[0][0].whole);
}

static void share(int copies, int degree, const char *path, const char *reversed)
{
	struct sharing ranks[MOST_COPIES][MOST_RANKS] = {0};
	struct hub sums[MOST_COPIES] = {0}, same[MOST_RANKS] = {0};

	for (int k = 0; k < copies; k++)
		pthread_barrier_init(&sums[k].barrier, NULL, (unsigned)degree);
	for (int i = 0; i < degree; i++)
		pthread_barrier_init(&same[i].barrier, NULL, (unsigned)copies);
	for (int k = 0; k < copies; k++)
		for (int i = 0; i < degree; i++) {
			struct sharing *s = &ranks[k][i];
			s->sums = thread_comm_make(i, degree, &sums[k]);
			s->copies = thread_comm_make(k, copies, &same[i]);
			s->path = (k + i) % 2 ? reversed : path;
			assert_int_equal(pthread_create(&s->thread, NULL, load_shared, s), 0);
		}
	for (int k = 0; k < copies; k++)
		for (int i = 0; i < degree; i++)
			pthread_join(ranks[k][i].thread, NULL);
	for (int k = 0; k < copies; k++)
		pthread_barrier_destroy(&sums[k].barrier);
	for (int i = 0; i < degree; i++)
		pthread_barrier_destroy(&same[i].barrier);
	check_shared(ranks, copies, degree);
}

static void weights_load_shared_bytes_once(void **state)
{
	char path[700];

	(void)state;
	snprintf(path, sizeof path, "%s", write_checkpoint("shared.safetensors", mixed, NMIXED));
	const char *reversed = write_reversed(path);
	for (int copies = 1; copies <= MOST_COPIES; copies++)
		for (int degree = 1; degree <= MOST_RANKS; degree++)
			share(copies, degree, path, reversed);
}

/* Ranks whose files have other dtypes come to the same about who reads what. */
static void weights_shared_readers_are_the_same(void **state)
{
	struct content c[NMIXED];
	struct dtp_st st[2];
	struct dtp_item *items[2];
	struct dtp_comm ranks[2] = {{.rank = 0, .size = 2}, {.rank = 1, .size = 2}};
	struct dtp_tree t;
	int n[2], seen = 0;

	(void)state;
	memcpy(c, mixed, sizeof mixed);
	mixed_tree(&t, &layers);
	plan_text(&t, "{}", 2);
	for (int rank = 0; rank < 2; rank++) {
		struct dtp_err err = DTP_ERR_INIT;
		open_file(write_checkpoint(rank ? "other.safetensors" : "one.safetensors", c, NMIXED), &st[rank]);
		must(dtp_weights_collect(&t, &st[rank], "net.", rank, 2, &(struct dtp_sharing){.sums = &ranks[rank]}, &items[rank], &n[rank], &err), &err);
		c[4].dtype = "F32"; /* of the second file, where this one is the largest */
	}
	assert_int_equal(n[0], n[1]);
	for (int i = 0; i < n[0]; i++)
		for (int k = 0; k < n[1]; k++)
			if (items[0][i].param == items[1][k].param) {
				assert_int_equal(items[0][i].reader, items[1][k].reader);
				seen |= 1 << items[0][i].reader;
			}
	assert_int_equal(seen, 3);
	for (int rank = 0; rank < 2; rank++) {
		free(items[rank]);
		dtp_st_close(&st[rank]);
	}
	dtp_tree_free(&t);
}

/* ---- what goes wrong */

struct meddler {
	struct dtp_monitor mon;
	const char *path;
	off_t size;       /* the file gets it at the first panel */
	int calls, stop_at;
	uint64_t done, total;
	bool backwards;
};

static void meddle(void *arg, uint64_t done, uint64_t total)
{
	struct meddler *m = arg;

	if (m->calls++ == 0 && m->path && truncate(m->path, m->size))
		abort();
	m->backwards = m->backwards || done < m->done || done > total;
	m->done = done;
	m->total = total;
}

static bool meddle_stop(void *arg)
{
	struct meddler *m = arg;
	return m->stop_at && m->calls >= m->stop_at;
}

static void meddler_init(struct meddler *m)
{
	*m = (struct meddler){.mon = dtp_monitor_none};
	m->mon.arg = m;
	m->mon.progress = meddle;
	m->mon.stopped = meddle_stop;
}

/* Forty tensors of 2 MB: more panels than buffers. */
#define LARGE_NET_BYTES (40 * 2000000)
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
	r.threads = 3;
	load_meddled(&m, &r, DTP_OK, &err);
	assert_int_equal(r.threads, 3); /* given back */
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
	r.threads = 4;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_message(&err, DTP_FAILED, "while loading 'l", "no reason", (char *)NULL);
	recorder_init(&r);
	r.fail_host = true;
	load_meddled(&m, &r, DTP_FAILED, &err);
	assert_string_equal(err.message, "while making buffers to read weights into: no host memory");
}

/* Where a device works beside the loader, it says how: panels as large as it wants them, from as many threads. */
static void weights_load_as_the_backend_wants(void **state)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct meddler m;
	struct recorder r;

	(void)state;
	for (int writers = 0; writers <= 3; writers += 3) {
		meddler_init(&m);
		recorder_init(&r);
		r.be.panel_bytes = 1000000;
		r.be.writers = writers;
		load_meddled(&m, &r, DTP_OK, &err);
		assert_int_equal(r.largest, 1000000);
		assert_int_equal(r.writes, 80);
		assert_int_equal(r.hosts, 0);
		assert_true((r.most > 1) == (writers > 1));
	}
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

static size_t wait_for_pages(const char *path, size_t least)
{
	const struct timespec moment = {0, 5000000};
	size_t pages, cached = cached_pages(path, &pages);

	for (int i = 0; i < 2000 && cached < least; i++) {
		nanosleep(&moment, NULL);
		cached = cached_pages(path, &pages);
	}
	return cached;
}

/* Of a local file, and of one over a network, which the kernel is asked for in another way.  Where the file lies in memory anyway (tmpfs),
 * this shows nothing. */
static void weights_readahead_fills_the_cache(void **state)
{
	for (int remote = 0; remote < 2; remote++) {
		const char *path;
		struct dtp_tree t;
		struct dtp_st st;

		(void)state;
		large_net(&t, &st, &path);
		drop_cache(path);
		st.files[0].remote = remote;
		assert_int_equal(dtp_weights_readahead(&t, &st, "", 0, 1, &alone), LARGE_NET_BYTES);
		dtp_st_close(&st); /* while it is at work */
		assert_true(wait_for_pages(path, LARGE_NET_BYTES / 4096) >= LARGE_NET_BYTES / 4096);
		dtp_tree_free(&t);
	}
}

/* Only a network is asked ahead of the reads. */
static void weights_prefetch_over_a_network_only(void **state)
{
	const struct dtp_st_entry *e;
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_slice slice;
	struct dtp_param p;
	struct dtp_split s;
	const char *path;
	struct dtp_tree t;
	struct dtp_st st;
	size_t pages;

	(void)state;
	large_net(&t, &st, &path);
	assert_true(dtp_module_param(&t.modules[t.n - 1], 0, &p));
	must(dtp_weights_find(&st, "", &p, &e, &err), &err);
	dtp_placement(&t, &p, 0, 1, &s);
	dtp_slice_make(&p, &s, e, &slice);
	drop_cache(path);
	size_t before = cached_pages(path, &pages);
	st.files[0].remote = false;
	dtp_slice_prefetch(&st, &slice, 0, slice.rows);
	assert_int_equal(cached_pages(path, &pages), before);
	st.files[0].remote = true;
	dtp_slice_prefetch(&st, &slice, 0, slice.rows);
	assert_true(wait_for_pages(path, 2000000 / 4096) >= 2000000 / 4096);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

/* Where ranks send each other what none of them splits, the kernel is asked for each of those bytes by one of them. */
static void weights_readahead_shared_bytes_once(void **state)
{
	uint64_t asked = 0, most = 0;
	const char *path;
	struct dtp_tree t;
	struct dtp_st st;

	(void)state;
	large_net(&t, &st, &path);
	for (int rank = 0; rank < 4; rank++) {
		struct dtp_comm ranks = {.rank = rank, .size = 4};
		uint64_t bytes = dtp_weights_readahead(&t, &st, "", rank, 4, &(struct dtp_sharing){.sums = &ranks});
		asked += bytes;
		most = bytes > most ? bytes : most;
	}
	/* A tensor of another rank between two of one's own is more than a gap. */
	assert_int_equal(asked, LARGE_NET_BYTES);
	assert_int_equal(most, LARGE_NET_BYTES / 4);
	assert_int_equal(dtp_weights_readahead(&t, &st, "", 3, 4, &alone), LARGE_NET_BYTES);
	dtp_tree_free(&t);
	dtp_st_close(&st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_load_transformer),
		cmocka_unit_test(weights_load_sharded_f32),
		cmocka_unit_test(weights_load_text_encoder_uneven),
		cmocka_unit_test(weights_load_mixed),
		cmocka_unit_test(weights_load_gaps_counted),
		cmocka_unit_test(weights_load_gap_limit),
		cmocka_unit_test(weights_load_gaps_over_a_network),
		cmocka_unit_test(weights_remote_file_systems),
		cmocka_unit_test(weights_load_reads_nothing_else),
		cmocka_unit_test(weights_load_staging_bounded),
		cmocka_unit_test(weights_load_panel_too_large),
		cmocka_unit_test(weights_load_adds_what_readers_read),
		cmocka_unit_test(weights_load_factors_that_are_missing),
		cmocka_unit_test(weights_load_shared_bytes_once),
		cmocka_unit_test(weights_shared_readers_are_the_same),
		cmocka_unit_test(weights_load_progress),
		cmocka_unit_test(weights_load_file_truncated),
		cmocka_unit_test(weights_load_file_grown),
		cmocka_unit_test(weights_load_stopped),
		cmocka_unit_test(weights_load_backend_fails),
		cmocka_unit_test(weights_load_as_the_backend_wants),
		cmocka_unit_test(weights_readahead_fills_the_cache),
		cmocka_unit_test(weights_prefetch_over_a_network_only),
		cmocka_unit_test(weights_readahead_shared_bytes_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
