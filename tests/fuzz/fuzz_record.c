/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the record in a PNG, beside options that were typed: refused with a message, or options within their ranges; those
 * that were typed stay, and none is taken that names a file to be written. */
#include "recall.h"
#include "ranges.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dtp_args args = {.tp_degree = 1, .guidance_scale = -1};
	struct dtp_recall r = {.path = "fuzz"};
	struct dtp_err err = DTP_ERR_INIT;
	char *text = malloc(size + 1);

	if (!text)
		abort();
	memcpy(text, data, size);
	text[size] = '\0';
	args.prompt = "typed";
	args.seed = 7;
	dtp_args_give(&args, offsetof(struct dtp_args, prompt));
	dtp_args_give(&args, offsetof(struct dtp_args, seed));
	enum dtp_code code = dtp_json_parse("fuzz", text, size, &r.doc, &err);
	if (!code)
		code = dtp_recall_apply(&args, &r, &err);
	if (code && (code != DTP_REFUSED || err.code != code || !err.message[0]))
		abort();
	check_ranges(&args, DTP_CMD_RECIPE);
	if (strcmp(args.prompt, "typed") || args.seed != 7 || args.prompt_embeds || args.latents || args.output || args.dump_stages ||
	    args.save_prompt_embeds)
		abort();
	dtp_recall_free(&r);
	free(text);
	return 0;
}
