/* SPDX-License-Identifier: Apache-2.0 */
/* Ids of many texts: tool_tokenize DIR <TEXTS
 * DIR has a tokenizer.json.  A text is its length in bytes (decimal, then a newline) and the bytes; its ids are one line. */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static void die(const char *what)
{
	fprintf(stderr, "tool_tokenize: %s\n", what);
	exit(1);
}

int main(int argc, char **argv)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_tokenizer *tok;
	size_t len;

	if (argc != 2)
		die("usage: tool_tokenize DIR <TEXTS");
	if (dtp_tokenizer_open(argv[1], &tok, &err))
		die(err.message);
	while (scanf("%zu", &len) == 1) {
		char *text = malloc(len + 1);
		int32_t *ids;
		size_t n;
		if (!text || getchar() != '\n' || fread(text, 1, len, stdin) != len)
			die("a text is cut off");
		text[len] = '\0';
		if (dtp_tokenizer_encode(tok, text, len, &ids, &n, &err))
			die(err.message);
		for (size_t i = 0; i < n; i++)
			printf(i ? " %d" : "%d", ids[i]);
		putchar('\n');
		free(ids);
		free(text);
	}
	dtp_tokenizer_free(tok);
	return 0;
}
