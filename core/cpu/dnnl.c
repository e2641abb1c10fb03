/* SPDX-License-Identifier: Apache-2.0 */
#include "dnnl.h"
#include "clock.h"

#include <inttypes.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "pack.h"

/* ---- what differs between oneDNN 2 and 3: descriptors are structs there, handles here */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t desc_ref;
#define REF(d) (d)

static dnnl_status_t desc_strides(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
	return dnnl_memory_desc_create_with_strides(d, 2, dims, t, strides);
}

static dnnl_status_t desc_tag(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t t, dnnl_format_tag_t tag)
{
	return dnnl_memory_desc_create_with_tag(d, 2, dims, t, tag);
}

static void desc_drop(dnnl_memory_desc_t d)
{
	if (d)
		dnnl_memory_desc_destroy(d);
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
	return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t e, desc_ref a, desc_ref b, desc_ref c,
				 dnnl_primitive_attr_t attr)
{
	return dnnl_matmul_primitive_desc_create(pd, e, a, b, NULL, c, attr);
}
#else
typedef const dnnl_memory_desc_t *desc_ref;
#define REF(d) (&(d))

static dnnl_status_t desc_strides(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t t, const dnnl_dims_t strides)
{
	return dnnl_memory_desc_init_by_strides(d, 2, dims, t, strides);
}

static dnnl_status_t desc_tag(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t t, dnnl_format_tag_t tag)
{
	return dnnl_memory_desc_init_by_tag(d, 2, dims, t, tag);
}

static void desc_drop(dnnl_memory_desc_t d)
{
	(void)d;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
	return dnnl_post_ops_append_sum(ops, 1);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t e, desc_ref a, desc_ref b, desc_ref c,
				 dnnl_primitive_attr_t attr)
{
	dnnl_matmul_desc_t d;
	dnnl_status_t s = dnnl_matmul_desc_init(&d, a, b, NULL, c);
	return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, e, NULL) : s;
}
#endif

/* The memory objects of one thread: their addresses change with each run. */
struct slot {
	dnnl_memory_t a, b, c, pad;
};

struct dtp_mm {
	struct dtp_mm *next;
	struct dtp_mm_shape shape;
	dnnl_primitive_t prim;
	dnnl_memory_desc_t a, b, c;
	dnnl_primitive_desc_t pd; /* holds the descriptor of the scratchpad */
	struct slot *slots;
	uint64_t used; /* the last operation that asked for it */
};

#define BUCKETS 256
#define KEEP 512 /* primitives; of more, those are dropped that no recent operation asked for */
/* Operations: more than a layer has.  What a layer asks for the next one asks for again, and a long causal attention has thousands of
 * shapes of its own. */
#define RECENT 64

struct dtp_dnnl {
	dnnl_engine_t engine;
	dnnl_stream_t *streams; /* one per thread, as their scratchpads */
	void **pads;
	size_t pad_size;
	int threads, count;
	uint64_t operation; /* the present one's number */
	bool blocked;
	struct dtp_mm *bucket[BUCKETS];
};

struct dtp_dnnl_facts dtp_dnnl_facts(void)
{
	/* An instruction set's number holds the bits of all that it includes. */
	unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
	unsigned avx512 = dnnl_cpu_isa_avx512_core, bf16 = dnnl_cpu_isa_avx512_core_bf16, amx = dnnl_cpu_isa_avx512_core_amx;
	struct dtp_dnnl_facts f = {
		.blocked = (isa & avx512) == avx512,
		.bf16 = (isa & bf16) == bf16,
	};
	f.bf16_faster = f.bf16_fastest = (isa & amx) == amx;
#if defined(__x86_64__)
	if (f.bf16 && __builtin_cpu_is("amd"))
		f.bf16_faster = true;
#endif
	return f;
}

static void mm_free(struct dtp_dnnl *d, struct dtp_mm *mm)
{
	for (int t = 0; mm->slots && t < d->threads; t++) {
		dnnl_memory_t m[] = {mm->slots[t].a, mm->slots[t].b, mm->slots[t].c, mm->slots[t].pad};
		for (size_t i = 0; i < sizeof m / sizeof m[0]; i++)
			if (m[i])
				dnnl_memory_destroy(m[i]);
	}
	free(mm->slots);
	if (mm->prim)
		dnnl_primitive_destroy(mm->prim);
	if (mm->pd)
		dnnl_primitive_desc_destroy(mm->pd);
	desc_drop(mm->a);
	desc_drop(mm->b);
	desc_drop(mm->c);
	free(mm);
}

/* What was last asked for before this operation. */
static void drop(struct dtp_dnnl *d, uint64_t before)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct dtp_mm **at = &d->bucket[i], *mm; (mm = *at);) {
			if (mm->used >= before) {
				at = &mm->next;
				continue;
			}
			*at = mm->next;
			mm_free(d, mm);
			d->count--;
		}
}

