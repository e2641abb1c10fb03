/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA backend share.  One process uses one GPU, through one backend and one stream: whatever the backend and
 * the communicator of its ranks do to device memory, they do on that stream, in the order of the calls. */
#ifndef DTP_CUDA_H
#define DTP_CUDA_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "backend.h"
#include "footprint.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dtp_cuda_watch;

struct dtp_cuda {
	struct dtp_backend base;
	struct dtp_cuda_options options;
	char *cache;              /* options.cache */
	cudaStream_t stream;
	struct dtp_lt *lt;        /* lt.h: matrix products */
	struct dtp_dnn *dnn;      /* dnn.h: attention and convolution; NULL until the first of them */
	struct dtp_err no_dnn;    /* why cuDNN cannot be used, once it was looked for */
	unsigned attention_told;  /* whose it is: a bit per kind, attention.c */
	uint64_t in_use, peak;    /* dtp_memory_use: of dtp_cuda_take */
	uint64_t operations;
	void *scratch;            /* of the operation that is enqueued now: what was reserved, or more */
	uint64_t scratch_size;
	void *workspace;          /* of lt: DTP_CUDA_PRODUCT_WORKSPACE bytes */
	pthread_mutex_t writing;  /* weight_write: what follows, and the stream */
	void *panel;              /* rows as they are in their file, on their way to their weight: DTP_CUDA_PANEL bytes */
	const char *unrecordable; /* why nothing can be recorded on this stream; NULL: nothing is known to forbid it */
	struct dtp_recording *recordings; /* all there are */
	bool recording;           /* one is being made: what is given to the stream goes into it */
	bool recording_told;      /* why there is none */
	struct dtp_cuda_watch *watch; /* comm_cuda.h: of the communicators whose work is on the stream; NULL: there are none */
};

static inline struct dtp_cuda *dtp_cuda_of(struct dtp_backend *be)
{
	return (struct dtp_cuda *)be;
}

struct dtp_cuda_weight {
	struct dtp_weight base;
	struct dtp_cuda_layout at;
	void *data; /* CONV: [N,kh,kw,C] */
};

static inline const struct dtp_cuda_weight *dtp_cuda_weight_of(const struct dtp_weight *w)
{
	return (const struct dtp_cuda_weight *)w;
}

/* A VECTOR in F32, and in T or F32; NULL of NULL. */
static inline const float *dtp_cuda_vector(const struct dtp_weight *w)
{
	return w ? (const float *)dtp_cuda_weight_of(w)->data : NULL;
}
const void *dtp_cuda_vector_as(const struct dtp_weight *w, enum dtp_dtype t);

/* Waits for the backend's stream, and for other ranks with it.  Instead of cudaStreamSynchronize: that would wait for ever for a rank
 * that is gone. */
enum dtp_code dtp_cuda_wait(struct dtp_cuda *cuda, struct dtp_err *err);

/* DTP_FAILED while work is recorded, for what cannot be a part of it (`what`: "an upload"). */
enum dtp_code dtp_cuda_not_recorded(const struct dtp_cuda *cu, const char *what, struct dtp_err *err);

/* ---- errors.  DTP_OK for cudaSuccess; else DTP_FAILED with "CALL: text (number), FILE:LINE" and what to do about it. */
#define DTP_CUDA(call, err) dtp_cuda_status(call, #call, __FILE__, __LINE__, err)
enum dtp_code dtp_cuda_status(cudaError_t e, const char *call, const char *file, int line, struct dtp_err *err);

/* ---- memory.c */
/* All device memory of the backend: counted, 256-byte aligned; *p NULL for 0 bytes.  No room is DTP_FAILED with all numbers. */
enum dtp_code dtp_cuda_take(struct dtp_cuda *cu, uint64_t nbytes, void **p, struct dtp_err *err);
/* Frees it, NULL: nothing; the stream may still use it.  cudaFree waits for that too, but for ever where another rank is gone. */
void dtp_cuda_give(struct dtp_cuda *cu, void *p, uint64_t nbytes);
/* What a library took and gave back in the backend's place. */
void dtp_cuda_count(struct dtp_cuda *cu, uint64_t taken, uint64_t given);
/* nbytes of device memory for what is enqueued until the next call; 256-byte aligned.  core/footprint.h says them. */
enum dtp_code dtp_cuda_scratch(struct dtp_cuda *cu, uint64_t nbytes, void **p, struct dtp_err *err);
enum dtp_code dtp_cuda_reserve(struct dtp_backend *, uint64_t nbytes, struct dtp_err *);
void dtp_cuda_memory(struct dtp_backend *, struct dtp_memory_use *);
enum dtp_code dtp_cuda_alloc(struct dtp_backend *, uint64_t nbytes, void **p, struct dtp_err *);
void dtp_cuda_free(struct dtp_backend *, void *p, uint64_t nbytes);
enum dtp_code dtp_cuda_upload(struct dtp_backend *, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type, struct dtp_err *);
enum dtp_code dtp_cuda_download(struct dtp_backend *, void *dst, enum dtp_dtype dst_type, struct dtp_tensor src, struct dtp_err *);
enum dtp_code dtp_cuda_sync(struct dtp_backend *, struct dtp_err *);
enum dtp_code dtp_cuda_host_alloc(struct dtp_backend *, uint64_t nbytes, void **p, struct dtp_err *);
void dtp_cuda_host_free(struct dtp_backend *, void *p);

/* ---- weight.c */
enum dtp_code dtp_cuda_weight_new(struct dtp_backend *, enum dtp_weight_kind, int ndim, const int64_t *shape, struct dtp_weight **,
				  struct dtp_err *);
