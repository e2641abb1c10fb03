/* SPDX-License-Identifier: Apache-2.0 */
#include "request.h"

#include "file.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void dtp_request_make(const struct dtp_args *args, struct dtp_options *options, struct dtp_request *request)
{
	*options = (struct dtp_options){
		.model = args->model,
		.transformer = args->transformer,
		.variant = args->variant,
		.loras = args->loras.item,
		.nloras = args->loras.n,
		.tp_plan = args->tp_plan,
		.tp_degree = (int)args->tp_degree,
		.compute = args->dtype == DTP_ARG_FP32 ? DTP_F32 : DTP_BF16,
		.keep_text_encoder = args->keep_text_encoder,
		.prompt_embeds = args->prompt_embeds,
		.encode_only = args->save_prompt_embeds && !args->output,
		.beside_whole = args->beside_whole,
		.references = args->images.n > 0,
	};
	*request = (struct dtp_request){
		.prompt = args->prompt ? args->prompt : "",
		.negative_prompt = args->negative_prompt,
		.system_message = args->system_message,
		.height = args->height,
		.width = args->width,
		.steps = (int)args->steps,
		.guidance_scale = args->guidance_scale,
		.seed = args->seed,
		.num_images = (int)args->num_images,
		.max_sequence_length = args->max_sequence_length,
		.output = args->output_type == DTP_ARG_LATENT ? DTP_OUTPUT_LATENT : DTP_OUTPUT_PNG,
		.save_embeds = args->save_prompt_embeds,
		.passes_in_turn = args->guidance_passes == DTP_ARG_IN_TURN,
		.exact_timesteps = args->exact_timesteps,
		.dump_stages = args->dump_stages,
	};
}

/* The suffix with its dot, or the end of the name; a dot at the start of the file's name makes no suffix. */
static const char *suffix(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');

	return dot && dot != name ? dot : path + strlen(path);
}

char *dtp_output_name(const char *output, int index, int count)
{
	const char *end = suffix(output);
	char *s = NULL;

	if (count <= 1)
		return strdup(output);
	return asprintf(&s, "%.*s_%d%s", (int)(end - output), output, index, end) < 0 ? NULL : s;
}

const char *dtp_output_path(const struct dtp_args *args)
{
	if (args->output)
		return args->output;
	return args->output_type == DTP_ARG_LATENT ? "out.safetensors" : "out.png";
}

enum dtp_code dtp_output_check_format(const struct dtp_args *args, struct dtp_err *err)
{
	static const char *const pictures[] = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
		".avif", ".heic", ".jxl"};
	static const char *const tensors[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npy", ".npz", ".gguf"};
	bool latent = args->output_type == DTP_ARG_LATENT;
	const char *path = dtp_output_path(args), *end = suffix(path);

	for (size_t i = latent ? 0 : 1; i < sizeof pictures / sizeof pictures[0]; i++)
		if (!strcasecmp(end, pictures[i]))
			return dtp_fail(err, DTP_REFUSED, latent ? "'%s' names a picture, but latents are written as '%s'"
				: "'%s': only PNG files are written, not '%s'; name it '.png'", path,
				latent ? ".safetensors" : end);
	for (size_t i = latent ? 1 : 0; i < sizeof tensors / sizeof tensors[0]; i++)
		if (!strcasecmp(end, tensors[i]))
			return dtp_fail(err, DTP_REFUSED, latent ? "'%s': latents are written as '.safetensors', not '%s'"
				: "'%s' names a file of tensors ('%s'), but a PNG is written; --output-type latent writes tensors",
				path, end);
	return DTP_OK;
}

static const struct {
	size_t offset;
	const char *name;
} excluded[] = { /* by --prompt-embeds */
	{offsetof(struct dtp_args, prompt), "prompt"},
	{offsetof(struct dtp_args, prompts), "prompts"},
	{offsetof(struct dtp_args, negative_prompt), "negative-prompt"},
	{offsetof(struct dtp_args, system_message), "system-message"},
	{offsetof(struct dtp_args, max_sequence_length), "max-sequence-length"},
	{offsetof(struct dtp_args, keep_text_encoder), "keep-text-encoder"},
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
	if (args->save_prompt_embeds && !args->output && (args->dump_stages || args->images.n))
		return dtp_fail(err, DTP_REFUSED, "option '--%s' is about a picture, but with --save-prompt-embeds nothing is drawn unless "
				"--output is given", args->images.n ? "image" : "dump-stages");
	return DTP_OK;
}

/* Files that are written beside the pictures: names differ, and both can be written. */
static enum dtp_code check_beside(const char *output, const char *option, const char *path, struct dtp_err *err)
{
	if (path && !strcmp(output, path))
		return dtp_fail(err, DTP_REFUSED, "--output and --%s would both write '%s'", option, path);
	return path ? dtp_outfile_check(path, err) : DTP_OK;
}

enum dtp_code dtp_outputs_check(const struct dtp_args *args, int count, struct dtp_err *err)
{
	const char *path = dtp_output_path(args), *dump = args->dump_stages, *embeds = args->save_prompt_embeds;

	if (embeds && !args->output)
		return dtp_outfile_check(embeds, err);
	if (embeds && dump && !strcmp(embeds, dump))
		return dtp_fail(err, DTP_REFUSED, "--save-prompt-embeds and --dump-stages would both write '%s'", dump);
	if (dtp_output_check_format(args, err))
		return err->code;
	for (int i = 0; i < count; i++) {
		char *name = dtp_output_name(path, i, count);
		if (!name)
			return dtp_fail(err, DTP_FAILED, "out of memory");
		enum dtp_code code = check_beside(name, "dump-stages", dump, err);
		if (!code)
			code = check_beside(name, "save-prompt-embeds", embeds, err);
		if (!code)
			code = dtp_outfile_check(name, err);
		free(name);
		if (code)
			return code;
	}
	return DTP_OK;
}
