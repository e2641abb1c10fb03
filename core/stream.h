/* SPDX-License-Identifier: Apache-2.0 */
/* Panels on their way from files to a backend: reader threads fill a few buffers, packers empty them.  Knows neither files
 * nor weights. */
#ifndef DTP_STREAM_H
#define DTP_STREAM_H

#include "err.h"

#include <stdint.h>

#define DTP_STREAM_MAX_SLOTS 16
#define DTP_STREAM_MAX_THREADS 16

struct dtp_stream {
	int njobs;
	uint64_t slot_bytes; /* a buffer holds any one job */
	int nslots;          /* 1..DTP_STREAM_MAX_SLOTS */
	char *buffers;       /* nslots * slot_bytes, the caller's */
	int nreaders;        /* threads that fill, 1..DTP_STREAM_MAX_THREADS */
	int npackers;        /* threads that drain, the calling one included */
	void *arg;
	/* Reads a job into buf.  Called from any reader, for jobs in ascending order, several at a time. */
	enum dtp_code (*fill)(void *arg, int job, void *buf, struct dtp_err *err);
	/* Takes the job out of buf, which it may change.  Called from any packer, in any order, several at a time if npackers > 1. */
	enum dtp_code (*drain)(void *arg, int job, void *buf, struct dtp_err *err);
	/* After each drained job, one call at a time. */
	void (*progress)(void *arg, int job);
	/* True: end with DTP_INTERRUPTED. */
	bool (*stopped)(void *arg);
};

/* Runs every job through fill and drain.  The first failure of any thread ends all and is returned; no thread is left. */
enum dtp_code dtp_stream_run(const struct dtp_stream *s, struct dtp_err *err);
#endif
