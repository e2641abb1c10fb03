/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: device and pinned memory.
 * Each allocation has pages of its own, which end in one that may not be touched, and the allocation ends as close to that as its
 * alignment of 256 bytes lets it; the bytes around it are checked when it is freed.  New memory is NaN throughout.  Addresses are
 * never given out twice, and those of freed memory may not be touched.  In deferred mode device memory may be touched only while
 * work of a stream runs: the host finds nothing there, as on a GPU. */
#include "runtime.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 256, POISON = 0xff, MARGIN = 0xa5, PAGE = 4096 };

struct block {
	char *pages, *base;
	size_t npages, size; /* bytes */
	enum emu_memory kind;
	int device;
	bool alive, open;
	struct emu_spans *spans; /* order.c */
};

/* Addresses are given out in ascending order: the array is sorted by them. */
static struct heap {
	char *begin, *next, *end;
	struct block *blocks;
	size_t n, room;
} device_heap, pinned_heap;

static struct sigaction former;
static size_t opened[65536], nopen; /* numbers of device blocks */

static struct heap *heap_of(enum emu_memory kind)
{
	return kind == EMU_DEVICE ? &device_heap : &pinned_heap;
}

/* The block whose pages p lies in, alive or not. */
static struct block *block_at(const struct heap *h, const char *p)
{
	size_t low = 0, high = h->n;

	while (low < high) {
		size_t mid = (low + high) / 2;
		if (p >= h->blocks[mid].pages + h->blocks[mid].npages)
			low = mid + 1;
		else
			high = mid;
	}
	return low < h->n && p >= h->blocks[low].pages ? &h->blocks[low] : NULL;
}

static struct block *any_block(const void *p)
{
	struct block *b = block_at(&device_heap, p);

	return b ? b : block_at(&pinned_heap, p);
}

static const char *kind_name(enum emu_memory kind)
{
	return kind == EMU_DEVICE ? "device" : kind == EMU_PINNED ? "pinned host" : "pageable host";
}

static bool within(const struct heap *h, const void *p)
{
	return (const char *)p >= h->begin && (const char *)p < h->end;
}

static void protect(const struct block *b, int rights)
{
	if (mprotect(b->pages, b->npages - PAGE, rights)) /* the last page is never open */
		emu_misuse("mprotect of %zu bytes failed", b->npages);
}

/* In deferred mode device memory opens when work first touches it, until the call that runs it gives the lock back. */
static bool let_work_touch(struct block *b, const char *p)
{
	if (emu_mode() != EMU_DEFERRED || b->kind != EMU_DEVICE || !b->alive || b->open || p >= b->pages + b->npages - PAGE ||
	    nopen == sizeof opened / sizeof opened[0])
		return false;
	protect(b, PROT_READ | PROT_WRITE);
	b->open = true;
	opened[nopen++] = (size_t)(b - device_heap.blocks);
	return true;
}

/* A touch of what may not be touched. */
static void touched(int number, siginfo_t *info, void *context)
{
	const char *p = info->si_addr, *who = emu_running();
	char place[160];
	struct block *b;

	(void)context;
	if (!within(&device_heap, p) && !within(&pinned_heap, p)) {
		sigaction(number, &former, NULL); /* somebody else's: happens again, and is theirs */
		return;
	}
	b = any_block(p);
	if (b && who && let_work_touch(b, p))
		return;
	if (!b)
		snprintf(place, sizeof place, "%p, which lies behind an allocation or in none", (const void *)p);
	else
		snprintf(place, sizeof place, "byte %td of %s%s memory of %zu bytes", p - b->base, b->alive ? "" : "freed ",
			 kind_name(b->kind), b->size);
	if (who)
		emu_misuse("%s touches %s", who, place);
	emu_misuse("the host touches %s", place);
}

static void reserve(struct heap *h)
{
	for (size_t size = (size_t)1 << 40; !h->begin; size /= 4) {
		void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p != MAP_FAILED) {
			h->begin = h->next = p;
			h->end = h->begin + size;
		} else if (size < (size_t)1 << 32) {
			emu_misuse("no addresses left for the emulated memory");
		}
	}
}

static void start(void)
{
	struct sigaction a = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};

	if (device_heap.begin)
		return;
	reserve(&device_heap);
	reserve(&pinned_heap);
	sigaction(SIGSEGV, &a, &former);
}

void emu_heap_close(void)
{
	for (; nopen; nopen--) {
		struct block *b = &device_heap.blocks[opened[nopen - 1]];
		b->open = false;
		if (b->alive)
			protect(b, PROT_NONE);
	}
}

