/* SPDX-License-Identifier: Apache-2.0 */
/* What operations take of a GPU beside their operands: the CUDA backend as it runs them, and the backend that only foresees it, on the
 * same tensors. */
#include "../op.h"

#include "footprint.h"

struct pair {
	struct dtp_backend *real, *dry;
	void *memory; /* all operands */
};
static const uint64_t ROOM = 8 << 20;

static struct pair open_pair(enum dtp_dtype t)
{
	const struct dtp_cuda_options o = {.attention = DTP_ATTENTION_AUTO, .mon = &dtp_monitor_none};
	struct pair p;

	MUST(dtp_backend_cuda(t, &o, &p.real, err));
	MUST(dtp_backend_dry(t, DTP_DEVICE_CUDA, &p.dry, err));
	MUST(p.real->ops->alloc(p.real, ROOM, &p.memory, err));
	return p;
}

static void close_pair(struct pair *p)
{
	p->real->ops->free(p->real, p->memory, ROOM);
	p->real->ops->destroy(p->real);
	p->dry->ops->destroy(p->dry);
}

/* Since the last look. */
static uint64_t took(struct dtp_backend *be)
{
	struct dtp_memory_use use;

	be->ops->memory(be, &use);
	return use.operations;
}

/* An operation on both, and what it took: to the byte, or at most what was foreseen. */
#define BOTH(p, at_most, call) \
	do { \
		took((p)->real), took((p)->dry); \
		for (int which = 0; which < 2; which++) { \
			struct dtp_backend *be = which ? (p)->dry : (p)->real; \
			MUST(call); \
		} \
		uint64_t real_ = took((p)->real), dry_ = took((p)->dry); \
		if (real_ > dry_ || (!(at_most) && real_ < dry_)) \
			fail_msg("%s takes %llu bytes, %llu are foreseen", #call, (unsigned long long)real_, (unsigned long long)dry_); \
	} while (0)

/* A view of [rows, cols], which begins `skip` elements into the memory, with a gap behind each row. */
static struct dtp_tensor view(const struct pair *p, enum dtp_dtype t, int64_t skip, int64_t rows, int64_t cols, int64_t gap)
{
	struct dtp_tensor x = dtp_tensor_make((char *)p->memory + skip * (int64_t)dtp_dtype_size(t), t, 2, (int64_t[]){rows, cols});

	x.stride[0] = cols + gap;
	return x;
}

static void fill(struct pair *p)
{
	int64_t n = (int64_t)(ROOM / sizeof(float));
	float *zeros = calloc((size_t)n, sizeof *zeros);

	MUST(p->real->ops->upload(p->real, dtp_tensor_make(p->memory, DTP_F32, 1, &n), zeros, DTP_F32, err));
	free(zeros);
}

static struct dtp_weight *weight(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	struct dtp_weight *w;

	MUST(be->ops->weight_new(be, kind, ndim, shape, &w, err));
	return w;
}

static void products_copy_what_does_not_fit(void **state)
{
	static const struct { int64_t m, n, k, skip, gap; } cases[] = {
		{5, 16, 32, 0, 0}, {5, 17, 32, 0, 0}, {5, 16, 33, 0, 0}, {7, 13, 19, 0, 3}, {4, 16, 16, 1, 0}, {9, 24, 8, 0, 8}, {3, 1, 1, 0, 0},
	};

	(void)state;
	for (int t = 0; t < 2; t++) {
		struct pair p = open_pair(t ? DTP_BF16 : DTP_F32);
		fill(&p);
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			int64_t m = cases[i].m, n = cases[i].n, k = cases[i].k, s[] = {n, k};
			struct dtp_tensor x = view(&p, p.real->compute, cases[i].skip, m, k, cases[i].gap);
			struct dtp_tensor out = view(&p, p.real->compute, 1 << 20, m, n, cases[i].gap);
			struct dtp_weight *w[] = {weight(p.real, DTP_WEIGHT_MATRIX, 2, s), weight(p.dry, DTP_WEIGHT_MATRIX, 2, s)};
			assert_true(w[0]->nbytes == w[1]->nbytes);
			BOTH(&p, false, be->ops->linear(be, out, x, w[which], NULL, err));
			p.real->ops->weight_free(p.real, w[0]);
			p.dry->ops->weight_free(p.dry, w[1]);
		}
		close_pair(&p);
	}
}

static void moves_take_a_piece(void **state)
{
	static float host[3000];
	struct pair p = open_pair(DTP_BF16);
	int64_t n = 3000;
	struct dtp_tensor x = dtp_tensor_make(p.memory, DTP_BF16, 1, &n);

	(void)state;
	fill(&p);
	BOTH(&p, false, be->ops->upload(be, x, host, DTP_F32, err));
	BOTH(&p, false, be->ops->download(be, host, DTP_F32, x, err));
	BOTH(&p, false, be->ops->download(be, host, DTP_BF16, x, err));
	close_pair(&p);
}

