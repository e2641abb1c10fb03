/* SPDX-License-Identifier: Apache-2.0 */
#include "exclude.h"

#define AT(member) offsetof(struct dtp_args, member)
static const size_t by_embeds[] = { /* they are about the prompt that --prompt-embeds stands for */
	AT(prompt), AT(prompts), AT(negative_prompt), AT(system_message), AT(max_sequence_length), AT(save_prompt_embeds),
};
static const size_t by_synthetic[] = { /* what --synthetic computes, or does without */
	AT(prompt), AT(negative_prompt), AT(system_message), AT(prompt_embeds), AT(transformer), AT(variant), AT(loras),
};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static bool holds(const size_t *list, size_t n, size_t offset)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == offset)
			return true;
	return false;
}

bool dtp_embeds_exclude(size_t offset)
{
	return holds(by_embeds, COUNT(by_embeds), offset);
}

bool dtp_synthetic_excludes(size_t offset)
{
	return holds(by_synthetic, COUNT(by_synthetic), offset);
}

/* Refuses the first of these that is given.  why: what excludes them. */
static enum dtp_code refuse_given(const struct dtp_args *args, const size_t *list, size_t n, const char *why, struct dtp_err *err)
{
	for (size_t i = 0; i < n; i++)
		if (dtp_args_given(args, list[i]))
			return dtp_fail(err, DTP_REFUSED, "option %s: --%s does not go with it", why, dtp_option_at(list[i])->name);
	return DTP_OK;
}

enum dtp_code dtp_embeds_options_check(const struct dtp_args *args, struct dtp_err *err)
{
	if (args->prompt_embeds &&
	    refuse_given(args, by_embeds, COUNT(by_embeds), "'--prompt-embeds' stands for the encoded prompt", err))
		return err->code;
	if (args->save_prompt_embeds && args->prompts)
		return dtp_fail(err, DTP_REFUSED, "option '--save-prompt-embeds' writes one prompt: --prompts does not go with it");
	if (args->save_prompt_embeds && !args->output && (args->dump_stages || args->images.n || args->grid))
		return dtp_fail(err, DTP_REFUSED, "option '--%s' is about a picture, but with --save-prompt-embeds nothing is drawn unless "
				"--output is given", args->images.n ? "image" : args->grid ? "grid" : "dump-stages");
	return DTP_OK;
}

enum dtp_code dtp_synthetic_options_check(const struct dtp_args *args, struct dtp_err *err)
{
	return args->synthetic ? refuse_given(args, by_synthetic, COUNT(by_synthetic),
					      "'--synthetic' computes weights and tokens from the configurations", err)
			       : DTP_OK;
}