static uint64_t in_use(int device)
{
	bool late = emu_setting("DIFFTP_EMU_TAKEN_AT", 0) > device_heap.n;
	uint64_t n = late ? 0 : emu_setting("DIFFTP_EMU_TAKEN", 0);

	for (size_t i = 0; i < device_heap.n; i++)
		if (device_heap.blocks[i].alive && device_heap.blocks[i].device == device)
			n += device_heap.blocks[i].size;
	return n < emu_device_memory(device) ? n : emu_device_memory(device);
}

static struct block *block_new(enum emu_memory kind, size_t size)
{
	struct heap *h = heap_of(kind);

	start();
	if (size > (size_t)(h->end - h->next) / 2)
		return NULL;
	size_t whole = (size + ALIGN - 1) / ALIGN * ALIGN, pages = (whole + PAGE - 1) / PAGE * PAGE + PAGE;
	if (pages > (size_t)(h->end - h->next))
		return NULL;
	if (h->n == h->room) {
		h->room = h->room ? 2 * h->room : 64;
		h->blocks = realloc(h->blocks, h->room * sizeof *h->blocks);
		if (!h->blocks)
			emu_misuse("no memory for the emulator's own lists");
	}
	struct block *b = &h->blocks[h->n++];
	*b = (struct block){.pages = h->next, .npages = pages, .base = h->next + pages - PAGE - whole, .size = size, .kind = kind,
			    .device = emu_device(), .alive = true};
	h->next += pages;
	protect(b, PROT_READ | PROT_WRITE);
	memset(b->pages, MARGIN, pages - PAGE);
	memset(b->base, POISON, size);
	if (kind == EMU_DEVICE && emu_mode() == EMU_DEFERRED)
		protect(b, PROT_NONE);
	return b;
}

static void check_margins(const struct block *b)
{
	const char *end = b->pages + b->npages - PAGE;

	protect(b, PROT_READ | PROT_WRITE);
	for (const char *p = b->pages; p < end; p++)
		if ((p < b->base || p >= b->base + b->size) && *(const unsigned char *)p != MARGIN)
			emu_misuse("byte %td of %s memory of %zu bytes was written", p - b->base, kind_name(b->kind), b->size);
}

static void block_free(void *p, enum emu_memory kind, const char *call)
{
	struct block *b = block_at(heap_of(kind), p);
	const char *user;

	if (!b || p != b->base)
		emu_misuse("%s of %p, which %s memory does not begin at", call, p, kind_name(kind));
	if (!b->alive)
		emu_misuse("%s of %s memory of %zu bytes that was freed before", call, kind_name(kind), b->size);
	if (emu_waits_for_range(b->base, b->size, &user))
		emu_misuse("%s of %s memory of %zu bytes that '%s' still waits to use", call, kind_name(kind), b->size, user);
	check_margins(b);
	emu_spans_free(b->spans);
	b->spans = NULL;
	b->alive = false;
	protect(b, PROT_NONE);
	madvise(b->pages, b->npages, MADV_DONTNEED);
}

struct emu_range emu_find(const void *p)
{
	struct emu_range r = {.kind = EMU_UNKNOWN};

	emu_lock();
	const struct block *b = any_block(p);
	if (b && b->alive && (const char *)p >= b->base && (const char *)p < b->base + b->size)
		r = (struct emu_range){.kind = b->kind, .base = b->base, .size = b->size};
	emu_unlock();
	return r;
}

struct emu_spans **emu_spans_at(const void *p)
{
	struct block *b = any_block(p);

	return b && b->alive && (const char *)p >= b->base && (const char *)p < b->base + b->size ? &b->spans : NULL;
}

bool emu_in_heap(const void *p)
{
	return within(&device_heap, p);
}

int emu_range_device(const void *p)
{
	const struct block *b = block_at(&device_heap, p);

	return b ? b->device : -1;
}

void emu_check(const void *p, size_t size, enum emu_memory kind, const char *what)
{
	if (!size)
		return;
	const struct block *b = any_block(p);
	if (!b)
		emu_misuse("%s: %p is no %s memory", what, p, kind_name(kind));
	if (!b->alive)
		emu_misuse("%s: byte %td of %s memory of %zu bytes that was freed", what, (const char *)p - b->base, kind_name(b->kind),
			   b->size);
	if (b->kind != kind)
		emu_misuse("%s: %p is %s memory, not %s memory", what, p, kind_name(b->kind), kind_name(kind));
	if ((const char *)p < b->base || size > b->size || (size_t)((const char *)p - b->base) > b->size - size)
		emu_misuse("%s: bytes [%td, %td) of %s memory of %zu bytes", what, (const char *)p - b->base,
			   (const char *)p - b->base + (ptrdiff_t)size, kind_name(kind), b->size);
}