static void rows_and_pictures(void **state)
{
	static const int32_t ids[7];
	static uint8_t rgb[3 * 41 * 53];
	const int64_t table[] = {11, 24}, channels[] = {24}, picture[] = {41, 53, 24}, pixels[] = {41, 53, 3};
	struct pair p = open_pair(DTP_F32);
	struct dtp_tensor x = dtp_tensor_make(p.memory, DTP_F32, 3, picture), out = x;
	struct dtp_tensor maps = view(&p, DTP_F32, 1 << 20, 2, 24, 0);
	struct dtp_weight *w[] = {weight(p.real, DTP_WEIGHT_TABLE, 2, table), weight(p.dry, DTP_WEIGHT_TABLE, 2, table)};
	struct dtp_weight *v[] = {weight(p.real, DTP_WEIGHT_VECTOR, 1, channels), weight(p.dry, DTP_WEIGHT_VECTOR, 1, channels)};

	(void)state;
	fill(&p);
	BOTH(&p, false, be->ops->embedding(be, view(&p, DTP_F32, 0, 7, 24, 0), ids, w[which], 0, err));
	BOTH(&p, false, be->ops->group_norm(be, out, x, v[which], v[which], 8, 1e-6f, true, err));
	BOTH(&p, false, be->ops->group_maps(be, maps, x, v[which], v[which], 8, 1e-6f, err));
	BOTH(&p, false, be->ops->quantise(be, rgb, dtp_tensor_make(p.memory, DTP_F32, 3, pixels), err));
	p.real->ops->weight_free(p.real, w[0]);
	p.dry->ops->weight_free(p.dry, w[1]);
	p.real->ops->weight_free(p.real, v[0]);
	p.dry->ops->weight_free(p.dry, v[1]);
	close_pair(&p);
}

/* What cuDNN wants is known when it has planned: it is held to what was foreseen. */
static void cudnn_takes_at_most_what_is_foreseen(void **state)
{
	const int64_t filters[] = {16, 24, 3, 3}, picture[] = {20, 28, 24}, result[] = {20, 28, 16}, heads[] = {33, 2, 64};
	struct pair p = open_pair(DTP_BF16);
	struct dtp_tensor x = dtp_tensor_make(p.memory, DTP_BF16, 3, picture);
	struct dtp_tensor out = dtp_tensor_make((char *)p.memory + (1 << 20), DTP_BF16, 3, result);
	struct dtp_tensor q = dtp_tensor_make(p.memory, DTP_BF16, 3, heads), o = dtp_tensor_make((char *)p.memory + (1 << 20), DTP_BF16, 3, heads);
	struct dtp_attention a = {.scale = 1, .key_end = heads[0], .group = 1};
	struct dtp_weight *w[] = {weight(p.real, DTP_WEIGHT_CONV, 4, filters), weight(p.dry, DTP_WEIGHT_CONV, 4, filters)};

	(void)state;
	fill(&p);
	BOTH(&p, true, be->ops->conv2d(be, out, x, w[which], NULL, 1, 1, 1, err));
	BOTH(&p, true, be->ops->attention(be, o, q, q, q, &a, err));
	p.real->ops->weight_free(p.real, w[0]);
	p.dry->ops->weight_free(p.dry, w[1]);
	close_pair(&p);
}

/* Heads that cuDNN does not do, by products; some of the keys. */
static void scores_of_large_heads(void **state)
{
	const int64_t heads[] = {37, 1, 512};

	(void)state;
	for (int t = 0; t < 2; t++) {
		struct pair p = open_pair(t ? DTP_BF16 : DTP_F32);
		struct dtp_tensor q = dtp_tensor_make(p.memory, p.real->compute, 3, heads);
		struct dtp_tensor out = dtp_tensor_make((char *)p.memory + (1 << 20), p.real->compute, 3, heads);
		struct dtp_attention a = {.scale = 1, .key_begin = 2, .key_end = 33, .group = 1};
		fill(&p);
		BOTH(&p, false, be->ops->attention(be, out, q, q, q, &a, err));
		close_pair(&p);
	}
}

/* What was reserved serves all that takes at most so much; both backends say what is taken from the start. */
static void reserved_once(void **state)
{
	struct pair p = open_pair(DTP_BF16);
	struct dtp_memory_use before, after, dry;
	static float host[3000];
	int64_t n = 3000;

	(void)state;
	fill(&p);
	p.real->ops->memory(p.real, &before);
	p.dry->ops->memory(p.dry, &dry);
	MUST(p.real->ops->reserve(p.real, 0, err));
	p.real->ops->memory(p.real, &after);
	assert_true(after.in_use == dry.in_use + ROOM && before.in_use == after.in_use && after.peak == after.in_use);
	MUST(p.real->ops->reserve(p.real, sizeof host, err));
	MUST(p.real->ops->upload(p.real, dtp_tensor_make(p.memory, DTP_BF16, 1, &n), host, DTP_F32, err));
	p.real->ops->memory(p.real, &before);
	assert_true(before.in_use == after.in_use + sizeof host && before.peak == before.in_use && before.operations == sizeof host);
	MUST(p.real->ops->reserve(p.real, 256, err));
	p.real->ops->memory(p.real, &after);
	assert_true(after.in_use == dry.in_use + ROOM + 256 && after.device >= after.in_use && after.device <= after.device_of);
	close_pair(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_copy_what_does_not_fit),
		cmocka_unit_test(moves_take_a_piece),
		cmocka_unit_test(rows_and_pictures),
		cmocka_unit_test(cudnn_takes_at_most_what_is_foreseen),
		cmocka_unit_test(scores_of_large_heads),
		cmocka_unit_test(reserved_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
