/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CPU backend share.  An operation runs on the thread that calls it and on OpenMP's; one backend is
 * used by one thread at a time.  weight_write is the exception: panels may be written by several threads at once. */
#ifndef DTP_CPU_H
#define DTP_CPU_H

#include "backend.h"
#include "pack.h"
#include "pool.h"

/* How products in BF16 are computed.  Both multiply exactly and sum in F32; they differ in speed by 2 either way. */
enum dtp_cpu_method {
	DTP_CPU_AUTO,
	DTP_CPU_NATIVE, /* by the CPU's bf16 instructions */
	DTP_CPU_WIDEN   /* operands widened to F32, weights a block at a time */
};

struct dtp_mm;

struct dtp_cpu {
	struct dtp_backend base;
	int threads;                /* of the following operations */
	int capacity;               /* threads that slots and scratch are made for */
	enum dtp_cpu_method method; /* NATIVE or WIDEN; WIDEN where compute is F32 */
	bool blocked, bf16_fastest; /* dtp_dnnl_facts */
	struct dtp_dnnl *dnnl;
	void *shared;               /* scratch that the threads share: a widened or gathered first operand */
	uint64_t shared_size;
	char *local;                /* capacity pieces of local_size bytes, one per thread */
	uint64_t local_size;
	struct dtp_pool pool;       /* large memory that was freed, until the next operation */
	uint64_t in_use, peak;      /* dtp_memory_use */
};

struct dtp_cpu_weight {
	struct dtp_weight base;
	void *data;   /* MATRIX, CONV: packed; TABLE: rows of T; VECTOR: F32 */
	int64_t n, k; /* the matrix; CONV: k = kh*kw*C, in that order */
	int64_t piece;/* MATRIX, CONV: packed as matrices of so many columns (dtp_pack_piece); k: as one */
};

static inline struct dtp_cpu *dtp_cpu_of(struct dtp_backend *be)
{
	return (struct dtp_cpu *)be;
}

static inline const struct dtp_cpu_weight *dtp_cpu_weight_of(const struct dtp_weight *w)
{
	return (const struct dtp_cpu_weight *)w;
}

static inline const float *dtp_cpu_vector(const struct dtp_weight *w)
{
	return w ? dtp_cpu_weight_of(w)->data : NULL;
}

/* The dtype of a product's first operand: T, or F32 where it is widened. */
static inline enum dtp_dtype dtp_cpu_operand(const struct dtp_cpu *cpu)
{
	return cpu->method == DTP_CPU_NATIVE ? DTP_BF16 : DTP_F32;
}

static inline void *dtp_cpu_local(const struct dtp_cpu *cpu, int thread)
{
	return cpu->local + (uint64_t)thread * cpu->local_size;
}

/* Row i of a matrix view, and element [i, j] of a tensor of 3 dimensions. */
static inline void *dtp_row(const struct dtp_tensor *t, int64_t i)
{
	return (char *)t->data + i * t->stride[0] * (int64_t)dtp_dtype_size(t->dtype);
}

static inline void *dtp_at(const struct dtp_tensor *t, int64_t i, int64_t j)
{
	return (char *)t->data + (i * t->stride[0] + j * t->stride[1]) * (int64_t)dtp_dtype_size(t->dtype);
}

/* dtp_backend_cpu with a method that the caller chooses, for tests.  DTP_REFUSED where this CPU cannot. */
enum dtp_code dtp_cpu_create(enum dtp_dtype compute, int threads, enum dtp_cpu_method method, struct dtp_backend **out,
			     struct dtp_err *err);

/* memory.c.  Makes cpu->shared and every thread's piece at least this large; what they held is lost. */
enum dtp_code dtp_cpu_scratch(struct dtp_cpu *cpu, uint64_t shared, uint64_t local, struct dtp_err *err);
void dtp_cpu_drop_scratch(struct dtp_cpu *cpu);
enum dtp_code dtp_cpu_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err);
void dtp_cpu_free(struct dtp_backend *be, void *p, uint64_t nbytes);
enum dtp_code dtp_cpu_upload(struct dtp_backend *be, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type,
			     struct dtp_err *err);
enum dtp_code dtp_cpu_download(struct dtp_backend *be, void *dst, enum dtp_dtype dst_type, struct dtp_tensor src,
			       struct dtp_err *err);
enum dtp_code dtp_cpu_sync(struct dtp_backend *be, struct dtp_err *err);
enum dtp_code dtp_cpu_reserve(struct dtp_backend *be, uint64_t nbytes, struct dtp_err *err);
void dtp_cpu_memory(struct dtp_backend *be, struct dtp_memory_use *out);

/* weight.c */
/* What a weight takes in compute dtype t; the dry backend says the same. */
uint64_t dtp_cpu_weight_bytes(enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape);
/* Fills in all of base but nbytes' allocation. */
void dtp_cpu_describe(struct dtp_weight *w, enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape);
enum dtp_code dtp_cpu_weight_new(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
				 struct dtp_weight **out, struct dtp_err *err);