void emu_device_range(const void *p, size_t size, const char *what)
{
	emu_lock();
	emu_check(p, size, EMU_DEVICE, what);
	emu_unlock();
}

unsigned emu_memory_leaks(char *text, size_t size)
{
	const struct heap *const heaps[] = {&device_heap, &pinned_heap};
	unsigned n = 0;

	for (size_t i = 0; i < 2; i++)
		for (size_t j = 0; j < heaps[i]->n; j++) {
			const struct block *b = &heaps[i]->blocks[j];
			if (!b->alive)
				continue;
			check_margins(b);
			size_t used = strlen(text);
			snprintf(text + used, size - used, " %s memory of %zu bytes;", kind_name(b->kind), b->size);
			n++;
		}
	return n;
}

void *emu_device_new(size_t size)
{
	struct block *b = NULL;

	emu_lock();
	if (size && size <= emu_device_memory(emu_device()) - in_use(emu_device()))
		b = block_new(EMU_DEVICE, size);
	emu_unlock();
	return b ? b->base : NULL;
}

void emu_device_free(void *p, const char *call)
{
	emu_lock();
	struct emu_spans **spans = emu_spans_at(p);
	const char *user = spans && !emu_sticky() ? emu_spans_used(*spans) : NULL;
	if (user)
		emu_misuse("%s of memory that '%s' may still use: nobody has waited for it", call, user);
	block_free(p, EMU_DEVICE, call);
	emu_unlock();
}

/* ---- the calls */

cudaError_t cudaMalloc(void **p, size_t size)
{
	cudaError_t e = emu_begin("cudaMalloc", cudaErrorMemoryAllocation);

	if (!e) {
		emu_not_while_capturing("cudaMalloc");
		uint64_t used = in_use(emu_device());
		struct block *b = NULL;
		*p = NULL;
		if (size && size <= emu_device_memory(emu_device()) - used)
			b = block_new(EMU_DEVICE, size);
		if (b)
			*p = b->base;
		else if (size)
			e = cudaErrorMemoryAllocation;
	}
	return emu_end(e);
}

/* What frees does so even when it fails: an error of it is one of the work before. */
cudaError_t cudaFree(void *p)
{
	cudaError_t e = emu_begin("cudaFree", cudaErrorLaunchFailure);

	if (p) {
		emu_not_while_capturing("cudaFree");
		emu_drain();
		block_free(p, EMU_DEVICE, "cudaFree");
	}
	return emu_end(e);
}

static cudaError_t host_alloc(const char *call, void **p, size_t size)
{
	cudaError_t e = emu_begin(call, cudaErrorMemoryAllocation);

	if (!e) {
		emu_not_while_capturing(call);
		struct block *b = size ? block_new(EMU_PINNED, size) : NULL;
		*p = b ? b->base : NULL;
		if (size && !b)
			e = cudaErrorMemoryAllocation;
	}
	return emu_end(e);
}

cudaError_t cudaHostAlloc(void **p, size_t size, unsigned flags)
{
	if (flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined))
		emu_misuse("cudaHostAlloc with flags %#x", flags);
	return host_alloc("cudaHostAlloc", p, size);
}

cudaError_t cudaMallocHost(void **p, size_t size)
{
	return host_alloc("cudaMallocHost", p, size);
}

cudaError_t cudaFreeHost(void *p)
{
	cudaError_t e = emu_begin("cudaFreeHost", cudaErrorLaunchFailure);

	if (p) {
		emu_not_while_capturing("cudaFreeHost");
		block_free(p, EMU_PINNED, "cudaFreeHost");
	}
	return emu_end(e);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	cudaError_t e = emu_begin("cudaMemGetInfo", cudaErrorInvalidDevice);

	if (!e) {
		*total = emu_device_memory(emu_device());
		*available = *total - in_use(emu_device());
	}
	return emu_end(e);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
	cudaError_t e = emu_begin("cudaPointerGetAttributes", cudaErrorInvalidValue);

	if (!e) {
		struct emu_range r = emu_find(p);
		void *address = (void *)(uintptr_t)p;
		memset(a, 0, sizeof *a);
		a->type = r.kind == EMU_DEVICE ? cudaMemoryTypeDevice :
			  r.kind == EMU_PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
		a->device = r.kind == EMU_DEVICE ? emu_range_device(p) : r.kind == EMU_PINNED ? emu_device() : -2;
		a->devicePointer = r.kind == EMU_UNKNOWN ? NULL : address;
		a->hostPointer = r.kind == EMU_DEVICE ? NULL : address;
	}
	return emu_end(e);
}