void dtp_dnnl_free(struct dtp_dnnl *d)
{
	if (!d)
		return;
	drop(d, UINT64_MAX);
	for (int t = 0; t < d->threads; t++) {
		if (d->streams && d->streams[t])
			dnnl_stream_destroy(d->streams[t]);
		if (d->pads)
			free(d->pads[t]);
	}
	free(d->streams);
	free(d->pads);
	if (d->engine)
		dnnl_engine_destroy(d->engine);
	free(d);
}

enum dtp_code dtp_dnnl_new(int threads, struct dtp_dnnl **out, struct dtp_err *err)
{
	struct dtp_dnnl *d = calloc(1, sizeof *d);
	dnnl_status_t s = dnnl_out_of_memory;

	if (d) {
		d->threads = threads;
		d->blocked = dtp_dnnl_facts().blocked;
		d->streams = calloc((size_t)threads, sizeof *d->streams);
		d->pads = calloc((size_t)threads, sizeof *d->pads);
	}
	if (d && d->streams && d->pads)
		s = dnnl_engine_create(&d->engine, dnnl_cpu, 0);
	for (int t = 0; s == dnnl_success && t < threads; t++)
		s = dnnl_stream_create(&d->streams[t], d->engine, dnnl_stream_default_flags);
	if (s != dnnl_success) {
		dtp_dnnl_free(d);
		return dtp_fail(err, DTP_FAILED, "oneDNN could not be started: status %d", (int)s);
	}
	*out = d;
	return DTP_OK;
}

int dtp_dnnl_count(const struct dtp_dnnl *d)
{
	return d->count;
}

void dtp_dnnl_begin(struct dtp_dnnl *d)
{
	d->operation++;
	if (d->count > KEEP && d->operation % RECENT == 0)
		drop(d, d->operation - RECENT);
	/* Regions of this backend say how many threads they take; within, and where that is one, oneDNN takes one. */
	omp_set_num_threads(1);
}

static dnnl_status_t describe(const struct dtp_dnnl *d, struct dtp_mm *mm)
{
	const struct dtp_mm_shape *s = &mm->shape;
	dnnl_data_type_t t = s->type == DTP_BF16 ? dnnl_bf16 : dnnl_f32;
	dnnl_dims_t a = {s->m, s->k}, b = {s->k, s->n}, c = {s->m, s->n};
	dnnl_dims_t a_str = {s->k, 1}, c_str = {s->n, 1}, rows = {s->n, 1}, columns = {1, s->k}, block = {DTP_NB, 1};
	dnnl_status_t st = desc_strides(&mm->a, a, t, a_str);

	if (st == dnnl_success)
		st = desc_strides(&mm->c, c, dnnl_f32, c_str);
	if (st != dnnl_success)
		return st;
	if (s->layout == DTP_MM_PACKED && d->blocked)
		return desc_tag(&mm->b, b, t, t == dnnl_bf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b);
	return desc_strides(&mm->b, b, t,
			    s->layout == DTP_MM_PACKED ? block : s->layout == DTP_MM_ROWS ? rows : columns);
}

static dnnl_status_t set_sum(dnnl_primitive_attr_t attr)
{
	dnnl_post_ops_t ops;
	dnnl_status_t s = dnnl_post_ops_create(&ops);

	if (s != dnnl_success)
		return s;
	s = append_sum(ops);
	if (s == dnnl_success)
		s = dnnl_primitive_attr_set_post_ops(attr, ops);
	dnnl_post_ops_destroy(ops);
	return s;
}

static dnnl_status_t make_attr(dnnl_primitive_attr_t *attr, bool add)
{
	dnnl_status_t s = dnnl_primitive_attr_create(attr);
	if (s == dnnl_success && add)
		s = set_sum(*attr);
	if (s == dnnl_success)
		s = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
	if (s == dnnl_success)
		s = dnnl_primitive_attr_set_fpmath_mode(*attr, dnnl_fpmath_mode_strict);
	return s;
}

static desc_ref pad_desc(const struct dtp_mm *mm)
{
	return dnnl_primitive_desc_query_md(mm->pd, dnnl_query_scratchpad_md, 0);
}

static dnnl_status_t mm_make(struct dtp_dnnl *d, struct dtp_mm *mm)
{
	dnnl_primitive_attr_t attr = NULL;
	int threads = omp_get_max_threads();

	mm->slots = calloc((size_t)d->threads, sizeof *mm->slots);
	if (!mm->slots)
		return dnnl_out_of_memory;
	omp_set_num_threads(1); /* its plan is made for as many threads as there are now */
	dnnl_status_t s = describe(d, mm);
	if (s == dnnl_success)
		s = make_attr(&attr, mm->shape.add);
	if (s == dnnl_success)
		s = matmul_desc(&mm->pd, d->engine, REF(mm->a), REF(mm->b), REF(mm->c), attr);
	if (s == dnnl_success)
		s = dnnl_primitive_create(&mm->prim, mm->pd);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	omp_set_num_threads(threads);
	return s;
}

