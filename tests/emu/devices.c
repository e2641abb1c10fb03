/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: which devices there are.  The environment says:
 *   DIFFTP_EMU_DEVICES   how many (8), of which CUDA_VISIBLE_DEVICES may leave some
 *   DIFFTP_EMU_ARCH      their compute capability (90)
 *   DIFFTP_EMU_OTHER     the first of those that are of another kind, with half of the memory (none), and
 *   DIFFTP_EMU_OTHER_ARCH  their compute capability (that of the first)
 *   DIFFTP_EMU_MEMORY    bytes of each (16 GiB)
 *   DIFFTP_EMU_TAKEN     how many of them other programs have (0), and
 *   DIFFTP_EMU_TAKEN_AT    since this process has allocated so often (0)
 *   DIFFTP_EMU_DRIVER    the newest CUDA version that the driver knows (that of the headers) */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64, MAX_KERNELS = 256, SHARED = 48 << 10, SHARED_OPTIN = 227 << 10 };

static _Thread_local int current;

static struct {
	const void *function;
	size_t shared;
} kernels[MAX_KERNELS];
static size_t nkernels;

int emu_device(void)
{
	return current;
}

/* As the driver does: the numbers up to the first that names no device; a number twice makes none.  physical: NULL, or which device
 * each is. */
static int visible(int devices, int physical[MAX_DEVICES])
{
	const char *s = getenv("CUDA_VISIBLE_DEVICES");
	uint64_t seen = 0;
	int n = 0;

	for (int i = 0; physical && i < devices; i++)
		physical[i] = i;
	if (!s)
		return devices;
	while (*s) {
		char *end;
		long i = strtol(s, &end, 10);
		if (end == s || (*end && *end != ',') || i < 0 || i >= devices)
			return n;
		if (seen & (uint64_t)1 << i)
			return 0;
		seen |= (uint64_t)1 << i;
		if (physical)
			physical[n] = (int)i;
		n++;
		s = *end ? end + 1 : end;
	}
	return n;
}

static int devices_and(int physical[MAX_DEVICES])
{
	uint64_t n = emu_setting("DIFFTP_EMU_DEVICES", 8);

	return visible(n < MAX_DEVICES ? (int)n : MAX_DEVICES, physical);
}

static int devices(void)
{
	return devices_and(NULL);
}

static bool is_other(int physical)
{
	return (uint64_t)physical >= emu_setting("DIFFTP_EMU_OTHER", MAX_DEVICES);
}

uint64_t emu_device_memory(int device)
{
	int physical[MAX_DEVICES];
	uint64_t bytes = emu_setting("DIFFTP_EMU_MEMORY", (uint64_t)16 << 30);

	return device < devices_and(physical) && is_other(physical[device]) ? bytes / 2 : bytes;
}

static int driver(void)
{
	return (int)emu_setting("DIFFTP_EMU_DRIVER", CUDART_VERSION);
}

/* What every call that needs a device finds. */
static cudaError_t ready(void)
{
	if (driver() / 1000 < CUDART_VERSION / 1000)
		return cudaErrorInsufficientDriver;
	return devices() ? cudaSuccess : cudaErrorNoDevice;
}

static cudaError_t begin(const char *call, cudaError_t usual)
{
	cudaError_t e = emu_begin(call, usual);

	return e ? e : ready();
}

cudaError_t cudaGetDeviceCount(int *n)
{
	cudaError_t e = begin("cudaGetDeviceCount", cudaErrorInitializationError);

	if (!e)
		*n = devices();
	return emu_end(e);
}

cudaError_t cudaSetDevice(int device)
{
	cudaError_t e = begin("cudaSetDevice", cudaErrorInitializationError);

	if (!e && (device < 0 || device >= devices()))
		e = cudaErrorInvalidDevice;
	if (!e)
		current = device;
	return emu_end(e);
}

/* How the host waits makes no difference here. */
cudaError_t cudaSetDeviceFlags(unsigned flags)
{
	cudaError_t e = begin("cudaSetDeviceFlags", cudaErrorInitializationError);

	if (!e && flags & ~(unsigned)cudaDeviceMask)
		e = cudaErrorInvalidValue;
	return emu_end(e);
}

