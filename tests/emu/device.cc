/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a grid: block by block, the threads of a block as fibers, which switch where a kernel waits. */
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emu.h"
#include "fiber.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

static constexpr unsigned WARP = 32, MOST_THREADS = 1024, MOST_ARRAYS = 16;
static constexpr size_t STACK = 128 << 10, GUARD = 4096, MOST_CLOSURE = 512, GAP = 64 /* between shared arrays */;

enum state { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct fiber {
	uint3 thread;
	enum state state;
	unsigned number; /* in its block */
	char *stack;     /* its lowest byte */
	void *sp;        /* where it goes on */
	void *fake;      /* the address sanitizer's */
};

/* Lanes of one shuffle may still read what was given while others are at the next: two sets take turns. */
struct warp {
	uint64_t given[2][WARP];
	uint32_t arrived, turn;
};

struct shared_array {
	const void *declaration;
	size_t begin, size;
};

/* What is queued on a stream. */
struct launch {
	const char *name;
	dim3 grid, block;
	void (*body)(void *);
	alignas(16) char closure[MOST_CLOSURE];
};

/* One grid runs at a time, whichever thread of the process drains a stream: all of this is its.  The lock knows its thread: a signal
 * handler may have jumped out of a kernel that went wrong. */
static pthread_mutex_t running = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static fiber fibers[MOST_THREADS];
static warp warps[MOST_THREADS / WARP];
static launch *grid;
static unsigned threads, ended, at_barrier;
static uint64_t launches, block_number, epoch;
alignas(128) static char shared[EMU_SHARED_BYTES];
static shared_array arrays[MOST_ARRAYS];
static unsigned narrays;
static size_t shared_used;
static void *turns_sp; /* where turns are given */
static const void *turns_stack;
static size_t turns_stack_size;
static __thread fiber *current;
struct emu_place emu_here;

/* ---- fibers */
extern "C" void emu_switch(void **save, void *load);
#ifdef __x86_64__
asm(".text\n.globl emu_switch\n.type emu_switch, @function\nemu_switch:\n"
    "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
    "	mov %rsp, (%rdi)\n	mov %rsi, %rsp\n"
    "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n	ret\n"
    ".size emu_switch, .-emu_switch\n");
static constexpr size_t SAVED = 6; /* registers */
#else
#error "the emulator's fibers are written for x86-64: write emu_switch for this processor"
#endif

static void before_switch(void **fake, const void *bottom, size_t size)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(fake, bottom, size);
#else
	(void)fake, (void)bottom, (void)size;
#endif
}

static void after_switch(void *fake, const void **bottom, size_t *size)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(fake, bottom, size);
#else
	(void)fake, (void)bottom, (void)size;
#endif
}

static void enter(fiber *f)
{
	void *fake;

	current = f;
	emu_here.thread = f->thread;
	before_switch(&fake, f->stack, STACK);
	emu_switch(&turns_sp, f->sp);
	after_switch(fake, nullptr, nullptr);
	current = nullptr;
}

static void leave(fiber *f)
{
	before_switch(f->state == DONE ? nullptr : &f->fake, turns_stack, turns_stack_size);
	emu_switch(&f->sp, turns_sp);
	after_switch(f->fake, &turns_stack, &turns_stack_size);
}

static void release_barrier()
{
	if (at_barrier == 0 || at_barrier < threads - ended)
		return;
	for (unsigned i = 0; i < threads; i++)
		if (fibers[i].state == AT_BARRIER)
			fibers[i].state = READY;
	at_barrier = 0;
	epoch++;
}

static void run_fiber()
{
	fiber *f = current;

	after_switch(nullptr, &turns_stack, &turns_stack_size);
	grid->body(grid->closure);
	f->state = DONE;
	ended++;
	release_barrier(); /* who has ended is no longer waited for */
	leave(f);
	abort();
}

