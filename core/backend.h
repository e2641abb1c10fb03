/* SPDX-License-Identifier: Apache-2.0 */
/* What a device must be able to do, in the model's own words.  core/ops.c is the only caller of the operations: it has
 * checked shapes and dtypes, so an implementation need not.
 *
 * Letters: M rows (tokens), K in, N out, B batch, S sequence, H heads, D head dim, C channels, h w picture rows and
 * columns.  T: the compute dtype (backend->compute: F32 or BF16).  Arithmetic is f32 inside, statistics f32; results are
 * rounded once.  Tensors live in the backend's memory.  Rows may have gaps (stride[0] > shape[1]) where a parameter is marked
 * (strided); the others are dense.  A dimension may be 0: the result is then empty, or a sum over nothing (zeros).
 * Every operation may be asynchronous on the backend's one stream; sync and download wait.
 * Pictures are channels-last: [h, w, C]. */
#ifndef DTP_BACKEND_H
#define DTP_BACKEND_H

#include "err.h"
#include "fill.h"
#include "monitor.h"
#include "tensor.h"

/* Host memory that weights pass through on their way from a file, or from where they are computed, to where they stay: at most. */
#define DTP_STAGING_BYTES (64u << 20)

struct dtp_backend {
	const struct dtp_backend_ops *ops;
	enum dtp_dtype compute; /* F32 or BF16 */
	bool async;             /* operations may return before they are done: how long one takes is not known */
	bool dry;               /* computes nothing and touches no data: for predicting memory and reductions */
	/* How weights stream in best: panels of about so many bytes (0: 1 MiB), written by so many threads (0: as many as set_threads
	 * has taken away). */
	uint64_t panel_bytes;
	int writers;
};

struct dtp_recording; /* each backend's own */

enum dtp_weight_kind {
	DTP_WEIGHT_MATRIX, /* [N, K], of a linear layer; stored in the layout that `linear` wants, in T */
	DTP_WEIGHT_TABLE,  /* [rows, K] of an embedding, in T */
	DTP_WEIGHT_CONV,   /* [N, C, kh, kw], in the layout that conv2d wants */
	DTP_WEIGHT_VECTOR  /* [n]: norms, biases: rounded to T, held as f32 */
};

/* Implementations embed it as the first member. */
struct dtp_weight {
	enum dtp_weight_kind kind;
	int ndim;
	int64_t shape[DTP_MAX_DIMS];
	int64_t row_align; /* weight_write begins at multiples of it */
	uint64_t nbytes;   /* memory that it takes, padding included */
};

/* scale * b a, with b [n, r] and a [r, k], both of type (F32 or BF16, which some CPUs multiply faster), dense, in host memory. */
struct dtp_low_rank {
	int64_t r;
	float scale;
	enum dtp_dtype type;
	const void *b, *a;
};

enum dtp_rope { DTP_ROPE_INTERLEAVED, /* pairs (2j, 2j+1): the transformer */
	DTP_ROPE_HALF /* pairs (j, j + D/2): the text encoders */ };

struct dtp_attention {
	float scale;
	bool causal;                  /* key j <= query i */
	int64_t key_begin, key_end;   /* only keys in [begin, end) count; a row that may attend to nothing gives 0 */
	int64_t q_head0, kv_head0;    /* number of the first local query and key head in the whole model */
	int64_t group;                /* query heads per kv head: query head i uses kv head (q_head0 + i) / group - kv_head0 */
};

/* What a backend has taken, as it asked for it: what alloc and weight_new gave, and on a GPU all that it takes by itself.  A CPU's
 * operations also take room for each thread, which is not counted. */
struct dtp_memory_use {
	uint64_t in_use, peak;     /* peak: the most since the last call of `memory` */
	uint64_t operations;       /* the most that an operation took beside its operands since then: what `reserve` is for */
	uint64_t device, device_of;/* of the device, by all who use it, now; of how many bytes.  0: it is the host, or not known */
};

