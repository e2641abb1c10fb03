/* SPDX-License-Identifier: Apache-2.0 */
/* A picture that is normalised or enlarged, and convolved, a strip at a time is, bit for bit, the picture that is done at once. */
#include "op.h"

#include "ops.h"
#include "plan.h"

#define C 64
#define N 32
#define GROUPS 8
#define EPS 1e-6f

struct net {
	struct dtp_tree tree;
	struct dtp_layer norm, conv, wider, narrower; /* the last two 1x1: C to 2C, C to N */
};

static struct dtp_weight *weight(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	int64_t n = 1;

	for (int i = 0; i < ndim; i++)
		n *= shape[i];
	float *v = random_values(DTP_F32, n);
	for (int64_t i = 0; i < n; i++)
		v[i] = (kind == DTP_WEIGHT_CONV ? 0.05f : 1.0f) * v[i];
	struct dtp_weight *w = make_weight(be, kind, ndim, shape, v, DTP_F32);
	free(v);
	return w;
}

static void make_net(struct net *n, struct dtp_backend *be)
{
	dtp_tree_init(&n->tree, "test");
	dtp_tree_norm(&n->tree, &n->norm, C, true, "norm");
	dtp_tree_conv(&n->tree, &n->conv, N, C, 3, true, "conv");
	dtp_tree_conv(&n->tree, &n->wider, 2 * C, C, 1, true, "wider");
	dtp_tree_conv(&n->tree, &n->narrower, N, C, 1, true, "narrower");
	dtp_plan_bind(&n->tree, 0, 1);
	n->wider.weight = weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){2 * C, C, 1, 1});
	n->wider.bias = weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){2 * C});
	n->narrower.weight = weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){N, C, 1, 1});
	n->narrower.bias = weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){N});
	n->norm.weight = weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){C});
	n->norm.bias = weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){C});
	n->conv.weight = weight(be, DTP_WEIGHT_CONV, 4, (int64_t[]){N, C, 3, 3});
	n->conv.bias = weight(be, DTP_WEIGHT_VECTOR, 1, (int64_t[]){N});
}

static void free_net(struct net *n, struct dtp_backend *be)
{
	struct dtp_weight *all[] = {n->norm.weight, n->norm.bias, n->conv.weight, n->conv.bias,
				    n->wider.weight, n->wider.bias, n->narrower.weight, n->narrower.bias};

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		be->ops->weight_free(be, all[i]);
	dtp_tree_free(&n->tree);
}

/* out (+)= conv(silu(norm(x))) as whole pictures, in the backend's own operations. */
static void at_once(struct dtp_backend *be, const struct net *n, struct dtp_tensor out, bool add, struct dtp_tensor x)
{
	struct dtp_tensor normed = make_tensor(x.dtype, 3, x.shape, 0, NULL), y = make_tensor(x.dtype, 3, out.shape, 0, NULL);
	int64_t flat[] = {out.shape[0] * out.shape[1], N};

	MUST(be->ops->group_norm(be, normed, x, n->norm.weight, n->norm.bias, GROUPS, EPS, true, err));
	MUST(be->ops->conv2d(be, add ? y : out, normed, n->conv.weight, n->conv.bias, 1, 1, 1, err));
	if (add)
		MUST(be->ops->gated_residual(be, dtp_tensor_make(out.data, out.dtype, 2, flat), (struct dtp_tensor){0},
					     dtp_tensor_make(y.data, y.dtype, 2, flat), err));
	free(normed.data);
	free(y.data);
}