static void prepare(fiber *f, unsigned number)
{
	const dim3 &d = grid->block;

	if (!f->stack) {
		void *p = mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE))
			abort();
		f->stack = static_cast<char *>(p) + GUARD;
	}
	ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK);
	f->thread = {number % d.x, number / d.x % d.y, number / d.x / d.y};
	f->state = READY;
	f->number = number;
	f->fake = nullptr;
	/* As if emu_switch had been called at the beginning of run_fiber: a return address, saved registers below it. */
	void **sp = reinterpret_cast<void **>(f->stack + STACK) - 2;
	*sp-- = reinterpret_cast<void *>(run_fiber);
	memset(sp - SAVED + 1, 0, SAVED * sizeof *sp);
	f->sp = sp - SAVED + 1;
}

/* ---- what a kernel calls */
void emu_barrier()
{
	fiber *f = current;

	f->state = AT_BARRIER;
	at_barrier++;
	release_barrier();
	if (f->state == AT_BARRIER)
		leave(f);
}

uint64_t emu_exchange(uint32_t lanes, uint64_t bits, int distance)
{
	fiber *f = current;
	unsigned lane = f->number % WARP, first = f->number - lane;
	warp *w = &warps[f->number / WARP];
	uint64_t *given = w->given[w->turn % 2];

	if (lanes != 0xffffffffu || distance < 0 || distance >= static_cast<int>(WARP))
		emu_misuse("%s: a shuffle of lanes %#x over %d: only whole warps and distances below 32 are known here", grid->name, lanes,
			   distance);
	given[lane] = bits;
	w->arrived |= 1u << lane;
	if (w->arrived == 0xffffffffu) {
		w->arrived = 0;
		w->turn++;
		for (unsigned i = first; i < first + WARP; i++)
			if (fibers[i].state == AT_SHUFFLE)
				fibers[i].state = READY;
	} else {
		f->state = AT_SHUFFLE;
		leave(f);
	}
	return given[lane ^ static_cast<unsigned>(distance)];
}

void *emu_shared(const void *declaration, size_t size, size_t align)
{
	for (unsigned i = 0; i < narrays; i++)
		if (arrays[i].declaration == declaration)
			return shared + arrays[i].begin;
	size_t begin = (shared_used + align - 1) / align * align;
	if (narrays == MOST_ARRAYS || begin + size > sizeof shared)
		emu_misuse("%s: more than %u arrays or %zu bytes of shared memory", grid->name, MOST_ARRAYS, sizeof shared);
	arrays[narrays++] = {declaration, begin, size};
	/* The gap does not count: a kernel may use all of the 48 KiB as long as its arrays are few. */
	shared_used = begin + size + GAP <= sizeof shared ? begin + size + GAP : begin + size;
	ASAN_UNPOISON_MEMORY_REGION(shared + begin, size);
	return shared + begin;
}

/* ---- what watches a kernel */
bool emu_running(struct emu_spot *spot)
{
	fiber *f = current;

	if (f)
		*spot = {grid->name, launches, block_number, f->number, epoch};
	return f;
}

static bool lies_in(const void *p, size_t size, const void *begin, size_t length)
{
	uintptr_t a = reinterpret_cast<uintptr_t>(p), b = reinterpret_cast<uintptr_t>(begin);
	return a >= b && size <= length && a - b <= length - size;
}

enum emu_place_kind emu_where_is(const void *p, size_t size, bool write, size_t *offset)
{
	if (lies_in(p, size, current->stack, STACK) ||
	    (!write && (lies_in(p, size, grid->closure, MOST_CLOSURE) || lies_in(p, size, &emu_here, sizeof emu_here))))
		return EMU_OWN;
	if (!lies_in(p, 1, shared, sizeof shared))
		return EMU_ELSEWHERE;
	*offset = static_cast<size_t>(static_cast<const char *>(p) - shared);
	for (unsigned i = 0; i < narrays; i++)
		if (lies_in(p, size, shared + arrays[i].begin, arrays[i].size))
			return EMU_SHARED;
	return EMU_SHARED_GAP;
}