struct dtp_backend_ops {
	const char *name; /* "cpu", "cuda" */
	void (*destroy)(struct dtp_backend *);

	/* ---- memory.  alloc: 64-byte aligned, not zeroed; out of memory is DTP_FAILED with both numbers. */
	enum dtp_code (*alloc)(struct dtp_backend *, uint64_t nbytes, void **p, struct dtp_err *);
	void (*free)(struct dtp_backend *, void *p, uint64_t nbytes);
	/* Host <-> backend memory, dense, with conversion between floating dtypes. */
	enum dtp_code (*upload)(struct dtp_backend *, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type,
				struct dtp_err *);
	enum dtp_code (*download)(struct dtp_backend *, void *dst, enum dtp_dtype dst_type, struct dtp_tensor src,
				  struct dtp_err *);
	enum dtp_code (*sync)(struct dtp_backend *, struct dtp_err *);
	/* Memory of the host that the device reads by itself, page-aligned; on a CPU any. */
	enum dtp_code (*host_alloc)(struct dtp_backend *, uint64_t nbytes, void **p, struct dtp_err *);
	void (*host_free)(struct dtp_backend *, void *p); /* NULL is allowed */
	/* From now on operations have nbytes beside their operands, and what they had before is given back: none that takes at most so many
	 * allocates. */
	enum dtp_code (*reserve)(struct dtp_backend *, uint64_t nbytes, struct dtp_err *);
	void (*memory)(struct dtp_backend *, struct dtp_memory_use *out);

	/* ---- weights.  The parameter streams in by panels of rows: [row0, row0 + nrows) of shape[0], all columns; src is
	 * host memory (fastest: of host_alloc), dense rows of dtype src_type (BF16, F16 or F32), which may be reused when the call returns.
	 * row0 is a multiple of row_align, and so is nrows except for the last panel.  Values are converted to T.
	 * weight_write of different panels may run in several threads at once, none of them the backend's own: the loader
	 * sets the backend to one thread meanwhile and starts as many of its own. */
	enum dtp_code (*weight_new)(struct dtp_backend *, enum dtp_weight_kind, int ndim, const int64_t *shape,
				    struct dtp_weight **, struct dtp_err *);
	enum dtp_code (*weight_write)(struct dtp_backend *, struct dtp_weight *, int64_t row0, int64_t nrows,
				      const void *src, enum dtp_dtype src_type, struct dtp_err *);
	/* Computes the whole parameter instead, what f says of it: the same bits in T whatever the backend.  Called by the backend's own
	 * thread, while nothing is written.  Takes at most DTP_STAGING_BYTES of the host's memory meanwhile, unless 64 rows are more. */
	enum dtp_code (*weight_fill)(struct dtp_backend *, struct dtp_weight *, const struct dtp_fill *f, struct dtp_err *);
	/* dst [n, k] += all parts: dst F32 or BF16, dense, in host memory, summed in f32 and rounded once.  What is added to a panel
	 * before it is written.  Several threads may call it at once, as weight_write. */
	enum dtp_code (*low_rank_add)(struct dtp_backend *, void *dst, enum dtp_dtype dst_type, const struct dtp_low_rank *parts,
				      int nparts, int64_t n, int64_t k, struct dtp_err *);
	void (*weight_free)(struct dtp_backend *, struct dtp_weight *);
	/* All of a weight, its nbytes, in memory that the communicator of tensors moves; the same on all ranks where no plan splits it.
	 * NULL where ranks share no weights: processors of a host read them from its page cache. */
	void *(*weight_memory)(struct dtp_weight *);
	/* What weight_new would take, without allocating: for the fit report. */
	uint64_t (*weight_bytes)(struct dtp_backend *, enum dtp_weight_kind, int ndim, const int64_t *shape);

