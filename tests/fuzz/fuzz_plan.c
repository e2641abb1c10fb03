/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a plan: refused with a message, or every parameter of the model is covered by its ranks, once.  Text that
 * begins with '{' is taken as it is; other bytes choose keys, styles and blocks, so that most plans parse. */
#include "plan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../trees.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const keys[] = {
	"transformer_blocks.*.attn.to_q", "transformer_blocks.*.attn.to_k", "transformer_blocks.*.attn.to_v",
	"transformer_blocks.*.attn.add_q_proj", "transformer_blocks.*.attn.add_k_proj", "transformer_blocks.*.attn.add_v_proj",
	"transformer_blocks.*.attn.to_out.0", "transformer_blocks.*.attn.to_add_out", "transformer_blocks.*.ff.linear_in",
	"transformer_blocks.*.ff.linear_out", "transformer_blocks.1.ff.linear_in", "transformer_blocks.1.ff.linear_out",
	"single_transformer_blocks.*.attn.to_qkv_mlp_proj", "single_transformer_blocks.*.attn.to_out", "x_embedder",
	"transformer_blocks", "transformer_blocks.*.attn.norm_q", "transformer_blok.*.x", "embed_tokens",
	"layers.*.self_attn.q_proj", "layers.*.self_attn.k_proj", "layers.*.self_attn.v_proj",
	"layers.*.self_attn.o_proj", "layers.*.mlp.gate_proj", "layers.*.mlp.up_proj",
	"layers.*.mlp.down_proj", "layers.0.mlp.down_proj", "a.*.*", "",
};
static const char *const values[] = {
	"\"colwise\"", "\"rowwise\"", "\"rowwise_split_input\"", "\"packed_colwise\"", "\"packed_rowwise\"",
	"{\"style\":\"packed_colwise\",\"blocks\":[1,1]}", "{\"style\":\"packed_colwise\",\"blocks\":[1,1,1,3,3]}",
	"{\"style\":\"packed_rowwise\",\"blocks\":[1,3]}", "{\"style\":\"packed_rowwise\",\"blocks\":[2,5]}", "\"rowise\"",
};

static size_t make_plan(char *text, size_t room, const uint8_t *data, size_t size)
{
	size_t n = (size_t)snprintf(text, room, "{");

	for (size_t i = 0; i + 1 < size && n + 200 < room; i += 2)
		n += (size_t)snprintf(text + n, room - n, "%s\"%s\":%s", i ? "," : "",
				      keys[data[i] % (sizeof keys / sizeof *keys)],
				      values[data[i + 1] % (sizeof values / sizeof *values)]);
	return n + (size_t)snprintf(text + n, room - n, "}");
}

static void check_param(const struct dtp_tree *t, const struct dtp_param *p, int degree)
{
	static int owners[4096];
	int dim = -1;

	memset(owners, 0, sizeof owners);
	for (int r = 0; r < degree; r++) {
		struct dtp_split s;
		dtp_placement(t, p, r, degree, &s);
		dim = s.dim;
		for (int i = 0; i < s.nruns; i++)
			for (int64_t k = s.run[i].begin; k < s.run[i].end; k++)
				owners[k]++;
	}
	for (int64_t k = 0; k < p->shape[dim < 0 ? 0 : dim]; k++)
		if (owners[k] < 1 || (dim >= 0 && p->module->follows < 0 && owners[k] > 1))
			abort();
}

static void try_tree(const struct dtp_plan *plan, struct dtp_tree *t)
{
	static const int degrees[] = {1, 2, 3, 8};
	char text[64];

	dtp_plan_valid_degrees(plan, t, text, sizeof text);
	for (size_t d = 0; d < sizeof degrees / sizeof *degrees; d++) {
		struct dtp_err err = DTP_ERR_INIT;
		enum dtp_code rc = dtp_plan_apply(plan, t, degrees[d], &err);
		struct dtp_param p;
		if (rc && (rc != DTP_REFUSED || err.code != rc || !err.message[0]))
			abort();
		for (int i = 0; !rc && i < t->n; i++)
			for (int which = 0; dtp_module_param(&t->modules[i], which, &p); which++)
				check_param(t, &p, degrees[d]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct qwen3_size text_size = {4, 2, 16, 40, 96, 100, 2, 1};
	static const struct flux2_size size8 = {8, 4, 96, 16, 20, 2, 1};
	static struct layers a, b;
	char text[4096];
	struct dtp_plan plan;
	struct dtp_tree flux, qwen;
	struct dtp_err err;

	if (!size || data[0] != '{') {
		size = make_plan(text, sizeof text, data, size);
		data = (const uint8_t *)text;
	}
	if (dtp_plan_parse("fuzz", (const char *)data, size, &plan, &err))
		return 0;
	flux2_tree(&flux, &a, &size8);
	qwen3_tree(&qwen, &b, &text_size);
	try_tree(&plan, &flux);
	try_tree(&plan, &qwen);
	dtp_tree_free(&flux);
	dtp_tree_free(&qwen);
	dtp_plan_free(&plan);
	return 0;
}
