/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a prompt in both chat templates: the first two bytes choose the length, the rest is the text up to a NUL.
 * Invariants: refused if and only if it is not UTF-8; every id is of the vocabulary and what is not of the prompt is padding; cut
 * or not, the prompt begins with the same ids; the template that loses nothing decodes to what was put in. */
#include "tokenizer.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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

static void check_ids(const struct dtp_tokenizer *t, const struct dtp_prompt *p, int64_t length)
{
	if (p->length != length || p->begin < 0 || p->end < p->begin || p->end > length || (p->begin && p->end != length))
		abort();
	for (int64_t i = 0; i < length; i++) {
		bool real = i >= p->begin && i < p->end;
		if (real ? p->ids[i] < 0 || (size_t)p->ids[i] >= dtp_tokenizer_vocab(t) : p->ids[i] != dtp_tokenizer_pad_id(t))
			abort();
	}
}

static void decodes_to(const struct dtp_tokenizer *t, const struct dtp_prompt *p, const char *text)
{
	char *back = dtp_tokenizer_decode(t, p->ids + p->begin, (size_t)(p->end - p->begin));

	if (!back || (!strstr(text, "[IMG]") && !strstr(back, text)))
		abort();
	free(back);
}

static void try_prompt(const struct dtp_tokenizer *t, enum dtp_template tpl, const char *text, size_t len, int64_t length)
{
	int64_t enough = (int64_t)len + 512; /* more than any text and template take */
	struct dtp_prompt whole, cut;
	struct dtp_err err;
	enum dtp_code rc = dtp_prompt_make(t, tpl, NULL, text, enough, &whole, &err);

	if (rc ? rc != DTP_REFUSED || dtp_utf8_valid(text, len) == len : dtp_utf8_valid(text, len) != len)
		abort();
	if (rc)
		return;
	check_ids(t, &whole, enough);
	if (whole.cut || dtp_prompt_make(t, tpl, NULL, text, length, &cut, &err))
		abort();
	check_ids(t, &cut, length);
	int64_t n = cut.end - cut.begin;
	if (n != (length < whole.end - whole.begin ? length : whole.end - whole.begin) ||
	    (n < whole.end - whole.begin) != (cut.cut != NULL) ||
	    memcmp(whole.ids + whole.begin, cut.ids + cut.begin, (size_t)n * sizeof *cut.ids))
		abort();
	if (tpl == DTP_TEMPLATE_MISTRAL)
		decodes_to(t, &whole, text);
	dtp_prompt_free(&whole);
	dtp_prompt_free(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct dtp_tokenizer *qwen, *tekken; /* opened once, reachable to the end */

	if (size < 2)
		return 0;
	if (!qwen) {
		qwen = open_fixture("klein-tiny");
		tekken = open_fixture("dev-tiny");
	}
	int64_t length = 1 + data[0] + (data[1] & 3) * 256;
	char *text = strndup((const char *)data + 2, size - 2);
	if (!text)
		abort();
	try_prompt(qwen, DTP_TEMPLATE_QWEN3, text, strlen(text), length);
	try_prompt(tekken, DTP_TEMPLATE_MISTRAL, text, strlen(text), length);
	free(text);
	return 0;
}
