/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that only records what the loader writes: every byte, every panel, every staging address. */
#ifndef TEST_RECORDER_H
#define TEST_RECORDER_H

#include "backend.h"
#include "support.h"

#include <pthread.h>
#include <unistd.h>


struct recorder {
	struct dtp_backend be;
	int64_t align[4];         /* row_align per dtp_weight_kind; 0: 1 */
	int threads;              /* 0: set_threads answers that there are none */
	int live, hosts;          /* weights and pieces of host memory that exist */
	bool fail_host;
	int fail_new, fail_write; /* the n-th call fails; 0: none */
	int news, writes;
	int now, most;            /* weight_writes at once */
	pthread_mutex_t lock;
	const char *low, *high;   /* bounds of all staging memory seen */
	uint64_t largest;         /* panel */
};

struct recorded {
	struct dtp_weight w;
	enum dtp_dtype dtype; /* of the last panel */
	uint8_t *data;        /* rows as they came, room for 4 bytes an element */
	uint8_t *rows;        /* how often each was written */
	int64_t row_elements;
	int panels;
};

static inline int64_t recorded_count(const struct dtp_weight *w)
{
	int64_t n = 1;
	for (int d = 0; d < w->ndim; d++)
		n *= w->shape[d];
	return n;
}

static inline enum dtp_code recorder_new(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
					 struct dtp_weight **out, struct dtp_err *err)
{
	struct recorder *r = (struct recorder *)be;
	struct recorded *w;

	if (++r->news == r->fail_new)
		return dtp_fail(err, DTP_FAILED, "no room");
	w = calloc(1, sizeof *w);
	w->w.kind = kind;
	w->w.ndim = ndim;
	memcpy(w->w.shape, shape, (size_t)ndim * sizeof *shape);
	w->w.row_align = r->align[kind] ? r->align[kind] : 1;
	int64_t n = recorded_count(&w->w);
	w->row_elements = shape[0] ? n / shape[0] : 0;
	w->data = calloc((size_t)n * 4 + 1, 1);
	w->rows = calloc((size_t)shape[0] + 1, 1);
	w->w.nbytes = (uint64_t)n * 4;
	r->live++;
	*out = &w->w;
	return DTP_OK;
}

static inline enum dtp_code recorder_write(struct dtp_backend *be, struct dtp_weight *weight, int64_t row0, int64_t nrows,
					   const void *src, enum dtp_dtype t, struct dtp_err *err)
{
	struct recorder *r = (struct recorder *)be;
	struct recorded *w = (struct recorded *)weight;
	uint64_t row = (uint64_t)w->row_elements * dtp_dtype_size(t);
	const char *from = src;

	pthread_mutex_lock(&r->lock);
	bool fails = ++r->writes == r->fail_write;
	r->most = ++r->now > r->most ? r->now : r->most;
	if (!r->low || from < r->low)
		r->low = from;
	if (from + (uint64_t)nrows * row > r->high)
		r->high = from + (uint64_t)nrows * row;
	if ((uint64_t)nrows * row > r->largest)
		r->largest = (uint64_t)nrows * row;
	w->panels++;
	w->dtype = t;
	pthread_mutex_unlock(&r->lock);
	usleep(r->be.writers ? 2000 : 0); /* a device that is waited for */
	pthread_mutex_lock(&r->lock);
	r->now--;
	pthread_mutex_unlock(&r->lock);
	if (fails)
		return dtp_fail(err, DTP_FAILED, "no reason");
	if (row0 % weight->row_align || nrows < 1 || row0 < 0 || row0 + nrows > weight->shape[0] ||
	    (nrows % weight->row_align && row0 + nrows != weight->shape[0]))
		return dtp_fail(err, DTP_FAILED, "bad panel: rows %lld + %lld of %lld", (long long)row0, (long long)nrows,
				(long long)weight->shape[0]);
	memcpy(w->data + (uint64_t)row0 * row, from, (uint64_t)nrows * row);
	for (int64_t i = row0; i < row0 + nrows; i++)
		w->rows[i]++;
	return DTP_OK;
}

static inline enum dtp_code recorder_host(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	struct recorder *r = (struct recorder *)be;

	*p = r->fail_host ? NULL : malloc((size_t)nbytes);
	r->hosts += *p != NULL;
	return *p ? DTP_OK : dtp_fail(err, DTP_FAILED, "no host memory");
}

static inline void recorder_host_free(struct dtp_backend *be, void *p)
{
	((struct recorder *)be)->hosts -= p != NULL;
	free(p);
}

static inline void *recorder_memory(struct dtp_weight *w)
{
	return ((struct recorded *)w)->data;
}

static inline enum dtp_code recorder_sync(struct dtp_backend *be, struct dtp_err *err)
{
	(void)be, (void)err;
	return DTP_OK;
}

static inline void recorder_free(struct dtp_backend *be, struct dtp_weight *weight)
{
	struct recorded *w = (struct recorded *)weight;

	((struct recorder *)be)->live--;
	free(w->data);
	free(w->rows);
	free(w);
}

/* What is added, of BF16 to BF16, in the plainest way. */
static inline enum dtp_code recorder_add(struct dtp_backend *be, void *dst, enum dtp_dtype t, const struct dtp_low_rank *parts, int nparts,
					 int64_t n, int64_t k, struct dtp_err *err)
{
	uint16_t *to = dst;

	(void)be;
	if (t != DTP_BF16)
		return dtp_fail(err, DTP_FAILED, "not BF16");
	for (int64_t i = 0; i < n * k; i++) {
		float sum = dtp_bf16_to_f32(to[i]);
		for (const struct dtp_low_rank *p = parts; p < parts + nparts; p++) {
			const uint16_t *b = (const uint16_t *)p->b + i / k * p->r, *a = (const uint16_t *)p->a + i % k;
			for (int64_t l = 0; l < p->r; l++)
				sum += p->scale * dtp_bf16_to_f32(b[l]) * dtp_bf16_to_f32(a[l * k]);
		}
		to[i] = dtp_f32_to_bf16(sum);
	}
	return DTP_OK;
}

static inline uint64_t recorder_bytes(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	uint64_t n = kind == DTP_WEIGHT_VECTOR ? 4 : 2;

	(void)be;
	for (int d = 0; d < ndim; d++)
		n *= (uint64_t)shape[d];
	return n;
}

static inline int recorder_threads(struct dtp_backend *be, int n)
{
	struct recorder *r = (struct recorder *)be;
	int former = r->threads;

	r->threads = former ? n : 0;
	return former;
}

static const struct dtp_backend_ops recorder_ops = {
	.name = "recorder", .weight_new = recorder_new, .weight_write = recorder_write, .weight_free = recorder_free,
	.weight_memory = recorder_memory, .sync = recorder_sync, .host_alloc = recorder_host, .host_free = recorder_host_free, .low_rank_add = recorder_add, .weight_bytes = recorder_bytes, .set_threads = recorder_threads,
};

static inline void recorder_init(struct recorder *r)
{
	*r = (struct recorder){.be = {&recorder_ops, DTP_BF16, false}, .lock = PTHREAD_MUTEX_INITIALIZER};
}
#endif
