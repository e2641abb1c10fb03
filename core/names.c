/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From a module to the tensor that holds it; '*' is the same index in both.  As in diffusers' single_file_utils.py. */
static const struct row {
	const char *module, *tensor;
	int block, blocks; /* which of so many equal blocks of rows it is; 0: all of it */
	bool halves;       /* the halves of its rows are the other way round: shift and scale */
} table[] = {
	{"x_embedder", "img_in", 0, 0, false},
	{"context_embedder", "txt_in", 0, 0, false},
	{"time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer", 0, 0, false},
	{"time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer", 0, 0, false},
	{"time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer", 0, 0, false},
	{"time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer", 0, 0, false},
	{"double_stream_modulation_img.linear", "double_stream_modulation_img.lin", 0, 0, false},
	{"double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin", 0, 0, false},
	{"single_stream_modulation.linear", "single_stream_modulation.lin", 0, 0, false},
	{"transformer_blocks.*.attn.to_q", "double_blocks.*.img_attn.qkv", 0, 3, false},
	{"transformer_blocks.*.attn.to_k", "double_blocks.*.img_attn.qkv", 1, 3, false},
	{"transformer_blocks.*.attn.to_v", "double_blocks.*.img_attn.qkv", 2, 3, false},
	{"transformer_blocks.*.attn.to_out.0", "double_blocks.*.img_attn.proj", 0, 0, false},
	{"transformer_blocks.*.attn.norm_q", "double_blocks.*.img_attn.norm.query_norm", 0, 0, false},
	{"transformer_blocks.*.attn.norm_k", "double_blocks.*.img_attn.norm.key_norm", 0, 0, false},
	{"transformer_blocks.*.attn.add_q_proj", "double_blocks.*.txt_attn.qkv", 0, 3, false},
	{"transformer_blocks.*.attn.add_k_proj", "double_blocks.*.txt_attn.qkv", 1, 3, false},
	{"transformer_blocks.*.attn.add_v_proj", "double_blocks.*.txt_attn.qkv", 2, 3, false},
	{"transformer_blocks.*.attn.to_add_out", "double_blocks.*.txt_attn.proj", 0, 0, false},
	{"transformer_blocks.*.attn.norm_added_q", "double_blocks.*.txt_attn.norm.query_norm", 0, 0, false},
	{"transformer_blocks.*.attn.norm_added_k", "double_blocks.*.txt_attn.norm.key_norm", 0, 0, false},
	{"transformer_blocks.*.ff.linear_in", "double_blocks.*.img_mlp.0", 0, 0, false},
	{"transformer_blocks.*.ff.linear_out", "double_blocks.*.img_mlp.2", 0, 0, false},
	{"transformer_blocks.*.ff_context.linear_in", "double_blocks.*.txt_mlp.0", 0, 0, false},
	{"transformer_blocks.*.ff_context.linear_out", "double_blocks.*.txt_mlp.2", 0, 0, false},
	{"single_transformer_blocks.*.attn.to_qkv_mlp_proj", "single_blocks.*.linear1", 0, 0, false},
	{"single_transformer_blocks.*.attn.to_out", "single_blocks.*.linear2", 0, 0, false},
	{"single_transformer_blocks.*.attn.norm_q", "single_blocks.*.norm.query_norm", 0, 0, false},
	{"single_transformer_blocks.*.attn.norm_k", "single_blocks.*.norm.key_norm", 0, 0, false},
	{"norm_out.linear", "final_layer.adaLN_modulation.1", 0, 0, true},
	{"proj_out", "final_layer.linear", 0, 0, false},
};
#define NROWS (sizeof table / sizeof *table)

/* Whole pipelines in one file put this before the transformer's names. */
static const char *const prefixes[] = {"", "model.diffusion_model."};

struct scheme {
	const char *prefix;
	bool foreign; /* the table's names, not the tree's */
};

/* ---- names */

/* The tensor's module for a module's name; false when the row is another's. */
static bool translate(const struct row *r, const char *module, char *out, size_t size)
{
	const char *index = dtp_key_match(r->module, module), *to = strchr(r->tensor, '*');

	if (!index)
		return false;
	if (to)
		snprintf(out, size, "%.*s%.*s%s", (int)(to - r->tensor), r->tensor, (int)strspn(index, "0123456789"), index, to + 1);
	else
		snprintf(out, size, "%s", r->tensor);
	return true;
}

bool dtp_names_foreign(const char *module, struct dtp_foreign *out)
{
	for (size_t i = 0; i < NROWS; i++)
		if (translate(&table[i], module, out->name, sizeof out->name)) {
			out->block = table[i].block;
			out->blocks = table[i].blocks;
			out->halves = table[i].halves;
			return true;
		}
	return false;
}

