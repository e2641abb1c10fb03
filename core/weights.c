/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: panels of this rank's slices, read in the order of the files, written to the backend as they come. */
#include "stream.h"
#include "clock.h"
#include "lora.h"
#include "weights_internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A panel that a packer takes should still be in the cache where the reader left it: unless the backend knows better. */
#define PANEL_BYTES (1u << 20)
/* Over a network a request is to be large. */
#define REMOTE_PANEL_BYTES (4u << 20)
#define PANELS 8
#define READERS 3
/* Few threads saturate the memory. */
#define MAX_PACKERS 4
/* How far ahead of the readers a network is kept busy. */
#define AHEAD_BYTES (32u << 20)

struct panel {
	int item;
	int64_t row, n;
};

/* The factors of an item: read before its first panel, by the thread that reads this, kept to its last. */
struct adding {
	struct dtp_lora_slice *factors;
	struct dtp_err lost; /* why there are none; code DTP_OK: they are there, or to be read */
	int left;            /* panels */
};

struct load {
	const struct dtp_st *st;
	struct dtp_backend *be;
	const struct dtp_monitor *mon;
	struct dtp_item *items;
	int nitems;
	struct panel *panels;
	int npanels, ahead; /* ahead: in panels */
	struct adding *adding; /* per item */
	pthread_mutex_t lock;  /* guards adding */
	pthread_cond_t read;   /* one of these has changed */
	uint64_t slot_bytes, done, total;
	_Atomic uint64_t gaps, requests;
};

enum dtp_weight_kind dtp_weights_kind(const struct dtp_param *p)
{
	static const enum dtp_weight_kind kinds[] = {
		[DTP_MODULE_LINEAR] = DTP_WEIGHT_MATRIX, [DTP_MODULE_EMBEDDING] = DTP_WEIGHT_TABLE,
		[DTP_MODULE_CONV] = DTP_WEIGHT_CONV, [DTP_MODULE_NORM] = DTP_WEIGHT_VECTOR,
	};
	return p->which ? DTP_WEIGHT_VECTOR : kinds[p->module->kind];
}

/* ---- the parameters of a rank */

typedef enum dtp_code (*param_fn)(void *arg, const struct dtp_param *p, const struct dtp_split *s, struct dtp_err *err);

/* Every parameter that this rank needs, in the order of the tree. */
static enum dtp_code for_each_param(const struct dtp_tree *tree, int rank, int degree, param_fn fn, void *arg,
				    struct dtp_err *err)
{
	struct dtp_param p;
	struct dtp_split s;
	enum dtp_code rc;

	for (int i = 0; i < tree->n; i++)
		for (int which = 0; tree->modules[i].needed && dtp_module_param(&tree->modules[i], which, &p); which++) {
			dtp_placement(tree, &p, rank, degree, &s);
			if ((rc = fn(arg, &p, &s, err)))
				return rc;
		}
	return DTP_OK;
}

