/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a batch's folder: which image was drawn with which parameters, so that a later run can leave it out.  JSON,
 * one object a line, only ever appended to:
 *   {"difftp": VERSION, "seed": "S"}                                            a run began, with this seed
 *   {"file": NAME, "bytes": N, "sha256": HEX, "parameters": {...}}               an image was written; its recipe */
#ifndef DTP_RECORD_H
#define DTP_RECORD_H

#include "err.h"
#include "monitor.h"

#include <stdbool.h>
#include <stdint.h>

#define DTP_RECORD_NAME "difftp-batch.jsonl"

struct dtp_record;

/* Opens the record of a folder.  The first process of a run to open it (lead) makes it, holds a lock on it until it closes it,
 * and notes the beginning of the run; DTP_REFUSED when another run has the lock.  known: reads what it says. */
enum dtp_code dtp_record_open(const char *folder, bool lead, bool known, const struct dtp_monitor *mon, struct dtp_record **out,
			      struct dtp_err *err);
void dtp_record_close(struct dtp_record *r);
bool dtp_record_is_new(const struct dtp_record *r); /* nothing has been written yet */
/* A run begins; only for the lead. */
enum dtp_code dtp_record_begin(struct dtp_record *r, uint64_t seed, struct dtp_err *err);
/* The seed of the last run that the folder's record knows; false: none. */
bool dtp_record_seed(const char *folder, uint64_t *seed);

/* Whether the image was drawn with just these parameters and is in its folder as it was written. */
bool dtp_record_has(const struct dtp_record *r, const char *file, const char *parameters);
/* The image is in the folder now. */
enum dtp_code dtp_record_add(struct dtp_record *r, const char *file, const char *parameters, struct dtp_err *err);
#endif
