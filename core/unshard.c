/* SPDX-License-Identifier: Apache-2.0 */
/* From one file per rank to the original checkpoint: what shard.c does, backwards. */
#include "shard.h"

#include "folder.h"
#include "pipeline_internal.h"
#include "shards.h"
#include "sink.h"
#include "slice.h"
#include "st_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (4u << 20) /* of whole rows; each rank has a buffer for its part of it */

/* A rank's file, read from its beginning to its end. */
struct source {
	struct dtp_st st;
	const struct dtp_shard_file *said; /* of it, by the manifest */
	FILE *f;
	struct dtp_hash hash;
	uint64_t at;
	struct dtp_slice slice;
	char *buf;             /* its part of a chunk */
	uint64_t used, wanted; /* bytes of buf; bytes asked for: more if the file ended */
};

struct part {
	const struct dtp_component *c;
	const struct dtp_shards_part *from;
	struct dtp_param *param; /* what the ranks hold */
	int nparams;
	struct source *source;   /* [degree] and the rest, which may be closed */
};

struct job {
	struct dtp_pipeline *p;
	const struct dtp_monitor *mon;
	struct dtp_outfolder out;
	char *chunk, *covered;   /* covered: by byte, whether a rank has given it */
	uint64_t chunk_bytes, done, total;
	struct dtp_err mismatch; /* the first restored file that is not the original */
};

/* ---- the ranks' files */

static enum dtp_code read_on(struct source *s, char *to, uint64_t len, struct dtp_err *err)
{
	if (len && fread(to, len, 1, s->f) != 1)
		return dtp_fail(err, DTP_FAILED, "cannot read '%s' from byte %" PRIu64 " on", s->st.files[0].path, s->at);
	dtp_hash_add(&s->hash, to, len);
	s->at += len;
	return DTP_OK;
}

/* Its head is passed over, and hashed. */
static enum dtp_code source_begin(struct source *s, struct dtp_err *err)
{
	uint64_t len = s->st.files[0].header_bytes;
	char *head = malloc(len);

	s->f = fopen(s->st.files[0].path, "rbe");
	enum dtp_code rc = s->f && head ? DTP_OK : dtp_fail(err, DTP_FAILED, "cannot open '%s'", s->st.files[0].path);
	dtp_hash_begin(&s->hash);
	if (!rc)
		rc = read_on(s, head, len, err);
	free(head);
	return rc;
}

static enum dtp_code source_end(struct source *s, struct dtp_err *err)
{
	char text[DTP_DIGEST_TEXT];
	struct dtp_digest digest;

	if (!s->f)
		return DTP_OK;
	dtp_hash_end(&s->hash, &digest);
	if (strcmp(dtp_digest_text(&digest, text), s->said->sha256))
		return dtp_fail(err, DTP_FAILED, "'%s' is damaged: its SHA-256 is %s, the manifest says %s", s->st.files[0].path, text,
				s->said->sha256);
	return DTP_OK;
}

static enum dtp_code part_open(struct job *job, struct part *part, struct dtp_err *err)
{
	const struct dtp_tree *tree = part->c->tree;
	int degree = part->c->degree;
	enum dtp_code rc = DTP_OK;

	part->param = calloc((size_t)tree->n * 2 + 1, sizeof *part->param);
	part->source = calloc((size_t)degree + 1, sizeof *part->source);
	if (!part->param || !part->source)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	for (int i = 0; i < tree->n; i++)
		for (int which = 0; tree->modules[i].needed &&
				    dtp_module_param(&tree->modules[i], which, &part->param[part->nparams]); which++)
			part->nparams++;
	for (int i = 0; !rc && i <= degree; i++) {
		struct source *s = &part->source[i];
		s->said = i < degree ? &part->from->ranks[i] : &part->from->rest;
		if (!s->said->name)
			continue;
		rc = dtp_shards_open(job->p->shards, part->from, i < degree ? i : -1, &s->st, err);
		if (!rc)
			rc = source_begin(s, err);
	}
	return rc;
}

static void part_close(struct part *part)
{
	for (int i = 0; part->source && i <= part->c->degree; i++) {
		if (part->source[i].f)
			fclose(part->source[i].f);
		dtp_st_close(&part->source[i].st);
		free(part->source[i].buf);
	}
	free(part->source);
	free(part->param);
}