static int by_place(const void *a, const void *b)
{
	const struct dtp_st_entry *x = ((const struct dtp_item *)a)->slice.entry, *y = ((const struct dtp_item *)b)->slice.entry;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

struct collect {
	const struct dtp_st *st;
	const char *prefix;
	struct dtp_item *items;
	int n;
};

static enum dtp_code collect_one(void *arg, const struct dtp_param *p, const struct dtp_split *s, struct dtp_err *err)
{
	struct collect *c = arg;
	struct dtp_item *it = &c->items[c->n];
	struct dtp_layer *l = p->module->layer;
	const struct dtp_st_entry *e;
	enum dtp_code rc = dtp_weights_find(c->st, c->prefix, p, &e, err);

	if (rc)
		return rc;
	*it = (struct dtp_item){.kind = dtp_weights_kind(p), .ndim = p->ndim, .reader = DTP_ITEM_EACH, .copy = DTP_ITEM_EACH};
	if (l)
		it->home = p->which ? &l->bias : &l->weight;
	dtp_split_shape(p, s, it->shape);
	dtp_slice_make(p, s, e, &it->slice);
	if (!p->which && p->module->nlora)
		it->adds = p->module;
	it->split = *s;
	it->param = c->n++;
	return DTP_OK;
}

static uint64_t elements(const struct dtp_item *it)
{
	uint64_t n = 1;

	for (int d = 0; d < it->ndim; d++)
		n *= (uint64_t)it->shape[d];
	return n;
}

/* The one that has been given least is given n more. */
static int give(uint64_t *given, int readers, uint64_t n)
{
	int least = 0;

	for (int r = 1; r < readers; r++)
		if (given[r] < given[least])
			least = r;
	given[least] += n;
	return least;
}

static bool is_mine(int reader, const struct dtp_comm *c)
{
	return reader == DTP_ITEM_EACH || reader == c->rank;
}

/* Items in the order of the tree.  Counted in elements: all ranks must come to the same, and the dtypes of their files may differ. */
static enum dtp_code choose_readers(struct dtp_item *items, int n, const struct dtp_sharing *with, struct dtp_err *err)
{
	const struct dtp_comm *sums = with->sums, *copies = with->copies;
	uint64_t *of_sums = calloc(sums ? (size_t)sums->size : 1, sizeof *of_sums);
	uint64_t *of_copies = calloc(copies ? (size_t)copies->size : 1, sizeof *of_copies);
	bool ok = of_sums && of_copies;

	for (struct dtp_item *it = items; ok && it < items + n; it++) {
		if (!it->home || !elements(it))
			continue;
		if (sums && it->split.dim < 0)
			it->reader = give(of_sums, sums->size, elements(it));
		if (copies && is_mine(it->reader, sums)) /* else the reader's copies see to it */
			it->copy = give(of_copies, copies->size, elements(it));
		it->read = is_mine(it->reader, sums) && is_mine(it->copy, copies);
	}
	free(of_sums);
	free(of_copies);
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for a list of the ranks that read");
}

enum dtp_code dtp_weights_collect(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				  const struct dtp_sharing *with, struct dtp_item **items, int *n, struct dtp_err *err)
{
	struct collect c = {st, prefix, calloc((size_t)tree->n * 2 + 1, sizeof *c.items), 0};
	enum dtp_code rc;

	if (!c.items)
		return dtp_fail(err, DTP_FAILED, "out of memory for the list of %d modules", tree->n);
	rc = for_each_param(tree, rank, degree, collect_one, &c, err);
	if (!rc)
		rc = choose_readers(c.items, c.n, with, err);
	if (rc) {
		free(c.items);
		return rc;
	}
	qsort(c.items, (size_t)c.n, sizeof *c.items, by_place);
	*items = c.items;
	*n = c.n;
	return DTP_OK;
}

/* ---- loading */

static enum dtp_code allocate(struct load *ld, struct dtp_err *err)
{
	enum dtp_code rc;

	for (int i = 0; i < ld->nitems; i++) {
		struct dtp_item *it = &ld->items[i];
		if (!it->home)
			continue;
		rc = ld->be->ops->weight_new(ld->be, it->kind, it->ndim, it->shape, it->home, err);
		if (rc)
			return err ? dtp_err_prefix(err, "while making room for '%s': ", it->slice.entry->name) : rc;
	}
	return DTP_OK;
}

static int64_t row_align(const struct dtp_item *it)
{
	return (*it->home)->row_align > 1 ? (*it->home)->row_align : 1;
}

static uint64_t panel_bytes(const struct load *ld)
{
	uint64_t bytes = ld->be->panel_bytes ? ld->be->panel_bytes : PANEL_BYTES;

	for (int i = 0; i < ld->st->nfiles; i++)
		if (ld->st->files[i].remote && bytes < REMOTE_PANEL_BYTES)
			bytes = REMOTE_PANEL_BYTES;
	return bytes;
}

/* The least that weight_write accepts at a time must fit into a buffer. */
static enum dtp_code size_buffers(struct load *ld, struct dtp_err *err)
{
	uint64_t room = DTP_STAGING_BYTES - READERS * DTP_GAP_BYTES;

	ld->slot_bytes = panel_bytes(ld);
	for (int i = 0; i < ld->nitems; i++) {
		const struct dtp_item *it = &ld->items[i];
		if (!it->read)
			continue;
		int64_t rows = row_align(it) < it->slice.rows ? row_align(it) : it->slice.rows;
		uint64_t need = (uint64_t)rows * it->slice.row_bytes;
		if (need > room)
			return dtp_fail(err, DTP_FAILED, "%" PRId64 " rows of '%s' take %" PRIu64 " bytes, more than the %" PRIu64
					" bytes of the staging buffer", rows, it->slice.entry->name, need, room);
		if (need > ld->slot_bytes)
			ld->slot_bytes = (need + 4095) & ~(uint64_t)4095;
	}
	if (ld->slot_bytes > room)
		ld->slot_bytes = room;
	return DTP_OK;
}

/* Cuts every slice into panels that fit a buffer.  Called twice: to count, and to fill in. */
static int cut(const struct load *ld, struct panel *panels)
{
	int n = 0;

	for (int i = 0; i < ld->nitems; i++) {
		const struct dtp_item *it = &ld->items[i];
		if (!it->read)
			continue;
		int64_t align = row_align(it), step = (int64_t)(ld->slot_bytes / it->slice.row_bytes) / align * align;
		if (step < 1) /* fewer rows than one alignment */
			step = align;
		for (int64_t row = 0; row < it->slice.rows; row += step, n++)
			if (panels)
				panels[n] = (struct panel){i, row, it->slice.rows - row < step ? it->slice.rows - row : step};
	}
	return n;
}

static void prefetch(const struct load *ld, int panel)
{
	if (panel < ld->npanels) {
		const struct panel *p = &ld->panels[panel];
		const struct dtp_item *it = &ld->items[p->item];
		dtp_slice_prefetch(ld->st, &it->slice, p->row, p->n);
		if (it->adds && !p->row)
			dtp_lora_slice_prefetch(it->adds, &it->split);
	}
}

/* A failure is told by who needs the factors, who knows what they are added to. */
static void read_factors(struct load *ld, int item)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_lora_slice *f;

	dtp_lora_slice_read(ld->items[item].adds, &ld->items[item].split, &f, &err);
	pthread_mutex_lock(&ld->lock);
	ld->adding[item].factors = f;
	if (!f)
		ld->adding[item].lost = err;
	pthread_cond_broadcast(&ld->read);
	pthread_mutex_unlock(&ld->lock);
}

