/* SPDX-License-Identifier: Apache-2.0 */
/* The transformer of a fixture as a single file, for the tests of --transformer:
 *   tool_names FROM TO [PREFIX]       under the names of diffusers, behind a prefix
 *   tool_names FROM TO PREFIX bfl     under those of Black Forest Labs: q, k and v are one tensor, shift comes before scale */
#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 512

static struct dtp_st st;
static struct dtp_st_out out[MAX];
static int n;

static void die(const char *what)
{
	fprintf(stderr, "tool_names: %s\n", what);
	exit(1);
}

static void *load(const struct dtp_st_entry *e)
{
	struct dtp_err err = DTP_ERR_INIT;
	char *p = malloc(e->nbytes + 1);

	if (!p || dtp_st_read(&st, e, 0, e->nbytes, p, &err))
		die(err.message);
	return p;
}

static void add(const char *prefix, const char *name, enum dtp_dtype t, int ndim, const int64_t *shape, void *data)
{
	char *all = malloc(strlen(prefix) + strlen(name) + 1);

	if (!all || n == MAX)
		die("too many tensors");
	strcpy(all, prefix);
	strcpy(all + strlen(prefix), name);
	out[n++] = (struct dtp_st_out){all, dtp_tensor_make(data, t, ndim, shape)};
}

/* What the conversion script of diffusers undoes. */
static const char *const renames[][2] = {
	{"x_embedder.", "img_in."}, {"context_embedder.", "txt_in."},
	{"time_guidance_embed.timestep_embedder.linear_1.", "time_in.in_layer."},
	{"time_guidance_embed.timestep_embedder.linear_2.", "time_in.out_layer."},
	{"time_guidance_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."},
	{"time_guidance_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."},
	{"_stream_modulation_img.linear.", "_stream_modulation_img.lin."},
	{"_stream_modulation_txt.linear.", "_stream_modulation_txt.lin."},
	{"single_stream_modulation.linear.", "single_stream_modulation.lin."},
	{"norm_out.linear.", "final_layer.adaLN_modulation.1."}, {"proj_out.", "final_layer.linear."},
	{"single_transformer_blocks.", "single_blocks."}, {"transformer_blocks.", "double_blocks."},
	{".attn.to_qkv_mlp_proj.", ".linear1."}, {".attn.to_out.0.", ".img_attn.proj."}, {".attn.to_out.", ".linear2."},
	{".attn.to_add_out.", ".txt_attn.proj."},
	{".attn.norm_added_q.weight", ".txt_attn.norm.query_norm.scale"},
	{".attn.norm_added_k.weight", ".txt_attn.norm.key_norm.scale"},
	{".ff.linear_in.", ".img_mlp.0."}, {".ff.linear_out.", ".img_mlp.2."},
	{".ff_context.linear_in.", ".txt_mlp.0."}, {".ff_context.linear_out.", ".txt_mlp.2."},
};

static void replace(char *name, size_t size, const char *from, const char *to)
{
	char *at = strstr(name, from), rest[300];

	if (!at)
		return;
	snprintf(rest, sizeof rest, "%s", at + strlen(from));
	snprintf(at, size - (size_t)(at - name), "%s%s", to, rest);
}

/* q, with its k and v behind it. */
static void *fuse(const char *q, const char *const *parts, int64_t *rows)
{
	char *all = NULL, name[300];
	size_t used = 0;

	*rows = 0;
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "%s", q);
		replace(name, sizeof name, parts[0], parts[i]);
		const struct dtp_st_entry *e = dtp_st_find(&st, name);
		if (!e || !(all = realloc(all, used + e->nbytes)))
			die(name);
		void *part = load(e);
		memcpy(all + used, part, e->nbytes);
		free(part);
		used += e->nbytes;
		*rows += e->shape[0];
	}
	return all;
}

static void swap_halves(char *data, size_t len)
{
	for (size_t i = 0; i < len / 2; i++) {
		char c = data[i];
		data[i] = data[len / 2 + i];
		data[len / 2 + i] = c;
	}
}

static void add_bfl(const char *prefix, const struct dtp_st_entry *e)
{
	static const char *const img[] = {".to_q.", ".to_k.", ".to_v."}, *const txt[] = {".add_q_proj.", ".add_k_proj.", ".add_v_proj."};
	char name[300];
	int64_t shape[2] = {e->shape[0], e->shape[1]};
	void *data;

	snprintf(name, sizeof name, "%s", e->name);
	if (strstr(name, img[1]) || strstr(name, img[2]) || strstr(name, txt[1]) || strstr(name, txt[2]))
		return; /* with its q */
	if (strstr(name, img[0])) {
		data = fuse(name, img, shape);
		replace(name, sizeof name, ".attn.to_q.", ".img_attn.qkv.");
	} else if (strstr(name, txt[0])) {
		data = fuse(name, txt, shape);
		replace(name, sizeof name, ".attn.add_q_proj.", ".txt_attn.qkv.");
	} else {
		data = load(e);
	}
	if (strstr(name, "norm_out"))
		swap_halves(data, e->nbytes);
	bool single = strstr(name, "single_transformer_blocks");
	replace(name, sizeof name, ".attn.norm_q.weight", single ? ".norm.query_norm.scale" : ".img_attn.norm.query_norm.scale");
	replace(name, sizeof name, ".attn.norm_k.weight", single ? ".norm.key_norm.scale" : ".img_attn.norm.key_norm.scale");
	for (size_t i = 0; i < sizeof renames / sizeof *renames; i++)
		replace(name, sizeof name, renames[i][0], renames[i][1]);
	add(prefix, name, e->dtype, e->ndim, shape, data);
}

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	const char *prefix = argc > 3 ? argv[3] : "";

	if (argc < 3)
		die("usage: tool_names FROM TO [PREFIX [bfl]]");
	if (dtp_st_open_file(argv[1], &st, &err))
		die(err.message);
	for (int i = 0; i < st.nentries; i++) {
		const struct dtp_st_entry *e = &st.entries[i];
		if (argc > 4)
			add_bfl(prefix, e);
		else
			add(prefix, e->name, e->dtype, e->ndim, e->shape, load(e));
	}
	if (dtp_st_write(argv[2], NULL, out, n, NULL, 0, &err))
		die(err.message);
	return 0;
}
