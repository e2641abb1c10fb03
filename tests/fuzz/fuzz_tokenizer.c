/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that begin with a brace are a tokenizer.json, and what follows its first NUL is a prompt for it; all others are a prompt
 * for the fixtures.  Invariants: ids are of the vocabulary, a text is refused if and only if it is not UTF-8, and where nothing
 * is normalised or stripped the ids decode to the text. */
#include "tokenizer_internal.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* lossless: every byte has a token, and nothing is normalised or stripped. */
static void encode(const struct dtp_tokenizer *t, const char *text, size_t len, bool lossless)
{
	struct dtp_err err;
	int32_t *ids;
	size_t n;
	enum dtp_code rc = dtp_tokenizer_encode(t, text, len, &ids, &n, &err);
	bool valid = dtp_utf8_valid(text, len) == len;

	if (rc ? rc != DTP_REFUSED || (valid && lossless) : !valid)
		abort();
	if (rc)
		return;
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || (size_t)ids[i] >= dtp_tokenizer_vocab(t) || !t->vocab.token[ids[i]].kind)
			abort();
	char *back = dtp_tokenizer_decode(t, ids, n);
	if (!back || (lossless && memcmp(back, text, len)))
		abort();
	free(back);
	free(ids);
}

static void fuzz_file(const char *json, size_t len, const char *text, size_t text_len)
{
	struct dtp_tokenizer *t = calloc(1, sizeof *t);
	struct dtp_json doc;
	struct dtp_err err;

	if (!t)
		abort();
	if (!dtp_json_parse("tokenizer.json", json, len, &doc, &err)) {
		enum dtp_code rc = dtp_tokenizer_read(t, &doc, &err);
		dtp_json_free(&doc);
		if (rc && rc != DTP_REFUSED)
			abort();
		if (!rc)
			encode(t, text, text_len, false);
	}
	dtp_tokenizer_free(t);
}

static struct dtp_tokenizer *open_fixture(const char *model)
{
	const char *root = getenv("DTP_TESTS");
	struct dtp_tokenizer *t;
	struct dtp_err err;
	char dir[1024];

	snprintf(dir, sizeof dir, "%s/models/%s/tokenizer", root ? root : "tests", model);
	if (dtp_tokenizer_open(dir, &t, &err)) {
		fprintf(stderr, "%s\n", err.message);
		abort();
	}
	return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct dtp_tokenizer *qwen, *tekken; /* opened once, reachable to the end */
	const char *text = (const char *)data;
	const char *nul = size && data[0] == '{' ? memchr(data, '\0', size) : NULL;

	if (size && data[0] == '{') {
		size_t json = nul ? (size_t)(nul - text) : size;
		fuzz_file(text, json, nul ? nul + 1 : "", nul ? size - json - 1 : 0);
		return 0;
	}
	if (!qwen) {
		qwen = open_fixture("klein-tiny");
		tekken = open_fixture("dev-tiny");
	}
	encode(qwen, text, size, false);
	encode(tekken, text, size, true);
	return 0;
}
