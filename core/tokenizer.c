/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer_internal.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

enum dtp_code dtp_tokenizer_open(const char *dir, struct dtp_tokenizer **out, struct dtp_err *err)
{
	struct dtp_tokenizer *t = calloc(1, sizeof *t);

	*out = NULL;
	if (!t)
		return dtp_fail(err, DTP_FAILED, "out of memory: the tokenizer");
	t->pad = -1;
	if (dtp_tokenizer_load(t, dir, err)) {
		dtp_tokenizer_free(t);
		return err->code;
	}
	*out = t;
	return DTP_OK;
}

void dtp_tokenizer_free(struct dtp_tokenizer *t)
{
	if (!t)
		return;
	dtp_vocab_free(&t->vocab);
	dtp_bpe_free(&t->bpe);
	dtp_added_free(&t->added);
	dtp_added_free(&t->normalized);
	dtp_regex_free(t->split);
	free(t);
}

/* ---- encoding */

struct encoding {
	const struct dtp_tokenizer *t;
	struct dtp_matcher *matcher;
	struct dtp_bpe_scratch scratch;
	struct dtp_ids out;
	char *word; /* one word in the byte alphabet */
	size_t word_cap;
	struct dtp_err *err;
};

/* The whole word's own token, or -1. */
static enum dtp_code whole_word(struct encoding *e, const char *word, size_t len, int32_t *id)
{
	size_t n = 0;

	*id = -1;
	if (2 * len > e->word_cap) { /* each character of the alphabet takes at most 2 bytes */
		char *p = realloc(e->word, 2 * len);
		if (!p)
			return dtp_fail(e->err, DTP_FAILED, "out of memory: a word of %zu bytes", len);
		e->word = p;
		e->word_cap = 2 * len;
	}
	for (size_t i = 0; i < len; i++)
		n += dtp_utf8_put(e->word + n, dtp_byte_to_char((uint8_t)word[i]));
	int32_t found = dtp_vocab_find(&e->t->vocab, e->word, n);
	if (found >= 0 && (e->t->vocab.token[found].kind & DTP_TOKEN_MODEL))
		*id = found;
	return DTP_OK;
}

static enum dtp_code encode_word(struct encoding *e, const char *word, size_t len)
{
	int32_t id;

	if (!len)
		return DTP_OK;
	if (e->t->ignore_merges) {
		if (whole_word(e, word, len, &id))
			return e->err->code;
		if (id >= 0)
			return dtp_ids_push(&e->out, id, e->err);
	}
	return dtp_bpe_encode(&e->t->bpe, word, len, &e->scratch, &e->out, e->err);
}

/* Normalised text without added tokens: the matches of the pattern are words, and so is what lies between them. */
static enum dtp_code encode_words(struct encoding *e, const char *text, size_t len)
{
	size_t at = 0, begin, end;
	bool found;

	dtp_matcher_start(e->matcher, text, len);
	for (;;) {
		if (dtp_matcher_next(e->matcher, &found, &begin, &end, e->err))
			return e->err->code;
		if (!found)
			return encode_word(e, text + at, len - at);
		if (encode_word(e, text + at, begin - at) || encode_word(e, text + begin, end - begin))
			return e->err->code;
		at = end;
	}
}

typedef enum dtp_code (*piece_fn)(struct encoding *, const char *, size_t);

/* Cuts the added tokens out of a text and hands what is between them to `plain`. */
static enum dtp_code cut_added(struct encoding *e, const struct dtp_added *added, const char *text, size_t len, piece_fn plain)
{
	struct dtp_added_walk walk = {.text = text, .len = len};
	size_t at = 0, begin, end;
	int32_t id;

	while (dtp_added_next(added, &walk, &id, &begin, &end)) {
		if (begin > at && plain(e, text + at, begin - at))
			return e->err->code;
		if (dtp_ids_push(&e->out, id, e->err))
			return e->err->code;
		at = end;
	}
	return at < len ? plain(e, text + at, len - at) : DTP_OK;
}

static enum dtp_code encode_normalized(struct encoding *e, const char *text, size_t len)
{
	return cut_added(e, &e->t->normalized, text, len, encode_words);
}

static enum dtp_code encode_raw(struct encoding *e, const char *text, size_t len)
{
	char *composed = NULL;
	size_t n = len;

	if (e->t->nfc && dtp_utf8_nfc(text, len, &composed, &n, e->err))
		return e->err->code;
	enum dtp_code rc = encode_normalized(e, composed ? composed : text, composed ? n : len);
	free(composed);
	return rc;
}

enum dtp_code dtp_tokenizer_encode(const struct dtp_tokenizer *t, const char *text, size_t len, int32_t **ids, size_t *n,
				   struct dtp_err *err)
{
	struct encoding e = {.t = t, .err = err};
	size_t bad = dtp_utf8_valid(text, len);
	enum dtp_code rc;

	*ids = NULL;
	*n = 0;
	if (bad < len)
		return dtp_fail(err, DTP_REFUSED, "the text is not valid UTF-8: byte 0x%02x at offset %zu", (unsigned char)text[bad],
				bad);
	rc = dtp_matcher_new(t->split, &e.matcher, err);
	if (!rc)
		rc = cut_added(&e, &t->added, text, len, encode_raw);
	dtp_matcher_free(e.matcher);
	dtp_bpe_scratch_free(&e.scratch);
	free(e.word);
	if (!rc && !e.out.v && !(e.out.v = malloc(sizeof *e.out.v)))
		rc = dtp_fail(err, DTP_FAILED, "out of memory: token ids");
	if (rc) {
		free(e.out.v);
		return rc;
	}
	*ids = e.out.v;
	*n = e.out.n;
	return DTP_OK;
}

/* ---- the other way */

int32_t dtp_tokenizer_id(const struct dtp_tokenizer *t, const char *token)
{
	return dtp_vocab_find(&t->vocab, token, strlen(token));
}

int32_t dtp_tokenizer_pad_id(const struct dtp_tokenizer *t)
{
	return t->pad;
}

size_t dtp_tokenizer_vocab(const struct dtp_tokenizer *t)
{
	return t->vocab.nids;
}

static size_t token_bytes(const struct dtp_tokenizer *t, int32_t id, char *out)
{
	if (id < 0 || (size_t)id >= t->vocab.nids)
		return 0;
	const struct dtp_token *tok = &t->vocab.token[id];
	const char *s = t->vocab.text + tok->offset;
	size_t n = 0;

	if (tok->kind & DTP_TOKEN_ADDED) {
		memcpy(out, s, tok->len);
		return tok->len;
	}
	for (size_t i = 0, step; i < tok->len; i += step) {
		int byte = dtp_char_to_byte(dtp_utf8_next(s, i, &step));
		if (byte >= 0)
			out[n++] = (char)byte;
	}
	return n;
}

char *dtp_tokenizer_decode(const struct dtp_tokenizer *t, const int32_t *ids, size_t n)
{
	size_t room = 1, len = 0;

	for (size_t i = 0; i < n; i++)
		if (ids[i] >= 0 && (size_t)ids[i] < t->vocab.nids)
			room += t->vocab.token[ids[i]].len;
	char *bytes = malloc(room);
	if (!bytes)
		return NULL;
	for (size_t i = 0; i < n; i++)
		len += token_bytes(t, ids[i], bytes + len);
	char *text = dtp_utf8_repair(bytes, len);
	free(bytes);
	return text;
}
