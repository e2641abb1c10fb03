/* SPDX-License-Identifier: Apache-2.0 */
/* A model made of its configuration alone, to measure what no file is there for: weights and a prompt that are as good as random, and
 * always the same.  Where weights would be read, the backend computes them. */
#ifndef DTP_SYNTHETIC_H
#define DTP_SYNTHETIC_H

#include "backend.h"
#include "module.h"
#include "plan.h"
#include "tokenizer.h"

/* What a rank's slice of a parameter is filled with.  Products keep the size of what goes into them: a matrix of K columns has the
 * variance 1/K, a filter 1/(C kh kw), an embedding 1; norms have weights of 1, or a mean of 0 and a variance of 1; biases are 0. */
void dtp_synthetic_fill(const struct dtp_param *p, const struct dtp_split *s, struct dtp_fill *out);

/* In place of dtp_weights_load (weights.h): the same layers get weights of the same shapes. */
enum dtp_code dtp_synthetic_load(struct dtp_tree *tree, int rank, int degree, struct dtp_backend *be, const struct dtp_monitor *mon,
				 struct dtp_err *err);

/* In place of dtp_prompt_make: `length` ids below vocab; number: prompts of other numbers differ. */
enum dtp_code dtp_synthetic_prompt(int64_t vocab, int64_t length, int number, struct dtp_prompt *out, struct dtp_err *err);
#endif
