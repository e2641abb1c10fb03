/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for NVIDIA's libraries where there are none: those calls that difftp makes, of NVML, the CUDA driver and NCCL in
 * one.  $STANDIN says what it plays, for one library ("nvml:", "cuda:", "nccl:" in front) or for all:
 *   equal (or nothing)   two like GPUs in good health
 *   one, none            as many GPUs
 *   mixed                another second GPU, smaller
 *   old                  a driver that is too old
 *   sick                 everything that can be wrong with a GPU that answers
 *   refuse               it does not start
 *   silent               names of no use to a terminal
 *   hang, crash, exit    when it is started
 *   differ               rank 1 loads another NCCL */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int plays(const char *library, const char *part)
{
	const char *what = getenv("STANDIN");
	size_t n = strlen(library);

	if (!what)
		return 0;
	if (strchr(what, ':')) {
		if (strncmp(what, library, n) || what[n] != ':')
			return 0;
		what += n + 1;
	}
	return !strcmp(what, part);
}

static int start(const char *library)
{
	if (plays(library, "hang"))
		for (;;)
			pause();
	if (plays(library, "crash"))
		raise(SIGSEGV);
	if (plays(library, "exit"))
		exit(3);
	return plays(library, "refuse");
}

static int sick(void)
{
	return plays("nvml", "sick");
}

/* A device's handle is its number and 1 more. */
static long number(void *device)
{
	return (char *)device - (char *)0 - 1;
}

/* ---- NVML */

int nvmlInit_v2(void)
{
	return start("nvml") ? 18 : 0;
}

const char *nvmlErrorString(int rc)
{
	return rc == 18 ? "Driver/library version mismatch" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
	snprintf(text, size, "%s", plays("nvml", "old") ? "450.51" : "560.35.03");
	return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = plays("nvml", "old") ? 11000 : 13000;
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = plays("nvml", "none") ? 0 : plays("nvml", "one") ? 1 : 2;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device)
{
	*device = (char *)0 + i + 1;
	return 0;
}

int nvmlDeviceGetName(void *device, char *text, unsigned size)
{
	const char *name = plays("nvml", "mixed") && number(device) ? "NVIDIA L4" : "NVIDIA H100 80GB HBM3";

	snprintf(text, size, "%s", plays("nvml", "silent") ? "X\033[31m\xff\xfe\n1" : name);
	return 0;
}

struct memory {
	unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m)
{
	m->total = plays("nvml", "mixed") && number(device) ? 24000000000 : 85000000000;
	m->used = sick() ? m->total / 2 : m->total / 100;
	m->free = m->total - m->used;
	return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	(void)device;
	*major = sick() ? 7 : 9;
	*minor = sick() ? 5 : 0;
	return 0;
}

int nvmlDeviceGetComputeMode(void *device, int *mode)
{
	(void)device;
	*mode = sick() ? 2 : 0;
	return 0;
}

int nvmlDeviceGetEccMode(void *device, int *current, int *pending)
{
	(void)device;
	*current = 1;
	*pending = !sick();
	return 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *n)
{
	(void)device;
	*n = sick() && type == 1 && counter == 0 ? 3 : 0;
	return 0;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *up)
{
	(void)device;
	*up = !sick();
	return plays("nvml", "mixed") || link >= 18 ? 3 : 0;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status)
{
	(void)what;
	*status = a == b || sick();
	return 0;
}

/* ---- the CUDA driver */

int cuInit(unsigned flags)
{
	(void)flags;
	return start("cuda") ? 999 : 0;
}

int cuGetErrorString(int rc, const char **text)
{
	*text = rc == 999 ? "unknown error" : NULL;
	return 0;
}

int cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

int cuDeviceGetCount(int *n)
{
	*n = 2;
	return 0;
}

int cuDeviceCanAccessPeer(int *can, int a, int b)
{
	*can = a != b && !plays("cuda", "sick");
	return 0;
}

/* ---- NCCL */

int ncclGetVersion(int *version)
{
	const char *rank = getenv("DIFFTP_RANK");

	if (start("nccl"))
		return 3;
	*version = plays("nccl", "differ") && rank && !strcmp(rank, "1") ? 2804 : 21903;
	return 0;
}
