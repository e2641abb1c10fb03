/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a batch's folder: which image was drawn with which parameters, so that a later run can leave it out.  JSON,
 * one object a line, only ever appended to:
 *   {"difftp": VERSION, "seed": "S"}                                            a run began, with this seed
 *   {"file": NAME, "bytes": N, "sha256": HEX, "parameters": {...}}               an image was written */
#ifndef DTP_RECORD_H
#define DTP_RECORD_H

#include "hash.h"
#include "job.h"

#define DTP_RECORD_NAME "difftp-batch.jsonl"

struct dtp_record;

/* Opens the record of a folder.  The first process of a run to open it (lead) makes it, holds a lock on it until it closes it,
 * and notes the beginning of the run; DTP_REFUSED when another run has the lock.  known: reads what it says. */
enum dtp_code dtp_record_open(const char *folder, bool lead, bool known, const struct dtp_monitor *mon, struct dtp_record **out,
			      struct dtp_err *err);
void dtp_record_close(struct dtp_record *r);
/* A run begins; only for the lead. */
enum dtp_code dtp_record_begin(struct dtp_record *r, uint64_t seed, struct dtp_err *err);
/* The seed of the last run that the folder's record knows; false: none. */
bool dtp_record_seed(const char *folder, uint64_t *seed);

/* What all images of a run are made of, by their checksums. */
struct dtp_sources {
	char model[DTP_DIGEST_TEXT], references[DTP_DIGEST_TEXT]; /* references: empty where there are none */
};
/* Of a rank that has the references' pixels. */
enum dtp_code dtp_record_sources(const struct dtp_rank *rank, struct dtp_sources *out, struct dtp_err *err);
/* All that decides what an image looks like, as the text of a JSON object; malloc'd, NULL when out of memory. */
char *dtp_record_parameters(const struct dtp_rank *rank, const struct dtp_sources *sources, const struct dtp_request *request,
			    uint64_t seed);
/* Whether the image was drawn with just these parameters and is in its folder as it was written. */
bool dtp_record_has(const struct dtp_record *r, const char *file, const char *parameters);
/* The image is in the folder now. */
enum dtp_code dtp_record_add(struct dtp_record *r, const char *file, const char *parameters, struct dtp_err *err);
#endif
