/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes as cuDNN's operation graphs. */
#ifndef DTP_CUDA_DNN_GRAPH_H
#define DTP_CUDA_DNN_GRAPH_H

#include "dnn.h"
#include "dnn_api.h"

/* The unique ids of the graphs' tensors, which a run gives addresses. */
enum dtp_dnn_tensor {
	DTP_DNN_Q = 1, DTP_DNN_K, DTP_DNN_V, DTP_DNN_OUT, DTP_DNN_STATS,
	DTP_DNN_SCALE, /* F32, by value: its address is the host's */
	DTP_DNN_X, DTP_DNN_W, DTP_DNN_BIAS, DTP_DNN_Y,
	DTP_DNN_SUM    /* of a convolution, before the bias: has no memory */
};

/* Why cuDNN need not be asked about a shape, in buf; NULL: it does. */
const char *dtp_dnn_attention_refused(const struct dtp_dnn_attention *s, char *buf, size_t size);
const char *dtp_dnn_conv_refused(const struct dtp_dnn_conv *s, char *buf, size_t size);

/* The finished OPERATIONGRAPH; NULL after a failure, which b tells. */
cudnnBackendDescriptor_t dtp_dnn_attention_graph(struct dtp_dnn_build *b, const struct dtp_dnn_attention *s);
cudnnBackendDescriptor_t dtp_dnn_conv_graph(struct dtp_dnn_build *b, const struct dtp_dnn_conv *s);

int64_t dtp_dnn_conv_side(int64_t in, int64_t kernel, const struct dtp_dnn_conv *s); /* h' of h, w' of w */
#endif
