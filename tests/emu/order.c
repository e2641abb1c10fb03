/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: which work comes before which, in whatever order it happened to run.  Streams, and the parts of a
 * graph that were captured from different streams, are strands: what is on one is in order.  A clock says how far each strand was known to
 * have come; events, waits of the host and the edges of graphs carry clocks from one strand to another.  Each byte of device and pinned
 * memory remembers who wrote it last and who has read it since.  A use that conflicts with one of another strand that its clock does not
 * know of ends the process: nothing orders the two, so that a GPU may run them at the same time.
 *
 * Kernels tell what they use where they are watched (shadow.cc), else of each pointer among their arguments that they read what is there.
 *
 * What may have been in order counts as in order: all threads of the host are one, and more strands than EMU_STRANDS are not watched. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

struct use {
	uint64_t number; /* of its strand's work; 0: none */
	const char *name;
};

/* Bytes that were all used alike. */
struct span {
	char *begin, *end;
	int writer; /* strand of `write` */
	struct use write, read[EMU_STRANDS]; /* the last ones; reads since the write */
};

struct emu_spans {
	struct span *span; /* without gaps, ascending */
	size_t n, room;
};

static struct {
	uint64_t count[EMU_STRANDS]; /* work that each strand has begun */
	bool taken[EMU_STRANDS];
	struct emu_clock host;
	const struct emu_turn *turn; /* of what runs */
	const char *name;
} o;

static void *need(void *p)
{
	if (!p)
		emu_misuse("no memory for the emulator itself");
	return p;
}

/* ---- clocks */

void emu_clock_join(struct emu_clock *to, const struct emu_clock *from)
{
	for (int i = 0; i < EMU_STRANDS; i++)
		if (from->seen[i] > to->seen[i])
			to->seen[i] = from->seen[i];
}

const struct emu_clock *emu_host_clock(void)
{
	return &o.host;
}

void emu_host_learns(const struct emu_clock *c)
{
	emu_clock_join(&o.host, c);
}

/* A number that was given back begins where it ended: what its last owner did counts as known to the next. */
int emu_strand_new(void)
{
	for (int i = 0; i < EMU_STRANDS; i++)
		if (!o.taken[i]) {
			o.taken[i] = true;
			return i;
		}
	return -1;
}

void emu_strand_end(int strand)
{
	if (strand >= 0)
		o.taken[strand] = false;
}

void emu_turn_begin(struct emu_turn *t, int strand, const struct emu_clock *before, const char *name)
{
	if (!t->begun) {
		t->begun = true;
		t->strand = strand;
		t->clock = *before;
		if (strand >= 0)
			t->clock.seen[strand] = ++o.count[strand];
	}
	o.turn = t;
	o.name = name;
}

void emu_turn_over(void)
{
	o.turn = NULL;
}

void emu_host_learns_turn(void)
{
	if (o.turn)
		emu_host_learns(&o.turn->clock);
}

/* ---- uses */

void emu_spans_free(struct emu_spans *s)
{
	if (s)
		free(s->span);
	free(s);
}

const char *emu_spans_used(const struct emu_spans *s)
{
	for (size_t i = 0; s && i < s->n; i++) {
		const struct span *p = &s->span[i];
		if (p->write.number > o.host.seen[p->writer])
			return p->write.name;
		for (int k = 0; k < EMU_STRANDS; k++)
			if (p->read[k].number > o.host.seen[k])
				return p->read[k].name;
	}
	return NULL;
}

/* The span that begins at p, which lies in some span or at the end of all: one that holds p is cut there. */
static size_t cut(struct emu_spans *s, char *p)
{
	size_t low = 0, high = s->n;

	while (low < high) {
		size_t mid = (low + high) / 2;
		if (s->span[mid].end <= p)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == s->n || s->span[low].begin == p)
		return low;
	if (s->n == s->room) {
		s->room *= 2;
		s->span = need(realloc(s->span, s->room * sizeof *s->span));
	}
	memmove(&s->span[low + 1], &s->span[low], (s->n - low) * sizeof *s->span);
	s->n++;
	s->span[low].end = s->span[low + 1].begin = p;
	return low + 1;
}

static void check(const struct span *p, const struct use *earlier, int strand, bool wrote, bool write)
{
	if (!earlier->number || strand == o.turn->strand || o.turn->clock.seen[strand] >= earlier->number)
		return;
	struct emu_range r = emu_find(p->begin);
	emu_misuse("'%s' %s bytes [%td, %td) of %s memory of %zu bytes that '%s' of another stream %s: nothing orders the two", o.name,
		   write ? "writes" : "reads", p->begin - r.base, p->end - r.base, r.kind == EMU_DEVICE ? "device" : "pinned host", r.size,
		   earlier->name, wrote ? "writes" : "reads");
}

static void visit(struct span *p, bool write)
{
	check(p, &p->write, p->writer, true, write);
	for (int i = 0; write && i < EMU_STRANDS; i++)
		check(p, &p->read[i], i, false, write);
}

void emu_uses(const void *at, size_t size, bool write)
{
	struct emu_spans **s = emu_spans_at(at);
	const struct emu_turn *t = o.turn;
	char *p = (char *)(uintptr_t)at;

	if (!s || !size || !t || t->strand < 0)
		return;
	if (!*s) {
		struct emu_range r = emu_find(at);
		*s = need(calloc(1, sizeof **s));
		**s = (struct emu_spans){.span = need(calloc(16, sizeof(struct span))), .n = 1, .room = 16};
		(*s)->span[0].begin = r.base;
		(*s)->span[0].end = r.base + r.size;
	}
	size_t first = cut(*s, p), behind = cut(*s, p + size);
	struct use now = {t->clock.seen[t->strand], o.name};
	for (size_t i = first; i < behind; i++) {
		visit(&(*s)->span[i], write);
		if (!write)
			(*s)->span[i].read[t->strand] = now;
	}
	if (!write)
		return;
	/* Whoever comes after this write comes after all that came before it. */
	struct span *one = &(*s)->span[first];
	*one = (struct span){.begin = p, .end = p + size, .writer = t->strand, .write = now};
	memmove(one + 1, &(*s)->span[behind], ((*s)->n - behind) * sizeof *one);
	(*s)->n -= behind - first - 1;
}

/* Of rows with gaps the first and the last count: so many spans as there are rows would take long, and the gaps are others'. */
void emu_uses_rows(const void *p, size_t pitch, size_t width, size_t height, bool write)
{
	if (!width || !height)
		return;
	if (pitch == width) {
		emu_uses(p, width * height, write);
		return;
	}
	emu_uses(p, width, write);
	emu_uses((const char *)p + (height - 1) * pitch, width, write);
}
