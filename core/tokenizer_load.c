/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tokenizer.json: whatever would make the ids differ and is not implemented is refused by name. */
#include "tokenizer_internal.h"
#include "infile.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *get(const cJSON *obj, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(obj, key);
}

static bool absent(const cJSON *v)
{
	return !v || cJSON_IsNull(v) || (cJSON_IsString(v) && !v->valuestring[0]);
}

static const char *type_of(const cJSON *obj)
{
	const char *type = cJSON_GetStringValue(get(obj, "type"));
	return type ? type : "?";
}

static enum dtp_code refuse(const struct dtp_json *doc, const char *what, const char *got, const char *supported,
			    struct dtp_err *err)
{
	return dtp_fail(err, DTP_REFUSED, "%s: %s '%s' is not supported, %s", doc->path, what, got, supported);
}

/* A flag that must not be set. */
static enum dtp_code unset(const struct dtp_json *doc, const cJSON *obj, const char *key, struct dtp_err *err)
{
	const cJSON *v = get(obj, key);
	if (cJSON_IsTrue(v))
		return refuse(doc, key, "true", "supported: false", err);
	return DTP_OK;
}

/* ---- normalizer and pre_tokenizer */

static enum dtp_code read_normalizer(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *n, struct dtp_err *err)
{
	const cJSON *part;

	if (absent(n))
		return DTP_OK;
	if (!strcmp(type_of(n), "NFC")) {
		t->nfc = true;
		return DTP_OK;
	}
	if (strcmp(type_of(n), "Sequence"))
		return refuse(doc, "normalizer", type_of(n), "supported: none, NFC", err);
	cJSON_ArrayForEach(part, get(n, "normalizers"))
		if (read_normalizer(t, doc, part, err))
			return err->code;
	return DTP_OK;
}

static enum dtp_code read_split(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *s, struct dtp_err *err)
{
	const cJSON *pattern = get(s, "pattern");
	const char *regex = cJSON_GetStringValue(get(pattern, "Regex")), *literal = cJSON_GetStringValue(get(pattern, "String"));
	const char *behavior = cJSON_GetStringValue(get(s, "behavior"));

	if (!behavior || strcmp(behavior, "Isolated"))
		return refuse(doc, "pre_tokenizer Split: behavior", behavior ? behavior : "?", "supported: Isolated", err);
	if (unset(doc, s, "invert", err))
		return err->code;
	if (!regex && !literal)
		return dtp_fail(err, DTP_REFUSED, "%s: pre_tokenizer Split has no pattern", doc->path);
	if (t->split)
		return dtp_fail(err, DTP_REFUSED, "%s: pre_tokenizer has two Splits, supported is one", doc->path);
	if (dtp_regex_new(regex ? regex : literal, !regex, &t->split, err))
		return dtp_err_prefix(err, "%s: pre_tokenizer Split: ", doc->path);
	return DTP_OK;
}

static enum dtp_code read_pre_tokenizer(struct dtp_tokenizer *t, const struct dtp_json *doc, struct dtp_err *err)
{
	const cJSON *p = get(doc->root, "pre_tokenizer"), *part;
	bool bytes = false;

	if (strcmp(type_of(p), "Sequence"))
		return refuse(doc, "pre_tokenizer", type_of(p), "supported: Sequence of Split and ByteLevel", err);
	cJSON_ArrayForEach(part, get(p, "pretokenizers")) {
		if (!strcmp(type_of(part), "Split") && !bytes) {
			if (read_split(t, doc, part, err))
				return err->code;
		} else if (!strcmp(type_of(part), "ByteLevel") && !bytes) {
			bytes = true;
			if (unset(doc, part, "add_prefix_space", err) || unset(doc, part, "use_regex", err))
				return err->code;
			if (!cJSON_IsFalse(get(part, "use_regex")))
				return refuse(doc, "pre_tokenizer ByteLevel: use_regex", "absent", "supported: false", err);
		} else {
			return refuse(doc, "pre_tokenizer", type_of(part), "supported: Sequence of Split and ByteLevel", err);
		}
	}
	if (!t->split || !bytes)
		return dtp_fail(err, DTP_REFUSED, "%s: pre_tokenizer lacks %s", doc->path, bytes ? "Split" : "ByteLevel");
	return DTP_OK;
}

/* ---- ids */

static enum dtp_code read_id(const struct dtp_json *doc, const cJSON *v, const char *token, int32_t *id, struct dtp_err *err)
{
	double d = cJSON_GetNumberValue(v);
	if (!(d >= 0 && d <= DTP_MAX_TOKEN_ID && d == floor(d)))
		return dtp_fail(err, DTP_REFUSED, "%s: token '%.64s' has id %g, expected a whole number from 0 to %d", doc->path, token, d,
				DTP_MAX_TOKEN_ID);
	*id = (int32_t)d;
	return DTP_OK;
}

static enum dtp_code add_token(struct dtp_tokenizer *t, const struct dtp_json *doc, const char *token, int32_t id, int kind,
			       struct dtp_err *err)
{
	size_t len = strlen(token);
	int32_t there = dtp_vocab_find(&t->vocab, token, len);