/* The parameter of an original tensor; NULL: it is in the rest. */
static const struct dtp_param *param_of(const struct part *part, const char *name)
{
	size_t n = strlen(part->c->prefix);

	for (int i = 0; i < part->nparams; i++)
		if (!strncmp(name, part->c->prefix, n) && !strcmp(name + n, part->param[i].name))
			return &part->param[i];
	return NULL;
}

/* ---- putting rows together */

static void take_piece(void *arg, uint64_t offset, uint64_t len)
{
	struct source *s = arg;

	(void)offset;
	s->wanted += len;
	if (s->wanted == s->used + len && fread(s->buf + s->used, len, 1, s->f) == 1)
		s->used += len;
}

struct placing {
	struct job *job;
	const char *from;
	bool differs;
};

static void place_piece(void *arg, uint64_t offset, uint64_t len)
{
	struct placing *p = arg;
	char *to = p->job->chunk + offset, *covered = p->job->covered + offset;

	if (!memchr(covered, 1, len)) {
		memcpy(to, p->from, len);
		memset(covered, 1, len);
	}
	for (uint64_t i = 0; i < len; i++) { /* rows that several ranks have */
		if (!covered[i])
			to[i] = p->from[i];
		covered[i] = 1;
	}
	p->differs |= memcmp(to, p->from, len) != 0;
	p->from += len;
}

/* The ranks' parts of rows [row, row + n), each read from where its file stands. */
static enum dtp_code gather(struct job *job, struct part *part, int64_t row, int64_t n, uint64_t bytes, const char *name,
			    struct dtp_err *err)
{
	int degree = part->c->degree;

#pragma omp parallel for schedule(dynamic) if (bytes >= DTP_SHARD_PARALLEL)
	for (int i = 0; i < degree; i++) {
		struct source *s = &part->source[i];
		s->used = s->wanted = 0;
		dtp_slice_pieces(&s->slice, row, n, take_piece, s);
		dtp_hash_add(&s->hash, s->buf, s->used);
		s->at += s->used;
	}
	memset(job->covered, 0, bytes);
	for (int i = 0; i < degree; i++) {
		struct source *s = &part->source[i];
		struct placing p = {job, s->buf, false};
		if (s->used != s->wanted)
			return dtp_fail(err, DTP_FAILED, "cannot read '%s' from byte %" PRIu64 " on", s->st.files[0].path, s->at);
		dtp_slice_pieces(&s->slice, row, n, place_piece, &p);
		if (p.differs)
			return dtp_fail(err, DTP_FAILED, "tensor '%s' of '%s' is not what other ranks' files have in the same rows",
					name, s->st.files[0].path);
	}
	if (memchr(job->covered, 0, bytes))
		return dtp_fail(err, DTP_FAILED, "no rank has all of tensor '%s', rows %" PRId64 " to %" PRId64, name, row, row + n);
	return DTP_OK;
}

/* The tensor's data in a rank's file begin where reading has come to. */
static enum dtp_code check_order(const struct source *s, const char *name, struct dtp_err *err)
{
	const struct dtp_st_entry *e = s->f ? dtp_st_find(&s->st, name) : NULL;

	if (!e)
		return dtp_fail(err, DTP_FAILED, "tensor '%s' is in none of the files: '%s' lacks it", name,
				s->f ? s->st.files[0].path : "the rest");
	if (e->offset != s->at)
		return dtp_fail(err, DTP_FAILED, "'%s': tensor '%s' is at byte %" PRIu64 ", expected at %" PRIu64, s->st.files[0].path,
				name, e->offset, s->at);
	return DTP_OK;
}

static enum dtp_code begin_tensor(const struct part *part, const struct dtp_st_entry *e, const struct dtp_param *p, struct dtp_err *err)
{
	struct dtp_split split;
	char have[192], want[128];
	enum dtp_code rc = DTP_OK;

	if (!p)
		return check_order(&part->source[part->c->degree], e->name, err);
	if (e->ndim != p->ndim || memcmp(e->shape, p->shape, (size_t)p->ndim * sizeof *p->shape))
		return dtp_fail(err, DTP_FAILED, "tensor '%s' has the shape %s in the original's head, expected %s", e->name,
				dtp_shape_text(have, sizeof have, e->ndim, e->shape),
				dtp_shape_text(want, sizeof want, p->ndim, p->shape));
	for (int i = 0; !rc && i < part->c->degree; i++) {
		dtp_placement(part->c->tree, p, i, part->c->degree, &split);
		dtp_slice_make(p, &split, e, &part->source[i].slice);
		rc = check_order(&part->source[i], e->name, err);
	}
	return rc;
}