	/* ---- tokens */
	/* out [M,N] = x [M,K] w^T (+ bias [N]).  out is T or F32 (strided), x is T (strided). */
	enum dtp_code (*linear)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
				const struct dtp_weight *bias, struct dtp_err *);
	/* out [M,K] T: row ids[i] - first_row of the table; an id outside [first_row, first_row + rows) gives zeros. */
	enum dtp_code (*embedding)(struct dtp_backend *, struct dtp_tensor out, const int32_t *ids /* host, [M] */,
				   const struct dtp_weight *table, int64_t first_row, struct dtp_err *);
	/* out [M,K] T = LayerNorm(x [M,K] T; no affine) * (1 + scale [K]) + shift [K].  shift, scale: T, 1-D. (x strided) */
	enum dtp_code (*modulated_norm)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x,
					struct dtp_tensor shift, struct dtp_tensor scale, float eps, struct dtp_err *);
	/* out [M,K] T = x / rms(x) * w.  (x strided) */
	enum dtp_code (*rms_norm)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
				  float eps, struct dtp_err *);
	/* In place: q [S,H,D] and k [S,Hkv,D] T (strided rows); RMS norm over D with wq and wk [D] (both NULL: none), rounded to T as
	 * the reference does, then rotation by cos, sin [S, D/2] F32.  cos.data NULL: no rotation. */
	enum dtp_code (*qk_norm_rope)(struct dtp_backend *, struct dtp_tensor q, struct dtp_tensor k, const struct dtp_weight *wq,
				      const struct dtp_weight *wk, float eps, enum dtp_rope kind, struct dtp_tensor cos, struct dtp_tensor sin,
				      struct dtp_err *);
	/* out [Sq,H,D] T, q [Sq,H,D], k, v [Sk,Hkv,D] (all strided rows).  Softmax in f32. */
	enum dtp_code (*attention)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
				   struct dtp_tensor v, const struct dtp_attention *, struct dtp_err *);
	/* out [M,K] T = silu(gate [M,K]) * up [M,K].  (all strided) */
	enum dtp_code (*swiglu)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor gate, struct dtp_tensor up,
				struct dtp_err *);
	/* x [M,K] T += gate [K] T * y [M,K] (T or F32).  gate.data NULL: 1.  (x strided) */
	enum dtp_code (*gated_residual)(struct dtp_backend *, struct dtp_tensor x, struct dtp_tensor gate, struct dtp_tensor y,
					struct dtp_err *);
	/* x [M,K] (T or F32) += bias [K]. */
	enum dtp_code (*add_bias)(struct dtp_backend *, struct dtp_tensor x, const struct dtp_weight *bias, struct dtp_err *);
	/* out = silu(x), any shape, T. */
	enum dtp_code (*silu)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, struct dtp_err *);
	/* out = a + b, T. */
	enum dtp_code (*add)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b,
			     struct dtp_err *);
	/* dst = src with conversion among F32, T; same shape, up to 4 dimensions (both strided). */
	enum dtp_code (*copy)(struct dtp_backend *, struct dtp_tensor dst, struct dtp_tensor src, struct dtp_err *);
	/* latents T [n] = latents + dt F32 [1] * noise T, in f32, rounded once. */
	enum dtp_code (*euler_step)(struct dtp_backend *, struct dtp_tensor latents, struct dtp_tensor noise, struct dtp_tensor dt,
				    struct dtp_err *);

	/* ---- pictures, channels-last */
	/* out [h',w',N] = conv(x [h,w,C], w [N,C,k,k]) + bias; padding as given on each side, zeros. */
	enum dtp_code (*conv2d)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, const struct dtp_weight *w,
				const struct dtp_weight *bias, int stride, int pad_top_left, int pad_bottom_right,
				struct dtp_err *);
	/* out = GroupNorm(x [h,w,C]) * w + b, then SiLU if silu. */
	enum dtp_code (*group_norm)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x,
				    const struct dtp_weight *w, const struct dtp_weight *b, int groups, float eps, bool silu,
				    struct dtp_err *);
	/* The same in two parts, for a picture that is convolved a strip at a time: what the norm does to each channel of x [h,w,C],
	 * maps F32 [2,C] = scale and shift; and out [r,w+2,C] = silu(x * scale + shift) of the rows [first, first + r), zeros for rows
	 * outside of the picture and for a column on each side. */
	enum dtp_code (*group_maps)(struct dtp_backend *, struct dtp_tensor maps, struct dtp_tensor x, const struct dtp_weight *w,
				    const struct dtp_weight *b, int groups, float eps, struct dtp_err *);
	enum dtp_code (*window)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor maps,
				int64_t first, struct dtp_err *);
	/* Likewise out [r,2w+2,C] = the rows [first, first + r) of nearest(x [h,w,C]), which has 2h of them. */
	enum dtp_code (*upsample2x)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor x, int64_t first, struct dtp_err *);
	/* packed tokens [h*w, 4*C] -> picture [2h,2w,C]: z = tokens*std + mean per packed channel c*4+dy*2+dx, mean and std F32 [4C]
	 * in backend memory as VECTOR weights: std = sqrt(var + eps). */
	enum dtp_code (*unpatchify)(struct dtp_backend *, struct dtp_tensor out, struct dtp_tensor tokens,
				    const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *);
	/* The inverse: picture [2h,2w,C] -> tokens (z - mean) / std. */
	enum dtp_code (*patchify)(struct dtp_backend *, struct dtp_tensor tokens, struct dtp_tensor x,
				  const struct dtp_weight *mean, const struct dtp_weight *var, float eps, struct dtp_err *);
	/* rgb U8 [h,w,3] (host) = round_half_even(clamp(x/2 + 0.5, 0, 1) * 255). */
	enum dtp_code (*quantise)(struct dtp_backend *, uint8_t *rgb, struct dtp_tensor x, struct dtp_err *);

	/* ---- repetition (core/replay.h), or NULL: the backend has nothing to repeat work by.  Gives the stream what enqueue(arg) gives it,
	 * which is the same in every call with one *r (NULL before the first): operations and sums over ranks on the same memory, nothing
	 * that waits, or moves values between host and backend.  Ranks that sum with one another call it together.  The backend may
	 * record the work and give the recording in later calls, without enqueue; where it cannot, it asks enqueue again and does not try
	 * any more.  *r: freed by replay_free, before the backend and the communicators of its sums. */
	enum dtp_code (*replay)(struct dtp_backend *, struct dtp_recording **r, enum dtp_code (*enqueue)(void *arg, struct dtp_err *),
				void *arg, struct dtp_err *);
	const char *(*replay_refused)(struct dtp_backend *, const struct dtp_recording *r); /* NULL: it is recorded; else why not */
	void (*replay_free)(struct dtp_backend *, struct dtp_recording *r);

	/* ---- threads.  The CPU backend changes how many threads the following operations use (a phase in which the other
	 * ranks sleep); returns the former number.  Others return 0. */
	int (*set_threads)(struct dtp_backend *, int n);
	/* For `bench`: peak of a matrix product in T on this device, measured now, in FLOP/s. */
	enum dtp_code (*measure_peak)(struct dtp_backend *, double *flops, struct dtp_err *);
};

