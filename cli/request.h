/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to what the core is asked. */
#ifndef DTP_REQUEST_H
#define DTP_REQUEST_H

#include "flags.h"
#include "pipeline.h"

/* Pointers are those of args.  The seed is 0 when none was given; no input file is read. */
void dtp_request_make(const struct dtp_args *args, struct dtp_options *options, struct dtp_request *request);

/* Name of image `index` of `count`: the output's own for one, else with "_INDEX" before its suffix ("a/b.png" ->
 * "a/b_0.png").  malloc'd; NULL when out of memory. */
char *dtp_output_name(const char *output, int index, int count);
/* The output that was named, or the default name for the output's type. */
const char *dtp_output_path(const struct dtp_args *args);
/* Options that exclude each other where prompts are read from a file or only written to one. */
enum dtp_code dtp_embeds_options_check(const struct dtp_args *args, struct dtp_err *err);
/* Whether the option at this offset has no meaning beside --prompt-embeds. */
bool dtp_embeds_exclude(size_t offset);
/* Whether the name of an output says another format than what will be in it. */
enum dtp_code dtp_output_check_format(const struct dtp_args *args, struct dtp_err *err);
/* Checks that every file of the run can be written, that no two are the same, and that no name says another format than
 * what will be in it. */
enum dtp_code dtp_outputs_check(const struct dtp_args *args, int count, struct dtp_err *err);
#endif