/* Scratchpads grow to the largest that a primitive wants. */
static bool grow_pads(struct dtp_dnnl *d, size_t size)
{
	size = (size_t)dtp_round_up((int64_t)size, 4096);
	if (size <= d->pad_size)
		return true;
	for (int t = 0; t < d->threads; t++) {
		void *p = aligned_alloc(64, size);
		if (!p)
			return false;
		free(d->pads[t]);
		d->pads[t] = p;
	}
	d->pad_size = size;
	return true;
}

enum dtp_code dtp_mm_get(struct dtp_dnnl *d, const struct dtp_mm_shape *s, struct dtp_mm **out, struct dtp_err *err)
{
	uint64_t h = (uint64_t)s->m * 0x9e3779b97f4a7c15u ^ (uint64_t)s->n * 0xc2b2ae3d27d4eb4fu ^
		     (uint64_t)s->k * 0x165667b19e3779f9u ^ (uint64_t)s->type << 62 ^ (uint64_t)s->layout << 60 ^ (uint64_t)s->add << 59;
	struct dtp_mm **head = &d->bucket[(h >> 40) % BUCKETS];

	for (struct dtp_mm *mm = *head; mm; mm = mm->next)
		if (mm->shape.m == s->m && mm->shape.n == s->n && mm->shape.k == s->k && mm->shape.type == s->type &&
		    mm->shape.layout == s->layout && mm->shape.add == s->add) {
			mm->used = d->operation;
			*out = mm;
			return DTP_OK;
		}
	struct dtp_mm *mm = calloc(1, sizeof *mm);
	dnnl_status_t st = dnnl_out_of_memory;
	if (mm) {
		mm->shape = *s;
		mm->used = d->operation;
		st = mm_make(d, mm);
	}
	if (st == dnnl_success && !grow_pads(d, dnnl_memory_desc_get_size(pad_desc(mm))))
		st = dnnl_out_of_memory;
	if (st != dnnl_success) {
		if (mm)
			mm_free(d, mm);
		return dtp_fail(err, DTP_FAILED,
				"oneDNN has no product of [%" PRId64 ", %" PRId64 "] and [%" PRId64 ", %" PRId64 "] in %s: status %d",
				s->m, s->k, s->k, s->n, dtp_dtype_name(s->type), (int)st);
	}
	mm->next = *head;
	*head = mm;
	d->count++;
	*out = mm;
	return DTP_OK;
}

static bool slot_make(struct dtp_dnnl *d, struct dtp_mm *mm, struct slot *s)
{
	return dnnl_memory_create(&s->a, REF(mm->a), d->engine, DNNL_MEMORY_NONE) == dnnl_success &&
	       dnnl_memory_create(&s->b, REF(mm->b), d->engine, DNNL_MEMORY_NONE) == dnnl_success &&
	       dnnl_memory_create(&s->c, REF(mm->c), d->engine, DNNL_MEMORY_NONE) == dnnl_success &&
	       dnnl_memory_create(&s->pad, pad_desc(mm), d->engine, DNNL_MEMORY_NONE) == dnnl_success;
}

bool dtp_mm_run(struct dtp_dnnl *d, struct dtp_mm *mm, int thread, const void *a, const void *b, float *c)
{
	struct slot *s = &mm->slots[thread];

	if (!s->pad && !slot_make(d, mm, s))
		return false;
	/* oneDNN's inputs are not const, but it does not write to them. */
	if (dnnl_memory_set_data_handle(s->a, (void *)(uintptr_t)a) != dnnl_success ||
	    dnnl_memory_set_data_handle(s->b, (void *)(uintptr_t)b) != dnnl_success ||
	    dnnl_memory_set_data_handle(s->c, c) != dnnl_success ||
	    dnnl_memory_set_data_handle(s->pad, d->pads[thread]) != dnnl_success)
		return false;
	dnnl_exec_arg_t args[] = {
		{DNNL_ARG_SRC, s->a}, {DNNL_ARG_WEIGHTS, s->b}, {DNNL_ARG_DST, s->c}, {DNNL_ARG_SCRATCHPAD, s->pad}};
	return dnnl_primitive_execute(mm->prim, d->streams[thread], 4, args) == dnnl_success;
}

