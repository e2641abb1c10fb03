/* SPDX-License-Identifier: Apache-2.0 */
/* The one use of oneDNN: matrix products on one thread, as primitives that are made once per shape and kept. */
#ifndef DTP_CPU_DNNL_H
#define DTP_CPU_DNNL_H

#include "err.h"
#include "tensor.h"

struct dtp_dnnl;

/* How the second operand [k, n] lies in memory. */
enum dtp_mm_layout {
	DTP_MM_PACKED, /* blocks of 64 columns (pack.h); n past 64 only where dtp_dnnl_facts.blocked */
	DTP_MM_ROWS,   /* [k, n], dense */
	DTP_MM_COLUMNS /* [n, k], dense: the transpose */
};

struct dtp_mm_shape {
	int64_t m, n, k;
	enum dtp_dtype type; /* of both operands: F32 or BF16 */
	enum dtp_mm_layout layout;
	bool add; /* c += a b */
};

/* What this CPU, as oneDNN may use it (its own environment variables count), can do. */
struct dtp_dnnl_facts {
	bool blocked;     /* takes several packed blocks at once, by kernels made for that */
	bool bf16;        /* multiplies bf16 by instructions of its own */
	bool bf16_faster; /* and faster than f32: AMX, or AVX-512 BF16 at full rate (AMD); Intel's has half of it */
	bool bf16_fastest;/* by more than 4: AMX */
};
struct dtp_dnnl_facts dtp_dnnl_facts(void);

/* threads: how many may run products at once. */
enum dtp_code dtp_dnnl_new(int threads, struct dtp_dnnl **out, struct dtp_err *err);
void dtp_dnnl_free(struct dtp_dnnl *d);

/* The primitive of a shape; made on first use.  Not to be called by several threads at once.  It is valid for the rest of the
 * operation, which dtp_dnnl_begin starts: that drops what no recent operation asked for, where very many are held. */
struct dtp_mm;
void dtp_dnnl_begin(struct dtp_dnnl *d);
int dtp_dnnl_count(const struct dtp_dnnl *d); /* primitives held */
enum dtp_code dtp_mm_get(struct dtp_dnnl *d, const struct dtp_mm_shape *s, struct dtp_mm **mm, struct dtp_err *err);
/* c [m,n] F32 = (or +=) a [m,k] b, all dense; false when oneDNN failed.  thread: the caller's number, below `threads`. */
bool dtp_mm_run(struct dtp_dnnl *d, struct dtp_mm *mm, int thread, const void *a, const void *b, float *c);

/* FLOP/s of a large product in `type` on `threads` threads, by oneDNN's own choice of layout: the best of those that fit into a
 * second, five at least. */
enum dtp_code dtp_dnnl_peak(enum dtp_dtype type, int threads, double *flops, struct dtp_err *err);
#endif
