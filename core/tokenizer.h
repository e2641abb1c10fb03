/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE as Hugging Face's tokenizer.json describes it (Qwen2, tekken): everything is read from the file. */
#ifndef DTP_TOKENIZER_H
#define DTP_TOKENIZER_H

#include "err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dtp_tokenizer;

/* Reads dir/tokenizer.json: added tokens, normalizer (none or NFC), the Split pattern (through PCRE2 with UTF and UCP),
 * ByteLevel, BPE vocabulary and merges (strings or pairs), ignore_merges.  A component that is not implemented is
 * DTP_REFUSED by name.  Also takes pad_token of dir/tokenizer_config.json. */
enum dtp_code dtp_tokenizer_open(const char *dir, struct dtp_tokenizer **tok, struct dtp_err *err);
void dtp_tokenizer_free(struct dtp_tokenizer *tok);

/* Ids of text[0..len) without any template; added tokens typed in the text become their ids.  Invalid UTF-8 is
 * DTP_REFUSED with the byte offset.  *ids is malloc'd, the caller frees it. */
enum dtp_code dtp_tokenizer_encode(const struct dtp_tokenizer *tok, const char *text, size_t len, int32_t **ids, size_t *n,
				   struct dtp_err *err);
/* -1 if the string is no single token. */
int32_t dtp_tokenizer_id(const struct dtp_tokenizer *tok, const char *token);
int32_t dtp_tokenizer_pad_id(const struct dtp_tokenizer *tok); /* -1 if none */
/* Text of ids as UTF-8 (malformed sequences become U+FFFD), malloc'd: used to show what was cut off a prompt. */
char *dtp_tokenizer_decode(const struct dtp_tokenizer *tok, const int32_t *ids, size_t n);
size_t dtp_tokenizer_vocab(const struct dtp_tokenizer *tok); /* largest id + 1 */

/* A prompt in a model's chat template, padded and cut. */
enum dtp_template { DTP_TEMPLATE_QWEN3, DTP_TEMPLATE_MISTRAL };
struct dtp_prompt {
	int32_t *ids;       /* [length], malloc'd */
	int64_t length;     /* max_length */
	int64_t begin, end; /* the real tokens are ids[begin, end): right padding has begin 0, left padding end = length */
	char *cut;          /* text of what was cut off, malloc'd, or NULL */
};
/* Qwen3: "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", cut on the right, padded
 * on the right.  Mistral: "<s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][INST]{text}[/INST]" with every literal "[IMG]"
 * removed from text, cut on the right, padded on the left.  system is used by Mistral only (NULL: FLUX.2's own). */
enum dtp_code dtp_prompt_make(const struct dtp_tokenizer *tok, enum dtp_template tpl, const char *system, const char *text,
			      int64_t max_length, struct dtp_prompt *out, struct dtp_err *err);
void dtp_prompt_free(struct dtp_prompt *p);
bool dtp_prompt_has_system(enum dtp_template tpl);
#endif
