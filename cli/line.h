/* SPDX-License-Identifier: Apache-2.0 */
/* A line of a --prompts file: a prompt, or a JSON object whose keys are names of options. */
#ifndef DTP_LINE_H
#define DTP_LINE_H

#include "flags.h"
#include "json.h"

#define DTP_LINE_MAX (1u << 20) /* bytes */

struct dtp_line {
	struct dtp_args args; /* the command line's, with what the line says instead; texts are the line's or the command line's */
	bool has_seed, has_output;
	char *text;           /* what args point into */
	struct dtp_json doc;
};

/* Nothing but blanks: no line at all. */
bool dtp_line_is_blank(const char *text, size_t len);
/* text has no line break but may end in '\r'.  DTP_REFUSED says what is wrong, without the file's name or the line's number; what
 * could be read until then (num_images) is in line->args.  dtp_line_free is to be called in any case. */
enum dtp_code dtp_line_parse(const char *text, size_t len, const struct dtp_args *defaults, struct dtp_line *line,
			     struct dtp_err *err);
void dtp_line_free(struct dtp_line *line);
/* Whether the name of an output stays in its folder: relative, no "." or ".." and no empty part, not the record's name. */
enum dtp_code dtp_line_check_output(const char *output, struct dtp_err *err);
#endif
