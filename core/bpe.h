/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding: strings with ids, merges with ranks, and the merging itself. */
#ifndef DTP_BPE_H
#define DTP_BPE_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

#define DTP_MAX_TOKEN_ID ((1 << 22) - 1) /* largest vocabularies have some 2^18 entries */

/* Ids in a row, growing. */
struct dtp_ids {
	int32_t *v; /* malloc'd */
	size_t n, cap;
};
enum dtp_code dtp_ids_push(struct dtp_ids *ids, int32_t id, struct dtp_err *err);

/* Tokens by id and ids by token.  A string is as the file has it: the model's in the byte alphabet (one character of
 * U+0021..U+0143 for each byte), added ones plain. */
struct dtp_token {
	uint32_t offset, len; /* in text */
	uint8_t kind;         /* bits below; 0: no token has this id */
};
enum { DTP_TOKEN_MODEL = 1, DTP_TOKEN_ADDED = 2 };
struct dtp_vocab {
	char *text; /* of all tokens, one after the other */
	size_t text_len, text_cap;
	struct dtp_token *token; /* [nids] */
	size_t nids, cap;        /* nids: largest id + 1 */
	int32_t *slot;           /* hash table of ids, -1: empty; [nslots], a power of two, at most half full */
	size_t nslots, count;
};
void dtp_vocab_free(struct dtp_vocab *v);
/* The caller has checked that 0 <= id <= DTP_MAX_TOKEN_ID and that neither id nor string is taken. */
enum dtp_code dtp_vocab_add(struct dtp_vocab *v, const char *token, size_t len, int32_t id, int kind, struct dtp_err *err);
int32_t dtp_vocab_find(const struct dtp_vocab *v, const char *token, size_t len); /* -1: absent */

/* The byte alphabet. */
uint32_t dtp_byte_to_char(uint8_t byte);
int dtp_char_to_byte(uint32_t cp); /* -1: no character of the alphabet */

struct dtp_merge {
	int32_t left, right; /* left -1: an empty slot */
	int32_t id;          /* of the result */
	uint32_t rank;       /* the lowest goes first */
};
struct dtp_bpe {
	struct dtp_merge *merge; /* hash table by (left, right), [nmerges], a power of two, at most half full */
	size_t nmerges;
	int32_t byte[256]; /* id of the token that is this byte alone, or -1 */
};
void dtp_bpe_free(struct dtp_bpe *bpe);
/* Room for n merges; called once, before the first dtp_bpe_merge. */
enum dtp_code dtp_bpe_init(struct dtp_bpe *bpe, const struct dtp_vocab *vocab, size_t n, struct dtp_err *err);
/* Of two merges of one pair the later one counts, as in the reference. */
void dtp_bpe_merge(struct dtp_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* Memory of one encoding, reused from word to word; zero at first. */
struct dtp_bpe_scratch {
	struct dtp_symbol *symbol;
	size_t symbol_cap;
	struct dtp_candidate *heap;
	size_t heap_n, heap_cap;
};
void dtp_bpe_scratch_free(struct dtp_bpe_scratch *s);
/* Appends the ids of one word.  O(len log len).  A byte that no token stands for is DTP_REFUSED. */
enum dtp_code dtp_bpe_encode(const struct dtp_bpe *bpe, const char *word, size_t len, struct dtp_bpe_scratch *s,
			     struct dtp_ids *out, struct dtp_err *err);
#endif
