/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct symbol {
	const char *name;
	size_t offset; /* of the pointer in the table */
};

static const struct symbol nvml_symbols[] = {
	{"nvmlInit_v2", offsetof(struct dtp_nvml, init)},
	{"nvmlErrorString", offsetof(struct dtp_nvml, error)},
	{"nvmlSystemGetDriverVersion", offsetof(struct dtp_nvml, driver)},
	{"nvmlSystemGetCudaDriverVersion_v2", offsetof(struct dtp_nvml, cuda)},
	{"nvmlDeviceGetCount_v2", offsetof(struct dtp_nvml, count)},
	{"nvmlDeviceGetHandleByIndex_v2", offsetof(struct dtp_nvml, device)},
	{"nvmlDeviceGetName", offsetof(struct dtp_nvml, name)},
	{"nvmlDeviceGetMemoryInfo", offsetof(struct dtp_nvml, memory)},
	{"nvmlDeviceGetCudaComputeCapability", offsetof(struct dtp_nvml, capability)},
	{"nvmlDeviceGetComputeMode", offsetof(struct dtp_nvml, compute_mode)},
	{"nvmlDeviceGetEccMode", offsetof(struct dtp_nvml, ecc_mode)},
	{"nvmlDeviceGetTotalEccErrors", offsetof(struct dtp_nvml, ecc_errors)},
	{"nvmlDeviceGetNvLinkState", offsetof(struct dtp_nvml, link)},
	{"nvmlDeviceGetP2PStatus", offsetof(struct dtp_nvml, p2p)},
};
static const struct symbol cuda_symbols[] = {
	{"cuInit", offsetof(struct dtp_cuda, init)},
	{"cuGetErrorString", offsetof(struct dtp_cuda, error)},
	{"cuDriverGetVersion", offsetof(struct dtp_cuda, version)},
	{"cuDeviceGetCount", offsetof(struct dtp_cuda, count)},
	{"cuDeviceGet", offsetof(struct dtp_cuda, device)},
	{"cuDeviceCanAccessPeer", offsetof(struct dtp_cuda, peer)},
};
static const struct symbol nccl_symbols[] = {
	{"ncclGetVersion", offsetof(struct dtp_nccl, version)},
};

static bool open_library(const char *name, const struct symbol *s, size_t n, void *table, char *why, size_t size)
{
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(why, size, "%s", dlerror());
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		void *p = dlsym(lib, s[i].name);
		memcpy((char *)table + s[i].offset, &p, sizeof p);
	}
	return true; /* it stays open: the process ends soon */
}
#define OPEN(name, symbols) open_library(name, symbols, sizeof symbols / sizeof *symbols, t, why, size)

bool dtp_nvml_open(struct dtp_nvml *t, char *why, size_t size)
{
	return OPEN("libnvidia-ml.so.1", nvml_symbols);
}

bool dtp_cuda_open(struct dtp_cuda *t, char *why, size_t size)
{
	return OPEN("libcuda.so.1", cuda_symbols);
}

bool dtp_nccl_open(struct dtp_nccl *t, char *why, size_t size)
{
	return OPEN("libnccl.so.2", nccl_symbols);
}

const char *dtp_nccl_text(int version, char *buf, size_t size)
{
	int k = version < 10000 ? 1000 : 10000; /* until 2.8 the minor number had one digit */

	snprintf(buf, size, "%d.%d.%d", version / k, version % k / 100, version % 100);
	return buf;
}