static enum dtp_code reserve(struct job *job, struct part *part, uint64_t bytes, struct dtp_err *err)
{
	bool ok = true;

	for (int i = 0; i < part->c->degree; i++)
		if (bytes > job->chunk_bytes || !part->source[i].buf)
			ok = ok && (part->source[i].buf = realloc(part->source[i].buf, bytes > job->chunk_bytes ? bytes : job->chunk_bytes));
	if (bytes > job->chunk_bytes || !job->chunk) {
		job->chunk_bytes = bytes > job->chunk_bytes ? bytes : job->chunk_bytes;
		ok = ok && (job->chunk = realloc(job->chunk, job->chunk_bytes)) && (job->covered = realloc(job->covered, job->chunk_bytes));
	}
	return ok ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for rows of %" PRIu64 " bytes", bytes);
}

static enum dtp_code join_tensor(struct job *job, struct part *part, const struct dtp_st_entry *e, struct dtp_sink *to,
				 struct dtp_err *err)
{
	const struct dtp_param *p = param_of(part, e->name);
	int64_t rows = p ? e->shape[0] : (int64_t)e->nbytes;
	uint64_t row_bytes = rows ? e->nbytes / (uint64_t)rows : 0;
	enum dtp_code rc = begin_tensor(part, e, p, err);

	if (!rc)
		rc = reserve(job, part, row_bytes, err);
	int64_t step = row_bytes && row_bytes < job->chunk_bytes ? (int64_t)(job->chunk_bytes / row_bytes) : 1;
	for (int64_t row = 0; row < rows && row_bytes && !rc; row += step) {
		int64_t n = rows - row < step ? rows - row : step;
		uint64_t bytes = (uint64_t)n * row_bytes;
		if (job->mon->stopped(job->mon->arg))
			return dtp_fail(err, DTP_INTERRUPTED, "interrupted");
		rc = p ? gather(job, part, row, n, bytes, e->name, err)
		       : read_on(&part->source[part->c->degree], job->chunk, bytes, err);
		if (!rc) {
			dtp_sink_put(to, job->chunk, bytes);
			rc = dtp_sink_check(to, err);
		}
		job->done += bytes;
		job->mon->progress(job->mon->arg, job->done, job->total);
	}
	return rc;
}

/* ---- one original file */

