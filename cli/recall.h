/* SPDX-License-Identifier: Apache-2.0 */
/* --from: the options that a PNG's recipe holds, taken as if they had been typed. */
#ifndef DTP_RECALL_H
#define DTP_RECALL_H

#include "flags.h"
#include "json.h"
#include "progress.h"
#include "sources.h"

struct dtp_recall {
	const char *path;
	struct dtp_json doc; /* the recipe; args point into it */
	char *notes;         /* what the command line says instead, a line each; NULL: nothing */
	char *warnings;      /* what this program does not know of it, likewise */
};

/* The recipe in a PNG, parsed.  DTP_REFUSED: it cannot be read, has none, or what it has is damaged. */
enum dtp_code dtp_recipe_read(const char *path, struct dtp_json *doc, struct dtp_err *err);

/* Gives args what the recipe of args->from says, but for what they were given themselves; what goes with that goes too (an encoded
 * prompt, where a prompt is given).  *r must outlive args; dtp_recall_free in any case. */
enum dtp_code dtp_recall_take(struct dtp_args *args, struct dtp_recall *r, struct dtp_err *err);
/* The same of a recipe in r->doc. */
enum dtp_code dtp_recall_apply(struct dtp_args *args, struct dtp_recall *r, struct dtp_err *err);
void dtp_recall_free(struct dtp_recall *r);

/* Tells args->recall's notes and warnings, and warns of every source that was not typed and whose checksum is another than the
 * recipe's. */
enum dtp_code dtp_recall_tell(const struct dtp_args *args, const struct dtp_pipeline *p, const struct dtp_request *request,
			      struct dtp_progress *progress, struct dtp_err *err);
#endif
