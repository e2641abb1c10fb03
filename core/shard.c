/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint to one file per rank: the files are read front to back, and all that is written grows front to back, so that
 * both can be hashed as they pass. */
#include "shard.h"

#include "folder.h"
#include "pipeline_internal.h"
#include "plan_make.h"
#include "shards.h"
#include "sink.h"
#include "slice.h"
#include "st_hash.h"
#include "st_header.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES (16u << 20) /* whole rows up to this are passed on at a time */
#define FOLDER_BYTES (64u << 20) /* allowed for what is small: configurations, tokenizer, headers */

/* A tensor of the checkpoint, and the parameter that it is. */
struct tensor {
	const struct dtp_st_entry *e;
	struct dtp_param p;
	bool wanted; /* a run reads it: it is split; else it goes to the rest */
};

/* A rank's file, and what it gets of the tensor at hand. */
struct target {
	struct dtp_sink file;
	const char *chunk;
	struct dtp_slice slice;
};

struct part {
	const struct dtp_component *c;
	struct dtp_shards_part *to;
	struct tensor *tensor; /* in the order of the files */
	int n;
	struct target *target; /* [degree] and the rest */
};

struct job {
	struct dtp_pipeline *p;
	const struct dtp_monitor *mon;
	struct dtp_outfolder out;
	struct dtp_shards *to;
	struct part *part;     /* [to->nparts] */
	char *chunk;
	uint64_t chunk_bytes, done, total;
};

/* ---- what goes where */

