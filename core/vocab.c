/* SPDX-License-Identifier: Apache-2.0 */
#include "bpe.h"
#include "fnv.h"

#include <stdlib.h>
#include <string.h>

static enum dtp_code no_memory(struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "out of memory: the tokenizer's vocabulary");
}

enum dtp_code dtp_ids_push(struct dtp_ids *ids, int32_t id, struct dtp_err *err)
{
	if (ids->n == ids->cap) {
		size_t cap = ids->cap ? 2 * ids->cap : 64;
		int32_t *v = realloc(ids->v, cap * sizeof *v);
		if (!v)
			return dtp_fail(err, DTP_FAILED, "out of memory: %zu token ids", cap);
		ids->v = v;
		ids->cap = cap;
	}
	ids->v[ids->n++] = id;
	return DTP_OK;
}

/* The high bits are folded into those that choose the slot. */
static uint64_t hash_bytes(const char *p, size_t len)
{
	uint64_t h = dtp_fnv1a(p, len);
	return h ^ h >> 32;
}

static void put_slot(struct dtp_vocab *v, int32_t id)
{
	const struct dtp_token *t = &v->token[id];
	size_t i = hash_bytes(v->text + t->offset, t->len) & (v->nslots - 1);
	while (v->slot[i] >= 0)
		i = (i + 1) & (v->nslots - 1);
	v->slot[i] = id;
}

static enum dtp_code grow_slots(struct dtp_vocab *v, struct dtp_err *err)
{
	size_t n = v->nslots ? 2 * v->nslots : 1024;
	int32_t *slot = malloc(n * sizeof *slot);
	if (!slot)
		return no_memory(err);
	for (size_t i = 0; i < n; i++)
		slot[i] = -1;
	free(v->slot);
	v->slot = slot;
	v->nslots = n;
	for (size_t id = 0; id < v->nids; id++)
		if (v->token[id].kind)
			put_slot(v, (int32_t)id);
	return DTP_OK;
}

static enum dtp_code grow_tokens(struct dtp_vocab *v, size_t nids, struct dtp_err *err)
{
	size_t cap = v->cap ? v->cap : 1024;
	while (cap < nids)
		cap *= 2;
	struct dtp_token *token = realloc(v->token, cap * sizeof *token);
	if (!token)
		return no_memory(err);
	memset(token + v->cap, 0, (cap - v->cap) * sizeof *token);
	v->token = token;
	v->cap = cap;
	return DTP_OK;
}

static enum dtp_code grow_text(struct dtp_vocab *v, size_t len, struct dtp_err *err)
{
	size_t cap = v->text_cap ? v->text_cap : 1 << 14;
	while (cap <= len)
		cap *= 2;
	char *text = realloc(v->text, cap);
	if (!text)
		return no_memory(err);
	v->text = text;
	v->text_cap = cap;
	return DTP_OK;
}

enum dtp_code dtp_vocab_add(struct dtp_vocab *v, const char *string, size_t len, int32_t id, int kind, struct dtp_err *err)
{
	size_t nids = (size_t)id + 1, text_len = v->text_len + len;
	enum dtp_code rc;
	if (len > UINT32_MAX || text_len > UINT32_MAX)
		return dtp_fail(err, DTP_REFUSED, "the vocabulary has more than %u bytes", UINT32_MAX);
	if (nids > v->cap && (rc = grow_tokens(v, nids, err)) != DTP_OK)
		return rc;
	if (text_len >= v->text_cap && (rc = grow_text(v, text_len, err)) != DTP_OK)
		return rc;
	if (2 * (v->count + 1) > v->nslots && (rc = grow_slots(v, err)) != DTP_OK)
		return rc;
	memcpy(v->text + v->text_len, string, len);
	v->token[id] = (struct dtp_token){(uint32_t)v->text_len, (uint32_t)len, (uint8_t)kind};
	v->text_len = text_len;
	if (nids > v->nids)
		v->nids = nids;
	v->count++;
	put_slot(v, id);
	return DTP_OK;
}

int32_t dtp_vocab_find(const struct dtp_vocab *v, const char *string, size_t len)
{
	if (!v->nslots)
		return -1;
	for (size_t i = hash_bytes(string, len) & (v->nslots - 1);; i = (i + 1) & (v->nslots - 1)) {
		int32_t id = v->slot[i];
		if (id < 0)
			return -1;
		if (v->token[id].len == len && !memcmp(v->text + v->token[id].offset, string, len))
			return id;
	}
}

void dtp_vocab_free(struct dtp_vocab *v)
{
	free(v->text);
	free(v->token);
	free(v->slot);
	*v = (struct dtp_vocab){0};
}