/* Fills with values of common size: zeros and subnormals have speeds of their own. */
static dnnl_status_t fill(dnnl_memory_t m, enum dtp_dtype t, size_t nbytes)
{
	uint32_t unit = t == DTP_BF16 ? 0x3f803f80u : 0x3f800000u, *p;
	void *data;
	dnnl_status_t s = dnnl_memory_get_data_handle(m, &data);

	p = data;
	for (size_t i = 0; s == dnnl_success && i < nbytes / sizeof *p; i++)
		p[i] = unit;
	return s;
}

struct peak {
	struct dtp_mm mm;
	struct dtp_dnnl d;
	dnnl_stream_t stream;
	dnnl_memory_t a, b, c;
};

enum { PEAK_M = 768, PEAK_K = 3072, PEAK_N = 9216, PEAK_RUNS = 5 };
#define PEAK_SECONDS 1.0 /* at least: clocks rise, and virtual CPUs change speed */

static dnnl_status_t peak_make(struct peak *p, enum dtp_dtype type)
{
	dnnl_data_type_t t = type == DTP_BF16 ? dnnl_bf16 : dnnl_f32;
	dnnl_dims_t a = {PEAK_M, PEAK_K}, b = {PEAK_K, PEAK_N}, c = {PEAK_M, PEAK_N};
	struct dtp_mm *mm = &p->mm;
	dnnl_status_t s = dnnl_engine_create(&p->d.engine, dnnl_cpu, 0);

	if (s == dnnl_success)
		s = dnnl_stream_create(&p->stream, p->d.engine, dnnl_stream_default_flags);
	if (s == dnnl_success)
		s = desc_tag(&mm->a, a, t, dnnl_ab);
	if (s == dnnl_success)
		s = desc_tag(&mm->b, b, t, dnnl_format_tag_any);
	if (s == dnnl_success)
		s = desc_tag(&mm->c, c, dnnl_f32, dnnl_ab);
	if (s == dnnl_success)
		s = matmul_desc(&mm->pd, p->d.engine, REF(mm->a), REF(mm->b), REF(mm->c), NULL);
	if (s == dnnl_success)
		s = dnnl_primitive_create(&mm->prim, mm->pd);
	if (s != dnnl_success)
		return s;
	desc_ref chosen = dnnl_primitive_desc_query_md(mm->pd, dnnl_query_weights_md, 0);
	s = dnnl_memory_create(&p->a, REF(mm->a), p->d.engine, DNNL_MEMORY_ALLOCATE);
	if (s == dnnl_success)
		s = dnnl_memory_create(&p->b, chosen, p->d.engine, DNNL_MEMORY_ALLOCATE);
	if (s == dnnl_success)
		s = dnnl_memory_create(&p->c, REF(mm->c), p->d.engine, DNNL_MEMORY_ALLOCATE);
	if (s == dnnl_success)
		s = fill(p->a, type, dnnl_memory_desc_get_size(REF(mm->a)));
	if (s == dnnl_success)
		s = fill(p->b, type, dnnl_memory_desc_get_size(chosen));
	return s;
}

static void peak_drop(struct peak *p)
{
	dnnl_memory_t m[] = {p->a, p->b, p->c};

	for (size_t i = 0; i < sizeof m / sizeof m[0]; i++)
		if (m[i])
			dnnl_memory_destroy(m[i]);
	if (p->mm.prim)
		dnnl_primitive_destroy(p->mm.prim);
	if (p->mm.pd)
		dnnl_primitive_desc_destroy(p->mm.pd);
	desc_drop(p->mm.a);
	desc_drop(p->mm.b);
	desc_drop(p->mm.c);
	if (p->stream)
		dnnl_stream_destroy(p->stream);
	if (p->d.engine)
		dnnl_engine_destroy(p->d.engine);
}

enum dtp_code dtp_dnnl_peak(enum dtp_dtype type, int threads, double *flops, struct dtp_err *err)
{
	struct peak p;
	int former = omp_get_max_threads();

	memset(&p, 0, sizeof p);
	*flops = 0;
	omp_set_num_threads(threads);
	dnnl_status_t s = peak_make(&p, type);
	double begin = dtp_seconds();
	for (int i = 0; s == dnnl_success && (i < PEAK_RUNS || dtp_seconds() - begin < PEAK_SECONDS); i++) {
		dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}};
		double start = dtp_seconds();
		s = dnnl_primitive_execute(p.mm.prim, p.stream, 3, args);
		double rate = 2.0 * PEAK_M * PEAK_K * PEAK_N / (dtp_seconds() - start);
		if (rate > *flops)
			*flops = rate;
	}
	peak_drop(&p);
	omp_set_num_threads(former);
	return s == dnnl_success ? DTP_OK : dtp_fail(err, DTP_FAILED, "oneDNN failed to multiply: status %d", (int)s);
}