cudaError_t cudaGetDevice(int *device)
{
	cudaError_t e = begin("cudaGetDevice", cudaErrorInitializationError);

	if (!e)
		*device = current;
	return emu_end(e);
}

cudaError_t cudaDriverGetVersion(int *version)
{
	cudaError_t e = emu_begin("cudaDriverGetVersion", cudaErrorInvalidValue);

	if (!e)
		*version = driver();
	return emu_end(e);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	cudaError_t e = emu_begin("cudaRuntimeGetVersion", cudaErrorInvalidValue);

	if (!e)
		*version = CUDART_VERSION;
	return emu_end(e);
}

static int arch(bool other)
{
	uint64_t first = emu_setting("DIFFTP_EMU_ARCH", 90);

	return (int)(other ? emu_setting("DIFFTP_EMU_OTHER_ARCH", first) : first);
}

bool emu_device_properties(int device, struct cudaDeviceProp *p)
{
	int physical[MAX_DEVICES];

	if (device < 0 || device >= devices_and(physical))
		return false;
	bool other = is_other(physical[device]);
	*p = (struct cudaDeviceProp){
		.totalGlobalMem = emu_device_memory(device), .sharedMemPerBlock = SHARED, .regsPerBlock = 65536, .warpSize = 32,
		.maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {2147483647, 65535, 65535},
		.totalConstMem = 65536, .major = arch(other) / 10, .minor = arch(other) % 10, .multiProcessorCount = 132,
		.concurrentKernels = 1, .ECCEnabled = 1, .pciBusID = physical[device] + 1, .asyncEngineCount = 3,
		.unifiedAddressing = 1, .memoryBusWidth = 5120, .l2CacheSize = 50 << 20, .maxThreadsPerMultiProcessor = 2048,
		.sharedMemPerMultiprocessor = 228 << 10, .regsPerMultiprocessor = 65536, .sharedMemPerBlockOptin = SHARED_OPTIN,
		.maxBlocksPerMultiProcessor = 32, .reservedSharedMemPerBlock = 1024,
	};
	snprintf(p->name, sizeof p->name, "%s GPU", other ? "Other" : "Emulated");
	snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "emulated %d", physical[device]);
	return true;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
	cudaError_t e = begin("cudaGetDeviceProperties", cudaErrorInvalidDevice);

	if (!e && !emu_device_properties(device, p))
		e = cudaErrorInvalidDevice;
	return emu_end(e);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
	struct cudaDeviceProp p;
	cudaError_t e = begin("cudaDeviceGetAttribute", cudaErrorInvalidDevice);

	if (!e && !emu_device_properties(device, &p))
		e = cudaErrorInvalidDevice;
	if (!e)
		switch (attribute) {
		case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
		case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
		case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
		case cudaDevAttrWarpSize: *value = p.warpSize; break;
		case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
		case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
		case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
		case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
		case cudaDevAttrEccEnabled: *value = p.ECCEnabled; break;
		case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
		case cudaDevAttrClockRate: *value = 1980000; break;
		case cudaDevAttrMemoryClockRate: *value = 2619000; break;
		default: emu_misuse("cudaDeviceGetAttribute of %d, which is not emulated", (int)attribute);
		}
	return emu_end(e);
}

/* What dynamic shared memory a kernel may have. */
size_t emu_shared_limit(const void *kernel)
{
	size_t n = SHARED;

	emu_lock();
	for (size_t i = 0; i < nkernels; i++)
		if (kernels[i].function == kernel)
			n = kernels[i].shared;
	emu_unlock();
	return n;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
	cudaError_t e = begin("cudaFuncSetAttribute", cudaErrorInvalidValue);

	if (!e && attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
		emu_misuse("cudaFuncSetAttribute of %d, which is not emulated", (int)attribute);
	if (!e && (value < 0 || value > SHARED_OPTIN))
		e = cudaErrorInvalidValue;
	if (!e) {
		size_t i = 0;
		while (i < nkernels && kernels[i].function != function)
			i++;
		if (i == MAX_KERNELS)
			emu_misuse("more than %d kernels", MAX_KERNELS);
		nkernels = i == nkernels ? nkernels + 1 : nkernels;
		kernels[i].function = function;
		kernels[i].shared = (size_t)value;
	}
	return emu_end(e);
}
