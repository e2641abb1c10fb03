/* SPDX-License-Identifier: Apache-2.0 */
#include "bpe.h"

#include "utf8.h"

#include <stdlib.h>
#include <string.h>

/* One symbol of the word that is being merged; the list leads from one living symbol to the next. */
struct dtp_symbol {
	int32_t id;         /* -1: merged into the one before */
	int32_t prev, next; /* -1: none */
};

/* A merge that was possible when it was found. */
struct dtp_candidate {
	uint32_t rank;
	int32_t at; /* of the left symbol */
	int32_t id; /* of the result */
};

/* ---- The byte alphabet: printable bytes stand for themselves, the other 68 follow from U+0100 on */

static bool is_plain(uint32_t b)
{
	return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

uint32_t dtp_byte_to_char(uint8_t byte)
{
	if (is_plain(byte))
		return byte;
	if (byte <= 0x20)
		return 0x100u + byte;
	return byte <= 0xa0 ? 0x121u + (byte - 0x7fu) : 0x143;
}

int dtp_char_to_byte(uint32_t cp)
{
	if (is_plain(cp))
		return (int)cp;
	if (cp >= 0x100 && cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp >= 0x121 && cp <= 0x142)
		return (int)(cp - 0x121 + 0x7f);
	return cp == 0x143 ? 0xad : -1;
}

/* ---- Merges */

static size_t merge_slot(const struct dtp_bpe *bpe, int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
	return (h ^ h >> 32) & (bpe->nmerges - 1);
}

static const struct dtp_merge *find_merge(const struct dtp_bpe *bpe, int32_t left, int32_t right)
{
	for (size_t i = merge_slot(bpe, left, right);; i = (i + 1) & (bpe->nmerges - 1)) {
		const struct dtp_merge *m = &bpe->merge[i];
		if (m->left < 0)
			return NULL;
		if (m->left == left && m->right == right)
			return m;
	}
}

enum dtp_code dtp_bpe_init(struct dtp_bpe *bpe, const struct dtp_vocab *vocab, size_t n, struct dtp_err *err)
{
	size_t slots = 2;
	while (slots / 2 < n)
		slots *= 2;
	bpe->merge = malloc(slots * sizeof *bpe->merge);
	if (!bpe->merge)
		return dtp_fail(err, DTP_FAILED, "out of memory: %zu merges", n);
	bpe->nmerges = slots;
	for (size_t i = 0; i < slots; i++)
		bpe->merge[i].left = -1;
	for (int b = 0; b < 256; b++) {
		char utf8[4];
		bpe->byte[b] = dtp_vocab_find(vocab, utf8, dtp_utf8_put(utf8, dtp_byte_to_char((uint8_t)b)));
	}
	return DTP_OK;
}

void dtp_bpe_merge(struct dtp_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	size_t i = merge_slot(bpe, left, right);
	while (bpe->merge[i].left >= 0 && (bpe->merge[i].left != left || bpe->merge[i].right != right))
		i = (i + 1) & (bpe->nmerges - 1);
	bpe->merge[i] = (struct dtp_merge){left, right, id, rank};
}

void dtp_bpe_free(struct dtp_bpe *bpe)
{
	free(bpe->merge);
	*bpe = (struct dtp_bpe){0};
}

/* ---- A heap of candidates: lowest rank first, of one rank the leftmost first */

static bool before(const struct dtp_candidate *a, const struct dtp_candidate *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct dtp_bpe_scratch *s, struct dtp_candidate c)
{
	size_t i = s->heap_n++;
	for (; i && before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = c;
}

static struct dtp_candidate pop(struct dtp_bpe_scratch *s)
{
	struct dtp_candidate top = s->heap[0], last = s->heap[--s->heap_n];
	size_t i = 0, n = s->heap_n;
	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		if (child + 1 < n && before(&s->heap[child + 1], &s->heap[child]))
			child++;
		if (!before(&s->heap[child], &last))
			break;
		s->heap[i] = s->heap[child];
	}
	s->heap[i] = last;
	return top;
}

/* ---- Encoding */

void dtp_bpe_scratch_free(struct dtp_bpe_scratch *s)
{
	free(s->symbol);
	free(s->heap);
	*s = (struct dtp_bpe_scratch){0};
}

static enum dtp_code reserve(struct dtp_bpe_scratch *s, size_t len, struct dtp_err *err)
{
	if (len > INT32_MAX / 4)
		return dtp_fail(err, DTP_REFUSED, "a word of %zu bytes is too long to encode, %d is the limit", len,
				INT32_MAX / 4);
	if (len > s->symbol_cap) {
		struct dtp_symbol *p = realloc(s->symbol, len * sizeof *p);
		if (!p)
			return dtp_fail(err, DTP_FAILED, "out of memory: encoding a word of %zu bytes", len);
		s->symbol = p;
		s->symbol_cap = len;
	}
	/* At first one candidate per neighbouring pair; each of at most len - 1 merges takes one away and adds up to two. */
	if (2 * len > s->heap_cap) {
		struct dtp_candidate *p = realloc(s->heap, 2 * len * sizeof *p);
		if (!p)
			return dtp_fail(err, DTP_FAILED, "out of memory: encoding a word of %zu bytes", len);
		s->heap = p;
		s->heap_cap = 2 * len;
	}
	return DTP_OK;
}

static void consider(const struct dtp_bpe *bpe, struct dtp_bpe_scratch *s, int32_t at)
{
	const struct dtp_symbol *left = &s->symbol[at];
	if (left->next < 0)
		return;
	const struct dtp_merge *m = find_merge(bpe, left->id, s->symbol[left->next].id);
	if (m)
		push(s, (struct dtp_candidate){m->rank, at, m->id});
}

static void merge_all(const struct dtp_bpe *bpe, struct dtp_bpe_scratch *s)
{
	while (s->heap_n) {
		struct dtp_candidate c = pop(s);
		struct dtp_symbol *left = &s->symbol[c.at];
		if (left->id < 0 || left->next < 0)
			continue;
		/* The pair may have changed since; if its merge still gives the same token, this turn counts. */
		struct dtp_symbol *right = &s->symbol[left->next];
		const struct dtp_merge *m = find_merge(bpe, left->id, right->id);
		if (!m || m->id != c.id)
			continue;
		left->id = m->id;
		left->next = right->next;
		right->id = -1;
		if (left->next >= 0)
			s->symbol[left->next].prev = c.at;
		if (left->prev >= 0)
			consider(bpe, s, left->prev);
		consider(bpe, s, c.at);
	}
}

enum dtp_code dtp_bpe_encode(const struct dtp_bpe *bpe, const char *word, size_t len, struct dtp_bpe_scratch *s,
			     struct dtp_ids *out, struct dtp_err *err)
{
	enum dtp_code rc = reserve(s, len, err);
	for (size_t i = 0; rc == DTP_OK && i < len; i++) {
		unsigned char b = (unsigned char)word[i];
		if (bpe->byte[b] < 0)
			return dtp_fail(err, DTP_REFUSED, "the tokenizer has no token for byte 0x%02x", b);
		s->symbol[i] = (struct dtp_symbol){bpe->byte[b], (int32_t)i - 1, i + 1 < len ? (int32_t)i + 1 : -1};
	}
	if (rc != DTP_OK)
		return rc;
	s->heap_n = 0;
	for (size_t i = 0; i < len; i++)
		consider(bpe, s, (int32_t)i);
	merge_all(bpe, s);
	for (size_t i = 0; i < len; i++)
		if (s->symbol[i].id >= 0 && (rc = dtp_ids_push(out, s->symbol[i].id, err)) != DTP_OK)
			return rc;
	return DTP_OK;
}