/* The tensor that holds a parameter under a scheme, and the row that says how; NULL: none does. */
static const struct dtp_st_entry *find(const struct dtp_st *st, const struct scheme *s, const struct dtp_param *p,
				       const struct row **row)
{
	/* Norms call their weight a scale. */
	const char *const suffixes[] = {p->module->param[p->which], "scale"};
	const struct dtp_st_entry *e = NULL;
	char module[300], name[640];

	*row = NULL;
	if (!s->foreign) {
		snprintf(name, sizeof name, "%s%s", s->prefix, p->name);
		return dtp_st_find(st, name);
	}
	for (size_t i = 0; i < NROWS && !*row; i++)
		if (translate(&table[i], p->module->name, module, sizeof module))
			*row = &table[i];
	for (int i = 0; *row && !e && i < (p->which ? 1 : 2); i++) {
		snprintf(name, sizeof name, "%s%s.%s", s->prefix, module, suffixes[i]);
		e = dtp_st_find(st, name);
	}
	return e;
}

/* Which names the checkpoint has, judged by the tree's first parameter; false: none that is known. */
static bool recognise(const struct dtp_tree *tree, const struct dtp_st *st, struct scheme *out)
{
	const struct row *row;
	struct dtp_param p;

	for (int i = 0; i < tree->n; i++) {
		if (!dtp_module_param(&tree->modules[i], 0, &p))
			continue;
		for (size_t k = 0; k < 2 * sizeof prefixes / sizeof *prefixes; k++) {
			*out = (struct scheme){prefixes[k / 2], k % 2};
			if (find(st, out, &p, &row))
				return true;
		}
	}
	return false;
}

/* ---- entries */

static enum dtp_code make_entry(const struct dtp_st *st, const struct dtp_st_entry *from, const struct row *row,
				const struct dtp_param *p, struct dtp_st_entry *out, struct dtp_err *err)
{
	char have[192], want[128];

	*out = *from;
	out->name = strdup(p->name);
	if (!out->name)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (row && row->blocks) {
		if (!from->ndim || from->shape[0] % row->blocks)
			return dtp_fail(err, DTP_REFUSED, "'%s': tensor '%s' has the shape %s, expected %d blocks of %s", st->files[from->file].path,
					from->name, dtp_shape_text(have, sizeof have, from->ndim, from->shape), row->blocks,
					dtp_shape_text(want, sizeof want, p->ndim, p->shape));
		out->shape[0] /= row->blocks;
		out->nbytes /= (uint64_t)row->blocks;
		out->offset += (uint64_t)row->block * out->nbytes;
	}
	if (row && row->halves)
		out->first_row = out->shape[0] / 2;
	return DTP_OK;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct dtp_st_entry *)a)->name, ((const struct dtp_st_entry *)b)->name);
}

static enum dtp_code rename_all(const struct dtp_tree *tree, struct dtp_st *st, const struct scheme *scheme, struct dtp_err *err)
{
	struct dtp_st_entry *all = calloc((size_t)st->nentries + 2 * (size_t)tree->n + 1, sizeof *all);
	bool *used = calloc((size_t)st->nentries + 1, sizeof *used);
	enum dtp_code rc = all && used ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for %d tensors", st->nentries);
	struct dtp_param p;
	int n = 0;

	for (int i = 0; i < tree->n && !rc; i++)
		for (int which = 0; !rc && dtp_module_param(&tree->modules[i], which, &p); which++) {
			const struct row *row;
			const struct dtp_st_entry *e = find(st, scheme, &p, &row);
			if (!e)
				continue; /* whoever needs it will say */
			used[e - st->entries] = true;
			rc = make_entry(st, e, row, &p, &all[n++], err);
		}
	for (int i = 0; i < st->nentries && !rc; i++)
		if (used[i])
			free(st->entries[i].name);
		else
			all[n++] = st->entries[i];
	free(used);
	if (rc) {
		for (int i = 0; i < n; i++)
			free(all[i].name);
		free(all);
		return rc;
	}
	free(st->entries);
	st->entries = all;
	st->nentries = n;
	qsort(all, (size_t)n, sizeof *all, by_name);
	return DTP_OK;
}

enum dtp_code dtp_names_adopt(const struct dtp_tree *tree, struct dtp_st *st, bool *renamed, struct dtp_err *err)
{
	struct scheme scheme;

	*renamed = recognise(tree, st, &scheme) && (scheme.foreign || *scheme.prefix);
	return *renamed ? rename_all(tree, st, &scheme, err) : DTP_OK;
}