static enum dtp_code fill(void *arg, int job, void *buf, struct dtp_err *err)
{
	struct load *ld = arg;
	const struct panel *p = &ld->panels[job];
	struct dtp_read_stats stats = {0};

	prefetch(ld, job + ld->ahead);
	if (ld->items[p->item].adds && !p->row)
		read_factors(ld, p->item);
	enum dtp_code rc = dtp_slice_read(ld->st, &ld->items[p->item].slice, p->row, p->n, buf, &stats, err);
	ld->gaps += stats.gaps;
	ld->requests += stats.requests;
	return rc;
}

/* They are there, or being read: the panel's item was begun before the panel was read. */
static enum dtp_code take_factors(struct load *ld, int item, const struct dtp_lora_slice **out, struct dtp_err *err)
{
	const struct adding *a = &ld->adding[item];
	enum dtp_code rc = DTP_OK;

	pthread_mutex_lock(&ld->lock);
	while (!a->factors && !a->lost.code)
		pthread_cond_wait(&ld->read, &ld->lock);
	*out = a->factors;
	if (!*out)
		rc = dtp_fail(err, a->lost.code, "%s", a->lost.message);
	pthread_mutex_unlock(&ld->lock);
	return rc;
}

static void give_factors(struct load *ld, int item)
{
	struct adding *a = &ld->adding[item];

	pthread_mutex_lock(&ld->lock);
	if (--a->left == 0) {
		dtp_lora_slice_free(a->factors);
		a->factors = NULL;
	}
	pthread_mutex_unlock(&ld->lock);
}

/* The panel as floats, in memory of its own. */
static float *widened(const struct panel *p, const void *buf, enum dtp_dtype t, int64_t cols, struct dtp_err *err)
{
	float *wide = malloc((size_t)(p->n * cols) * sizeof *wide);

	if (wide)
		dtp_to_f32(wide, buf, t, (size_t)(p->n * cols));
	else
		dtp_fail(err, DTP_FAILED, "out of memory for %" PRId64 " rows as floats", p->n);
	return wide;
}

