/* SPDX-License-Identifier: Apache-2.0 */
#include "slice.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/uio.h>

#define MAX_VECTORS 1024 /* what Linux takes in one call */
#define ASK_BYTES (128u << 10)

static void add_run(struct dtp_slice *s, uint64_t begin, uint64_t end)
{
	if (begin >= end)
		return;
	s->run[s->nruns].begin = begin;
	s->run[s->nruns++].end = end;
}

/* Runs of the tensor's rows become runs of the file's, which begin at row `first` of `all`. */
static void turn_rows(struct dtp_slice *s, uint64_t first, uint64_t all)
{
	struct dtp_slice old = *s;
	uint64_t turn = all - first; /* the tensor's row that is the file's row 0 */

	s->nruns = 0;
	for (int i = 0; i < old.nruns; i++) {
		uint64_t begin = old.run[i].begin, end = old.run[i].end;
		add_run(s, begin + first, (end < turn ? end : turn) + first);
		add_run(s, (begin > turn ? begin : turn) - turn, end < turn ? 0 : end - turn);
	}
}

void dtp_slice_make(const struct dtp_param *p, const struct dtp_split *s, const struct dtp_st_entry *e,
		    struct dtp_slice *out)
{
	uint64_t column = dtp_dtype_size(e->dtype); /* bytes of one step along dimension 1 */

	for (int d = 2; d < p->ndim; d++)
		column *= (uint64_t)p->shape[d];
	*out = (struct dtp_slice){.entry = e, .columns = s->dim == 1, .nruns = s->nruns};
	out->file_row_bytes = p->ndim > 1 ? column * (uint64_t)p->shape[1] : column;
	out->rows = out->columns ? p->shape[0] : dtp_split_length(s);
	out->row_bytes = out->columns ? column * (uint64_t)dtp_split_length(s) : out->file_row_bytes;
	for (int i = 0; i < s->nruns; i++) {
		uint64_t unit = out->columns ? column : 1;
		out->run[i].begin = (uint64_t)s->run[i].begin * unit;
		out->run[i].end = (uint64_t)s->run[i].end * unit;
	}
	if (e->first_row && !out->columns)
		turn_rows(out, (uint64_t)e->first_row, (uint64_t)p->shape[0]);
	if (e->part) { /* the slice is all that is there */
		out->columns = false;
		out->file_row_bytes = out->row_bytes;
		out->nruns = 1;
		out->run[0].begin = 0;
		out->run[0].end = (uint64_t)out->rows;
	}
}

/* ---- byte ranges */

struct dtp_slice_walk dtp_slice_walk(const struct dtp_slice *s, int64_t row, int64_t n)
{
	return (struct dtp_slice_walk){s, row, row + n, 0};
}

static bool next_in_columns(struct dtp_slice_walk *w, uint64_t *offset, uint64_t *len)
{
	const struct dtp_slice *s = w->slice;

	if (w->row == w->end || !s->nruns)
		return false;
	int64_t row = w->row + s->entry->first_row;

	row -= row >= s->rows ? s->rows : 0;
	*offset = s->entry->offset + (uint64_t)row * s->file_row_bytes + s->run[w->run].begin;
	*len = s->run[w->run].end - s->run[w->run].begin;
	if (++w->run == s->nruns) {
		w->run = 0;
		w->row++;
	}
	return true;
}

static bool next_in_rows(struct dtp_slice_walk *w, uint64_t *offset, uint64_t *len)
{
	const struct dtp_slice *s = w->slice;
	int64_t first = 0; /* local number of the run's first row */

	for (int i = 0; i < s->nruns && w->row < w->end; i++) {
		int64_t last = first + (int64_t)(s->run[i].end - s->run[i].begin);
		if (w->row < last) {
			int64_t n = (last < w->end ? last : w->end) - w->row;
			uint64_t row = s->run[i].begin + (uint64_t)(w->row - first);
			*offset = s->entry->offset + row * s->file_row_bytes;
			*len = (uint64_t)n * s->file_row_bytes;
			w->row += n;
			return true;
		}
		first = last;
	}
	return false;
}

bool dtp_slice_next(struct dtp_slice_walk *w, uint64_t *offset, uint64_t *len)
{
	return w->slice->columns ? next_in_columns(w, offset, len) : next_in_rows(w, offset, len);
}

void dtp_slice_pieces(const struct dtp_slice *s, int64_t row, int64_t n, void (*fn)(void *arg, uint64_t offset, uint64_t len),
		      void *arg)
{
	uint64_t first = (uint64_t)row, last = first + (uint64_t)n;

	for (int i = 0; !s->columns && i < s->nruns; i++) {
		uint64_t begin = s->run[i].begin > first ? s->run[i].begin : first;
		uint64_t end = s->run[i].end < last ? s->run[i].end : last;
		if (begin < end)
			fn(arg, (begin - first) * s->file_row_bytes, (end - begin) * s->file_row_bytes);
	}
	for (uint64_t r = 0; s->columns && r < (uint64_t)n; r++)
		for (int i = 0; i < s->nruns; i++)
			if (s->run[i].begin < s->run[i].end)
				fn(arg, r * s->file_row_bytes + s->run[i].begin, s->run[i].end - s->run[i].begin);
}