static void check(struct dtp_backend *be, const char *name, const struct net *n, int64_t h, int64_t w, bool add)
{
	struct dtp_ctx c = {.be = be, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	int64_t xs[] = {h, w, C}, os[] = {h, w, N};
	float *xv = random_values(be->compute, h * w * C), *ov = random_values(be->compute, h * w * N);
	struct dtp_tensor x = make_tensor(be->compute, 3, xs, 0, xv), a = make_tensor(be->compute, 3, os, 0, ov),
			  b = make_tensor(be->compute, 3, os, 0, ov);

	MUST(dtp_arena_init(&c.scratch, be, 4 * DTP_STRIP_BYTES, err));
	dtp_norm_conv(&c, a, add, &n->norm, GROUPS, EPS, &n->conv, x);
	if (!dtp_ok(&c))
		fail_msg("%s", c.err.message);
	/* The whole strip and its sum, not the picture. */
	assert_true(c.scratch.peak <= 2 * (uint64_t)DTP_STRIP_BYTES);
	at_once(be, n, b, add, x);
	if (memcmp(a.data, b.data, (size_t)(h * w * N) * dtp_dtype_size(be->compute)))
		fail_msg("%s, %dx%d, %s: another picture", name, (int)h, (int)w, add ? "added" : "alone");
	dtp_arena_free(&c.scratch);
	free(x.data);
	free(a.data);
	free(b.data);
	free(xv);
	free(ov);
}

static void same(const char *name, const char *what, int64_t h, int64_t w, struct dtp_tensor a, struct dtp_tensor b)
{
	if (memcmp(a.data, b.data, (size_t)dtp_numel(&a) * dtp_dtype_size(a.dtype)))
		fail_msg("%s, %dx%d, %s: another picture", name, (int)h, (int)w, what);
}

/* Each pixel four times. */
static float *doubled(const float *v, int64_t h, int64_t w)
{
	float *d = malloc((size_t)(4 * h * w * C) * sizeof *d);

	for (int64_t i = 0; i < 4 * h * w; i++)
		memcpy(d + i * C, v + (i / (2 * w) / 2 * w + i % (2 * w) / 2) * C, C * sizeof *d);
	return d;
}

static void check_enlarged(struct dtp_backend *be, const char *name, const struct net *n, int64_t h, int64_t w)
{
	struct dtp_ctx c = {.be = be, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	int64_t xs[] = {h, w, C}, large[] = {2 * h, 2 * w, C}, os[] = {2 * h, 2 * w, N};
	float *v = random_values(be->compute, h * w * C), *d = doubled(v, h, w);
	struct dtp_tensor x = make_tensor(be->compute, 3, xs, 0, v), y = make_tensor(be->compute, 3, large, 0, d),
			  a = make_tensor(be->compute, 3, os, 0, NULL), b = make_tensor(be->compute, 3, os, 0, NULL);

	MUST(dtp_arena_init(&c.scratch, be, 2 * DTP_STRIP_BYTES, err));
	dtp_upsample_conv(&c, a, &n->conv, x);
	if (!dtp_ok(&c))
		fail_msg("%s", c.err.message);
	assert_true(c.scratch.peak <= 2 * (uint64_t)DTP_STRIP_BYTES);
	MUST(be->ops->conv2d(be, b, y, n->conv.weight, n->conv.bias, 1, 1, 1, err));
	same(name, "enlarged", h, w, a, b);
	dtp_arena_free(&c.scratch);
	free(x.data), free(y.data), free(a.data), free(b.data), free(v), free(d);
}

/* In place, into more channels and into fewer. */
static void check_over(struct dtp_backend *be, const char *name, const struct dtp_layer *l, int64_t h, int64_t w)
{
	struct dtp_ctx c = {.be = be, .mon = &dtp_monitor_none, .err = DTP_ERR_INIT};
	int64_t out = l->module->shape[0], xs[] = {h, w, C}, os[] = {h, w, out};
	float *v = random_values(be->compute, h * w * C);
	struct dtp_tensor x = make_tensor(be->compute, 3, xs, 0, v), b = make_tensor(be->compute, 3, os, 0, NULL);
	struct dtp_tensor place = make_tensor(be->compute, 3, (int64_t[]){h, w, out > C ? out : C}, 0, NULL);
	struct dtp_tensor a = dtp_tensor_make(place.data, be->compute, 3, xs);

	memcpy(place.data, x.data, (size_t)(h * w * C) * dtp_dtype_size(be->compute));
	MUST(dtp_arena_init(&c.scratch, be, 2 * DTP_STRIP_BYTES, err));
	a = dtp_conv_over(&c, l, a);
	if (!dtp_ok(&c))
		fail_msg("%s", c.err.message);
	assert_true(a.data == place.data && a.shape[0] == h && a.shape[1] == w && a.shape[2] == out);
	MUST(be->ops->conv2d(be, b, x, l->weight, l->bias, 1, 0, 0, err));
	same(name, out > C ? "wider" : "narrower", h, w, a, b);
	dtp_arena_free(&c.scratch);
	free(x.data), free(b.data), free(place.data), free(v);
}

static void strips_leave_no_trace(void **state)
{
	/* One strip; several, the last of them short, and of a height that no tile divides. */
	static const int64_t sizes[][2] = {{1, 1}, {5, 3}, {31, 40}, {301, 300}};

	(void)state;
	FOR_EACH_BACKEND(be, cfg) {
		struct net n;
		make_net(&n, be);
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (int add = 0; add < 2; add++)
				check(be, cfg->name, &n, sizes[i][0], sizes[i][1], add);
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
			check_enlarged(be, cfg->name, &n, sizes[i][0], sizes[i][1]);
			check_over(be, cfg->name, &n.wider, sizes[i][0], sizes[i][1]);
			check_over(be, cfg->name, &n.narrower, 2 * sizes[i][0], 2 * sizes[i][1]);
		}
		free_net(&n, be);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strips_leave_no_trace),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
