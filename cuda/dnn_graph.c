/* SPDX-License-Identifier: Apache-2.0 */
#include "dnn_graph.h"

#include <stdio.h>

static cudnnDataType_t data_type(enum dtp_dtype t)
{
	return t == DTP_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

enum place { IN_MEMORY, BY_VALUE, NOWHERE };

static cudnnBackendDescriptor_t tensor(struct dtp_dnn_build *b, enum dtp_dnn_tensor id, enum dtp_dtype type, const int64_t dims[4],
				       const int64_t strides[4], enum place place)
{
	cudnnBackendDescriptor_t d = dtp_dnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	cudnnDataType_t t = data_type(type);
	int64_t uid = id, align = DTP_DNN_ALIGN;
	bool yes = true;

	dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
	dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t);
	dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
	dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
	dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
	if (place == BY_VALUE)
		dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
	if (place == NOWHERE)
		dtp_dnn_set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
	dtp_dnn_finish(b, d);
	return d;
}

static cudnnBackendDescriptor_t graph(struct dtp_dnn_build *b, int n, const cudnnBackendDescriptor_t *operations)
{
	cudnnBackendDescriptor_t g = dtp_dnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

	dtp_dnn_set(b, g, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, operations);
	dtp_dnn_finish(b, g);
	return b->status ? NULL : g;
}

/* ---- attention: [1,H,S,D] to cuDNN, rows of heads in memory */

const char *dtp_dnn_attention_refused(const struct dtp_dnn_attention *s, char *buf, size_t size)
{
	int64_t bytes = (int64_t)dtp_dtype_size(s->dtype);
	const struct { const char *of; int64_t elements; } rows[] = {
		{"heads of", s->dim}, {"rows of q of", s->q_row}, {"rows of k of", s->k_row}, {"rows of v of", s->v_row},
		{"rows of the result of", s->out_row},
	};

	if (s->causal)
		return "attention that is causal is not in the versions that this was made for";
	if (s->kv_heads < 1 || s->heads % s->kv_heads) {
		snprintf(buf, size, "%lld query heads are no multiple of %lld key heads", (long long)s->heads, (long long)s->kv_heads);
		return buf;
	}
	if (s->dim > DTP_CUDA_DNN_HEAD) {
		snprintf(buf, size, "heads of %lld are larger than the %d that cuDNN's documentation promises", (long long)s->dim, DTP_CUDA_DNN_HEAD);
		return buf;
	}
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].elements * bytes % DTP_DNN_ALIGN) {
			snprintf(buf, size, "%s %lld bytes are no multiple of %d", rows[i].of, (long long)(rows[i].elements * bytes),
				 DTP_DNN_ALIGN);
			return buf;
		}
	return NULL;
}

static cudnnBackendDescriptor_t tokens(struct dtp_dnn_build *b, enum dtp_dnn_tensor id, const struct dtp_dnn_attention *s, int64_t heads,
				       int64_t length, int64_t row)
{
	const int64_t dims[4] = {1, heads, length, s->dim}, strides[4] = {length * row, s->dim, row, 1};

	return tensor(b, id, s->dtype, dims, strides, IN_MEMORY);
}

cudnnBackendDescriptor_t dtp_dnn_attention_graph(struct dtp_dnn_build *b, const struct dtp_dnn_attention *s)
{
	const int64_t one[4] = {1, 1, 1, 1};
	const int64_t stats[4] = {1, s->heads, s->sq, 1}, stats_strides[4] = {s->heads * s->sq, s->sq, 1, 1};
	cudnnBackendDescriptor_t op = dtp_dnn_make(b, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);

	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, tokens(b, DTP_DNN_Q, s, s->heads, s->sq, s->q_row));
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, tokens(b, DTP_DNN_K, s, s->kv_heads, s->sk, s->k_row));
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, tokens(b, DTP_DNN_V, s, s->kv_heads, s->sk, s->v_row));
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, tokens(b, DTP_DNN_OUT, s, s->heads, s->sq, s->out_row));
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, tensor(b, DTP_DNN_SCALE, DTP_F32, one, one, BY_VALUE));
	if (s->stats)
		dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC,
				 tensor(b, DTP_DNN_STATS, DTP_F32, stats, stats_strides, IN_MEMORY));
	dtp_dnn_finish(b, op);
	return graph(b, 1, &op);
}