/* ---- reading: one scattered read takes wanted bytes to their places and the small gaps between them to nowhere */

struct batch {
	const struct dtp_st *st;
	const struct dtp_st_entry *entry;
	uint64_t begin, end; /* of the file */
	struct iovec v[MAX_VECTORS];
	int n;
	char *nowhere;       /* DTP_GAP_BYTES: every piece of every gap lands there */
	struct dtp_read_stats *stats;
};

static enum dtp_code short_read(const struct batch *b, uint64_t at, struct dtp_err *err)
{
	/* Says so if the file has another size than it had. */
	enum dtp_code rc = dtp_st_read(b->st, b->entry, 0, 0, NULL, err);

	return rc ? rc : dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': the file ended at byte %" PRIu64,
				  b->entry->name, b->st->files[b->entry->file].path, at);
}

/* Performs the batch and empties it. */
static enum dtp_code flush(struct batch *b, struct dtp_err *err)
{
	const struct dtp_st_file *f = &b->st->files[b->entry->file];
	struct iovec *v = b->v;

	for (uint64_t at = b->begin; at < b->end;) {
		ssize_t got = preadv(f->fd, v, b->n, (off_t)at);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return dtp_fail(err, DTP_FAILED, "cannot read tensor '%.200s' of '%s': %s", b->entry->name, f->path,
					strerror(errno));
		if (got == 0)
			return short_read(b, at, err);
		b->stats->requests++;
		at += (uint64_t)got;
		for (; b->n && (size_t)got >= v->iov_len; v++, b->n--)
			got -= (ssize_t)v->iov_len;
		if (got) {
			v->iov_base = (char *)v->iov_base + got;
			v->iov_len -= (size_t)got;
		}
	}
	b->n = 0;
	return DTP_OK;
}

static enum dtp_code add(struct batch *b, uint64_t offset, uint64_t len, char *dst, struct dtp_err *err)
{
	enum dtp_code rc;

	/* Gaps go forward only: where the ranges of a walk step back (first_row), the difference is huge. */
	if (b->n && (offset - b->end >= dtp_gap_bytes(&b->st->files[b->entry->file]) ||
		     b->n + (int)((offset - b->end) / DTP_GAP_BYTES) + 2 > MAX_VECTORS))
		if ((rc = flush(b, err)))
			return rc;
	b->stats->wanted += len;
	if (!b->n) {
		b->begin = b->end = offset;
	} else if (offset == b->end) { /* rows that touch */
		b->v[b->n - 1].iov_len += len;
		b->end += len;
		return DTP_OK;
	} else {
		b->stats->gaps += offset - b->end;
		for (uint64_t left = offset - b->end, piece; left; left -= piece) {
			piece = left < DTP_GAP_BYTES ? left : DTP_GAP_BYTES;
			b->v[b->n++] = (struct iovec){b->nowhere, piece};
		}
	}
	b->v[b->n++] = (struct iovec){dst, len};
	b->end = offset + len;
	return DTP_OK;
}

enum dtp_code dtp_slice_read(const struct dtp_st *st, const struct dtp_slice *s, int64_t row, int64_t n, void *dst,
			     struct dtp_read_stats *stats, struct dtp_err *err)
{
	char nowhere[DTP_GAP_BYTES];
	struct batch b = {.st = st, .entry = s->entry, .nowhere = nowhere, .stats = stats};
	struct dtp_slice_walk w = dtp_slice_walk(s, row, n);
	uint64_t offset, len;
	enum dtp_code rc;
	char *to = dst;

	while (dtp_slice_next(&w, &offset, &len)) {
		if (!len)
			continue;
		if ((rc = add(&b, offset, len, to, err)))
			return rc;
		to += len;
	}
	if (b.n && (rc = flush(&b, err)))
		return rc;
	/* Reading nothing still compares size and time of the file with those at opening: a file that is being written
	 * would give a mixture of two checkpoints. */
	return dtp_st_read(st, s->entry, 0, 0, NULL, err);
}

void dtp_ask_ahead(int fd, uint64_t begin, uint64_t end)
{
	for (uint64_t at = begin; at < end; at += ASK_BYTES)
		posix_fadvise(fd, (off_t)at, (off_t)(end - at < ASK_BYTES ? end - at : ASK_BYTES), POSIX_FADV_WILLNEED);
}

void dtp_slice_prefetch(const struct dtp_st *st, const struct dtp_slice *s, int64_t row, int64_t n)
{
	struct dtp_slice_walk w = dtp_slice_walk(s, row, n);
	uint64_t offset, len, begin = 0, end = 0;
	const struct dtp_st_file *f = &st->files[s->entry->file];

	if (!f->remote)
		return;
	while (dtp_slice_next(&w, &offset, &len)) {
		if (end && offset - end >= dtp_gap_bytes(f)) {
			dtp_ask_ahead(f->fd, begin, end);
			end = 0;
		}
		if (!end)
			begin = offset;
		end = offset + len;
	}
	if (end)
		dtp_ask_ahead(f->fd, begin, end);
}