/* ---- grids */
/* The i-th of n to take its turn. */
static uint64_t turn(const char *order, uint64_t i, uint64_t n)
{
	if (!order || !strcmp(order, "forward"))
		return i;
	if (!strcmp(order, "reverse"))
		return n - 1 - i;
	if (!strcmp(order, "rotated"))
		return (i + n / 2) % n;
	emu_misuse("DIFFTP_EMU_ORDER is '%s': forward, reverse and rotated are known", order);
}

static void run_block(const char *order, uint64_t number)
{
	const dim3 &g = grid->grid;

	emu_here.block = {static_cast<unsigned>(number % g.x), static_cast<unsigned>(number / g.x % g.y), static_cast<unsigned>(number / g.x / g.y)};
	emu_here.block_dim = grid->block;
	emu_here.grid_dim = g;
	block_number = number;
	ended = at_barrier = narrays = 0;
	epoch = shared_used = 0;
	ASAN_UNPOISON_MEMORY_REGION(shared, sizeof shared);
	memset(shared, 0xff, sizeof shared);
	ASAN_POISON_MEMORY_REGION(shared, sizeof shared);
	memset(warps, 0, sizeof warps);
	for (unsigned i = 0; i < threads; i++)
		prepare(&fibers[i], i);
	while (ended < threads) {
		bool progress = false;
		for (unsigned i = 0; i < threads; i++) {
			fiber *f = &fibers[turn(order, i, threads)];
			if (f->state != READY)
				continue;
			enter(f);
			progress = true;
		}
		if (!progress)
			emu_misuse("%s: block %llu does not go on: %u of %u threads have ended, %u are at a barrier, %u wait for lanes that do "
				   "not come to their shuffle", grid->name, static_cast<unsigned long long>(number), ended, threads, at_barrier,
				   threads - ended - at_barrier);
	}
}

/* What a pointer among the arguments points to is where a kernel begins to read or to write; which of both, and how far, is not known
 * here (shadow.cc knows it). */
static void use_arguments(const launch *l)
{
	for (size_t i = 0; i < sizeof l->closure; i += sizeof(void *)) {
		void *p;
		memcpy(&p, l->closure + i, sizeof p);
		emu_uses(p, 1, false);
	}
}

static bool run_grid(void *arg)
{
	const char *order = getenv("DIFFTP_EMU_ORDER");

	if (pthread_mutex_lock(&running))
		emu_misuse("%s: a kernel before it was left in the middle, by a signal", static_cast<launch *>(arg)->name);
	grid = static_cast<launch *>(arg);
	use_arguments(grid);
	threads = grid->block.x * grid->block.y * grid->block.z;
	launches++;
	uint64_t blocks = static_cast<uint64_t>(grid->grid.x) * grid->grid.y * grid->grid.z;
	for (uint64_t i = 0; i < blocks; i++)
		run_block(order, turn(order, i, blocks));
	emu_grid_over();
	pthread_mutex_unlock(&running);
	return true;
}

cudaError_t emu_launch(const char *name, const cudaLaunchConfig_t *c, void (*body)(void *closure), const void *closure, size_t size)
{
	int code = cudaErrorLaunchOutOfResources;
	const dim3 &g = c->gridDim, &b = c->blockDim;
	launch l = {name, g, b, body, {}};

	if (emu_call("cudaLaunchKernelExC", &code))
		return static_cast<cudaError_t>(code);
	if (c->dynamicSmemBytes || c->numAttrs || size > sizeof l.closure)
		emu_misuse("%s: no dynamic shared memory, no attributes and at most %zu bytes of arguments are known here", name, sizeof l.closure);
	/* The limits of every compute capability from 8.0 on. */
	uint64_t in_block = static_cast<uint64_t>(b.x) * b.y * b.z;
	if (g.x < 1 || g.y < 1 || g.z < 1 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || in_block < 1 || in_block > MOST_THREADS || b.z > 64)
		return cudaErrorInvalidConfiguration;
	if (in_block % WARP)
		emu_misuse("%s: %llu threads in a block, which are no whole warps", name, static_cast<unsigned long long>(in_block));
	memcpy(l.closure, closure, size);
	return emu_enqueue(c->stream, run_grid, &l, sizeof l, name);
}