/* The CPU: oneDNN and OpenMP.  threads: of this rank. */
enum dtp_code dtp_backend_cpu(enum dtp_dtype compute, int threads, struct dtp_backend **out, struct dtp_err *err);
/* What it uses of this processor, as oneDNN may use it: environment variables of its own count. */
struct dtp_cpu_facts {
	bool avx512, avx512_bf16, amx;
	const char *loops;  /* instructions of the element-wise loops */
	const char *bf16;   /* how bf16 is multiplied */
	char library[96];   /* oneDNN's versions */
	bool mismatch;      /* the loaded one is older than what this program was compiled with, or of another major version */
};
void dtp_cpu_facts(struct dtp_cpu_facts *out);
/* Computes nothing: checks, counts, with the sizes that weights have on the device. */
enum dtp_device { DTP_DEVICE_CPU, DTP_DEVICE_CUDA };
enum dtp_code dtp_backend_dry(enum dtp_dtype compute, enum dtp_device device, struct dtp_backend **out, struct dtp_err *err);

/* The versions of CUDA (13000: 13.0) and NCCL (22809: 2.28.9) that this program was built with; 0: without. */
struct dtp_cuda_built {
	int cuda, nccl;
};
struct dtp_cuda_built dtp_cuda_built(void);

/* ---- CUDA: core/ knows of it what follows, and links without it (cuda/absent.c). */
#define DTP_GPU_LEAST_MAJOR 8 /* compute capability: the first with bf16 in its matrix units */
struct dtp_gpu {
	int number; /* as CUDA counts those that this process sees */
	char name[96];
	int major, minor; /* compute capability */
	uint64_t bytes;   /* of its memory */
	char id[16];      /* no other GPU, of any machine, has it */
};
/* The GPUs that this process may use, in CUDA's order, without those that are too old: at most max are described, *n is their number.
 * DTP_REFUSED, with what is missing and what to do, where there is none that can be used.  Takes no memory of a GPU, but the driver is
 * started: not to be called by a process that forks later. */
