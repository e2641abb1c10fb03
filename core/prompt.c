/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts in the chat templates of the text encoders.  One row of a table per template. */
#include "tokenizer.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

/* The system message that FLUX.2 was trained with (diffusers, pipelines/flux2/system_messages.py). */
static const char flux2_system[] =
	"You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object\n"
	"attribution and actions without speculation.";

static const struct {
	const char *head, *middle, *tail; /* head [system middle] text tail */
	bool system, pad_left;
	const char *removed;              /* taken out of the text wherever it stands; NULL: nothing */
} templates[] = {
	[DTP_TEMPLATE_QWEN3] = {"<|im_start|>user\n", NULL, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", false, false, NULL},
	[DTP_TEMPLATE_MISTRAL] = {"<s>[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT][INST]", "[/INST]", true, true, "[IMG]"},
};

static char *append(char *at, const char *s)
{
	size_t n = strlen(s);
	memcpy(at, s, n);
	return at + n;
}

static char *append_without(char *at, const char *s, const char *removed)
{
	for (const char *hit; removed && (hit = strstr(s, removed)); s = hit + strlen(removed)) {
		memcpy(at, s, (size_t)(hit - s));
		at += hit - s;
	}
	return append(at, s);
}

/* The whole text that is tokenised; malloc'd. */
static char *render(enum dtp_template tpl, const char *system, const char *text, size_t *len)
{
	const char *sys = templates[tpl].system ? system ? system : flux2_system : "";
	const char *middle = templates[tpl].middle ? templates[tpl].middle : "";
	char *out = malloc(strlen(templates[tpl].head) + strlen(sys) + strlen(middle) + strlen(text) + strlen(templates[tpl].tail) + 1);

	if (!out)
		return NULL;
	char *end = append(append(append(out, templates[tpl].head), sys), middle);
	end = append(append_without(end, text, templates[tpl].removed), templates[tpl].tail);
	*end = '\0';
	*len = (size_t)(end - out);
	return out;
}

/* Cuts ids [n] to max_length and pads them. */
static enum dtp_code fit(const struct dtp_tokenizer *tok, enum dtp_template tpl, const int32_t *ids, size_t n, struct dtp_prompt *out,
			 struct dtp_err *err)
{
	size_t max = (size_t)out->length, kept = n < max ? n : max;
	int32_t pad = dtp_tokenizer_pad_id(tok);

	if (kept < max && pad < 0)
		return dtp_fail(err, DTP_REFUSED, "the tokenizer names no pad_token: the prompt has %zu tokens and %zu are needed", n, max);
	out->ids = malloc(max * sizeof *out->ids);
	if (!out->ids)
		return dtp_fail(err, DTP_FAILED, "out of memory: a prompt of %zu tokens", max);
	out->begin = templates[tpl].pad_left ? (int64_t)(max - kept) : 0;
	out->end = out->begin + (int64_t)kept;
	for (size_t i = 0; i < max; i++)
		out->ids[i] = pad;
	memcpy(out->ids + out->begin, ids, kept * sizeof *ids);
	if (n > max && !(out->cut = dtp_tokenizer_decode(tok, ids + max, n - max)))
		return dtp_fail(err, DTP_FAILED, "out of memory: the text that was cut off");
	return DTP_OK;
}

enum dtp_code dtp_prompt_make(const struct dtp_tokenizer *tok, enum dtp_template tpl, const char *system, const char *text,
			      int64_t max_length, struct dtp_prompt *out, struct dtp_err *err)
{
	int32_t *ids;
	size_t len, n;

	*out = (struct dtp_prompt){.length = max_length};
	if (max_length < 1)
		return dtp_fail(err, DTP_REFUSED, "a prompt of %lld tokens is asked for, at least 1 is needed", (long long)max_length);
	len = strlen(text);
	size_t bad = dtp_utf8_valid(text, len); /* here, so that the offset is the user's */
	if (bad < len)
		return dtp_fail(err, DTP_REFUSED, "the prompt is not valid UTF-8: byte 0x%02x at offset %zu", (unsigned char)text[bad],
				bad);
	char *whole = render(tpl, system, text, &len);
	if (!whole)
		return dtp_fail(err, DTP_FAILED, "out of memory: the prompt");
	enum dtp_code rc = dtp_tokenizer_encode(tok, whole, len, &ids, &n, err);
	free(whole);
	if (rc)
		return rc;
	rc = fit(tok, tpl, ids, n, out, err);
	free(ids);
	if (rc)
		dtp_prompt_free(out);
	return rc;
}

bool dtp_prompt_has_system(enum dtp_template tpl)
{
	return templates[tpl].system;
}

void dtp_prompt_free(struct dtp_prompt *p)
{
	free(p->ids);
	free(p->cut);
	*p = (struct dtp_prompt){0};
}
