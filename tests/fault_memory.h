/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAULT_MEMORY_H
#define FAULT_MEMORY_H

#include <stddef.h>

/* Absent where another allocator must come first (sanitizers). */
void end_of_memory(void) __attribute__((weak));
#endif
