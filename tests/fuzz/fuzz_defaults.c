/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes but the first as the user's file of defaults, beside options that were typed, which the first byte chooses: refused with a message
 * that names the file, or options that may have a default, of the command, within their ranges, that go with what was typed, which stays. */
#include "defaults.h"
#include "exclude.h"
#include "ranges.h"
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of cli/worker.c this is all that defaults ask. */
bool dtp_worker_is_rank(void)
{
	return false;
}

static char folder[] = "/tmp/fuzz-defaults-XXXXXX", file[64];
static int fd; /* what the file is: in memory */

static void remove_folder(void)
{
	char inner[64];

	snprintf(inner, sizeof inner, "%s/difftp", folder);
	unlink(file);
	rmdir(inner);
	rmdir(folder);
}

static void make_folder(void)
{
	char memory[32];

	if (*file)
		return;
	if (!mkdtemp(folder))
		abort();
	snprintf(file, sizeof file, "%s/difftp", folder);
	if (mkdir(file, 0700) || setenv("XDG_CONFIG_HOME", folder, 1) || setenv("HOME", "/home/fuzz", 1))
		abort();
	snprintf(file, sizeof file, "%s/difftp/config", folder);
	fd = memfd_create("fuzz", 0);
	snprintf(memory, sizeof memory, "/proc/self/fd/%d", fd);
	if (fd < 0 || symlink(memory, file))
		abort();
	unsetenv("DIFFTP_MODEL");
	unsetenv("DIFFTP_TP_DEGREE");
	atexit(remove_folder);
}

static const enum dtp_command_bit commands[] = {DTP_CMD_GENERATE, DTP_CMD_PLAN, DTP_CMD_BENCH, DTP_CMD_VERIFY, DTP_CMD_DECODE, DTP_CMD_SHARD,
	DTP_CMD_INSPECT, DTP_CMD_DOCTOR};
enum { EMBEDS = 1, SYNTHETIC = 2, FP32 = 4, COMMAND_SHIFT = 3 }; /* of the first byte */

/* What other options do not go with. */
static void type(struct dtp_args *args, unsigned choice)
{
	if (choice & EMBEDS) {
		args->prompt_embeds = "typed";
		dtp_args_give(args, offsetof(struct dtp_args, prompt_embeds));
	}
	if (choice & SYNTHETIC) {
		args->synthetic = true;
		dtp_args_give(args, offsetof(struct dtp_args, synthetic));
	}
	if (choice & FP32) {
		args->dtype = DTP_ARG_FP32;
		dtp_args_give(args, offsetof(struct dtp_args, dtype));
	}
}

static bool excluded(const struct dtp_option *o, unsigned choice)
{
	return o->run_only || (choice & EMBEDS && dtp_embeds_exclude(o->offset)) || (choice & SYNTHETIC && dtp_synthetic_excludes(o->offset)) ||
	       (choice & FP32 && (o->offset == offsetof(struct dtp_args, reduce_dtype) || o->offset == offsetof(struct dtp_args, dtype)));
}

static void try_defaults(unsigned choice)
{
	enum dtp_command_bit command = commands[(choice >> COMMAND_SHIFT) % (sizeof commands / sizeof *commands)];
	struct dtp_args args = {.command = command, .tp_degree = 3, .guidance_scale = -1, .model = "typed"}, seen;
	struct dtp_err err = DTP_ERR_INIT;
	char *text;

	dtp_args_give(&args, offsetof(struct dtp_args, model));
	dtp_args_give(&args, offsetof(struct dtp_args, tp_degree));
	type(&args, choice);
	enum dtp_code code = dtp_defaults_read(&args, &text, &err);
	if (code && (code != DTP_REFUSED || err.code != code || !strstr(err.message, file)))
		abort();
	seen = args;
	seen.given = seen.preset;
	check_ranges(&seen, command);
	for (int i = 0; i < dtp_noptions; i++)
		if (dtp_args_given(&seen, dtp_options[i].offset) && excluded(&dtp_options[i], choice))
			abort();
	if (strcmp(args.model, "typed") || args.tp_degree != 3)
		abort();
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	make_folder();
	if (ftruncate(fd, 0) || pwrite(fd, data + 1, size - 1, 0) != (ssize_t)size - 1)
		abort();
	try_defaults(data[0]);
	return 0;
}
