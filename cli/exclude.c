/* SPDX-License-Identifier: Apache-2.0 */
#include "exclude.h"

static const struct {
	size_t offset;
	const char *name;
} excluded[] = { /* by --prompt-embeds */
	{offsetof(struct dtp_args, prompt), "prompt"},
	{offsetof(struct dtp_args, prompts), "prompts"},
	{offsetof(struct dtp_args, negative_prompt), "negative-prompt"},
	{offsetof(struct dtp_args, system_message), "system-message"},
	{offsetof(struct dtp_args, max_sequence_length), "max-sequence-length"},
	{offsetof(struct dtp_args, save_prompt_embeds), "save-prompt-embeds"},
};
#define NEXCLUDED (sizeof excluded / sizeof excluded[0])

bool dtp_embeds_exclude(size_t offset)
{
	for (size_t i = 0; i < NEXCLUDED; i++)
		if (excluded[i].offset == offset)
			return true;
	return false;
}

enum dtp_code dtp_embeds_options_check(const struct dtp_args *args, struct dtp_err *err)
{
	for (size_t i = 0; args->prompt_embeds && i < NEXCLUDED; i++)
		if (dtp_args_given(args, excluded[i].offset))
			return dtp_fail(err, DTP_REFUSED, "option '--prompt-embeds' stands for the encoded prompt: --%s does not go with it",
					excluded[i].name);
	if (args->save_prompt_embeds && args->prompts)
		return dtp_fail(err, DTP_REFUSED, "option '--save-prompt-embeds' writes one prompt: --prompts does not go with it");
	if (args->save_prompt_embeds && !args->output && (args->dump_stages || args->images.n || args->grid))
		return dtp_fail(err, DTP_REFUSED, "option '--%s' is about a picture, but with --save-prompt-embeds nothing is drawn unless "
				"--output is given", args->images.n ? "image" : args->grid ? "grid" : "dump-stages");
	return DTP_OK;
}

static const struct {
	size_t offset;
	const char *name;
} read_from_files[] = { /* what --synthetic computes, or does without */
	{offsetof(struct dtp_args, prompt), "prompt"},
	{offsetof(struct dtp_args, negative_prompt), "negative-prompt"},
	{offsetof(struct dtp_args, system_message), "system-message"},
	{offsetof(struct dtp_args, prompt_embeds), "prompt-embeds"},
	{offsetof(struct dtp_args, transformer), "transformer"},
	{offsetof(struct dtp_args, variant), "variant"},
	{offsetof(struct dtp_args, loras), "lora"},
};
#define NREAD (sizeof read_from_files / sizeof read_from_files[0])

bool dtp_synthetic_excludes(size_t offset)
{
	for (size_t i = 0; i < NREAD; i++)
		if (read_from_files[i].offset == offset)
			return true;
	return false;
}

enum dtp_code dtp_synthetic_options_check(const struct dtp_args *args, struct dtp_err *err)
{
	for (size_t i = 0; args->synthetic && i < NREAD; i++)
		if (dtp_args_given(args, read_from_files[i].offset))
			return dtp_fail(err, DTP_REFUSED, "option '--synthetic' computes weights and tokens from the configurations: --%s does not go "
					"with it", read_from_files[i].name);
	return DTP_OK;
}
