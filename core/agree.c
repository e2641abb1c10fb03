/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: ranks that read other files than the rest would draw a picture that is nobody's. */
#include "agree.h"

#include "hash.h"
#include "infile.h"
#include "lora.h"
#include "pipeline_internal.h"
#include "plan_make.h"
#include "st_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS, SETTINGS, EMBEDS, LORA, WEIGHTS, NITEMS = WEIGHTS + DTP_COMPONENTS };
_Static_assert(NITEMS == DTP_NPARTS, "agree.h has room for each");

/* ---- what this rank has */

static enum dtp_code add_plan(struct dtp_hash *h, const struct dtp_tree *tree, struct dtp_err *err)
{
	struct dtp_plan plan;
	enum dtp_code rc = dtp_plan_explicit(tree, tree->component, &plan, err);

	if (rc)
		return rc;
	char *text = dtp_plan_text(&plan);
	if (text)
		dtp_hash_add(h, text, strlen(text) + 1);
	else
		rc = dtp_fail(err, DTP_FAILED, "out of memory for the text of a plan");
	free(text);
	dtp_plan_free(&plan);
	return rc;
}

/* A file that is not there is another thing than an empty one. */
static enum dtp_code add_setting(struct dtp_hash *h, const char *folder, const char *name, struct dtp_err *err)
{
	struct dtp_digest digest;
	struct dtp_hash content;
	char *path;

	if (asprintf(&path, "%s/%s", folder, name) < 0)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	bool there = dtp_path_exists(path);
	dtp_hash_begin(&content);
	enum dtp_code rc = there ? dtp_hash_add_file(&content, path, err) : DTP_OK;
	free(path);
	dtp_hash_end(&content, &digest);
	dtp_hash_add(h, name, strlen(name) + 1);
	dtp_hash_add(h, &digest, there ? sizeof digest : 0);
	return rc;
}

/* Whatever opening reads besides the checkpoints. */
static enum dtp_code hash_settings(const struct dtp_pipeline *p, struct dtp_hash *h, struct dtp_err *err)
{
	static const char *const files[] = {"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json",
					    "vae/config.json", "tokenizer/tokenizer.json",
					    "tokenizer/tokenizer_config.json", DTP_SHARDS_MANIFEST};

	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (add_setting(h, p->model, files[i], err))
			return err->code;
	return add_setting(h, p->transformer_config, "config.json", err);
}

/* The text encoder's own plan goes with it: nobody chooses that by itself.  Ranks of a sharded folder read different files: each has checked that it is one of those that its manifest names. */
static enum dtp_code hash_weights(const struct dtp_pipeline *p, const struct dtp_component *c, struct dtp_hash *h,
				  struct dtp_err *err)
{
	if (c->tree == &p->text.tree && !c->absent && add_plan(h, c->tree, err))
		return err->code;
	if (!dtp_shards_part(p->shards, c->name))
		return dtp_st_hash(&c->st, h, err);
	dtp_hash_add(h, p->shards->id, sizeof p->shards->id);
	return DTP_OK;
}

/* Whether the pipeline has it at all: what it lacks has the digest of nothing. */
static bool has_item(const struct dtp_pipeline *p, int item)
{
	return item == EMBEDS ? p->embeds.length > 0 : item == LORA ? p->lora != NULL
		: item < WEIGHTS || !p->component[item - WEIGHTS].absent;
}

static enum dtp_code hash_item(const struct dtp_pipeline *p, int item, struct dtp_hash *h, struct dtp_err *err)
{
	switch (item) {
	case PLANS:
		return add_plan(h, &p->transformer.tree, err);
	case SETTINGS:
		return hash_settings(p, h, err);
	case EMBEDS:
		return p->embeds.length ? dtp_st_hash(&p->embeds.st, h, err) : DTP_OK;
	case LORA:
		return p->lora ? dtp_lora_hash(p->lora, h, err) : DTP_OK;
	default:
		return hash_weights(p, &p->component[item - WEIGHTS], h, err);
	}
}

static enum dtp_code make_digests(const struct dtp_pipeline *p, struct dtp_digest out[NITEMS], struct dtp_err *err)
{
	struct dtp_hash h;