static enum dtp_code add_factors(struct load *ld, const struct panel *p, const struct dtp_lora_slice *f, void *sum, enum dtp_dtype t,
				 struct dtp_err *err)
{
	struct dtp_low_rank *rows = malloc((size_t)f->nparts * sizeof *rows + 1);

	if (!rows)
		return dtp_fail(err, DTP_FAILED, "out of memory for a list of %d LoRAs", f->nparts);
	for (int i = 0; i < f->nparts; i++) {
		rows[i] = f->part[i];
		rows[i].b = (const char *)rows[i].b + p->row * rows[i].r * (int64_t)dtp_dtype_size(rows[i].type);
	}
	enum dtp_code rc = ld->be->ops->low_rank_add(ld->be, sum, t, rows, f->nparts, p->n, f->cols, err);
	free(rows);
	return rc;
}

/* The panel with what is added to it: in place where it has the dtype that it will be rounded to. */
static enum dtp_code write_sum(struct load *ld, const struct panel *p, void *buf, struct dtp_err *err)
{
	const struct dtp_item *it = &ld->items[p->item];
	enum dtp_dtype t = it->slice.entry->dtype == ld->be->compute ? ld->be->compute : DTP_F32;
	const struct dtp_lora_slice *f;
	enum dtp_code rc = take_factors(ld, p->item, &f, err);

	if (rc)
		return rc;
	float *wide = t == it->slice.entry->dtype ? NULL : widened(p, buf, it->slice.entry->dtype, f->cols, err);
	void *sum = t == it->slice.entry->dtype ? buf : wide;
	rc = sum ? add_factors(ld, p, f, sum, t, err) : DTP_FAILED;
	if (!rc)
		rc = ld->be->ops->weight_write(ld->be, *it->home, p->row, p->n, sum, t, err);
	free(wide);
	give_factors(ld, p->item);
	return rc;
}

static enum dtp_code drain(void *arg, int job, void *buf, struct dtp_err *err)
{
	struct load *ld = arg;
	const struct panel *p = &ld->panels[job];
	const struct dtp_item *it = &ld->items[p->item];
	enum dtp_code rc = it->adds ? write_sum(ld, p, buf, err)
				    : ld->be->ops->weight_write(ld->be, *it->home, p->row, p->n, buf, it->slice.entry->dtype, err);

	return rc ? dtp_err_prefix(err, "while loading '%s': ", it->slice.entry->name) : DTP_OK;
}

static void progress(void *arg, int job)
{
	struct load *ld = arg;
	const struct panel *p = &ld->panels[job];

	ld->done += (uint64_t)p->n * ld->items[p->item].slice.row_bytes;
	ld->mon->progress(ld->mon->arg, ld->done, ld->total);
}

static bool stopped(void *arg)
{
	struct load *ld = arg;
	return ld->mon->stopped(ld->mon->arg);
}

static int clamp(int n, int low, int high)
{
	return n < low ? low : n > high ? high : n;
}

/* The backend's threads become packers: each writes panels by itself.  Where a device works beside them, more wait for it than there
 * are processors. */
static enum dtp_code run_with_threads(struct dtp_stream *s, struct dtp_backend *be, struct dtp_err *err)
{
	int threads = be->ops->set_threads ? be->ops->set_threads(be, 1) : 0;

	s->npackers = be->writers ? be->writers : clamp(threads, 1, MAX_PACKERS);
	enum dtp_code rc = dtp_stream_run(s, err);
	if (threads > 0)
		be->ops->set_threads(be, threads);
	return rc;
}

static enum dtp_code stream(struct load *ld, struct dtp_load_stats *stats, struct dtp_err *err)
{
	uint64_t slots = (DTP_STAGING_BYTES - READERS * DTP_GAP_BYTES) / ld->slot_bytes;
	struct dtp_stream s = {.slot_bytes = ld->slot_bytes, .nslots = slots < PANELS ? (int)slots : PANELS,
			       .nreaders = READERS, .arg = ld, .fill = fill, .drain = drain, .progress = progress,
			       .stopped = stopped};

