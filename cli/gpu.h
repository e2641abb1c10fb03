/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's libraries, opened while running: nothing here needs them to be installed, or CUDA's headers to be built.  They are
 * opened in probes only, since a driver may hang or crash; what a library lacks is NULL. */
#ifndef DTP_GPU_H
#define DTP_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* From nvml.h, whose numbers are part of its binary interface. */
struct dtp_nvml_memory {
	unsigned long long total, free, used;
};
enum { DTP_NVML_PROHIBITED = 2 };                                                /* nvmlComputeMode_t */
enum { DTP_NVML_P2P_READ = 0, DTP_NVML_P2P_WRITE = 1 };                          /* nvmlGpuP2PCapsIndex_t */
enum { DTP_NVML_NO_DRIVER = 9, DTP_NVML_MISMATCH = 18 };                         /* nvmlReturn_t */
#define DTP_NVML_LINKS 18                                                        /* NVML_NVLINK_MAX_LINKS */

struct dtp_nvml {
	int (*init)(void);
	const char *(*error)(int);
	int (*driver)(char *, unsigned);
	int (*cuda)(int *);
	int (*count)(unsigned *);
	int (*device)(unsigned, void **);
	int (*name)(void *, char *, unsigned);
	int (*memory)(void *, struct dtp_nvml_memory *);
	int (*capability)(void *, int *, int *);
	int (*compute_mode)(void *, int *);
	int (*ecc_mode)(void *, int *, int *);                                    /* current, pending */
	int (*ecc_errors)(void *, int, int, unsigned long long *);               /* 1: uncorrected, 0: since the last reset */
	int (*link)(void *, unsigned, int *);                                     /* NVLink n is up */
	int (*p2p)(void *, void *, int, int *);                                   /* 0: works */
};
struct dtp_cuda {
	int (*init)(unsigned);
	int (*error)(int, const char **);
	int (*version)(int *);
	int (*count)(int *);
	int (*device)(int *, int);
	int (*peer)(int *, int, int);
};
struct dtp_nccl {
	int (*version)(int *);
};

/* Opens a library and fills its table.  False, with why, when there is no such library. */
bool dtp_nvml_open(struct dtp_nvml *t, char *why, size_t size);
bool dtp_cuda_open(struct dtp_cuda *t, char *why, size_t size);
bool dtp_nccl_open(struct dtp_nccl *t, char *why, size_t size);

/* "2.19.3" of 21903, as NCCL numbers its versions since 2.9. */
const char *dtp_nccl_text(int version, char *buf, size_t size);
#endif