static int by_offset(const void *a, const void *b)
{
	const struct dtp_st_entry *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Its head as it was: *all with the 8 bytes of its length. */
static enum dtp_code read_head(const struct job *job, const struct part *part, const struct dtp_shard_file *f, char **all, size_t *len,
			       struct dtp_err *err)
{
	char path[8192];
	FILE *in;
	long n = 0;

	snprintf(path, sizeof path, "%s/" DTP_SHARDS_SOURCES "/%s/%s.header", job->p->model, part->c->name, f->name);
	in = fopen(path, "rbe");
	*all = NULL;
	if (in && !fseek(in, 0, SEEK_END) && (n = ftell(in)) >= 8 && n <= (long)DTP_ST_MAX_HEADER + 8) {
		rewind(in);
		*all = malloc((size_t)n + 1);
		if (*all && fread(*all, (size_t)n, 1, in) != 1) {
			free(*all);
			*all = NULL;
		}
	}
	if (in)
		fclose(in);
	if (!*all)
		return dtp_fail(err, DTP_REFUSED, "'%s' cannot be read: the head of the original file", path);
	*len = (size_t)n;
	(*all)[n] = '\0';
	return DTP_OK;
}

static void note_mismatch(struct job *job, const struct part *part, const struct dtp_shard_file *f, const char *sha256)
{
	if (strcmp(sha256, f->sha256) && !job->mismatch.code)
		dtp_fail(&job->mismatch, DTP_FAILED, "'%s/%s' cannot be restored: what the ranks' files hold makes SHA-256 %s, the original "
			 "had %s", part->c->name, f->name, sha256, f->sha256);
}

static enum dtp_code join_file(struct job *job, struct part *part, const struct dtp_shard_file *f, struct dtp_err *err)
{
	struct dtp_sink to = {0};
	struct dtp_st_entry *entries = NULL;
	char path[8192], sha256[DTP_DIGEST_TEXT], *head;
	size_t len = 0;
	int n = 0;
	enum dtp_code rc = read_head(job, part, f, &head, &len, err);

	if (rc)
		return rc;
	rc = dtp_st_header_parse(f->name, head + 8, len - 8, f->size, 0, &entries, &n, err);
	snprintf(path, sizeof path, "%s/%s/%s", job->out.tmp, part->c->name, f->name);
	if (!rc)
		rc = dtp_sink_open(&to, path, err);
	if (!rc)
		dtp_sink_put(&to, head, len);
	if (n)
		qsort(entries, (size_t)n, sizeof *entries, by_offset);
	for (int i = 0; !rc && i < n; i++)
		rc = join_tensor(job, part, &entries[i], &to, err);
	if (!rc)
		rc = dtp_sink_close(&to, sha256, err);
	if (!rc)
		note_mismatch(job, part, f, sha256);
	dtp_sink_free(&to);
	dtp_st_entries_free(entries, n);
	free(head);
	return rc;
}

/* ---- the whole */

static enum dtp_code join_part(struct job *job, struct part *part, struct dtp_err *err)
{
	char text[128], from[8192], to[8192];
	enum dtp_code rc;

	snprintf(text, sizeof text, "unshard %s", part->c->name);
	job->mon->stage(job->mon->arg, DTP_PHASE_LOAD, text);
	snprintf(from, sizeof from, "%s/%s", job->p->model, part->c->name);
	snprintf(to, sizeof to, "%s/%s", job->out.tmp, part->c->name);
	rc = dtp_outfolder_add(&job->out, part->c->name, err);
	if (!rc)
		rc = dtp_copy_small_files(from, to, err);
	if (!rc && part->from->index) {
		snprintf(from, sizeof from, "%s/" DTP_SHARDS_SOURCES "/%s/%s", job->p->model, part->c->name, part->from->index);
		snprintf(to, sizeof to, "%s/%s/%s", job->out.tmp, part->c->name, part->from->index);
		rc = dtp_copy_file(from, to, err);
	}
	if (!rc)
		rc = part_open(job, part, err);
	for (int i = 0; !rc && i < part->from->nsources; i++)
		rc = join_file(job, part, &part->from->sources[i], err);
	/* A file that is damaged is the cause, what was made of it the consequence. */
	for (int i = 0; !rc && i <= part->c->degree; i++)
		rc = source_end(&part->source[i], err);
	if (!rc && job->mismatch.code) {
		*err = job->mismatch;
		rc = err->code;
	}
	part_close(part);
	return rc;
}

static enum dtp_code write_folder(struct job *job, const char *out, struct part *part, int nparts, struct dtp_err *err)
{
	uint64_t bytes = dtp_shards_others_bytes(job->p);
	enum dtp_code rc = DTP_OK;

	for (int i = 0; i < nparts; i++)
		for (int k = 0; k < part[i].from->nsources; k++)
			job->total += part[i].from->sources[k].size;
	if (dtp_outfolder_open(out, bytes + job->total, &job->out, err))
		return err->code;
	for (int i = 0; !rc && i < nparts; i++)
		rc = join_part(job, &part[i], err);
	if (!rc)
		rc = dtp_shards_copy_others(job->p, job->out.tmp, err);
	if (!rc)
		rc = dtp_outfolder_commit(&job->out, err);
	dtp_outfolder_abandon(&job->out);
	return rc;
}

enum dtp_code dtp_unshard(struct dtp_pipeline *p, const char *out, const struct dtp_monitor *mon, struct dtp_err *err)
{
	struct job job = {.p = p, .mon = mon, .chunk_bytes = CHUNK_BYTES, .mismatch = DTP_ERR_INIT};
	struct part part[DTP_COMPONENTS] = {0};
	int n = 0;

	if (!p->shards)
		return dtp_fail(err, DTP_REFUSED, "'%s' is not sharded: it has no '" DTP_SHARDS_MANIFEST "'", p->model);
	for (int i = 0; i < DTP_COMPONENTS; i++) {
		const struct dtp_shards_part *from = dtp_shards_part(p->shards, p->component[i].name);
		if (from) {
			part[n].c = &p->component[i];
			part[n++].from = from;
		}
	}
	enum dtp_code rc = write_folder(&job, out, part, n, err);
	free(job.chunk);
	free(job.covered);
	return rc;
}
