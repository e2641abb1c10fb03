/* SPDX-License-Identifier: Apache-2.0 */
/* A command that runs the pipeline: what its first process checks before it starts the ranks, and what every rank sets up
 * before its own work begins. */
#ifndef DTP_JOB_H
#define DTP_JOB_H

#include "device.h"
#include "flags.h"
#include "inputs.h"
#include "sources.h"

/* What a rank works with.  All of it is dtp_job_run's. */
struct dtp_rank {
	const struct dtp_args *args;
	struct dtp_options options;
	struct dtp_inputs inputs;
	struct dtp_request request; /* resolved, seed included; the same on all ranks */
	struct dtp_worker *worker;
	const struct dtp_monitor *mon;
	struct dtp_monitor muted;   /* mon without notes and warnings: opening tells nothing that was not told before */
	struct dtp_pipeline *pipeline;
	int output_number;          /* of the default name (dtp_output_free) */
	struct dtp_sources *sources; /* NULL until they are asked for */
	struct dtp_backend *backend;
	struct dtp_seated seated;   /* on which GPU, if on any */
	struct dtp_comm *world;
	struct dtp_mesh mesh;
	struct dtp_comm *neighbours; /* by which mesh.copies meet; NULL: there are none */
	struct dtp_hosts *hosts;    /* whose memory bounds the job */
	struct dtp_residency stay;  /* what was chosen to stay in memory; of a batch each line says */
	uint64_t spare;             /* what the job leaves of the memory of the rank with least room, in bytes; of a batch 0 */
	int rank, size;
	int threads, node_threads;  /* of this rank; of all ranks of its replica on this machine */
	int threads_in_all;         /* of all ranks of this machine */
};
/* Notes which component is where and when, and why. */
struct dtp_offload;
void dtp_rank_tell_offload(const struct dtp_rank *rank, const struct dtp_offload *f);

typedef enum dtp_code (*dtp_rank_fn)(struct dtp_rank *rank, struct dtp_err *err);

/* The checksums of what the images of a first rank of its replica are made of. */
enum dtp_code dtp_rank_sources(struct dtp_rank *rank, const struct dtp_sources **out, struct dtp_err *err);

/* In a process that dtp_launch started: joins the job, sets up and calls `work`.  Elsewhere: checks everything that can be
 * checked without reading a weight (files are to be written if `writes`), says what will be done, and runs the ranks. */
enum dtp_code dtp_job_run(const struct dtp_args *args, char **argv, bool writes, dtp_rank_fn work, struct dtp_err *err);
#endif
