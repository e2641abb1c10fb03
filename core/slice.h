/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of one parameter as it lies in a safetensors file: rows made of byte ranges, and how to read them. */
#ifndef DTP_SLICE_H
#define DTP_SLICE_H

#include "plan.h"
#include "safetensors.h"

/* Bytes between two wanted ranges that are read through and dropped rather than skipped by a second read: fewer than this; of a file that
 * is read over a network, where a request costs about what a megabyte does, than that. */
#define DTP_GAP_BYTES (64u << 10)
#define DTP_REMOTE_GAP_BYTES (1u << 20)
static inline uint64_t dtp_gap_bytes(const struct dtp_st_file *f)
{
	return f->remote ? DTP_REMOTE_GAP_BYTES : DTP_GAP_BYTES;
}

struct dtp_slice {
	const struct dtp_st_entry *entry;
	int64_t rows;           /* local length of dimension 0 */
	uint64_t row_bytes;     /* local bytes of one row (dimensions 1 and up) */
	uint64_t file_row_bytes;
	bool columns;           /* runs cut every row, in bytes; else they choose rows of the file */
	int nruns;
	struct {
		uint64_t begin, end;
	} run[DTP_MAX_RUNS + 1]; /* first_row may cut one */
};

/* e's shape must be p's: then no product overflows, as the file's header was checked. */
void dtp_slice_make(const struct dtp_param *p, const struct dtp_split *s, const struct dtp_st_entry *e,
		    struct dtp_slice *out);

static inline uint64_t dtp_slice_bytes(const struct dtp_slice *s)
{
	return (uint64_t)s->rows * s->row_bytes;
}

/* The byte ranges of the file that make up the local rows [row, row + n), in order; neighbours may touch. */
struct dtp_slice_walk {
	const struct dtp_slice *slice;
	int64_t row, end;
	int run;
};
struct dtp_slice_walk dtp_slice_walk(const struct dtp_slice *s, int64_t row, int64_t n);
bool dtp_slice_next(struct dtp_slice_walk *w, uint64_t *offset, uint64_t *len);

/* What the slice has of the whole rows [row, row + n) of the tensor (not its own): calls fn with each piece, in the slice's own
 * order, as a range of these rows' bytes.  Of an entry that is no part. */
void dtp_slice_pieces(const struct dtp_slice *s, int64_t row, int64_t n, void (*fn)(void *arg, uint64_t offset, uint64_t len),
		      void *arg);

struct dtp_read_stats {
	uint64_t wanted, gaps, requests;
};

/* Reads the local rows [row, row + n) densely into dst.  A short read, or a file that changed since it was opened, is
 * DTP_FAILED naming file and tensor.  Adds to *stats.  Safe from several threads. */
enum dtp_code dtp_slice_read(const struct dtp_st *st, const struct dtp_slice *s, int64_t row, int64_t n, void *dst,
			     struct dtp_read_stats *stats, struct dtp_err *err);
/* Asks the kernel to have bytes [begin, end) of a file in the page cache soon, and does not wait for them.  In small pieces: of one call it takes
 * no more than its window, 128 KiB as a rule, and forgets the rest. */
void dtp_ask_ahead(int fd, uint64_t begin, uint64_t end);
/* Asks the kernel to have these rows in the page cache soon and does not wait for them, where a request takes long: of a file that is read
 * over a network.  A local disk is kept busy by the reads themselves, which get large folios; what is asked for comes in single pages, ten
 * times as dear to get and twice as dear to copy from. */
void dtp_slice_prefetch(const struct dtp_st *st, const struct dtp_slice *s, int64_t row, int64_t n);
#endif
