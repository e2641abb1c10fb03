/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of loading share: trees with plans, open checkpoints, one small net with something of everything. */
#ifndef TEST_LOADING_H
#define TEST_LOADING_H

#include "checkpoint.h"
#include "plan.h"
#include "support.h"
#include "trees.h"
#include "weights.h"

static inline void must(enum dtp_code rc, const struct dtp_err *err)
{
	if (rc)
		fail_msg("%s", err->message);
}

static inline void plan_tree(struct dtp_tree *t, const char *builtin, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	must(dtp_plan_builtin(builtin, &plan, &err), &err);
	must(dtp_plan_apply(&plan, t, degree, &err), &err);
	dtp_plan_free(&plan);
}

static inline void plan_text(struct dtp_tree *t, const char *text, int degree)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_plan plan;

	must(dtp_plan_parse("p.json", text, strlen(text), &plan, &err), &err);
	must(dtp_plan_apply(&plan, t, degree, &err), &err);
	dtp_plan_free(&plan);
}

static inline void open_fixture(const char *folder, const char *base, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	must(dtp_st_open(fixture("%s", folder), base, st, &err), &err);
}

static inline void open_file(const char *path, struct dtp_st *st)
{
	struct dtp_err err = DTP_ERR_INIT;
	must(dtp_st_open_file(path, st, &err), &err);
}

/* Odd shapes, every dtype, biases, a convolution, batch norm, a prefix; blocks whose runs a panel spans. */
static const struct content mixed[] = {
	{"net.a.weight", "F16", 2, {6, 5}},        {"net.a.bias", "F32", 1, {6}},
	{"net.b.weight", "F32", 2, {7, 6}},        {"net.b.bias", "BF16", 1, {7}},
	{"net.c.weight", "BF16", 2, {3000, 401}},  {"net.c.bias", "F16", 1, {3000}},
	{"net.d.weight", "F32", 2, {401, 2040}},   {"net.d.bias", "F32", 1, {401}},
	{"net.conv.weight", "BF16", 4, {5, 3, 3, 3}}, {"net.conv.bias", "BF16", 1, {5}},
	{"net.bn.running_mean", "F32", 1, {9}},    {"net.bn.running_var", "F32", 1, {9}},
	{"net.bn.num_batches_tracked", "I64", 0, {0}},
	{"net.table.weight", "F16", 2, {11, 3}},   {"net.one.weight", "BF16", 2, {1, 1}},
};
#define NMIXED (int)(sizeof mixed / sizeof *mixed)

static inline void mixed_tree(struct dtp_tree *t, struct layers *ls)
{
	ls->n = 0;
	dtp_tree_init(t, "net");
	int a = dtp_tree_linear(t, next_layer(ls), 6, 5, true, "a");
	int b = dtp_tree_linear(t, next_layer(ls), 7, 6, true, "b");
	int c = dtp_tree_linear(t, next_layer(ls), 3000, 401, true, "c");
	int d = dtp_tree_linear(t, next_layer(ls), 401, 2040, true, "d");
	dtp_tree_reads(t, b, 1, &a);
	dtp_tree_out_blocks(t, c, 3, (int64_t[]){600, 1200, 1200});
	dtp_tree_in_blocks(t, d, 2, (int64_t[]){840, 1200});
	dtp_tree_reads(t, d, 1, &c);
	dtp_tree_conv(t, next_layer(ls), 5, 3, 3, true, "conv");
	int bn = dtp_tree_norm(t, next_layer(ls), 9, true, "bn");
	t->modules[bn].param[0] = "running_mean";
	t->modules[bn].param[1] = "running_var";
	dtp_tree_embedding(t, next_layer(ls), 11, 3, "table");
	dtp_tree_linear(t, next_layer(ls), 1, 1, false, "one");
}

#define MIXED_PLAN "{\"a\":\"colwise\",\"b\":\"rowwise\",\"c\":\"packed_colwise\",\"d\":\"packed_rowwise\"," \
	"\"table\":\"rowwise\",\"one\":\"rowwise_split_input\"}"
#endif
