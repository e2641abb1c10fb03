/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN's attention and convolution, through its backend C API.
 *
 * A shape is planned once and then run any number of times: planning takes 0.3 to 1.5 s for attention (a kernel is compiled) and
 * about 1 ms from the cache on disk; running enqueues on a stream and neither allocates nor waits, so that it may be captured
 * into a graph.  Plans are always made from the device's properties and not from the device, so that a machine
 * without a GPU plans as one with a GPU does.  Sums are F32, rounded once; what is F32 is not rounded to TF32 on the way (cuDNN's
 * attention does that always, so that it refuses F32); the same input gives the same bits.
 *
 * A dnn is used by one thread at a time.  Pointers are device memory, tensors as core/tensor.h describes them; letters as in
 * core/backend.h.  Every pointer must be a multiple of DTP_DNN_ALIGN bytes, and so must rows: the plan says no to rows that
 * are not, a run fails (DTP_FAILED) with a pointer that is not. */
#ifndef DTP_CUDA_DNN_H
#define DTP_CUDA_DNN_H

#include <driver_types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "monitor.h"
#include "tensor.h"

enum { DTP_DNN_ALIGN = 16 };

struct dtp_dnn;      /* one device: its handle, its properties, the plans of all shapes so far */
struct dtp_dnn_plan; /* owned by its dnn and valid until that is closed or trimmed */

/* properties: a device's, as cuDNN's JSON, to plan for a device that is not here (run is refused then); NULL: of the calling
 * thread's CUDA device.  cache: a folder of finished plans, made when the first is written; NULL: none.  Both are copied.  mon is told
 * once why plans are not kept; it stays until close.  DTP_REFUSED: cuDNN is missing or too old; DTP_FAILED: a call failed. */
enum dtp_code dtp_dnn_open(const char *properties, const char *cache, const struct dtp_monitor *mon, struct dtp_dnn **out,
			   struct dtp_err *err);
void dtp_dnn_close(struct dtp_dnn *d); /* NULL: nothing.  The stream must be done with what was run. */

/* softmax(scale q k^T) v.  q, out [Sq,H,D], k, v [Sk,Hkv,D]; heads lie D apart, rows as given.  H is a multiple of Hkv: query
 * head i uses kv head i / (H/Hkv).  All keys count: a range of keys is a pointer to its first and its length. */
struct dtp_dnn_attention {
	enum dtp_dtype dtype;                       /* F32 or BF16, of all four */
	int64_t sq, sk, heads, kv_heads, dim;
	int64_t q_row, k_row, v_row, out_row;       /* elements from one token to the next */
	bool causal;                                /* key j <= query i */
	bool stats;                                 /* gives the log-sum-exp too */
};

/* out [h',w',N] = conv(x [h,w,C], w [N,kh,kw,C]) + bias [N], all dense; zeros outside of x. */
struct dtp_dnn_conv {
	enum dtp_dtype dtype;                       /* F32 or BF16, of all four: with a bias of another type a kernel is compiled */
	int64_t h, w, c, n, kh, kw;
	int stride, pad_top_left, pad_bottom_right; /* h' = (h + both pads - kh) / stride + 1 */
	bool bias;
};

/* The plan of a shape, from memory, from the cache, or made now.  *plan NULL and DTP_OK: cuDNN does not do this shape, and why
 * (never empty, valid until the next call with this dnn) says what it said; the caller takes another way.  The same answer is
 * given at once for the same shape later.  DTP_FAILED: something that is no answer about the shape (out of memory, a driver's
 * error). */
enum dtp_code dtp_dnn_plan_attention(struct dtp_dnn *d, const struct dtp_dnn_attention *shape, const struct dtp_dnn_plan **plan,
				     const char **why, struct dtp_err *err);
enum dtp_code dtp_dnn_plan_conv(struct dtp_dnn *d, const struct dtp_dnn_conv *shape, const struct dtp_dnn_plan **plan,
				const char **why, struct dtp_err *err);

/* How many plans, and refusals, there are; and the end of all but the `keep` that were asked for last, and of those that were run while their
 * stream was captured into a graph, which needs their kernels: these stay until close.  Nothing that was run by the others may be on a
 * stream any more. */
#define DTP_DNN_PLANS 128 /* as many as a backend keeps: those of some pictures' sizes */
int dtp_dnn_plans(const struct dtp_dnn *d);
void dtp_dnn_trim(struct dtp_dnn *d, int keep);

/* Device memory that a run needs, aligned to 256 bytes, from the caller; 0: none, and never more than DTP_CUDA_DNN_WORKSPACE. */
uint64_t dtp_dnn_workspace(const struct dtp_dnn_plan *plan);

/* Enqueue on stream.  lse F32 [H,Sq] dense: where the shape has stats, else NULL. */
enum dtp_code dtp_dnn_run_attention(struct dtp_dnn *d, const struct dtp_dnn_plan *plan, cudaStream_t stream, void *out, const void *q,
				    const void *k, const void *v, float *lse, float scale, void *workspace, struct dtp_err *err);
/* bias: where the shape has one, else NULL. */
enum dtp_code dtp_dnn_run_conv(struct dtp_dnn *d, const struct dtp_dnn_plan *plan, cudaStream_t stream, void *out, const void *x,
			       const void *w, const void *bias, void *workspace, struct dtp_err *err);

/* "9.19.0", and the device's properties as cuDNN's JSON: what is worth keeping of a machine.  Owned by d. */
const char *dtp_dnn_version(const struct dtp_dnn *d);
const char *dtp_dnn_properties(const struct dtp_dnn *d);
#endif
