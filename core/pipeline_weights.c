/* SPDX-License-Identifier: Apache-2.0 */
/* Where a pipeline's weights come from: its folder's files or those of a variant, another transformer, or a file for each rank. */
#include "infile.h"
#include "lora.h"
#include "names.h"
#include "pipeline_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- another transformer */

static bool has_file(const char *dir, const char *name)
{
	char path[8192];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return dtp_path_exists(path);
}

/* A folder of weights, or a whole pipeline's folder.  Without a configuration of its own it has that of the pipeline. */
static bool use_folder(struct dtp_pipeline *p, const char *dir)
{
	bool whole = has_file(dir, "model_index.json");

	if (asprintf(&p->transformer_weights, "%s%s", dir, whole ? "/transformer" : "") < 0)
		p->transformer_weights = NULL;
	if (!p->transformer_weights || !has_file(p->transformer_weights, "config.json"))
		return p->transformer_weights != NULL;
	free(p->transformer_config);
	p->transformer_config = strdup(p->transformer_weights);
	return p->transformer_config != NULL;
}

enum dtp_code dtp_pipeline_find_transformer(struct dtp_pipeline *p, const char *given, struct dtp_err *err)
{
	struct stat st;
	bool ok;

	if (given && p->shards)
		return dtp_fail(err, DTP_REFUSED, "'%s' is sharded ('%s'): --transformer does not go with it, shard the other transformer", p->model,
				p->shards->path);
	if (given && stat(given, &st))
		return dtp_cannot_open(given, err);
	if (asprintf(&p->transformer_config, "%s/transformer", p->model) < 0)
		p->transformer_config = NULL;
	if (!p->transformer_config)
		ok = false;
	else if (given && S_ISDIR(st.st_mode))
		ok = use_folder(p, given);
	else
		ok = (p->transformer_weights = strdup(given ? given : p->transformer_config)) != NULL;
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory");
}

/* ---- checkpoints */

/* A rank's file of a sharded component, with the whole shapes of the model. */
static enum dtp_code open_shard(struct dtp_pipeline *p, struct dtp_component *c, int rank, struct dtp_err *err)
{
	dtp_st_close(&c->st);
	if (dtp_shards_open(p->shards, dtp_shards_part(p->shards, c->name), rank, &c->st, err))
		return err->code;
	if (c->tree == &p->text.tree)
		c->prefix = dtp_text_prefix(&p->text, &c->st);
	return dtp_shards_bind(c->tree, c->prefix, rank, c->degree, &c->st, err);
}

static enum dtp_code open_shards_of(struct dtp_pipeline *p, struct dtp_component *c, const struct dtp_options *o, struct dtp_err *err)
{
	for (int rank = p->tp_degree - 1; rank > 0 && !o->one_rank; rank--)
		if (open_shard(p, c, rank, err))
			return err->code;
	return open_shard(p, c, o->one_rank ? o->rank : 0, err);
}

/* The folder of a component, or the file that stands in its place. */
static void place_of(const struct dtp_pipeline *p, const struct dtp_component *c, char *buf, size_t size)
{
	if (c->tree == &p->transformer.tree)
		snprintf(buf, size, "%s", p->transformer_weights);
	else
		snprintf(buf, size, "%s/%s", p->model, c->name);
}

static bool is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) || S_ISDIR(st.st_mode); /* what is missing is told by whoever opens it as a folder */
}

static enum dtp_code open_whole(struct dtp_pipeline *p, struct dtp_component *c, struct dtp_err *err)
{
	const char *variant = p->variant;
	char place[8192];

	place_of(p, c, place, sizeof place);
	if (variant && !dtp_st_exists(place, c->base, variant))
		variant = NULL;
	if (is_folder(place) ? dtp_st_open_variant(place, c->base, variant, &c->st, err) : dtp_st_open_file(place, &c->st, err))
		return err->code;
	if (c->tree == &p->text.tree)
		c->prefix = dtp_text_prefix(&p->text, &c->st);
	return c->tree == &p->transformer.tree ? dtp_names_adopt(c->tree, &c->st, &p->renamed, err) : DTP_OK;
}

/* As diffusers does: what has no such files is taken without them, if anything has some. */
static enum dtp_code check_variant(const struct dtp_pipeline *p, struct dtp_err *err)
{
	const char *variant = p->variant;
	char place[8192], text[9000];
	int n = 0;

	for (int i = 0; i < DTP_COMPONENTS; i++) {
		place_of(p, &p->component[i], place, sizeof place);
		n += dtp_st_exists(place, p->component[i].base, variant);
	}
	if (!n)
		return dtp_fail(err, DTP_REFUSED, "no component of '%s' has files of the variant '%s' (such as '%s.%s.safetensors')", p->model,
				variant, p->component[DTP_TRANSFORMER].base, variant);
	for (int i = 0; i < DTP_COMPONENTS; i++) {
		place_of(p, &p->component[i], place, sizeof place);
		if (!is_folder(place) || dtp_st_exists(place, p->component[i].base, variant))
			continue;
		snprintf(text, sizeof text, "'%s' has no files of the variant '%s': those without it are used", place, variant);
		p->mon->warn(p->mon->arg, text);
	}
	return DTP_OK;
}

enum dtp_code dtp_pipeline_open_weights(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_err *err)
{
	const char *variant = p->shards ? p->shards->variant : o->variant;

	if (o->variant && p->shards)
		return dtp_fail(err, DTP_REFUSED, "'%s' is sharded ('%s'): --variant does not go with it, shard the variant", p->model,
				p->shards->path);
	if (variant && !(p->variant = strdup(variant)))
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (o->variant && check_variant(p, err))
		return err->code;
	for (int i = 0; i < DTP_COMPONENTS; i++) {
		struct dtp_component *c = &p->component[i];
		if (c->absent)
			continue;
		bool sharded = dtp_shards_part(p->shards, c->name) != NULL;
		if (sharded ? open_shards_of(p, c, o, err) : open_whole(p, c, err))
			return err->code;
		if (dtp_weights_check(c->tree, &c->st, c->prefix, p->mon, err))
			return err->code;
	}
	return o->nloras ? dtp_lora_open(o->loras, o->nloras, &p->transformer.tree, p->mon, &p->lora, err) : DTP_OK;
}
