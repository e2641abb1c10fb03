/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, and what each runs. */
#ifndef DTP_COMMANDS_H
#define DTP_COMMANDS_H

#include "flags.h"

struct dtp_command {
	const char *name, *summary; /* summary: one line, no full stop */
	const char *usage;          /* what stands behind "difftp " and the name */
	enum dtp_command_bit bit;
	/* argv: main's own, complete, for ranks that are started.  Prints its own output; on failure fills *err and returns its
	 * code, which becomes the exit code.  A rank returns without an error to print: err->code is DTP_OK then. */
	enum dtp_code (*run)(const struct dtp_args *args, char **argv, struct dtp_err *err);
};
extern const struct dtp_command dtp_commands[];
extern const int dtp_ncommands;

/* Finds the command that argv asks for ("generate" when argv[1] is an option), parses its options and runs it; --help and
 * --version are answered here.  Returns the exit code of the process; *err is to be printed unless its code is DTP_OK. */
enum dtp_code dtp_commands_main(int argc, char **argv, struct dtp_err *err);

enum dtp_code dtp_cmd_generate(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_bench(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_plan(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_verify(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_inspect(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_doctor(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_shard(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_unshard(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_decode(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_completion(const struct dtp_args *args, char **argv, struct dtp_err *err);
enum dtp_code dtp_cmd_man(const struct dtp_args *args, char **argv, struct dtp_err *err);
#endif