	if (there == id) { /* an added token that the model's vocabulary has too */
		t->vocab.token[id].kind |= (uint8_t)kind;
		return DTP_OK;
	}
	if (there >= 0)
		return dtp_fail(err, DTP_REFUSED, "%s: token '%.64s' has two ids, %d and %d", doc->path, token, there, id);
	if ((size_t)id < t->vocab.nids && t->vocab.token[id].kind)
		return dtp_fail(err, DTP_REFUSED, "%s: id %d stands for two tokens, '%.*s' and '%.64s'", doc->path, id,
				(int)(t->vocab.token[id].len < 64 ? t->vocab.token[id].len : 64),
				t->vocab.text + t->vocab.token[id].offset, token);
	return dtp_vocab_add(&t->vocab, token, len, id, kind, err);
}

static enum dtp_code read_vocab(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *model, struct dtp_err *err)
{
	const cJSON *vocab = get(model, "vocab"), *v;
	int32_t id;

	if (!cJSON_IsObject(vocab))
		return dtp_fail(err, DTP_REFUSED, "%s: model has no vocab", doc->path);
	cJSON_ArrayForEach(v, vocab)
		if (read_id(doc, v, v->string, &id, err) || add_token(t, doc, v->string, id, DTP_TOKEN_MODEL, err))
			return err->code;
	return DTP_OK;
}

/* The reference numbers added tokens itself, whatever the file says: a string that the model's vocabulary has keeps its id,
 * others get *next, one more than the largest before.  A file that disagrees would mean other embeddings there than here. */
static enum dtp_code check_added_id(const struct dtp_tokenizer *t, const struct dtp_json *doc, const char *content, int32_t id,
				    int32_t *next, struct dtp_err *err)
{
	int32_t there = dtp_vocab_find(&t->vocab, content, strlen(content));

	if (there >= 0 && (t->vocab.token[there].kind & DTP_TOKEN_ADDED))
		return dtp_fail(err, DTP_REFUSED, "%s: the added token '%.64s' is listed twice", doc->path, content);
	if (there < 0 && id != *next && ((size_t)id >= t->vocab.nids || !t->vocab.token[id].kind))
		return dtp_fail(err, DTP_REFUSED, "%s: the added token '%.64s' has id %d, expected %d, the next after those before it",
				doc->path, content, id, *next);
	if (id >= *next)
		*next = id + 1;
	return DTP_OK;
}

static enum dtp_code read_added_token(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *v, int32_t *next,
				      struct dtp_err *err)
{
	const char *content = cJSON_GetStringValue(get(v, "content"));
	bool normalized = cJSON_IsTrue(get(v, "normalized"));
	int32_t id;

	if (!content || !content[0])
		return dtp_fail(err, DTP_REFUSED, "%s: an added token has no content", doc->path);
	if (read_id(doc, get(v, "id"), content, &id, err) || check_added_id(t, doc, content, id, next, err) ||
	    add_token(t, doc, content, id, DTP_TOKEN_ADDED, err))
		return err->code;
	struct dtp_added_token a = {.id = id,
				    .len = strlen(content),
				    .single_word = cJSON_IsTrue(get(v, "single_word")),
				    .lstrip = cJSON_IsTrue(get(v, "lstrip")),
				    .rstrip = cJSON_IsTrue(get(v, "rstrip"))};
	if (normalized && t->nfc && dtp_utf8_nfc(content, a.len, &a.content, &a.len, err))
		return err->code;
	if (!a.content && !(a.content = strdup(content)))
		return dtp_fail(err, DTP_FAILED, "out of memory: added tokens");
	/* Without a normalizer too these are searched later than the others. */
	return dtp_added_push(normalized ? &t->normalized : &t->added, a, err);
}

static enum dtp_code read_added(struct dtp_tokenizer *t, const struct dtp_json *doc, struct dtp_err *err)
{
	const cJSON *v;
	int32_t next = (int32_t)t->vocab.count;

	cJSON_ArrayForEach(v, get(doc->root, "added_tokens"))
		if (read_added_token(t, doc, v, &next, err))
			return err->code;
	dtp_added_sort(&t->added);
	dtp_added_sort(&t->normalized);
	return DTP_OK;
}

/* ---- merges */

/* "a b" or ["a", "b"]; a token never holds a space, the byte alphabet has another character for it. */
static bool merge_parts(const cJSON *m, const char **a, size_t *na, const char **b, size_t *nb)
{
	if (cJSON_IsString(m)) {
		const char *space = strchr(m->valuestring, ' ');
		*a = m->valuestring;
		if (!space || strchr(space + 1, ' '))
			return false;
		*na = (size_t)(space - *a);
		*b = space + 1;
	} else {
		const cJSON *first = cJSON_IsArray(m) ? m->child : NULL, *second = first ? first->next : NULL;
		if (!cJSON_IsString(first) || !cJSON_IsString(second) || second->next)
			return false;
		*a = first->valuestring;
		*na = strlen(*a);
		*b = second->valuestring;
	}
	*nb = strlen(*b);
	return *na && *nb;
}