enum dtp_code dtp_cuda_weight_write(struct dtp_backend *, struct dtp_weight *, int64_t row0, int64_t nrows, const void *src,
				    enum dtp_dtype src_type, struct dtp_err *);
enum dtp_code dtp_cuda_weight_fill(struct dtp_backend *, struct dtp_weight *, const struct dtp_fill *f, struct dtp_err *);
void dtp_cuda_weight_free(struct dtp_backend *, struct dtp_weight *);
void *dtp_cuda_weight_memory(struct dtp_weight *);
uint64_t dtp_cuda_weight_bytes(struct dtp_backend *, enum dtp_weight_kind, int ndim, const int64_t *shape);

/* ---- replay.c */
enum dtp_code dtp_cuda_replay(struct dtp_backend *, struct dtp_recording **, enum dtp_code (*enqueue)(void *, struct dtp_err *), void *arg,
			      struct dtp_err *);
const char *dtp_cuda_replay_refused(struct dtp_backend *, const struct dtp_recording *);
void dtp_cuda_replay_free(struct dtp_backend *, struct dtp_recording *);
/* Ends a recording that is being made and gives up all graphs: before communicators go, which would wait for that for ever. */
void dtp_cuda_forget(struct dtp_cuda *cu);
/* Gives up all graphs: memory that they work in goes.  What is repeated then is recorded anew. */
void dtp_cuda_drop_graphs(struct dtp_cuda *cu);

/* ---- tokens.c, attention.c, picture.c: the operations of core/backend.h */
enum dtp_code dtp_cuda_linear(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			      const struct dtp_weight *bias, struct dtp_err *);
enum dtp_code dtp_cuda_embedding(struct dtp_backend *, struct dtp_tensor out, const int32_t *ids, const struct dtp_weight *table,
				 int64_t first_row, struct dtp_err *);
enum dtp_code dtp_cuda_modulated_norm(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor shift,
				      struct dtp_tensor scale, float eps, struct dtp_err *);
enum dtp_code dtp_cuda_rms_norm(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w, float eps,
				struct dtp_err *);
enum dtp_code dtp_cuda_qk_norm_rope(struct dtp_backend *, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				    const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				    struct dtp_err *);
enum dtp_code dtp_cuda_swiglu(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up, struct dtp_err *);
enum dtp_code dtp_cuda_gated_residual(struct dtp_backend *, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y,
				      struct dtp_err *);
enum dtp_code dtp_cuda_add_bias(struct dtp_backend *, struct dtp_tensor x, const struct dtp_weight *bias, struct dtp_err *);
enum dtp_code dtp_cuda_silu(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, struct dtp_err *);
enum dtp_code dtp_cuda_add(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b, struct dtp_err *);
enum dtp_code dtp_cuda_copy(struct dtp_backend *, struct dtp_tensor dst, struct dtp_tensor src, struct dtp_err *);
enum dtp_code dtp_cuda_euler_step(struct dtp_backend *, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt,
				   struct dtp_err *);
enum dtp_code dtp_cuda_attention(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
				 const struct dtp_attention *, struct dtp_err *);
/* Of keys [key_begin, key_end), not empty and not causal; every head begins at a multiple of DTP_CUDA_ROW bytes.  room: for dtp_cuda_scores. */
enum dtp_code dtp_cuda_attention_products(struct dtp_cuda *cu, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
					  struct dtp_tensor v, const struct dtp_attention *, uint64_t room, struct dtp_err *);
enum dtp_code dtp_cuda_conv2d(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
			      const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right, struct dtp_err *);
enum dtp_code dtp_cuda_group_norm(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
				  const struct dtp_weight *b, int groups, float eps, bool silu, struct dtp_err *);
enum dtp_code dtp_cuda_group_maps(struct dtp_backend *, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				  const struct dtp_weight *b, int groups, float eps, struct dtp_err *);
enum dtp_code dtp_cuda_window(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps, int64_t first,
			      struct dtp_err *);
enum dtp_code dtp_cuda_upsample2x(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *);
enum dtp_code dtp_cuda_unpatchify(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor tokens, const struct dtp_weight *mean,
				  const struct dtp_weight *var, float eps, struct dtp_err *);
enum dtp_code dtp_cuda_patchify(struct dtp_backend *, struct dtp_tensor tokens, struct dtp_tensor x, const struct dtp_weight *mean,
				const struct dtp_weight *var, float eps, struct dtp_err *);
enum dtp_code dtp_cuda_quantise(struct dtp_backend *, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *);

/* cuDNN for this backend's device, opened when it is first asked for; NULL, with why, where it cannot be used. */
struct dtp_dnn *dtp_cuda_dnn(struct dtp_cuda *cu, struct dtp_err *why);

/* ---- NVIDIA's libraries, opened when a function of theirs is first asked for, and kept.  They may be called by one thread at a time. */
enum dtp_cuda_library { DTP_LIB_CUBLASLT, DTP_LIB_CUDNN, DTP_LIB_NCCL, DTP_NLIBS };

/* NULL with why, which names the library. */
void *dtp_cuda_symbol(enum dtp_cuda_library lib, const char *name, char *why, size_t size);

struct dtp_symbol {
	const char *name;
	size_t offset; /* of the pointer to the function in the table */
};
/* Fills a table of pointers to functions; DTP_REFUSED with what is missing and where it comes from. */
enum dtp_code dtp_cuda_table(enum dtp_cuda_library lib, const struct dtp_symbol *symbols, size_t n, void *table,
			     struct dtp_err *err);

#ifdef __cplusplus
}
#endif
#endif
