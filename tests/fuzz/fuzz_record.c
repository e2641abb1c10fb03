/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the record in a PNG, beside options that were typed: refused with a message, or options within their ranges; those
 * that were typed stay, and none is taken that names a file to be written. */
#include "recall.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_options(const struct dtp_args *args)
{
	for (int i = 0; i < dtp_noptions; i++) {
		const struct dtp_option *o = &dtp_options[i];
		const void *at = (const char *)args + o->offset;
		if (!dtp_args_given(args, o->offset))
			continue;
		if (!(o->commands & DTP_CMD_RECIPE))
			abort();
		if (o->kind == DTP_OPT_INT && (*(const int64_t *)at < (int64_t)o->min || *(const int64_t *)at > (int64_t)o->max))
			abort();
		if (o->kind == DTP_OPT_FLOAT && !(*(const double *)at >= o->min && *(const double *)at <= o->max))
			abort();
		if ((o->kind == DTP_OPT_STRING || o->kind == DTP_OPT_PATH) && !*(const char *const *)at)
			abort();
		if (o->kind == DTP_OPT_LIST && ((const struct dtp_list *)at)->n > (int)o->max)
			abort();
	}
}

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
	check_options(&args);
	if (strcmp(args.prompt, "typed") || args.seed != 7 || args.prompt_embeds || args.latents || args.output || args.dump_stages ||
	    args.save_prompt_embeds)
		abort();
	dtp_recall_free(&r);
	free(text);
	return 0;
}