enum dtp_code dtp_cpu_weight_write(struct dtp_backend *be, struct dtp_weight *w, int64_t row0, int64_t nrows,
				   const void *src, enum dtp_dtype src_type, struct dtp_err *err);
/* So many of `threads` fill a weight of `panels` panels: each has one of its own, DTP_STAGING_BYTES in all unless one is more. */
int dtp_cpu_fill_threads(int threads, int64_t panels, uint64_t panel_bytes);
enum dtp_code dtp_cpu_weight_fill(struct dtp_backend *be, struct dtp_weight *w, const struct dtp_fill *f, struct dtp_err *err); /* fill.c */
enum dtp_code dtp_cpu_host_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err);
void dtp_cpu_host_free(struct dtp_backend *be, void *p);
enum dtp_code dtp_cpu_low_rank_add(struct dtp_backend *be, void *dst, enum dtp_dtype t, const struct dtp_low_rank *parts, int nparts,
				   int64_t n, int64_t k, struct dtp_err *err);
void dtp_cpu_weight_free(struct dtp_backend *be, struct dtp_weight *w);

/* gemm.c */
/* out [m, w->n] (ld elements apart, F32 or BF16) = a [m, w->k] w^T + bias; a is dense, of dtp_cpu_operand. */
struct dtp_cpu_out {
	void *data;
	enum dtp_dtype dtype;
	int64_t ld;
};
/* Thread scratch that dtp_cpu_gemm needs: dtp_cpu_scratch comes first, as a usually lies in the shared part. */
uint64_t dtp_cpu_gemm_local(const struct dtp_cpu *cpu, const struct dtp_cpu_weight *w);
enum dtp_code dtp_cpu_gemm(struct dtp_cpu *cpu, const void *a, int64_t m, const struct dtp_cpu_weight *w, const float *bias,
			   struct dtp_cpu_out out, struct dtp_err *err);
/* Rows of the first operand that are held at once, for rows of k elements. */
int64_t dtp_cpu_strip_rows(const struct dtp_cpu *cpu, int64_t k);
enum dtp_code dtp_cpu_linear(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			     const struct dtp_weight *bias, struct dtp_err *err);

/* attention.c */
enum dtp_code dtp_cpu_attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
				struct dtp_tensor v, const struct dtp_attention *a, struct dtp_err *err);

/* norm.c */
enum dtp_code dtp_cpu_modulated_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				     struct dtp_tensor shift, struct dtp_tensor scale, float eps, struct dtp_err *err);
enum dtp_code dtp_cpu_rms_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
			       const struct dtp_weight *w, float eps, struct dtp_err *err);
enum dtp_code dtp_cpu_qk_norm_rope(struct dtp_backend *be, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				   const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				   struct dtp_err *err);
enum dtp_code dtp_cpu_group_norm(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x,
				 const struct dtp_weight *w, const struct dtp_weight *b, int groups, float eps, bool silu,
				 struct dtp_err *err);
enum dtp_code dtp_cpu_group_maps(struct dtp_backend *be, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				 const struct dtp_weight *b, int groups, float eps, struct dtp_err *err);
enum dtp_code dtp_cpu_window(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first,
			     struct dtp_err *err);

/* pointwise.c */
enum dtp_code dtp_cpu_embedding(struct dtp_backend *be, struct dtp_tensor out, const int32_t *ids,
				const struct dtp_weight *table, int64_t first_row, struct dtp_err *err);
enum dtp_code dtp_cpu_swiglu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up,
			     struct dtp_err *err);
enum dtp_code dtp_cpu_gated_residual(struct dtp_backend *be, struct dtp_tensor x, struct dtp_tensor gate,
				     struct dtp_tensor y, struct dtp_err *err);
enum dtp_code dtp_cpu_add_bias(struct dtp_backend *be, struct dtp_tensor x, const struct dtp_weight *bias,
			       struct dtp_err *err);
enum dtp_code dtp_cpu_silu(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, struct dtp_err *err);
enum dtp_code dtp_cpu_add(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b,
			  struct dtp_err *err);
enum dtp_code dtp_cpu_copy(struct dtp_backend *be, struct dtp_tensor dst, struct dtp_tensor src, struct dtp_err *err);
enum dtp_code dtp_cpu_euler_step(struct dtp_backend *be, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt,
				 struct dtp_err *err);

/* conv.c */
enum dtp_code dtp_cpu_conv2d(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			     const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right,
			     struct dtp_err *err);

/* picture.c */
enum dtp_code dtp_cpu_upsample2x(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *err);
enum dtp_code dtp_cpu_unpatchify(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor tokens,
				 const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *err);
enum dtp_code dtp_cpu_patchify(struct dtp_backend *be, struct dtp_tensor tokens, struct dtp_tensor x,
			       const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *err);
enum dtp_code dtp_cpu_quantise(struct dtp_backend *be, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *err);
#endif
