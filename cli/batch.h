/* SPDX-License-Identifier: Apache-2.0 */
/* --prompts: what each line of a file says, drawn by models that stay loaded. */
#ifndef DTP_BATCH_H
#define DTP_BATCH_H

#include "job.h"

/* The folder that the images go to. */
const char *dtp_batch_folder(const struct dtp_args *args);
/* Options that make no sense together or, without --prompts, at all. */
enum dtp_code dtp_batch_check_options(const struct dtp_args *args, struct dtp_err *err);
/* What can be said of file and folder before any rank is started; makes the folder. */
enum dtp_code dtp_batch_check_files(const struct dtp_args *args, struct dtp_err *err);
/* What a rank does; the form of dtp_rank_fn. */
enum dtp_code dtp_batch_work(struct dtp_rank *rank, struct dtp_err *err);
#endif