	ld->npanels = s.njobs = cut(ld, NULL);
	ld->panels = malloc((size_t)ld->npanels * sizeof *ld->panels + 1);
	if (!ld->panels)
		return dtp_fail(err, DTP_FAILED, "out of memory for a list of %d panels", ld->npanels);
	cut(ld, ld->panels);
	for (int i = 0; i < ld->npanels; i++)
		ld->adding[ld->panels[i].item].left++;
	ld->ahead = (int)(AHEAD_BYTES / ld->slot_bytes) + 1;
	for (int i = 0; i < ld->ahead; i++)
		prefetch(ld, i);
	stats->staging = (uint64_t)s.nslots * s.slot_bytes + READERS * DTP_GAP_BYTES;
	void *buffers;
	if (ld->be->ops->host_alloc(ld->be, (uint64_t)s.nslots * s.slot_bytes, &buffers, err))
		return err ? dtp_err_prefix(err, "while making buffers to read weights into: ") : DTP_FAILED;
	s.buffers = buffers;
	enum dtp_code rc = run_with_threads(&s, ld->be, err);
	ld->be->ops->host_free(ld->be, buffers);
	return rc;
}

static int by_param(const void *a, const void *b)
{
	return ((const struct dtp_item *)a)->param - ((const struct dtp_item *)b)->param;
}

/* Ranks whose files are slow are waited for first, where there is no deadline. */
static enum dtp_code exchange_over(struct load *ld, struct dtp_comm *c, bool copies, struct dtp_load_stats *stats, struct dtp_err *err)
{
	enum dtp_code rc = dtp_barrier(c, err);

	for (const struct dtp_item *it = ld->items; it < ld->items + ld->nitems && !rc; it++) {
		int root = copies ? it->copy : it->reader;
		if (root == DTP_ITEM_EACH)
			continue;
		struct dtp_weight *w = *it->home;
		rc = dtp_broadcast(c, ld->be->ops->weight_memory(w), (int64_t)w->nbytes, root, err);
		stats->received += root == c->rank ? 0 : w->nbytes;
	}
	return rc;
}

/* Sends what this rank has read for others, and takes what they have: in the order of the tree, since files may differ.  What the ranks of a
 * model read for each other has come to all copies of its reader before. */
static enum dtp_code exchange(struct load *ld, const struct dtp_sharing *with, struct dtp_load_stats *stats, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;

	if (!with->copies && !with->sums)
		return DTP_OK;
	qsort(ld->items, (size_t)ld->nitems, sizeof *ld->items, by_param);
	if (with->copies)
		rc = exchange_over(ld, with->copies, true, stats, err);
	if (with->sums && !rc)
		rc = exchange_over(ld, with->sums, false, stats, err);
	return rc ? rc : ld->be->ops->sync(ld->be, err);
}

enum dtp_code dtp_weights_load(struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
			       struct dtp_backend *be, const struct dtp_monitor *mon, struct dtp_load_stats *stats,
			       struct dtp_err *err)
{
	return dtp_weights_load_shared(tree, st, prefix, rank, degree, be, &(struct dtp_sharing){NULL, NULL}, mon, stats, err);
}

enum dtp_code dtp_weights_load_shared(struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				      struct dtp_backend *be, const struct dtp_sharing *with, const struct dtp_monitor *mon,
				      struct dtp_load_stats *stats, struct dtp_err *err)
{
	struct load ld = {.st = st, .be = be, .mon = mon, .lock = PTHREAD_MUTEX_INITIALIZER, .read = PTHREAD_COND_INITIALIZER};
	double start = dtp_seconds();
	enum dtp_code rc;

