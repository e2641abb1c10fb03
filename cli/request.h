/* SPDX-License-Identifier: Apache-2.0 */
/* From the command line to what the core is asked. */
#ifndef DTP_REQUEST_H
#define DTP_REQUEST_H

#include "file.h"
#include "flags.h"
#include "pipeline.h"

/* Pointers are those of args.  The seed is 0 when none was given; no input file is read. */
void dtp_request_make(const struct dtp_args *args, struct dtp_options *options, struct dtp_request *request);

/* The output that was named, or the default name for the output's type. */
const char *dtp_output_path(const struct dtp_args *args);
/* Name of image `index` of `count` (naming.h), where the first has this seed.  number: 1, or the default name's, so that it is free.
 * malloc'd; NULL when out of memory. */
char *dtp_output_name(const struct dtp_args *args, uint64_t seed, int index, int count, int number);
/* The first number, from 1, with which no file of the run is there; 1 for a name that was given, and with --force. */
int dtp_output_free(const struct dtp_args *args, int count);
/* What a file is to be called that may replace none: in *keep, or NULL where it may.  number: dtp_output_free's, of a
 * picture; 0 for other files. */
struct dtp_outkeep *dtp_output_keep(const struct dtp_args *args, const char *path, int number, struct dtp_outkeep *keep);
/* DTP_REFUSED: a file with this name is there, and --force was not given. */
enum dtp_code dtp_output_check_taken(const struct dtp_args *args, const char *name, struct dtp_err *err);
/* The same of a file of another kind than pictures; and whether it can be written. */
enum dtp_code dtp_output_check_file(const struct dtp_args *args, const char *path, struct dtp_err *err);
/* Whether the name of an output says another format than what will be in it. */
enum dtp_code dtp_output_check_format(const char *path, bool latent, struct dtp_err *err);
/* Checks that every file of the run can be written and is not there yet (unless its name depends on a seed that nobody knows), that no
 * two are the same, and that no name says another format than what will be in it.  Makes the folders of a pattern. */
enum dtp_code dtp_outputs_check(const struct dtp_args *args, int count, struct dtp_err *err);
#endif
