/* SPDX-License-Identifier: Apache-2.0 */
/* Sees every access of a kernel that was compiled with -fsanitize=thread (make EMULATE=shadow): the compiler puts a call before each, and
 * these functions stand in for the sanitizer's own.  Each byte of device and of shared memory remembers its last writer and its last
 * readers: the launch, the block, the thread, and how many barriers the block had passed.  Two accesses, one of them a write, that
 * nothing orders are a race: of different blocks of a launch, or of different threads between the same two barriers.  Accesses outside of
 * device memory or of a shared array, at addresses that are no multiple of their size, and reads of shared memory that nobody
 * has written are errors too.  All end the process, as any misuse does. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "emu.h"
#include "fiber.h"

/* Who has accessed a byte last; all 0: nobody. */
struct stamp {
	uint64_t launch : 24, block : 16, thread : 11, epoch : 13;
};
static constexpr unsigned BLOCKS = 0xffff, MANY_BLOCKS = 0xffff; /* numbers are taken modulo BLOCKS */
static constexpr unsigned MANY_THREADS = 1024;

struct cell {
	stamp write, read;
};

/* Only a running kernel comes here, and only one runs at a time. */
static cell shared_cells[EMU_SHARED_BYTES];
static constexpr uintptr_t PAGE = 64 << 10;
static std::unordered_map<uintptr_t, cell *> pages; /* by address / PAGE */
static struct {
	uintptr_t page;
	cell *cells;
} recent[64]; /* at page % 64 */
/* Allocations that the launch has touched: none comes or goes while it runs. */
static struct emu_range ranges[16];
static unsigned nranges;
static uint64_t ranges_of;

/* Bytes of device memory that the launch has read and written, by address / 64, a bit each: for order.c. */
struct line {
	uint64_t read, write;
};
static std::unordered_map<uintptr_t, line> touched;
static bool watching; /* there is code that calls the functions below */

struct access {
	const char *p;
	size_t size;
	bool write;
	void *pc;
	struct emu_spot spot;
};

/* A line for addr2line. */
[[noreturn]] static void report(const struct access *a, const char *what, const stamp *other)
{
	Dl_info in = {};
	size_t offset = dladdr(a->pc, &in) ? static_cast<size_t>(static_cast<char *>(a->pc) - static_cast<char *>(in.dli_fbase)) : 0;
	char before[96] = "";

	if (other)
		snprintf(before, sizeof before, ", after block %u, thread %u%s", static_cast<unsigned>(other->block),
			 static_cast<unsigned>(other->thread), other->thread == MANY_THREADS ? " (many)" : "");
	emu_misuse("%s: block %llu, thread %u %s %zu bytes at %p: %s%s (addr2line -e %s %#zx)", a->spot.kernel,
		   static_cast<unsigned long long>(a->spot.block), a->spot.thread, a->write ? "writes" : "reads", a->size,
		   static_cast<const void *>(a->p), what, before, in.dli_fname ? in.dli_fname : "?", offset);
}

static stamp stamp_of(const struct emu_spot *s)
{
	stamp t;
	t.launch = s->launch & 0xffffff;
	t.block = s->block % BLOCKS;
	t.thread = s->thread;
	t.epoch = s->epoch & 0x1fff;
	return t;
}

/* Whether nothing orders an earlier access and this one. */
static bool races(stamp earlier, stamp now)
{
	return earlier.launch == now.launch &&
	       (earlier.block != now.block || (earlier.epoch == now.epoch && earlier.thread != now.thread));
}

static void visit(const struct access *a, cell *c, stamp now)
{
	if (races(c->write, now))
		report(a, a->write ? "a race with another write" : "a race with a write", &c->write);
	if (a->write) {
		if (races(c->read, now))
			report(a, "a race with a read", &c->read);
		c->write = now;
		return;
	}
	if (c->read.launch == now.launch && c->read.block != now.block)
		now.block = MANY_BLOCKS;
	if (c->read.launch == now.launch && c->read.epoch == now.epoch && c->read.thread != now.thread)
		now.thread = MANY_THREADS;
	c->read = now;
}

static bool of_block(stamp earlier, stamp now)
{
	return earlier.launch == now.launch && earlier.block == now.block;
}

