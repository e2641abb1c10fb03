/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options.  A row here is all that an option needs: parsing, --help and the man page follow from it. */
#include "flags.h"

const char *const dtp_group_titles[DTP_NGROUPS] = {
	[DTP_GROUP_MODEL] = "Model", [DTP_GROUP_PICTURE] = "Picture",     [DTP_GROUP_OUTPUT] = "Output",
	[DTP_GROUP_RANKS] = "Ranks", [DTP_GROUP_BENCH] = "Measurement", [DTP_GROUP_OTHER] = "Other",
};

#define AT(member) offsetof(struct dtp_args, member)

const struct dtp_option dtp_options[] = {
	{.name = "model", .letter = 'm', .kind = DTP_OPT_PATH, .group = DTP_GROUP_MODEL, .commands = DTP_CMD_RUN,
	 .offset = AT(model), .value = "DIR",
	 .text = "pipeline folder in the diffusers layout (model_index.json, transformer/, text_encoder/, ...)"},
	{.name = "tp-plan", .kind = DTP_OPT_PATH, .group = DTP_GROUP_MODEL, .commands = DTP_CMD_RUN, .offset = AT(tp_plan),
	 .value = "FILE", .text = "tensor-parallel plan of the transformer (JSON)", .def = "the plan of the model's family"},
	{.name = "dtype", .aliases = "torch-dtype", .kind = DTP_OPT_CHOICE, .group = DTP_GROUP_MODEL,
	 .commands = DTP_CMD_RUN, .offset = AT(dtype), .choices = "bf16=bfloat16 fp32=float32",
	 .text = "what is computed and stored in; sums are always in 32 bits", .def = "bf16"},
	{.name = "keep-text-encoder", .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_MODEL, .commands = DTP_CMD_RUN,
	 .offset = AT(keep_text_encoder),
	 .text = "keep the text encoder in memory beside the transformer instead of freeing it first"},

	{.name = "prompt", .letter = 'p', .kind = DTP_OPT_STRING, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN,
	 .offset = AT(prompt), .value = "TEXT", .text = "what to draw (UTF-8; may be empty)"},
	{.name = "height", .kind = DTP_OPT_INT, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN, .offset = AT(height),
	 .value = "PIXELS", .min = 1, .max = 16384, .text = "height of the picture, a multiple of 16 for FLUX.2",
	 .def = "1024"},
	{.name = "width", .kind = DTP_OPT_INT, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN, .offset = AT(width),
	 .value = "PIXELS", .min = 1, .max = 16384, .text = "width of the picture, likewise", .def = "1024"},
	{.name = "steps", .aliases = "num-inference-steps num-steps", .kind = DTP_OPT_INT, .group = DTP_GROUP_PICTURE,
	 .commands = DTP_CMD_RUN, .offset = AT(steps), .value = "N", .min = 1, .max = 1000,
	 .text = "denoising steps", .def = "4 where the model says is_distilled, else 50"},
	{.name = "guidance-scale", .aliases = "guidance", .kind = DTP_OPT_FLOAT, .group = DTP_GROUP_PICTURE,
	 .commands = DTP_CMD_RUN, .offset = AT(guidance_scale), .value = "X", .min = 0, .max = 1000,
	 .text = "how closely the prompt is followed; has no effect on a distilled model", .def = "4.0"},
	{.name = "seed", .kind = DTP_OPT_SEED, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN, .offset = AT(seed),
	 .value = "N", .text = "seed of the first image, 0 to 2^64-1; image i uses N + i", .def = "random, and printed"},
	{.name = "num-images", .aliases = "num-images-per-prompt", .letter = 'n', .kind = DTP_OPT_INT,
	 .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN, .offset = AT(num_images), .value = "N", .min = 1,
	 .max = 10000, .text = "how many images to draw", .def = "1"},
	{.name = "max-sequence-length", .kind = DTP_OPT_INT, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN,
	 .offset = AT(max_sequence_length), .value = "TOKENS", .min = 1, .max = 32768,
	 .text = "tokens that the prompt is padded or cut to", .def = "512"},
	{.name = "exact-timesteps", .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_PICTURE, .commands = DTP_CMD_RUN,
	 .offset = AT(exact_timesteps),
	 .text = "do not round timesteps to bf16 as diffusers does: another picture, nearer to that of fp32"},

	{.name = "output", .letter = 'o', .kind = DTP_OPT_PATH, .group = DTP_GROUP_OUTPUT, .commands = DTP_CMD_RUN,
	 .offset = AT(output), .value = "FILE",
	 .text = "where to write; several images become NAME_0.png, NAME_1.png, ...; a file that exists is replaced",
	 .def = "out.png or out.safetensors; bench writes none"},
	{.name = "output-type", .kind = DTP_OPT_CHOICE, .group = DTP_GROUP_OUTPUT, .commands = DTP_CMD_RUN,
	 .offset = AT(output_type), .choices = "png=pil latent",
	 .text = "png: a picture; latent: a safetensors file with the tensor 'latents' as the pipeline class returns it",
	 .def = "png"},
	{.name = "dump-stages", .kind = DTP_OPT_PATH, .group = DTP_GROUP_OUTPUT, .commands = DTP_CMD_GENERATE,
	 .offset = AT(dump_stages), .value = "FILE",
	 .text = "write every intermediate tensor of the first image to a safetensors file"},
	{.name = "quiet", .letter = 'q', .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_OUTPUT, .commands = DTP_CMD_RUN,
	 .offset = AT(quiet), .text = "no progress and no notes on stderr; warnings and errors remain"},

	{.name = "tp-degree", .aliases = "tp", .kind = DTP_OPT_INT, .group = DTP_GROUP_RANKS, .commands = DTP_CMD_RUN,
	 .offset = AT(tp_degree), .value = "N", .min = 1, .max = 1024,
	 .text = "ranks (processes) that share every layer; must divide the transformer's heads", .def = "1"},
	{.name = "device", .kind = DTP_OPT_CHOICE, .group = DTP_GROUP_RANKS, .commands = DTP_CMD_RUN, .offset = AT(device),
	 .choices = "auto cpu", .text = "where the ranks compute", .def = "auto"},
	{.name = "threads", .kind = DTP_OPT_INT, .group = DTP_GROUP_RANKS, .commands = DTP_CMD_RUN, .offset = AT(threads),
	 .value = "N", .min = 1, .max = 4096, .text = "threads of all ranks of this machine together",
	 .def = "the processors that this process may use"},
	{.name = "timeout", .kind = DTP_OPT_FLOAT, .group = DTP_GROUP_RANKS, .commands = DTP_CMD_RUN, .offset = AT(timeout),
	 .value = "SECONDS", .min = 0.1, .max = 1e6,
	 .text = "end the run when a rank makes no progress at all for this long", .def = "300"},

	{.name = "repeat", .kind = DTP_OPT_INT, .group = DTP_GROUP_BENCH, .commands = DTP_CMD_BENCH, .offset = AT(repeat),
	 .value = "N", .min = 1, .max = 1000, .text = "how often the whole pipeline runs", .def = "1"},
	{.name = "json", .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_BENCH, .commands = DTP_CMD_BENCH, .offset = AT(json),
	 .text = "print one JSON object instead of a table"},

	{.name = "help", .letter = 'h', .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_OTHER, .commands = DTP_CMD_ALL,
	 .offset = AT(help), .text = "print this help"},
	{.name = "version", .letter = 'V', .kind = DTP_OPT_SWITCH, .group = DTP_GROUP_OTHER, .commands = DTP_CMD_ALL,
	 .offset = AT(version), .text = "print the version"},
};
const int dtp_noptions = sizeof dtp_options / sizeof dtp_options[0];
