/* SPDX-License-Identifier: Apache-2.0 */
/* Options: one table, from which come the parsing, --help, the man page and the checks of all three. */
#ifndef DTP_FLAGS_H
#define DTP_FLAGS_H

#include "err.h"
#include "suggest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum dtp_opt_kind {
	DTP_OPT_SWITCH, /* bool; may be given as --NAME=yes and --NAME=no */
	DTP_OPT_INT,    /* int64_t within [min, max] */
	DTP_OPT_SEED,   /* uint64_t, all of it */
	DTP_OPT_FLOAT,  /* double within [min, max], finite */
	DTP_OPT_STRING, /* const char *, into argv */
	DTP_OPT_PATH,   /* const char *, into argv, not empty */
	DTP_OPT_CHOICE, /* int: index into choices */
	DTP_OPT_LIST    /* struct dtp_list: may be given at most `max` times; none is empty */
};

/* Commands as a mask, so that an option can belong to several. */
enum dtp_command_bit { DTP_CMD_GENERATE = 1, DTP_CMD_BENCH = 2, DTP_CMD_MAN = 4, DTP_CMD_PLAN = 8, DTP_CMD_INSPECT = 16,
	DTP_CMD_VERIFY = 32, DTP_CMD_DOCTOR = 64, DTP_CMD_DECODE = 128, DTP_CMD_SHARD = 256, DTP_CMD_UNSHARD = 512,
	DTP_CMD_COMPLETION = 1024 };
#define DTP_CMD_RUN (DTP_CMD_GENERATE | DTP_CMD_BENCH)
#define DTP_CMD_START (DTP_CMD_RUN | DTP_CMD_VERIFY) /* they start ranks */
#define DTP_CMD_ASK (DTP_CMD_START | DTP_CMD_PLAN) /* they speak of one and the same run */
#define DTP_CMD_CONVERT (DTP_CMD_SHARD | DTP_CMD_UNSHARD)
#define DTP_CMD_ALL (DTP_CMD_START | DTP_CMD_MAN | DTP_CMD_PLAN | DTP_CMD_INSPECT | DTP_CMD_DOCTOR | \
	DTP_CMD_DECODE | DTP_CMD_CONVERT | DTP_CMD_COMPLETION)

/* No commands: */
#define DTP_CMD_LINE (1 << 30)   /* a line of --prompts, whose keys are options */
#define DTP_CMD_RECIPE (1 << 29) /* the recipe of an image (recipe.h): what decides its bytes */

enum dtp_opt_group { DTP_GROUP_MODEL, DTP_GROUP_PICTURE, DTP_GROUP_OUTPUT, DTP_GROUP_RANKS, DTP_GROUP_BENCH,
	DTP_GROUP_PLAN, DTP_GROUP_VERIFY, DTP_GROUP_INSPECT, DTP_GROUP_OTHER, DTP_NGROUPS };
extern const char *const dtp_group_titles[DTP_NGROUPS];

struct dtp_option {
	const char *name;          /* with dashes; underscores are accepted in their place everywhere */
	const char *aliases;       /* further spellings, separated by blanks, or NULL */
	char letter;               /* short form, or 0 */
	enum dtp_opt_kind kind;
	enum dtp_opt_group group;
	unsigned commands;         /* mask of enum dtp_command_bit */
	bool run_only;             /* has no place in a file of defaults */
	bool may_differ;           /* between the ranks of a job that somebody else's launcher starts */
	size_t offset;             /* of the value in struct dtp_args */
	const char *env;           /* environment variable with a default; NULL: none */
	const char *value;         /* how help calls the value: "N", "DIR"; NULL for switches and choices */
	double min, max;           /* INT and FLOAT; LIST: 0, and how many at most */
	const char *choices;       /* CHOICE: separated by blanks; "a=b" accepts b as another spelling of a */
	const char *text;          /* help, without a full stop at the end */
	const char *def;           /* the default in words; NULL: none worth saying */
};
extern const struct dtp_option dtp_options[];
extern const int dtp_noptions;

/* A set of options: bit i is row i of the table. */
typedef unsigned __int128 dtp_option_set;
enum { DTP_MAX_OPTIONS = 128 };
static inline dtp_option_set dtp_option_bit(const struct dtp_option *o)
{
	return (dtp_option_set)1 << (o - dtp_options);
}

enum dtp_arg_dtype { DTP_ARG_BF16, DTP_ARG_FP32 };
enum dtp_arg_device { DTP_ARG_AUTO, DTP_ARG_CPU, DTP_ARG_CUDA };
enum dtp_arg_reduce { DTP_ARG_REDUCE_AUTO, DTP_ARG_REDUCE_FP32, DTP_ARG_REDUCE_BF16 };
enum dtp_arg_passes { DTP_ARG_PASSES_AUTO, DTP_ARG_TOGETHER, DTP_ARG_IN_TURN };
enum dtp_arg_offload { DTP_ARG_OFFLOAD_AUTO, DTP_ARG_OFFLOAD_NONE, DTP_ARG_OFFLOAD_STAGE };
enum dtp_arg_launcher { DTP_ARG_ANY_LAUNCHER, DTP_ARG_SELF, DTP_ARG_TORCHRUN }; /* others follow, as in place.c */
enum dtp_arg_progress { DTP_ARG_PROGRESS_AUTO, DTP_ARG_PROGRESS_NONE, DTP_ARG_PROGRESS_PLAIN, DTP_ARG_PROGRESS_JSON };
enum dtp_arg_output { DTP_ARG_PNG, DTP_ARG_LATENT };