static enum dtp_code read_merge(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *m, uint32_t rank, char **joined,
				size_t *cap, struct dtp_err *err)
{
	const char *a, *b;
	size_t na, nb;

	if (!merge_parts(m, &a, &na, &b, &nb))
		return dtp_fail(err, DTP_REFUSED, "%s: merge %u is neither \"a b\" nor [\"a\", \"b\"]", doc->path, rank);
	if (na + nb > *cap) {
		char *p = realloc(*joined, 2 * (na + nb));
		if (!p)
			return dtp_fail(err, DTP_FAILED, "out of memory: merges");
		*joined = p;
		*cap = 2 * (na + nb);
	}
	memcpy(*joined, a, na);
	memcpy(*joined + na, b, nb);
	int32_t left = dtp_vocab_find(&t->vocab, a, na), right = dtp_vocab_find(&t->vocab, b, nb);
	int32_t id = dtp_vocab_find(&t->vocab, *joined, na + nb);
	if (left < 0 || right < 0 || id < 0) {
		const char *missing = left < 0 ? a : right < 0 ? b : *joined;
		size_t n = left < 0 ? na : right < 0 ? nb : na + nb;
		return dtp_fail(err, DTP_REFUSED, "%s: merge %u needs token '%.*s', which the vocabulary lacks", doc->path, rank,
				(int)(n < 64 ? n : 64), missing);
	}
	dtp_bpe_merge(&t->bpe, left, right, rank, id);
	return DTP_OK;
}

static enum dtp_code read_merges(struct dtp_tokenizer *t, const struct dtp_json *doc, const cJSON *model, struct dtp_err *err)
{
	const cJSON *merges = get(model, "merges"), *m;
	char *joined = NULL;
	size_t cap = 0, n = 0;
	enum dtp_code rc = DTP_OK;

	if (!cJSON_IsArray(merges))
		return dtp_fail(err, DTP_REFUSED, "%s: model has no merges", doc->path);
	cJSON_ArrayForEach(m, merges)
		n++;
	if (dtp_bpe_init(&t->bpe, &t->vocab, n, err))
		return err->code;
	uint32_t rank = 0;
	for (m = merges->child; m && !rc; m = m->next, rank++)
		rc = read_merge(t, doc, m, rank, &joined, &cap, err);
	free(joined);
	return rc;
}

static enum dtp_code read_model(struct dtp_tokenizer *t, const struct dtp_json *doc, struct dtp_err *err)
{
	static const char *const must_be_absent[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
	const cJSON *model = get(doc->root, "model");

	if (strcmp(type_of(model), "BPE"))
		return refuse(doc, "model", type_of(model), "supported: BPE", err);
	for (size_t i = 0; i < sizeof must_be_absent / sizeof *must_be_absent; i++)
		if (!absent(get(model, must_be_absent[i])))
			return dtp_fail(err, DTP_REFUSED, "%s: model option '%s' is set, which is not supported", doc->path,
					must_be_absent[i]);
	if (unset(doc, model, "byte_fallback", err))
		return err->code;
	t->ignore_merges = cJSON_IsTrue(get(model, "ignore_merges"));
	if (read_vocab(t, doc, model, err) || read_merges(t, doc, model, err))
		return err->code;
	return DTP_OK;
}

/* ---- tokenizer_config.json */

static enum dtp_code read_pad(struct dtp_tokenizer *t, const char *dir, struct dtp_err *err)
{
	char path[4096];
	struct dtp_json doc;

	snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
	if (!dtp_path_exists(path))
		return DTP_OK;
	if (dtp_json_load(path, 0, &doc, err))
		return err->code;
	const cJSON *pad = get(doc.root, "pad_token");
	const char *name = cJSON_GetStringValue(cJSON_IsObject(pad) ? get(pad, "content") : pad);
	enum dtp_code rc = DTP_OK;
	if (name && (t->pad = dtp_vocab_find(&t->vocab, name, strlen(name))) < 0)
		rc = dtp_fail(err, DTP_REFUSED, "%s: pad_token '%.64s' is no token of tokenizer.json", path, name);
	dtp_json_free(&doc);
	return rc;
}

enum dtp_code dtp_tokenizer_read(struct dtp_tokenizer *t, const struct dtp_json *doc, struct dtp_err *err)
{
	enum dtp_code rc = read_normalizer(t, doc, get(doc->root, "normalizer"), err);
	if (!rc)
		rc = read_pre_tokenizer(t, doc, err);
	if (!rc)
		rc = read_model(t, doc, err);
	return rc ? rc : read_added(t, doc, err);
}

enum dtp_code dtp_tokenizer_load(struct dtp_tokenizer *t, const char *dir, struct dtp_err *err)
{
	char path[4096];
	struct dtp_json doc;

	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	if (dtp_json_load(path, DTP_JSON_LARGE, &doc, err))
		return err->code;
	enum dtp_code rc = dtp_tokenizer_read(t, &doc, err);
	dtp_json_free(&doc);
	return rc ? rc : read_pad(t, dir, err);
}
