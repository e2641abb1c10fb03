/* SPDX-License-Identifier: Apache-2.0 */
/* The part of fault_preload.c that takes a process's memory away: from then on an allocation of a page or more fails.  Smaller
 * ones still find room in what the heap has, as they mostly do where memory runs out. */
#include "fault_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST 4096

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static atomic_bool gone;

void end_of_memory(void)
{
	gone = 1;
}

static int fails(size_t size)
{
	if (!gone || size < LEAST)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t size)
{
	return fails(size) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return fails(size && n > LEAST / size ? LEAST : n * size) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return fails(size) ? NULL : __libc_realloc(p, size);
}

void *memalign(size_t align, size_t size)
{
	return fails(size) ? NULL : __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
	return memalign(align, size);
}

int posix_memalign(void **p, size_t align, size_t size)
{
	void *q = memalign(align, size);

	if (!q)
		return ENOMEM;
	*p = q;
	return 0;
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	if (flags & MAP_ANONYMOUS && fails(size))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}
