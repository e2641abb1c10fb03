/* SPDX-License-Identifier: Apache-2.0 */
/* In place of cuda/library.c: functions that need a GPU are stood in for, the others are those of NVIDIA's libraries. */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define dtp_cuda_symbol emu_real_symbol
#include "../../cuda/library.c"
#undef dtp_cuda_symbol

/* DIFFTP_EMU_MISSING=cublasLt, cudnn or nccl: what begins so is not to be found. */
static bool missing(const char *name)
{
	const char *prefix = getenv("DIFFTP_EMU_MISSING");

	return prefix && *prefix && !strncmp(name, prefix, strlen(prefix));
}

void *dtp_cuda_symbol(enum dtp_cuda_library lib, const char *name, char *why, size_t size)
{
	if (missing(name)) {
		snprintf(why, size, "the emulator hides it");
		return NULL;
	}
	switch (lib) {
	case DTP_LIB_CUBLASLT:
		return emu_cublaslt(name, why, size);
	case DTP_LIB_CUDNN:
		return emu_cudnn(name, why, size);
	case DTP_LIB_NCCL:
		return emu_nccl(name, why, size);
	default:
		snprintf(why, size, "nothing stands in for '%s'", name);
		return NULL;
	}
}

/* NVIDIA's libraries keep what they never free; the leak checker is not to tell of it.  What they are given of handles and descriptors is
 * counted (emu_hold). */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
	return "print_suppressions=0";
}
const char *__lsan_default_suppressions(void)
{
	return "leak:libcublasLt\nleak:libcudnn\nleak:libnvrtc\n";
}
