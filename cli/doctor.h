/* SPDX-License-Identifier: Apache-2.0 */
/* The probes of `difftp doctor`; each has the form of dtp_probe.look.  While no backend computes on GPUs, nothing about them is
 * a failure. */
#ifndef DTP_DOCTOR_H
#define DTP_DOCTOR_H

#include "probe.h"

/* doctor_host.c: this machine */
void dtp_look_processors(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_memory(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_shared_memory(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_limits(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_libraries(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_disk(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_model(const struct dtp_args *, char **argv, struct dtp_findings *);

/* doctor_gpu.c: NVIDIA's driver and libraries */
void dtp_look_gpus(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_gpu_links(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_cuda(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_gpu_libraries(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_nccl(const struct dtp_args *, char **argv, struct dtp_findings *);

/* doctor_ranks.c: two ranks of this program, which sum over each other, or compare the NCCL that they load */
void dtp_look_ranks(const struct dtp_args *, char **argv, struct dtp_findings *);
void dtp_look_rank_nccl(const struct dtp_args *, char **argv, struct dtp_findings *);
/* The work of such a rank, which is the command itself once more. */
enum dtp_code dtp_doctor_rank(struct dtp_err *err);
#endif
