/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks compute: what --device comes to on this machine. */
#ifndef DTP_DEVICE_H
#define DTP_DEVICE_H

#include "flags.h"
#include "pipeline.h"
#include "sizes.h"

#define DTP_MAX_GPUS 64

struct dtp_gpus {
	int n; /* 0: the ranks compute on CPUs */
	struct dtp_gpu gpu[DTP_MAX_GPUS];
};

/* The GPUs that --device lets the ranks of this machine use.  In a process that starts ranks: a child asks the driver, which may hang or
 * crash, and must not be forked once it runs.  DTP_REFUSED, with why, where --device cuda finds none; with auto a reason that only a
 * machine with a driver has is told to warn. */
enum dtp_code dtp_device_find(const struct dtp_args *args, struct dtp_gpus *gpus, void (*warn)(void *arg, const char *text), void *arg,
			      struct dtp_err *err);
/* Whether NVIDIA's libraries that a rank on a GPU will call are there, and new enough: before it loads anything.  pictures: it decodes
 * latents, or encodes images; sums: it adds to others' through NCCL.  DTP_REFUSED with what to do. */
enum dtp_code dtp_device_libraries(const struct dtp_args *args, bool pictures, bool sums, struct dtp_err *err);
/* As many as the ranks of this machine need, unless they may share them (--oversubscribe)?  DTP_REFUSED with the numbers. */
enum dtp_code dtp_device_check(const struct dtp_args *args, const struct dtp_gpus *gpus, int ranks, struct dtp_err *err);
/* What each of so many ranks may take of its GPU. */
void dtp_device_limits(const struct dtp_gpus *gpus, int ranks, struct dtp_limits *out);
/* "4 x NVIDIA H200", "NVIDIA H200, NVIDIA L4". */
void dtp_device_text(const struct dtp_gpus *gpus, int ranks, char *buf, size_t size);

/* In a rank: what --device comes to here, which must be the same for all ranks of world. */
struct dtp_seated {
	int gpu;                  /* this rank's, as CUDA numbers them */
	int gpus;                 /* how many this process may use */
	bool shared;              /* some ranks of world share a GPU */
	struct dtp_limits memory; /* for each rank, of its GPU; n == 0: they compute on CPUs */
	char cache[4096];         /* folder of cuDNN's finished plans; "": none */
};
/* GPUs of several kinds are named by a warning of rank 0. */
enum dtp_code dtp_device_agree(const struct dtp_args *args, struct dtp_comm *world, int local_rank, const struct dtp_monitor *mon,
			       struct dtp_seated *out, struct dtp_err *err);
/* The same for a process that is no rank: the first GPU of these, whole. */
void dtp_device_alone(const struct dtp_gpus *gpus, struct dtp_seated *out);
/* With the backends open: what of its GPU each rank may take where others have taken of it.  Collective. */
enum dtp_code dtp_device_room(struct dtp_seated *seated, struct dtp_backend *be, struct dtp_comm *world, struct dtp_err *err);
/* The same for a process that is no rank. */
void dtp_device_room_alone(struct dtp_seated *seated, struct dtp_backend *be);
/* What a process may have of its GPU now: what is free, and what it has taken already, with NCCL's buffers where `ranks` that sum have met. */
uint64_t dtp_device_free(struct dtp_backend *be, int ranks);
/* Then this rank's backend, which `seated` must outlive; threads: of one on a CPU, what args say of GPUs: of one on a GPU. */
enum dtp_code dtp_device_open(const struct dtp_seated *seated, enum dtp_dtype compute, int threads, const struct dtp_args *args,
			      const struct dtp_monitor *mon, struct dtp_backend **out, struct dtp_err *err);
#endif