/* ---- convolution: [1,C,h,w] to cuDNN, channels last in memory */

int64_t dtp_dnn_conv_side(int64_t in, int64_t kernel, const struct dtp_dnn_conv *s)
{
	return (in + s->pad_top_left + s->pad_bottom_right - kernel) / s->stride + 1;
}

const char *dtp_dnn_conv_refused(const struct dtp_dnn_conv *s, char *buf, size_t size)
{
	if (s->stride < 1 || s->h + s->pad_top_left + s->pad_bottom_right < s->kh || s->w + s->pad_top_left + s->pad_bottom_right < s->kw) {
		snprintf(buf, size, "a picture of %lld x %lld is smaller than the filter", (long long)s->h, (long long)s->w);
		return buf;
	}
	return NULL;
}

static cudnnBackendDescriptor_t picture(struct dtp_dnn_build *b, enum dtp_dnn_tensor id, enum dtp_dtype t, int64_t n, int64_t h, int64_t w,
					int64_t c, enum place place)
{
	const int64_t dims[4] = {n, c, h, w}, strides[4] = {h * w * c, 1, w * c, c};

	return tensor(b, id, t, dims, strides, place);
}

static cudnnBackendDescriptor_t convolution(struct dtp_dnn_build *b, const struct dtp_dnn_conv *s)
{
	cudnnBackendDescriptor_t d = dtp_dnn_make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	cudnnDataType_t sums = CUDNN_DATA_FLOAT;
	cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
	int64_t sides = 2, pre[2] = {s->pad_top_left, s->pad_top_left}, post[2] = {s->pad_bottom_right, s->pad_bottom_right};
	int64_t strides[2] = {s->stride, s->stride}, dilations[2] = {1, 1};

	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pre);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, post);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
	dtp_dnn_set(b, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
	dtp_dnn_finish(b, d);
	return d;
}

/* y = sum + bias */
static cudnnBackendDescriptor_t add(struct dtp_dnn_build *b, cudnnBackendDescriptor_t sum, cudnnBackendDescriptor_t bias,
				    cudnnBackendDescriptor_t y)
{
	cudnnBackendDescriptor_t how = dtp_dnn_make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	cudnnBackendDescriptor_t op = dtp_dnn_make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
	cudnnDataType_t sums = CUDNN_DATA_FLOAT;

	dtp_dnn_set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	dtp_dnn_set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sums);
	dtp_dnn_finish(b, how);
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum);
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
	dtp_dnn_set_part(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
	dtp_dnn_finish(b, op);
	return op;
}

cudnnBackendDescriptor_t dtp_dnn_conv_graph(struct dtp_dnn_build *b, const struct dtp_dnn_conv *s)
{
	int64_t oh = dtp_dnn_conv_side(s->h, s->kh, s), ow = dtp_dnn_conv_side(s->w, s->kw, s);
	cudnnBackendDescriptor_t y = picture(b, DTP_DNN_Y, s->dtype, 1, oh, ow, s->n, IN_MEMORY);
	cudnnBackendDescriptor_t sum = s->bias ? picture(b, DTP_DNN_SUM, DTP_F32, 1, oh, ow, s->n, NOWHERE) : y;
	cudnnBackendDescriptor_t ops[2] = {dtp_dnn_make(b, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR), NULL};
	float alpha = 1, beta = 0;

	dtp_dnn_set_part(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution(b, s));
	dtp_dnn_set_part(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, picture(b, DTP_DNN_X, s->dtype, 1, s->h, s->w, s->c, IN_MEMORY));
	dtp_dnn_set_part(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
			 picture(b, DTP_DNN_W, s->dtype, s->n, s->kh, s->kw, s->c, IN_MEMORY));
	dtp_dnn_set_part(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, sum);
	dtp_dnn_set(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &alpha);
	dtp_dnn_set(b, ops[0], CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
	dtp_dnn_finish(b, ops[0]);
	if (s->bias)
		ops[1] = add(b, sum, picture(b, DTP_DNN_BIAS, s->dtype, 1, 1, 1, s->n, IN_MEMORY), y);
	return graph(b, s->bias ? 2 : 1, ops);
}