/* The values of an option that may be repeated, in their order, into argv. */
#define DTP_MAX_LIST 16
struct dtp_list {
	const char *item[DTP_MAX_LIST];
	int n;
};

/* Words that are no options: how many a command takes, and room for the most that any does. */
#define DTP_MAX_WORDS 2
int dtp_command_words(enum dtp_command_bit command);

/* What the command line said.  Members that were not given hold the value with which the core asks for the model's
 * default (0; guidance -1). */
struct dtp_args {
	enum dtp_command_bit command;
	const char *model, *transformer, *variant, *prompt, *prompts, *tp_plan, *output, *dump_stages; /* NULL: not given */
	const char *negative_prompt, *system_message, *prompt_embeds, *save_prompt_embeds;
	const char *devices, *max_memory, *emit, *filter, *against, *rendezvous;
	const char *latents;
	struct dtp_list images, loras;
	const char *word[DTP_MAX_WORDS];
	int nwords;
	int64_t height, width, steps, num_images, max_sequence_length;
	int64_t tp_degree, dp_degree, ring_degree, ulysses_degree, threads, repeat;
	double guidance_scale, timeout, tflops, tolerance;
	uint64_t seed;
	int dtype, reduce_dtype, device, attention /* enum dtp_cuda_attention */, graph /* enum dtp_cuda_graph */, overlap /* enum dtp_overlap */, output_type, guidance_passes, offload, launcher, progress;
	bool exact_timesteps, keep_text_encoder, oversubscribe, no_metadata, force, resume, show, preview, json, quiet, suggest, diff, check;
	bool free_run, synthetic;
	bool help, version;
	const char *from, *grid;
	bool beside_whole; /* set by the command: see struct dtp_options */
	const char *pattern;             /* of the names in a batch's folder; NULL: numbers */
	const char *model_name;          /* model as it was given, once that has become a folder */
	const struct dtp_recall *recall; /* what `from` said; NULL: nothing was read */
	dtp_option_set recalled; /* of `given`: not typed, but read from `from` */
	dtp_option_set given;    /* on the command line */
	dtp_option_set preset;   /* not there, but by the environment or the file of defaults (defaults.h) */
};

/* Reads argv[1..argc) as options of one command.  argv's option names are changed in place ('_' becomes '-').  Unknown
 * options, malformed values and stray words are DTP_REFUSED, with what was probably meant. */
enum dtp_code dtp_args_parse(enum dtp_command_bit command, int argc, char **argv, struct dtp_args *args,
			     struct dtp_err *err);
/* The option whose member of struct dtp_args is at this offset; NULL: none. */
const struct dtp_option *dtp_option_at(size_t offset);
/* The option of this spelling ('_' is '-') that belongs to one of the commands; NULL: none.  near: what was probably meant. */
const struct dtp_option *dtp_option_find(unsigned commands, const char *name, struct dtp_suggest *near);
/* Gives an option a value, as the command line does. */
enum dtp_code dtp_args_set(struct dtp_args *args, const struct dtp_option *o, const char *value, struct dtp_err *err);
/* Whether the option whose value lies at this offset was given. */
bool dtp_args_given(const struct dtp_args *args, size_t offset);
/* Gives it a default from elsewhere. */
enum dtp_code dtp_args_preset(struct dtp_args *args, const struct dtp_option *o, const char *value, struct dtp_err *err);
bool dtp_args_has(const struct dtp_args *args, size_t offset); /* given or preset */
void dtp_args_give(struct dtp_args *args, size_t offset); /* from now on it was */
/* An option's value as `from` (the name of a file) has it: taken unless the command line says something, which must be the
 * same, else DTP_REFUSED with both.  The value must live as long as args. */
enum dtp_code dtp_args_take(struct dtp_args *args, const char *name, const char *value, const char *from,
			    struct dtp_err *err);
bool dtp_args_typed(const struct dtp_args *args, size_t offset); /* given, and not by --from */
#define DTP_TYPED(args, member) dtp_args_typed(args, offsetof(struct dtp_args, member))
#define DTP_GIVEN(args, member) dtp_args_given(args, offsetof(struct dtp_args, member))
#define DTP_HAS(args, member) dtp_args_has(args, offsetof(struct dtp_args, member))

/* Whether the table is sound: spellings unique, texts present, ranges and offsets sensible. */
enum dtp_code dtp_options_check(struct dtp_err *err);
/* Calls fn with each word of a blank-separated list until it returns false. */
void dtp_each_word(const char *list, bool (*fn)(void *arg, const char *word, size_t len), void *arg);
#endif
