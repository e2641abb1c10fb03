/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by cuDNN where it does the shape, by products or the own kernel where it does not.  Text encoders' is causal and the VAE's has
 * heads of 512, which no cuDNN that this was made for does: the choice that --attention cudnn insists on is the transformer's. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"
#include "dnn.h"
#include "kernels.h"

static bool large(const struct dtp_tensor *q)
{
	return q->shape[2] > DTP_CUDA_DNN_HEAD;
}

/* What computes attention of this kind, and why, once for each: the transformer's, a text encoder's, a VAE's.  why: NULL, or why it is not
 * cuDNN's. */
static void tell(struct dtp_cuda *cu, const struct dtp_tensor *q, bool causal, bool products, const char *why)
{
	const struct dtp_monitor *mon = cu->options.mon;
	char text[sizeof ((struct dtp_err *)0)->message + 128], cudnn[48];
	unsigned kind = 1u << (causal ? 1 : large(q) ? 2 : 0);

	if (cu->attention_told & kind)
		return;
	cu->attention_told |= kind;
	if (!why)
		snprintf(cudnn, sizeof cudnn, "cuDNN %s", dtp_dnn_version(cu->dnn));
	snprintf(text, sizeof text, "%sattention, heads of %lld, by %s: %s", causal ? "causal " : "", (long long)q->shape[2],
		 !why ? cudnn : products ? "matrix products" : "the plain kernel", why ? why : "it has a plan for them");
	mon->note(mon->arg, text);
}

/* One attention among rows of q and k, all of which see one another, or, if causal, what comes before them.  *done: false where cuDNN
 * does not do it; why says why not. */
static enum dtp_code by_cudnn(struct dtp_cuda *cu, struct dtp_dnn *dnn, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
			      struct dtp_tensor v, float scale, bool causal, bool *done, const char **why, struct dtp_err *err)
{
	const struct dtp_dnn_attention shape = {
		.dtype = q.dtype, .sq = q.shape[0], .sk = k.shape[0], .heads = q.shape[1], .kv_heads = k.shape[1], .dim = q.shape[2],
		.q_row = q.stride[0], .k_row = k.stride[0], .v_row = v.stride[0], .out_row = out.stride[0], .causal = causal,
	};
	const struct dtp_dnn_plan *plan;
	void *p;

	*done = true;
	if (!shape.sq)
		return DTP_OK;
	enum dtp_code rc = dtp_dnn_plan_attention(dnn, &shape, &plan, why, err);
	*done = plan != NULL;
	if (rc || !plan)
		return rc;
	rc = dtp_cuda_scratch(cu, dtp_dnn_workspace(plan), &p, err);
	return rc ? rc : dtp_dnn_run_attention(dnn, plan, cu->stream, out.data, q.data, k.data, v.data, NULL, scale, p, err);
}

static bool aligned(struct dtp_tensor x)
{
	return (uintptr_t)x.data % DTP_DNN_ALIGN == 0 && (uint64_t)x.stride[0] * dtp_dtype_size(x.dtype) % DTP_DNN_ALIGN == 0 &&
	       x.stride[1] == x.shape[2];
}

/* cuDNN knows groups of query heads that begin with a whole one, and no range of keys. */
static const char *unfit(struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v, const struct dtp_attention *a)
{
	if (!aligned(out) || !aligned(q) || !aligned(k) || !aligned(v))
		return "rows or heads do not begin at multiples of 16 bytes";
	if (a->q_head0 != a->kv_head0 * a->group || q.shape[1] != k.shape[1] * a->group)
		return "this rank's query heads do not belong to whole groups";
	return NULL;
}

/* Keys in [begin, end).  A causal row before begin sees nothing, one from end on sees all of them. */
static enum dtp_code in_parts(struct dtp_cuda *cu, struct dtp_dnn *dnn, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
			      struct dtp_tensor v, const struct dtp_attention *a, bool *done, const char **why, struct dtp_err *err)
{
	int64_t begin = a->key_begin, end = a->key_end < k.shape[0] ? a->key_end : k.shape[0], rows = q.shape[0];
	int64_t first = a->causal && begin < rows ? begin : a->causal ? rows : 0, last = !a->causal ? 0 : end < rows ? end : rows;
	size_t row = (size_t)out.stride[0] * dtp_dtype_size(out.dtype), width = (size_t)(q.shape[1] * q.shape[2]) * dtp_dtype_size(out.dtype);
	enum dtp_code rc = DTP_OK;

	*done = true;
	if (begin >= end) /* nobody sees anything */
		first = last = rows;
	if (last < first)
		last = first;
	k = dtp_narrow(k, 0, begin, begin < end ? end - begin : 0);
	v = dtp_narrow(v, 0, begin, begin < end ? end - begin : 0);
	if (last < rows)
		rc = by_cudnn(cu, dnn, dtp_narrow(out, 0, last, rows - last), dtp_narrow(q, 0, last, rows - last), k, v, a->scale, false,
			      done, why, err);
	if (!rc && *done && first < last) /* as many keys as rows: what is beyond them, no row sees */
		rc = by_cudnn(cu, dnn, dtp_narrow(out, 0, first, last - first), dtp_narrow(q, 0, first, last - first),
			      dtp_narrow(k, 0, 0, last - first), dtp_narrow(v, 0, 0, last - first), a->scale, true, done, why, err);
	if (!rc && *done && first)
		rc = DTP_CUDA(cudaMemset2DAsync(out.data, row, 0, width, (size_t)first, cu->stream), err);
	return rc;
}

/* Whether products do it: heads that are too large for cuDNN. */
static bool fits_products(struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v, const struct dtp_attention *a)
{
	return !a->causal && large(&q) && a->key_begin < a->key_end && a->key_begin < k.shape[0] && aligned(out) &&
	       aligned(q) && aligned(k) && aligned(v) && (uint64_t)q.shape[2] * dtp_dtype_size(q.dtype) % DTP_CUDA_ROW == 0;
}

enum dtp_code dtp_cuda_attention(struct dtp_backend *be, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
				 struct dtp_tensor v, const struct dtp_attention *a, struct dtp_err *err)
{
	struct dtp_cuda *cu = dtp_cuda_of(be);
	struct dtp_err missing = DTP_ERR_INIT;
	enum dtp_code rc = DTP_OK;
	bool done = false, products = false;
	const char *why = "--attention plain";

	if (!dtp_numel(&out))
		return DTP_OK;
	if (cu->options.attention != DTP_ATTENTION_PLAIN) {
		struct dtp_dnn *dnn = dtp_cuda_dnn(cu, &missing);
		why = dnn ? unfit(out, q, k, v, a) : missing.message;
		if (!why)
			rc = in_parts(cu, dnn, out, q, k, v, a, &done, &why, err);
		if (!rc && !done && !a->causal && !large(&q) && cu->options.attention == DTP_ATTENTION_CUDNN)
			return dtp_fail(err, DTP_REFUSED, "--attention cudnn: %s", why);
		products = !done && fits_products(out, q, k, v, a);
	}
	if (rc)
		return rc;
	tell(cu, &q, a->causal, products, done ? NULL : why);
	if (products)
		return dtp_cuda_attention_products(cu, out, q, k, v, a, DTP_CUDA_SCORES_ROOM, err);
	return done ? DTP_OK : DTP_CUDA(dtp_k_attention(cu->stream, out, NULL, q, k, v, a), err);
}