enum dtp_code dtp_cuda_gpus(struct dtp_gpu *gpus, int max, int *n, struct dtp_err *err);

/* What is called of NVIDIA's libraries. */
struct dtp_cuda_needs {
	bool products;     /* cuBLASLt's: by every rank on a GPU */
	bool convolutions; /* cuDNN's */
	bool attention;    /* cuDNN's too, with no other way */
	bool sums;         /* NCCL's */
};
/* Opens these libraries, which takes some 0.1 s and looks at no GPU.  DTP_REFUSED: one is missing or too old, and what to do. */
enum dtp_code dtp_cuda_libraries(const struct dtp_cuda_needs *needs, struct dtp_err *err);

/* How a weight lies in a GPU's memory: n rows of k elements.  A matrix's rows are pitch elements apart, so that each begins at a multiple of
 * DTP_CUDA_ROW bytes.  VECTOR: k is 1; F32, then, from `typed` bytes on, the same in T where that is another type. */
#define DTP_CUDA_ROW 16
struct dtp_cuda_layout {
	int64_t n, k, pitch;
	uint64_t nbytes, typed;
};
struct dtp_cuda_layout dtp_cuda_layout(enum dtp_dtype t, enum dtp_weight_kind kind, int ndim, const int64_t *shape);

/* What computes attention.  AUTO: cuDNN where it does the shape, else the own kernel, and a note of which and why.  CUDNN: the same, but
 * where it is the transformer's, DTP_REFUSED with why not.  PLAIN: the own kernel. */
enum dtp_cuda_attention { DTP_ATTENTION_AUTO, DTP_ATTENTION_CUDNN, DTP_ATTENTION_PLAIN };
/* AUTO: what is repeated becomes a CUDA graph, where it can; else a note says why not.  OFF: every kernel is launched by itself. */
enum dtp_cuda_graph { DTP_GRAPH_AUTO, DTP_GRAPH_OFF };
struct dtp_cuda_options {
	int device;                /* as CUDA numbers them: of struct dtp_gpu */
	enum dtp_cuda_attention attention;
	enum dtp_cuda_graph graph;
	const char *cache;         /* folder for cuDNN's finished plans, made if need be; NULL: none */
	const struct dtp_monitor *mon;
};
/* cache is copied; mon must outlive the backend.  DTP_REFUSED: this GPU or its driver is too old; DTP_FAILED:
 * a call failed. */
enum dtp_code dtp_backend_cuda(enum dtp_dtype compute, const struct dtp_cuda_options *options, struct dtp_backend **out,
			       struct dtp_err *err);
#endif