static int by_place(const void *a, const void *b)
{
	const struct dtp_st_entry *x = ((const struct tensor *)a)->e, *y = ((const struct tensor *)b)->e;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static enum dtp_code list_tensors(struct part *part, struct dtp_err *err)
{
	const struct dtp_st *st = &part->c->st;
	const struct dtp_tree *tree = part->c->tree;
	struct dtp_param p;

	part->n = st->nentries;
	part->tensor = calloc((size_t)st->nentries + 1, sizeof *part->tensor);
	part->target = calloc((size_t)part->c->degree + 1, sizeof *part->target);
	if (!part->tensor || !part->target)
		return dtp_fail(err, DTP_FAILED, "out of memory for a list of %d tensors", st->nentries);
	for (int i = 0; i < st->nentries; i++)
		part->tensor[i].e = &st->entries[i];
	for (int i = 0; i < tree->n; i++)
		for (int which = 0; tree->modules[i].needed && dtp_module_param(&tree->modules[i], which, &p); which++) {
			struct tensor *t = &part->tensor[dtp_weights_entry(st, part->c->prefix, &p) - st->entries];
			t->p = p;
			t->wanted = true;
		}
	qsort(part->tensor, (size_t)part->n, sizeof *part->tensor, by_place);
	return DTP_OK;
}

static bool has_rest(const struct part *part)
{
	for (int i = 0; i < part->n; i++)
		if (!part->tensor[i].wanted)
			return true;
	return false;
}

static void slice_of(const struct part *part, const struct tensor *t, int rank, struct dtp_split *split, struct dtp_slice *out)
{
	dtp_placement(part->c->tree, &t->p, rank, part->c->degree, split);
	dtp_slice_make(&t->p, split, t->e, out);
}

/* The tensor as it stands in the rank's file. */
static struct dtp_st_entry local_entry(const struct part *part, const struct tensor *t, int rank)
{
	struct dtp_st_entry e = *t->e;
	struct dtp_slice slice;
	struct dtp_split split;

	if (!t->wanted)
		return e;
	slice_of(part, t, rank, &split, &slice);
	dtp_split_shape(&t->p, &split, e.shape);
	e.nbytes = dtp_slice_bytes(&slice);
	return e;
}

/* Bytes to be written of a component. */
static uint64_t part_bytes(const struct part *part)
{
	uint64_t n = 0;

	for (int i = 0; i < part->n; i++)
		for (int rank = 0; rank < (part->tensor[i].wanted ? part->c->degree : 1); rank++)
			n += local_entry(part, &part->tensor[i], rank).nbytes;
	return n;
}

/* ---- files that grow */

static void put_piece(void *arg, uint64_t offset, uint64_t len)
{
	struct target *t = arg;

	dtp_sink_put(&t->file, t->chunk + offset, len);
}

/* rank degree: the rest. */
static char *header_of(const struct job *job, const struct part *part, int rank, size_t *len)
{
	int degree = part->c->degree, n = 0;
	struct dtp_st_entry *entries = calloc((size_t)part->n + 1, sizeof *entries);
	char owner[64];
	const char *const metadata[][2] = {{"format", "pt"}, {DTP_SHARDS_META_ID, job->to->id}, {DTP_SHARDS_META_RANK, owner}};

	dtp_shards_owner(degree, part->c->name, rank < degree ? rank : -1, owner, sizeof owner);
	for (int i = 0; entries && i < part->n; i++)
		if (part->tensor[i].wanted == (rank < degree))
			entries[n++] = local_entry(part, &part->tensor[i], rank);
	char *header = entries ? dtp_st_header_make(entries, n, metadata, 3, len) : NULL;
	free(entries);
	return header;
}

static enum dtp_code open_target(struct job *job, struct part *part, int rank, struct dtp_err *err)
{
	struct dtp_shard_file *file = rank < part->c->degree ? &part->to->ranks[rank] : &part->to->rest;
	char path[8192];
	size_t len;
	int made = rank < part->c->degree ? asprintf(&file->name, "%s.tp%02d-of-%02d.safetensors", part->c->base, rank, part->c->degree)
					  : asprintf(&file->name, "%s.rest.safetensors", part->c->base);

	if (made < 0)
		file->name = NULL;
	char *header = made < 0 ? NULL : header_of(job, part, rank, &len);
	if (!header)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	snprintf(path, sizeof path, "%s/%s/%s", job->out.tmp, part->c->name, file->name);
	enum dtp_code rc = dtp_sink_open(&part->target[rank].file, path, err);
	if (!rc)
		dtp_sink_put(&part->target[rank].file, header, len);
	free(header);
	return rc;
}

static enum dtp_code close_target(struct part *part, int rank, struct dtp_err *err)
{
	struct dtp_shard_file *to = rank < part->c->degree ? &part->to->ranks[rank] : &part->to->rest;

	to->size = part->target[rank].file.size;
	return dtp_sink_close(&part->target[rank].file, to->sha256, err);
}

/* ---- one tensor */

/* Whole rows of the tensor, in job->chunk, to all that have a part of them. */
static enum dtp_code pass_on(struct job *job, struct part *part, const struct tensor *t, int64_t row, int64_t n, uint64_t bytes,
			     struct dtp_hash *source, struct dtp_err *err)
{
	int degree = part->c->degree;
	enum dtp_code rc = DTP_OK;

#pragma omp parallel for schedule(dynamic) if (bytes >= DTP_SHARD_PARALLEL)
	for (int i = 0; i <= degree; i++) {
		struct target *to = &part->target[i];
		to->chunk = job->chunk;
		if (i < degree && t->wanted)
			dtp_slice_pieces(&to->slice, row, n, put_piece, to);
		if (i == degree && !t->wanted)
			dtp_sink_put(&to->file, job->chunk, bytes);
		if (i == degree)
			dtp_hash_add(source, job->chunk, bytes);
	}
	for (int i = 0; !rc && i <= degree; i++)
		rc = dtp_sink_check(&part->target[i].file, err);
	return rc;
}

static enum dtp_code split_tensor(struct job *job, struct part *part, const struct tensor *t, struct dtp_hash *source,
				  struct dtp_err *err)
{
	const struct dtp_st *st = &part->c->st;
	/* What is not split has rows of one byte. */
	int64_t rows = t->wanted ? t->e->shape[0] : (int64_t)t->e->nbytes;
	uint64_t row_bytes = rows ? t->e->nbytes / (uint64_t)rows : 0;
	struct dtp_split split;
	enum dtp_code rc = DTP_OK;

	for (int rank = 0; t->wanted && rank < part->c->degree; rank++)
		slice_of(part, t, rank, &split, &part->target[rank].slice);
	int64_t step = row_bytes && row_bytes < job->chunk_bytes ? (int64_t)(job->chunk_bytes / row_bytes) : 1;
	for (int64_t row = 0; row < rows && row_bytes && !rc; row += step) {
		int64_t n = rows - row < step ? rows - row : step;
		uint64_t bytes = (uint64_t)n * row_bytes, offset = (uint64_t)row * row_bytes;
		if (job->mon->stopped(job->mon->arg))
			return dtp_fail(err, DTP_INTERRUPTED, "interrupted");
		rc = dtp_st_read(st, t->e, offset, bytes, job->chunk, err);
		dtp_ask_ahead(st->files[t->e->file].fd, t->e->offset + offset + bytes, t->e->offset + offset + bytes + CHUNK_BYTES);
		if (!rc)
			rc = pass_on(job, part, t, row, n, bytes, source, err);
		job->done += bytes;
		job->mon->progress(job->mon->arg, job->done, job->total);
	}
	return rc;
}

/* ---- one component */

/* The head of an original file, kept so that the file can be made again byte for byte. */
static enum dtp_code keep_header(struct job *job, const struct part *part, const struct dtp_st_file *f, const char *name,
				 struct dtp_hash *source, struct dtp_err *err)
{
	char path[8192], head[8], *text, *all;
	size_t len;

	if (dtp_st_header_read(f, &text, &len, err))
		return err->code;
	for (int i = 0; i < 8; i++)
		head[i] = (char)(len >> 8 * i);
	all = malloc(len + 8);
	enum dtp_code rc = all ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory");
	if (all) {
		memcpy(all, head, 8);
		memcpy(all + 8, text, len);
		dtp_hash_add(source, all, len + 8);
		snprintf(path, sizeof path, "%s/" DTP_SHARDS_SOURCES "/%s/%s.header", job->out.tmp, part->c->name, name);
		rc = dtp_write_new(path, all, len + 8, err);
	}
	free(all);
	free(text);
	return rc;
}

static enum dtp_code split_file(struct job *job, struct part *part, int file, struct dtp_err *err)
{
	const struct dtp_st_file *f = &part->c->st.files[file];
	struct dtp_shard_file *to = &part->to->sources[file];
	struct dtp_hash source;
	struct dtp_digest digest;

	to->name = strdup(dtp_base_name(f->path));
	to->size = f->size;
	part->to->nsources++;
	if (!to->name)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	dtp_hash_begin(&source);
	enum dtp_code rc = keep_header(job, part, f, to->name, &source, err);
	for (int i = 0; !rc && i < part->n; i++)
		if (part->tensor[i].e->file == file)
			rc = split_tensor(job, part, &part->tensor[i], &source, err);
	dtp_hash_end(&source, &digest);
	dtp_digest_text(&digest, to->sha256);
	return rc;
}

static enum dtp_code add_folders(struct job *job, const struct part *part, struct dtp_err *err)
{
	char name[128], from[8192], to[8192];

	snprintf(name, sizeof name, DTP_SHARDS_SOURCES "/%s", part->c->name);
	if (dtp_outfolder_add(&job->out, part->c->name, err) || dtp_outfolder_add(&job->out, name, err))
		return err->code;
	snprintf(from, sizeof from, "%s/%s", job->p->model, part->c->name);
	snprintf(to, sizeof to, "%s/%s", job->out.tmp, part->c->name);
	if (dtp_copy_small_files(from, to, err) || !part->c->st.index)
		return err->code;
	part->to->index = strdup(dtp_base_name(part->c->st.index));
	snprintf(to, sizeof to, "%s/%s/%s", job->out.tmp, name, dtp_base_name(part->c->st.index));
	return dtp_copy_file(part->c->st.index, to, err);
}

static enum dtp_code split_part(struct job *job, struct part *part, struct dtp_err *err)
{
	int degree = part->c->degree, last = has_rest(part) ? degree : degree - 1;
	char text[128];
	enum dtp_code rc;

	snprintf(text, sizeof text, "shard %s", part->c->name);
	job->mon->stage(job->mon->arg, DTP_PHASE_LOAD, text);
	part->to->ranks = calloc((size_t)degree, sizeof *part->to->ranks);
	part->to->sources = calloc((size_t)part->c->st.nfiles, sizeof *part->to->sources);
	if (!part->to->ranks || !part->to->sources)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	part->to->nranks = degree;
	rc = add_folders(job, part, err);
	for (int rank = 0; !rc && rank <= last; rank++)
		rc = open_target(job, part, rank, err);
	for (int i = 0; !rc && i < part->c->st.nfiles; i++)
		rc = split_file(job, part, i, err);
	for (int rank = 0; !rc && rank <= last; rank++)
		rc = close_target(part, rank, err);
	return rc;
}

static void part_free(struct part *part)
{
	for (int i = 0; part->target && i <= part->c->degree; i++)
		dtp_sink_free(&part->target[i].file);
	free(part->target);
	free(part->tensor);
}

/* ---- the rest of the folder */

uint64_t dtp_shards_others_bytes(const struct dtp_pipeline *p)
{
	const struct dtp_st *st = &p->component[DTP_VAE].st;
	uint64_t n = FOLDER_BYTES;

	for (int i = 0; i < st->nfiles; i++)
		n += st->files[i].size;
	return n;
}

enum dtp_code dtp_shards_copy_others(const struct dtp_pipeline *p, const char *dir, struct dtp_err *err)
{
	static const char *const folders[] = {"scheduler", "tokenizer", "vae"};
	const struct dtp_st *vae = &p->component[DTP_VAE].st;
	char from[8192], to[8192];
	enum dtp_code rc = DTP_OK;

	for (size_t i = 0; !rc && i < sizeof folders / sizeof *folders; i++) {
		snprintf(from, sizeof from, "%s/%s", p->model, folders[i]);
		snprintf(to, sizeof to, "%s/%s", dir, folders[i]);
		if (access(from, F_OK)) /* a folder whose prompts are encoded elsewhere needs no tokenizer */
			continue;
		rc = dtp_make_folder(to, err);
		if (!rc)
			rc = dtp_copy_small_files(from, to, err);
	}
	for (int i = 0; !rc && i < vae->nfiles + (vae->index != NULL); i++) {
		const char *path = i < vae->nfiles ? vae->files[i].path : vae->index;
		snprintf(to, sizeof to, "%s/vae/%s", dir, dtp_base_name(path));
		rc = dtp_copy_file(path, to, err);
	}
	snprintf(from, sizeof from, "%s/model_index.json", p->model);
	snprintf(to, sizeof to, "%s/model_index.json", dir);
	return rc ? rc : dtp_copy_file(from, to, err);
}

/* ---- the whole */

/* The same original, plans and degree make the same folder, byte for byte. */
static enum dtp_code make_id(struct job *job, struct dtp_err *err)
{
	struct dtp_digest digest;
	struct dtp_hash h;
	enum dtp_code rc = DTP_OK;

	dtp_hash_begin(&h);
	dtp_hash_add(&h, (int32_t[]){DTP_SHARDS_VERSION, job->to->degree}, 2 * sizeof(int32_t));
	for (int i = 0; !rc && i < job->to->nparts; i++) {
		char *plan = dtp_plan_text(&job->to->part[i].plan);
		if (plan)
			dtp_hash_add(&h, plan, strlen(plan) + 1);
		free(plan);
		rc = plan ? dtp_st_hash(&job->part[i].c->st, &h, err) : dtp_fail(err, DTP_FAILED, "out of memory");
	}
	dtp_hash_end(&h, &digest);
	dtp_digest_text(&digest, job->to->id);
	return rc;
}

static enum dtp_code describe(struct job *job, struct dtp_err *err)
{
	static const int split[] = {DTP_TEXT, DTP_TRANSFORMER};

	job->to->degree = job->p->tp_degree;
	if (job->p->variant && !(job->to->variant = strdup(job->p->variant)))
		return dtp_fail(err, DTP_FAILED, "out of memory");
	job->to->part = calloc(2, sizeof *job->to->part);
	job->part = calloc(2, sizeof *job->part);
	if (!job->to->part || !job->part)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	for (int i = 0; i < 2; i++) {
		struct part *part = &job->part[i];
		part->c = &job->p->component[split[i]];
		part->to = &job->to->part[i];
		job->to->nparts++;
		if (list_tensors(part, err) || dtp_plan_explicit(part->c->tree, part->c->name, &part->to->plan, err))
			return err->code;
		part->to->component = strdup(part->c->name);
		for (int k = 0; k < part->n; k++) {
			const struct dtp_st_entry *e = part->tensor[k].e;
			uint64_t row = part->tensor[k].wanted && e->shape[0] ? e->nbytes / (uint64_t)e->shape[0] : 1;
			job->total += e->nbytes;
			job->chunk_bytes = row > job->chunk_bytes ? row : job->chunk_bytes;
		}
	}
	job->chunk = malloc(job->chunk_bytes);
	return job->chunk ? make_id(job, err) : dtp_fail(err, DTP_FAILED, "out of memory for %llu bytes",
							 (unsigned long long)job->chunk_bytes);
}

static enum dtp_code write_folder(struct job *job, const char *out, struct dtp_err *err)
{
	uint64_t bytes = dtp_shards_others_bytes(job->p);
	enum dtp_code rc;

	for (int i = 0; i < job->to->nparts; i++)
		bytes += part_bytes(&job->part[i]);
	if (dtp_outfolder_open(out, bytes, &job->out, err))
		return err->code;
	rc = dtp_outfolder_add(&job->out, DTP_SHARDS_SOURCES, err);
	for (int i = 0; !rc && i < job->to->nparts; i++)
		rc = split_part(job, &job->part[i], err);
	if (!rc)
		rc = dtp_shards_copy_others(job->p, job->out.tmp, err);
	if (!rc)
		rc = dtp_shards_save(job->to, job->out.tmp, err);
	if (!rc)
		rc = dtp_outfolder_commit(&job->out, err);
	dtp_outfolder_abandon(&job->out);
	return rc;
}

static enum dtp_code check_source(const struct dtp_pipeline *p, struct dtp_err *err)
{
	if (p->shards)
		return dtp_fail(err, DTP_REFUSED, "'%s' is sharded already ('%s'): 'difftp unshard' restores what can be sharded anew",
				p->model, p->shards->path);
	if (p->renamed) /* an original tensor would be several here: unshard could not tell */
		return dtp_fail(err, DTP_REFUSED, "'%s' has not diffusers' names: only checkpoints that have them can be sharded",
				p->component[DTP_TRANSFORMER].st.files[0].path);
	return DTP_OK;
}

enum dtp_code dtp_shard(struct dtp_pipeline *p, const char *out, const struct dtp_monitor *mon, struct dtp_err *err)
{
	struct job job = {.p = p, .mon = mon, .chunk_bytes = CHUNK_BYTES, .to = calloc(1, sizeof *job.to)};

	if (!job.to)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code rc = check_source(p, err);
	if (!rc)
		rc = describe(&job, err);
	if (!rc)
		rc = write_folder(&job, out, err);
	for (int i = 0; i < job.to->nparts; i++)
		part_free(&job.part[i]);
	free(job.part);
	free(job.chunk);
	dtp_shards_free(job.to);
	return rc;
}
