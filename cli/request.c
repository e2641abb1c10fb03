/* SPDX-License-Identifier: Apache-2.0 */
#include "request.h"

#include "naming.h"
#include "offload.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A benchmark draws the same picture again, and a batch that goes on may have been ended between a picture and its record. */
static bool may_replace(const struct dtp_args *args)
{
	return args->force || args->resume || args->command == DTP_CMD_BENCH;
}

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
		.reduce = args->reduce_dtype == DTP_ARG_REDUCE_FP32 ? DTP_F32 : args->reduce_dtype == DTP_ARG_REDUCE_BF16 ? DTP_BF16 : DTP_NO_DTYPE,
		.overlap = (enum dtp_overlap)args->overlap,
		.stay = dtp_offload_least(dtp_offload_asked(args)),
		.prompt_embeds = args->prompt_embeds,
		.encode_only = args->save_prompt_embeds && !args->output,
		.beside_whole = args->beside_whole,
		.references = args->images.n > 0,
		.synthetic = args->synthetic,
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
		.replace = may_replace(args),
	};
}

const char *dtp_output_path(const struct dtp_args *args)
{
	if (args->output)
		return args->output;
	return args->output_type == DTP_ARG_LATENT ? "out.safetensors" : "out.png";
}

char *dtp_output_name(const struct dtp_args *args, uint64_t seed, int index, int count, int number)
{
	const struct dtp_name_values v = {args->prompt ? args->prompt : "", seed + (uint64_t)index, index};
	char *numbered = number > 1 ? dtp_name_number(dtp_output_path(args), '-', number) : NULL, *name = NULL;

	if (number <= 1 || numbered)
		name = dtp_name_make(numbered ? numbered : dtp_output_path(args), &v, index, count);
	free(numbered);
	return name;
}

int dtp_output_free(const struct dtp_args *args, int count)
{
	int number = 1, i = 0;

	if (args->output || args->force)
		return 1;
	while (i < count) {
		char *name = dtp_output_name(args, args->seed, i, count, number);
		bool taken = name && dtp_name_is_taken(name);
		free(name);
		i = taken ? 0 : i + 1;
		number += taken;
	}
	return number;
}

struct dtp_outkeep *dtp_output_keep(const struct dtp_args *args, const char *path, int number, struct dtp_outkeep *keep)
{
	*keep = dtp_outkeep_of(path);
	if (number && !args->output) { /* the default name has its number before that of the image */
		const char *plain = dtp_output_path(args);
		keep->at = (size_t)(dtp_suffix_of(plain) - plain);
		keep->len = number > 1 ? (size_t)snprintf(NULL, 0, "-%d", number) : 0;
		keep->next = number + 1;
	}
	return may_replace(args) ? NULL : keep;
}

enum dtp_code dtp_output_check_format(const char *path, bool latent, struct dtp_err *err)
{
	static const char *const pictures[] = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
		".avif", ".heic", ".jxl"};
	static const char *const tensors[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npy", ".npz", ".gguf"};
	const char *end = dtp_suffix_of(path);

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

static enum dtp_code check_taken(const struct dtp_args *args, const char *name, const char *hint, struct dtp_err *err)
{
	if (args->force || !dtp_name_is_taken(name))
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "'%s' exists: --force replaces it; or give another name%s", name, hint);
}

enum dtp_code dtp_output_check_taken(const struct dtp_args *args, const char *name, struct dtp_err *err)
{
	return check_taken(args, name, ", perhaps a pattern such as --output 'fox-{seed}.png'", err);
}

enum dtp_code dtp_output_check_file(const struct dtp_args *args, const char *path, struct dtp_err *err)
{
	return check_taken(args, path, "", err) ? err->code : dtp_outfile_check(path, err);
}

/* Of two files that one run writes, if both are asked for. */
static enum dtp_code check_apart(const char *option, const char *path, const char *other, const char *its_path, struct dtp_err *err)
{
	if (path && its_path && dtp_same_file(path, its_path))
		return dtp_fail(err, DTP_REFUSED, "--%s and --%s would both write '%s'", option, other, its_path);
	return DTP_OK;
}

/* Files that are written beside the pictures: names differ, and both can be written. */
static enum dtp_code check_beside(const struct dtp_args *args, const char *output, const char *option, const char *path, struct dtp_err *err)
{
	if (check_apart("output", output, option, path, err))
		return err->code;
	return path ? dtp_output_check_file(args, path, err) : DTP_OK;
}

/* Of a pattern, the folders that all images share are made; those that its fields name come with their images. */
static enum dtp_code check_folder(const char *pattern, const char *name, struct dtp_err *err)
{
	size_t n = dtp_name_folder(pattern);
	const char *slash = strrchr(name, '/');
	char *path;

	if (!dtp_name_is_pattern(pattern))
		return dtp_outfile_check(name, err);
	if (asprintf(&path, "%.*s%s%s", (int)n, pattern, n ? "/" : "", slash ? slash + 1 : name) < 0)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	enum dtp_code code = dtp_make_folders(path, 0, DTP_REFUSED, err);
	if (!code)
		code = dtp_outfile_check(path, err);
	free(path);
	return code;
}

static enum dtp_code check_output(const struct dtp_args *args, const char *name, bool known, struct dtp_err *err)
{
	if (check_beside(args, name, "dump-stages", args->dump_stages, err) ||
	    check_beside(args, name, "save-prompt-embeds", args->save_prompt_embeds, err) ||
	    check_beside(args, name, "grid", args->grid, err) ||
	    (known && dtp_output_check_taken(args, name, err)))
		return err->code;
	return check_folder(dtp_output_path(args), name, err);
}

static enum dtp_code check_pattern(const struct dtp_args *args, struct dtp_err *err)
{
	if (args->output && dtp_name_check(args->output, err))
		return err->code;
	if (args->output && args->latents && dtp_name_has(args->output, "seed"))
		return dtp_fail(err, DTP_REFUSED, "output '%s': the noise of --latents has no seed", args->output);
	return DTP_OK;
}

static enum dtp_code check_grid(const struct dtp_args *args, struct dtp_err *err)
{
	if (!args->grid)
		return DTP_OK;
	if (args->output_type == DTP_ARG_LATENT)
		return dtp_fail(err, DTP_REFUSED, "--grid is a sheet of pictures: it cannot be given with --output-type latent");
	if (check_apart("grid", args->grid, "dump-stages", args->dump_stages, err) ||
	    check_apart("grid", args->grid, "save-prompt-embeds", args->save_prompt_embeds, err))
		return err->code;
	return dtp_output_check_format(args->grid, false, err);
}

enum dtp_code dtp_outputs_check(const struct dtp_args *args, int count, struct dtp_err *err)
{
	const char *path = dtp_output_path(args), *dump = args->dump_stages, *embeds = args->save_prompt_embeds;
	bool known = DTP_HAS(args, seed) || !dtp_name_has(path, "seed");
	int number = dtp_output_free(args, count);

	if (embeds && !args->output)
		return dtp_output_check_file(args, embeds, err);
	if (check_apart("save-prompt-embeds", embeds, "dump-stages", dump, err))
		return err->code;
	if (check_pattern(args, err) || dtp_output_check_format(path, args->output_type == DTP_ARG_LATENT, err) || check_grid(args, err))
		return err->code;
	for (int i = 0; i < count; i++) {
		char *name = dtp_output_name(args, args->seed, i, count, number);
		enum dtp_code code = name ? check_output(args, name, known, err) : dtp_fail(err, DTP_FAILED, "out of memory");
		free(name);
		if (code)
			return code;
	}
	return DTP_OK;
}