static cell *cells_of(uintptr_t page)
{
	auto &r = recent[page % 64];

	if (r.cells && r.page == page)
		return r.cells;
	cell *&c = pages[page];
	if (!c) {
		void *p = mmap(nullptr, PAGE * sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			emu_misuse("no memory to watch a kernel's accesses with");
		c = static_cast<cell *>(p);
	}
	r = {page, c};
	return c;
}

static bool covers(const struct emu_range &r, const char *p, size_t size)
{
	return p >= r.base && static_cast<size_t>(p - r.base) <= r.size && size <= r.size - static_cast<size_t>(p - r.base);
}

static void check_range(const struct access *a)
{
	if (ranges_of != a->spot.launch) {
		nranges = 0;
		ranges_of = a->spot.launch;
	}
	unsigned n = nranges < 16 ? nranges : 16;
	for (unsigned i = 0; i < n; i++)
		if (covers(ranges[i], a->p, a->size))
			return;
	struct emu_range r = emu_find(a->p);
	if (r.kind != EMU_DEVICE || !covers(r, a->p, a->size))
		report(a, r.kind == EMU_DEVICE ? "it ends outside of the allocation" : "that is not in device memory", nullptr);
	ranges[nranges++ % 16] = r;
}

static void touch(const struct access *a)
{
	static uintptr_t last;
	static line *l; /* of last; references to what is in the map stay */

	for (uintptr_t at = reinterpret_cast<uintptr_t>(a->p), end = at + a->size; at < end; at++) {
		if (touched.empty() || at / 64 != last) {
			l = &touched[at / 64];
			last = at / 64;
		}
		(a->write ? l->write : l->read) |= UINT64_C(1) << at % 64;
	}
}

/* In runs: what a kernel reads or writes is dense as a rule. */
static void tell(const std::vector<uintptr_t> &lines, bool write)
{
	uintptr_t begin = 0, end = 0;

	for (uintptr_t n : lines)
		for (uintptr_t i = 0; i < 64; i++) {
			if (!((write ? touched[n].write : touched[n].read) >> i & 1))
				continue;
			if (n * 64 + i != end) {
				emu_uses(reinterpret_cast<void *>(begin), end - begin, write);
				begin = n * 64 + i;
			}
			end = n * 64 + i + 1;
		}
	emu_uses(reinterpret_cast<void *>(begin), end - begin, write);
}

bool emu_sees_accesses(void)
{
	return watching;
}

void emu_grid_over(void)
{
	std::vector<uintptr_t> lines;

	for (const auto &l : touched)
		lines.push_back(l.first);
	std::sort(lines.begin(), lines.end());
	tell(lines, false);
	tell(lines, true);
	touched.clear();
}

static void see(const void *p, size_t size, bool write, void *pc)
{
	struct access a = {static_cast<const char *>(p), size, write, pc, {}};
	size_t offset;

	if (!emu_running(&a.spot))
		return;
	enum emu_place_kind kind = emu_where_is(p, size, write, &offset);
	if (kind == EMU_OWN)
		return;
	if (kind == EMU_SHARED_GAP)
		report(&a, "that is outside of every shared array", nullptr);
	if ((size & (size - 1)) == 0 && size <= 16 && reinterpret_cast<uintptr_t>(p) % size)
		report(&a, "that is no multiple of its size", nullptr);
	stamp now = stamp_of(&a.spot);
	if (kind == EMU_SHARED) {
		for (size_t i = 0; i < size; i++) {
			cell *c = &shared_cells[offset + i];
			if (!of_block(c->write, now)) {
				if (!write)
					report(&a, "shared memory that no thread of the block has written", nullptr);
				*c = {}; /* another block's memory */
			}
			visit(&a, c, now);
		}
		return;
	}
	check_range(&a);
	touch(&a);
	for (uintptr_t at = reinterpret_cast<uintptr_t>(p), end = at + size; at < end; at++)
		visit(&a, &cells_of(at / PAGE)[at % PAGE], now);
}

/* ---- what the compiler calls */
#define PC __builtin_return_address(0)
#define ACCESSES(n) \
	void __tsan_read##n(void *p) { see(p, n, false, PC); } \
	void __tsan_write##n(void *p) { see(p, n, true, PC); } \
	void __tsan_unaligned_read##n(void *p) { see(p, n, false, PC); } \
	void __tsan_unaligned_write##n(void *p) { see(p, n, true, PC); } \
	void __tsan_volatile_read##n(void *p) { see(p, n, false, PC); } \
	void __tsan_volatile_write##n(void *p) { see(p, n, true, PC); }
extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void *p, size_t size) { see(p, size, false, PC); }
void __tsan_write_range(void *p, size_t size) { see(p, size, true, PC); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_init(void) { watching = true; }
}