	for (int i = 0; i < NITEMS; i++) {
		dtp_hash_begin(&h);
		if (hash_item(p, i, &h, err))
			return err->code;
		dtp_hash_end(&h, &out[i]);
	}
	return DTP_OK;
}

enum dtp_code dtp_pipeline_parts(const struct dtp_pipeline *p, struct dtp_part out[DTP_NPARTS], struct dtp_err *err)
{
	static const char *const keys[WEIGHTS] = {"plan", "configuration", "prompt_embeds", "lora"};
	struct dtp_digest all[NITEMS];

	if (make_digests(p, all, err))
		return err->code;
	for (int i = 0; i < NITEMS; i++) {
		out[i] = (struct dtp_part){.key = i < WEIGHTS ? keys[i] : p->component[i - WEIGHTS].name, .present = has_item(p, i)};
		dtp_digest_text(&all[i], out[i].sha256);
	}
	return DTP_OK;
}

/* ---- what the others have */

static bool same(const struct dtp_digest *a, const struct dtp_digest *b)
{
	return !memcmp(a, b, sizeof *a);
}

/* How many ranks have what `rank` has; all: [ranks][NITEMS]. */
static int supporters(const struct dtp_digest *all, int ranks, int item, int rank)
{
	int n = 0;

	for (int r = 0; r < ranks; r++)
		n += same(&all[r * NITEMS + item], &all[rank * NITEMS + item]);
	return n;
}

/* The first rank of those that are most. */
static int spokesman(const struct dtp_digest *all, int ranks, int item)
{
	int best = 0;

	for (int r = 1; r < ranks; r++)
		if (supporters(all, ranks, item, r) > supporters(all, ranks, item, best))
			best = r;
	return best;
}

/* What this rank calls it. */
static void name_item(const struct dtp_pipeline *p, int item, char *buf, size_t size)
{
	if (item == PLANS) {
		snprintf(buf, size, "plan (%s)", p->plan.source);
	} else if (item == SETTINGS) {
		snprintf(buf, size, "configuration or tokenizer (folder '%s')", p->model);
	} else if (item == EMBEDS) {
		snprintf(buf, size, "encoded prompt ('%s')", p->embeds.length ? p->embeds.st.files[0].path : "");
	} else if (item == LORA) {
		snprintf(buf, size, "LoRA");
	} else {
		const struct dtp_component *c = &p->component[item - WEIGHTS];
		snprintf(buf, size, "%s ('%s'%s)", c->name, c->st.nfiles ? c->st.files[0].path : "",
			 c->st.nfiles > 1 ? " and its other files" : "");
	}
}

static enum dtp_code differ(const struct dtp_pipeline *p, const struct dtp_digest *all, const struct dtp_comm *world, int item,
			    struct dtp_err *err)
{
	int best = spokesman(all, world->size, item), n = supporters(all, world->size, item, best);
	const struct dtp_digest *theirs = &all[best * NITEMS + item], *own = &all[world->rank * NITEMS + item];
	char name[4500], a[DTP_DIGEST_TEXT], b[DTP_DIGEST_TEXT];

	name_item(p, item, name, sizeof name);
	dtp_fail(err, DTP_FAILED, "its %s has the checksum %.16s, that of rank %d%s is %.16s: all ranks must read the same files",
		 name, dtp_digest_text(own, a), best, n > 1 ? " and others" : "", dtp_digest_text(theirs, b));
	if (err)
		err->secondary = same(own, theirs);
	return DTP_FAILED;
}

enum dtp_code dtp_pipeline_agree(const struct dtp_pipeline *p, struct dtp_comm *world, struct dtp_err *err)
{
	struct dtp_digest own[NITEMS], *all;
	enum dtp_code rc;

	if (world->size == 1)
		return DTP_OK;
	rc = make_digests(p, own, err);
	if (rc)
		return rc;
	all = calloc((size_t)world->size, sizeof own);
	if (!all)
		return dtp_fail(err, DTP_FAILED, "out of memory for the checksums of %d ranks", world->size);
	rc = dtp_all_gather(world, all, own, (int64_t)sizeof own, DTP_U8, err);
	for (int item = 0; !rc && item < NITEMS; item++)
		if (supporters(all, world->size, item, 0) < world->size)
			rc = differ(p, all, world, item, err);
	free(all);
	return rc;
}
