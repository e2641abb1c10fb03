/* SPDX-License-Identifier: Apache-2.0 */
/* What tokenizer.c (encoding) and tokenizer_load.c (reading tokenizer.json) share. */
#ifndef DTP_TOKENIZER_INTERNAL_H
#define DTP_TOKENIZER_INTERNAL_H

#include "added.h"
#include "bpe.h"
#include "json.h"
#include "regex.h"
#include "tokenizer.h"

struct dtp_tokenizer {
	struct dtp_vocab vocab;
	struct dtp_bpe bpe;
	struct dtp_added added;      /* searched in the text as it is */
	struct dtp_added normalized; /* searched in the normalised text */
	bool nfc;
	bool ignore_merges;          /* a word that is a token is that token, whatever the merges say */
	struct dtp_regex *split;
	int32_t pad;                 /* -1: none */
};

/* Both fill a zeroed tokenizer; whatever it holds afterwards, dtp_tokenizer_free frees it. */
enum dtp_code dtp_tokenizer_load(struct dtp_tokenizer *t, const char *dir, struct dtp_err *err);
enum dtp_code dtp_tokenizer_read(struct dtp_tokenizer *t, const struct dtp_json *doc, struct dtp_err *err); /* no pad token */
#endif