	*stats = (struct dtp_load_stats){0};
	rc = dtp_weights_collect(tree, st, prefix, rank, degree, with, &ld.items, &ld.nitems, err);
	if (rc)
		return rc;
	for (int i = 0; i < ld.nitems; i++)
		if (ld.items[i].read)
			ld.total += dtp_slice_bytes(&ld.items[i].slice);
	ld.adding = calloc((size_t)ld.nitems + 1, sizeof *ld.adding);
	rc = ld.adding ? allocate(&ld, err) : dtp_fail(err, DTP_FAILED, "out of memory for a list of %d tensors", ld.nitems);
	if (!rc)
		rc = size_buffers(&ld, err);
	if (!rc)
		rc = stream(&ld, stats, err);
	if (!rc)
		rc = exchange(&ld, with, stats, err);
	if (rc)
		dtp_weights_free(tree, be);
	stats->wanted = ld.total;
	stats->gaps = ld.gaps;
	stats->requests = ld.requests;
	stats->seconds = dtp_seconds() - start;
	for (int i = 0; ld.adding && i < ld.nitems; i++)
		dtp_lora_slice_free(ld.adding[i].factors);
	free(ld.adding);
	free(ld.panels);
	free(ld.items);
	return rc;
}

void dtp_weights_free(struct dtp_tree *tree, struct dtp_backend *be)
{
	for (int i = 0; i < tree->n; i++) {
		struct dtp_layer *l = tree->modules[i].layer;
		if (!l)
			continue;
		if (l->weight)
			be->ops->weight_free(be, l->weight);
		if (l->bias)
			be->ops->weight_free(be, l->bias);
		l->weight = l->bias = NULL;
	}
}

/* ---- sizes and single slices */

struct memory {
	struct dtp_backend *be;
	uint64_t bytes;
};

uint64_t dtp_weights_param_memory(const struct dtp_param *p, const struct dtp_split *s, struct dtp_backend *be)
{
	int64_t shape[DTP_MAX_DIMS];

	if (!p->module->layer)
		return 0;
	dtp_split_shape(p, s, shape);
	return be->ops->weight_bytes(be, dtp_weights_kind(p), p->ndim, shape);
}

static enum dtp_code add_memory(void *arg, const struct dtp_param *p, const struct dtp_split *s, struct dtp_err *err)
{
	struct memory *m = arg;

	(void)err;
	m->bytes += dtp_weights_param_memory(p, s, m->be);
	return DTP_OK;
}

uint64_t dtp_weights_memory(const struct dtp_tree *tree, int rank, int degree, struct dtp_backend *be)
{
	struct memory m = {be, 0};

	for_each_param(tree, rank, degree, add_memory, &m, NULL);
	return m.bytes;
}

static enum dtp_code most_factors(void *arg, const struct dtp_param *p, const struct dtp_split *s, struct dtp_err *err)
{
	uint64_t *most = arg, bytes = p->which ? 0 : dtp_lora_slice_bytes(p->module, s);

	(void)err;
	if (bytes > *most)
		*most = bytes;
	return DTP_OK;
}

uint64_t dtp_weights_staging(const struct dtp_tree *tree, int rank, int degree)
{
	uint64_t most = 0;

	for_each_param(tree, rank, degree, most_factors, &most, NULL);
	/* Factors are there of the weights that panels in the buffers belong to, and of one that is between two of its panels; each
	 * packer has a panel as floats. */
	return DTP_STAGING_BYTES + (most ? (PANELS + 1) * most + MAX_PACKERS * (REMOTE_PANEL_BYTES / 2 * sizeof(float)) : 0);
}

uint64_t dtp_weights_file_bytes(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix, int rank, int degree,
				const struct dtp_sharing *with)
{
	struct dtp_item *items;
	uint64_t bytes = 0;
	int n;

	if (dtp_weights_collect(tree, st, prefix, rank, degree, with, &items, &n, NULL))
		return 0;
	for (int i = 0; i < n; i++)
		if (items[i].read)
			bytes += dtp_slice_bytes(&items[i].slice);
	free(items);
	return bytes;
}

enum dtp_code dtp_weights_slice(const struct dtp_tree *tree, const struct dtp_st *st, const char *prefix,
				const struct dtp_param *p, int rank, int degree, void *dst, struct dtp_err *err)
{
	struct dtp_read_stats stats = {0};
	const struct dtp_st_entry *e;
	struct dtp_slice slice;
	struct dtp_split s;
	enum dtp_code rc = dtp_weights_find(st, prefix, p, &e, err);

	if (rc)
		return rc;
	dtp_placement(tree, p, rank, degree, &s);
	dtp_slice_make(p, &s, e, &slice);
	return dtp_slice_read(st, &slice, 0, slice.rows, dst, &stats, err);
}
