/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by matrix products, for heads that cuDNN does not do: of some queries at a time the scores of all keys, what each key weighs,
 * and the values so weighted.  Scores and weights take memory, which the number of queries keeps within bounds. */
#include "cuda.h"
#include "kernels.h"
#include "lt.h"

/* Head h of x [S,H,D], as a matrix. */
static struct dtp_tensor head_of(struct dtp_tensor x, int64_t h)
{
	struct dtp_tensor m = dtp_tensor_make((char *)x.data + h * x.stride[1] * (int64_t)dtp_dtype_size(x.dtype), x.dtype, 2,
					      (int64_t[]){x.shape[0], x.shape[2]});

	m.stride[0] = x.stride[0];
	return m;
}

static struct dtp_tensor rows_apart(void *p, enum dtp_dtype t, int64_t rows, int64_t cols, int64_t pitch)
{
	struct dtp_tensor x = dtp_tensor_make(p, t, 2, (int64_t[]){rows, cols});

	x.stride[0] = pitch;
	return x;
}

static enum dtp_code one_head(struct dtp_cuda *cu, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k, struct dtp_tensor v,
			      float scale, const struct dtp_cuda_scores *s, void *scratch, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;

	for (int64_t first = 0, n; first < q.shape[0] && !rc; first += n) {
		n = q.shape[0] - first < s->rows ? q.shape[0] - first : s->rows;
		struct dtp_tensor scores = rows_apart(scratch, DTP_F32, n, k.shape[0], s->pitch);
		struct dtp_tensor weights = rows_apart((char *)scratch + s->weights, q.dtype, n, k.shape[0], s->pitch);
		rc = dtp_lt_product(cu->lt, cu->stream, scores, dtp_narrow(q, 0, first, n), k, NULL, err);
		if (!rc)
			rc = DTP_CUDA(dtp_k_softmax(cu->stream, weights, scores, scale), err);
		if (!rc)
			rc = dtp_lt_weighted(cu->lt, cu->stream, dtp_narrow(out, 0, first, n), weights, v, err);
	}
	return rc;
}

enum dtp_code dtp_cuda_attention_products(struct dtp_cuda *cu, struct dtp_tensor out, struct dtp_tensor q, struct dtp_tensor k,
					  struct dtp_tensor v, const struct dtp_attention *a, uint64_t room, struct dtp_err *err)
{
	int64_t end = a->key_end < k.shape[0] ? a->key_end : k.shape[0], n = end - a->key_begin;
	struct dtp_cuda_scores s = dtp_cuda_scores(q.dtype, q.shape[0], n, room);
	void *scratch;
	enum dtp_code rc = dtp_cuda_scratch(cu, s.nbytes, &scratch, err);

	k = dtp_narrow(k, 0, a->key_begin, n);
	v = dtp_narrow(v, 0, a->key_begin, n);
	for (int64_t h = 0; h < q.shape[1] && !rc; h++) {
		int64_t kv = (a->q_head0 + h) / a->group - a->kv_head0;
		rc = one_head(cu, head_of(out, h), head_of(q, h), head_of(k, kv), head_of(v, kv), a->scale, &s, scratch, err);
	}
	return rc;
}
