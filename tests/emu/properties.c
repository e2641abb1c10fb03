/* SPDX-License-Identifier: Apache-2.0 */
#include "properties.h"

#include <stdint.h>
#include <stdio.h>

static const struct gpu {
	int sm;
	const char *name;
	int multiprocessors, blocks, threads; /* blocks and threads of one multiprocessor */
	int shared_kb;                        /* that a block may ask for */
	int clock_mhz, memory_mhz, l2_mb, memory_gb;
} gpus[] = {
	{80, "NVIDIA A100 80GB", 108, 32, 2048, 163, 1410, 1512, 40, 80},
	{86, "NVIDIA RTX A6000", 84, 16, 1536, 99, 1800, 8001, 6, 48},
	{89, "NVIDIA L40S", 142, 24, 1536, 99, 2520, 9001, 96, 48},
	{90, "NVIDIA H100 80GB", 132, 32, 2048, 227, 1980, 2619, 50, 80},
	{100, "NVIDIA B200", 148, 32, 2048, 227, 1965, 3996, 126, 180},
	{120, "NVIDIA GeForce RTX 5090", 170, 24, 1536, 99, 2407, 14001, 96, 32},
};

const char *emu_properties(int sm, int device, char *buf, size_t size)
{
	const struct gpu *g = NULL;

	for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
		if (gpus[i].sm == sm)
			g = &gpus[i];
	if (!g)
		return NULL;
	snprintf(buf, size,
		 "{\"deviceName\":\"%s\",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
		 "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
		 "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":1024,"
		 "\"maxThreadsPerSM\":%d,\"pciDeviceId\":%d,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":%llu,"
		 "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"l2CacheSize\":%d,\"cudaDeviceId\":%d,\"deviceVer\":%d,\"driverVer\":13000}",
		 g->name, g->multiprocessors, g->shared_kb << 10, g->blocks, g->threads, device, (unsigned long long)g->memory_gb << 30,
		 g->clock_mhz * 1000, g->memory_mhz * 1000, g->l2_mb << 20, device, sm * 10);
	return buf;
}
