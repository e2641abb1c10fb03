/* SPDX-License-Identifier: Apache-2.0 */
/* What the first process says of a recipe that was taken. */
#include "recall.h"

#include <stdlib.h>
#include <string.h>

static void tell_lines(const char *path, const char *lines, void (*tell)(struct dtp_progress *, const char *),
		       struct dtp_progress *progress)
{
	char text[1024];

	for (const char *end; lines && (end = strchr(lines, '\n')); lines = end + 1) {
		snprintf(text, sizeof text, "%.300s: %.*s", path, (int)(end - lines), lines);
		tell(progress, text);
	}
}

enum dtp_code dtp_recall_tell(const struct dtp_args *args, const struct dtp_pipeline *p, const struct dtp_request *request,
			      struct dtp_progress *progress, struct dtp_err *err)
{
	static const struct {
		const char *key, *what;
		size_t by; /* the option that names it */
	} names[] = {
#define BY(member) offsetof(struct dtp_args, member)
		{"plan", "the plan is", BY(tp_plan)}, {"configuration", "the model's configuration or tokenizer is", BY(from)},
		{"text_encoder", "the text encoder is", BY(from)}, {"transformer", "the transformer is", BY(transformer)},
		{"vae", "the VAE is", BY(from)}, {"lora", "a LoRA is", BY(loras)}, {"prompt_embeds", "the encoded prompt is", BY(prompt_embeds)},
		{"image", "a reference image is", BY(images)}, {"latents", "the given noise is", BY(latents)},
#undef BY
	};
	const struct dtp_recall *r = args->recall;
	const cJSON *then = cJSON_GetObjectItemCaseSensitive(r->doc.root, "sha256");
	struct dtp_sources *s = malloc(sizeof *s);
	char text[1024];

	if (!s)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	tell_lines(r->path, r->notes, dtp_progress_note, progress);
	tell_lines(r->path, r->warnings, dtp_progress_warn, progress);
	enum dtp_code code = dtp_sources_find(p, request, s, err);
	cJSON *now = code ? NULL : dtp_sources_json(s);
	for (size_t i = 0; now && i < sizeof names / sizeof *names; i++) {
		const cJSON *a = cJSON_GetObjectItemCaseSensitive(then, names[i].key);
		const cJSON *b = cJSON_GetObjectItemCaseSensitive(now, names[i].key);
		if (!a || !b || cJSON_Compare(a, b, true) || (names[i].by != offsetof(struct dtp_args, from) && dtp_args_typed(args, names[i].by)))
			continue;
		snprintf(text, sizeof text, "%.300s: %s not what it was drawn with (another checksum): the picture may differ", r->path,
			 names[i].what);
		dtp_progress_warn(progress, text);
	}
	cJSON_Delete(now);
	free(s);
	return code;
}
