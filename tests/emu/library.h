/* SPDX-License-Identifier: Apache-2.0 */
/* Whose functions the program under test gets. */
#ifndef EMU_LIBRARY_H
#define EMU_LIBRARY_H

#include "emu.h"

#include "../../cuda/cuda.h"

/* cuda/library.c's dtp_cuda_symbol: the library's own function, or NULL with why. */
void *emu_real_symbol(enum dtp_cuda_library lib, const char *name, char *why, size_t size);

/* The stand-in's function of that name or, where there is none, the library's own; NULL with why. */
void *emu_cublaslt(const char *name, char *why, size_t size);
void *emu_cudnn(const char *name, char *why, size_t size);
void *emu_nccl(const char *name, char *why, size_t size);
#endif
