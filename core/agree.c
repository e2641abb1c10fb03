/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: ranks that read other files than the rest would draw a picture that is nobody's. */
#include "agree.h"

#include "hash.h"
#include "lora.h"
#include "pipeline_internal.h"
#include "plan_make.h"
#include "st_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANS, SETTINGS, WEIGHTS, NITEMS = WEIGHTS + DTP_COMPONENTS };

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

static enum dtp_code hash_plans(const struct dtp_pipeline *p, struct dtp_hash *h, struct dtp_err *err)
{
	enum dtp_code rc = add_plan(h, &p->transformer.tree, err);

	return rc || p->embeds.length ? rc : add_plan(h, &p->text.tree, err);
}

/* Whatever opening reads besides the checkpoints. */
static enum dtp_code hash_settings(const struct dtp_pipeline *p, struct dtp_hash *h, struct dtp_err *err)
{
	static const char *const files[] = {"model_index.json", "scheduler/scheduler_config.json", "text_encoder/config.json",
					    "vae/config.json", "tokenizer/tokenizer.json",
					    "tokenizer/tokenizer_config.json", DTP_SHARDS_MANIFEST};
	char path[4096];
	enum dtp_code rc = DTP_OK;

	for (size_t i = 0; !rc && i < sizeof files / sizeof *files; i++) {
		snprintf(path, sizeof path, "%s/%s", p->model, files[i]);
		dtp_hash_add(h, files[i], strlen(files[i]) + 1);
		rc = dtp_hash_add_file(h, path, err);
	}
	snprintf(path, sizeof path, "%s/config.json", p->transformer_config);
	rc = rc ? rc : dtp_hash_add_file(h, path, err);
	return rc || !p->embeds.length ? rc : dtp_st_hash(&p->embeds.st, h, err);
}

/* Ranks of a sharded folder read different files: each has checked that it is one of those that its manifest names. */
static enum dtp_code hash_weights(const struct dtp_pipeline *p, const struct dtp_component *c, struct dtp_hash *h,
				  struct dtp_err *err)
{
	if (c->tree == &p->transformer.tree && p->lora && dtp_lora_hash(p->lora, h, err))
		return err->code;
	if (!dtp_shards_part(p->shards, c->name))
		return dtp_st_hash(&c->st, h, err);
	dtp_hash_add(h, p->shards->id, sizeof p->shards->id);
	return DTP_OK;
}

static enum dtp_code make_digests(const struct dtp_pipeline *p, struct dtp_digest out[NITEMS], struct dtp_err *err)
{
	struct dtp_hash h;

	for (int i = 0; i < NITEMS; i++) {
		dtp_hash_begin(&h);
		enum dtp_code rc = i == PLANS ? hash_plans(p, &h, err)
				   : i == SETTINGS ? hash_settings(p, &h, err)
						   : hash_weights(p, &p->component[i - WEIGHTS], &h, err);
		if (rc)
			return rc;
		dtp_hash_end(&h, &out[i]);
	}
	return DTP_OK;
}

enum dtp_code dtp_pipeline_digest(const struct dtp_pipeline *p, struct dtp_digest *out, struct dtp_err *err)
{
	struct dtp_digest all[NITEMS];
	struct dtp_hash h;

	if (make_digests(p, all, err))
		return err->code;
	dtp_hash_begin(&h);
	dtp_hash_add(&h, all, sizeof all);
	dtp_hash_end(&h, out);
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
	} else {
		const struct dtp_component *c = &p->component[item - WEIGHTS];
		snprintf(buf, size, "%s ('%s'%s%s)", c->name, c->st.nfiles ? c->st.files[0].path : "",
			 c->st.nfiles > 1 ? " and its other files" : "",
			 c->tree == &p->transformer.tree && p->lora ? ", LoRA" : "");
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
