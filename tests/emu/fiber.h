/* SPDX-License-Identifier: Apache-2.0 */
/* The running thread of a kernel, for what watches its accesses. */
#ifndef EMU_FIBER_H
#define EMU_FIBER_H

#include <stddef.h>
#include <stdint.h>

struct emu_spot {
	const char *kernel;
	uint64_t launch, block; /* numbers; blocks of a grid count from 0 */
	unsigned thread;        /* of its block */
	uint64_t epoch;         /* barriers that the block has passed */
};

/* False where no kernel runs on this thread of the process. */
bool emu_running(struct emu_spot *spot);

/* The grid that runs has come to its end: what watched it tells what it used. */
void emu_grid_over(void);

enum emu_place_kind {
	EMU_OWN,        /* its stack, its arguments, where it is */
	EMU_SHARED,     /* of a declared array of its block; *offset from the beginning of the block's shared memory */
	EMU_SHARED_GAP, /* shared memory that no array has */
	EMU_ELSEWHERE
};
enum emu_place_kind emu_where_is(const void *p, size_t size, bool write, size_t *offset);

enum { EMU_SHARED_BYTES = 48 << 10 };
#endif
