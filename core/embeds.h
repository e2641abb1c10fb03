/* SPDX-License-Identifier: Apache-2.0 */
/* Files of prompt embeddings: prompts that were encoded before, by this program or by diffusers (the tensors are its arguments
 * `prompt_embeds` and `negative_prompt_embeds`). */
#ifndef DTP_EMBEDS_H
#define DTP_EMBEDS_H

#include "file.h"
#include "safetensors.h"

struct dtp_embeds {
	struct dtp_st st;
	const struct dtp_st_entry *pass[2]; /* [1, length, width], F32, BF16 or F16; the second, of the negative prompt, may be NULL */
	int64_t length;                     /* tokens; 0: no file is open */
};

/* DTP_REFUSED when the file lacks 'prompt_embeds', has it in another shape or dtype, or with another width. */
enum dtp_code dtp_embeds_open(const char *path, int64_t width, int64_t max_length, struct dtp_embeds *e, struct dtp_err *err);
void dtp_embeds_close(struct dtp_embeds *e); /* one that was never opened, too */
/* values: host memory, [npasses, length, width] in `type`. */
enum dtp_code dtp_embeds_write(const char *path, struct dtp_outkeep *keep, const char *class_name, const void *values,
			       enum dtp_dtype type, int npasses, int64_t length, int64_t width, struct dtp_err *err);
#endif
