/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include "control.h"
#include "defaults.h"
#include "help.h"
#include "hub.h"
#include "recall.h"
#include "shards.h"
#include "suggest.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

const struct dtp_command dtp_commands[] = {
	{"generate", "draw images from a prompt; the command when none is named",
	 "--model DIR --prompt TEXT [OPTION]...", DTP_CMD_GENERATE, dtp_cmd_generate},
	{"bench", "draw as generate does and print where the time goes", "--model DIR [OPTION]...", DTP_CMD_BENCH,
	 dtp_cmd_bench},
	{"decode", "turn latents of --output-type latent into a picture", "FILE --model DIR [OPTION]...", DTP_CMD_DECODE, dtp_cmd_decode},
	{"plan", "say what goes where, what it takes, whether it fits",
	 "--model DIR [OPTION]... | plan --diff A B [OPTION]...", DTP_CMD_PLAN, dtp_cmd_plan},
	{"verify", "compare every layer of a split run with the whole model", "--model DIR [OPTION]...",
	 DTP_CMD_VERIFY, dtp_cmd_verify},
	{"inspect", "list or check safetensors files; say how a PNG was drawn", "FILE|DIR [OPTION]...", DTP_CMD_INSPECT,
	 dtp_cmd_inspect},
	{"doctor", "look at this machine: what a run would meet, and what to do", "[OPTION]...", DTP_CMD_DOCTOR,
	 dtp_cmd_doctor},
	{"shard", "split a model's weights once, into a file for each rank", "--model DIR --tp-degree N -o DIR2 [OPTION]...",
	 DTP_CMD_SHARD, dtp_cmd_shard},
	{"unshard", "restore the files that a sharded folder was made from", "DIR -o DIR2 [OPTION]...", DTP_CMD_UNSHARD,
	 dtp_cmd_unshard},
	{"completion", "print what bash, zsh or fish completes a line by", "bash|zsh|fish [OPTION]...", DTP_CMD_COMPLETION,
	 dtp_cmd_completion},
	{"man", "print the manual page in roff, for man -l", "[OPTION]...", DTP_CMD_MAN, dtp_cmd_man},
};
const int dtp_ncommands = sizeof dtp_commands / sizeof dtp_commands[0];

static const struct dtp_command *find(const char *name, struct dtp_err *err)
{
	struct dtp_suggest near = dtp_suggest_begin(name);

	for (int i = 0; i < dtp_ncommands; i++) {
		if (!strcmp(dtp_commands[i].name, name))
			return &dtp_commands[i];
		dtp_suggest_try(&near, dtp_commands[i].name);
	}
	if (near.best[0])
		dtp_fail(err, DTP_REFUSED, "unknown command '%s'; did you mean '%s'?", name, near.best);
	else
		dtp_fail(err, DTP_REFUSED, "unknown command '%s'; see 'difftp --help'", name);
	return NULL;
}

enum dtp_code dtp_cmd_man(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	(void)args, (void)argv, (void)err;
	dtp_man_write(stdout);
	return DTP_OK;
}

/* Where it lies: the first process has looked for its ranks, whatever is downloaded meanwhile. */
static enum dtp_code find_model(struct dtp_args *args, char folder[PATH_MAX], struct dtp_err *err)
{
	const char *found = dtp_worker_is_rank() ? getenv(DTP_ENV_MODEL) : NULL;

	args->model_name = args->model;
	if (found) {
		args->model = found;
	} else {
		if (dtp_hub_find(args->model, folder, err))
			return err->code;
		args->model = folder;
		setenv(DTP_ENV_MODEL, folder, 1);
	}
	/* What a folder was sharded for is the degree of all that is done with it. */
	int degree = (int)args->tp_degree;
	if (!DTP_GIVEN(args, tp_degree) && dtp_shards_degree(args->model, &degree, err))
		return err->code;
	args->tp_degree = degree;
	return DTP_OK;
}

enum dtp_code dtp_commands_main(int argc, char **argv, struct dtp_err *err)
{
	const struct dtp_command *command = &dtp_commands[0];
	bool named = argc > 1 && argv[1][0] != '-';
	char folder[PATH_MAX], *defaults = NULL;
	struct dtp_recall recall = {0};
	struct dtp_args args;
	enum dtp_code code;

	if (argc < 2)
		return dtp_fail(err, DTP_REFUSED,
				"nothing to do: --model and --prompt are needed; 'difftp --help' lists the options");
	if (named && !(command = find(argv[1], err)))
		return err->code;
	/* Its parser skips the first word: the program's name, or the command's. */
	if (dtp_args_parse(command->bit, argc - named, argv + named, &args, err))
		return err->code;
	if (args.help) {
		dtp_help_write(stdout, command, !named);
		return DTP_OK;
	}
	if (args.version) {
		printf("difftp %s\n", DTP_VERSION);
		return DTP_OK;
	}
	code = args.from ? dtp_recall_take(&args, &recall, err) : DTP_OK;
	if (!code)
		code = dtp_defaults_read(&args, &defaults, err);
	if (!code && args.model)
		code = find_model(&args, folder, err);
	if (!code)
		code = command->run(&args, argv, err);
	free(defaults);
	dtp_recall_free(&recall);
	return code;
}
