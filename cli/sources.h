/* SPDX-License-Identifier: Apache-2.0 */
/* What images are made of besides the parameters: model, plan, LoRAs, references, noise, by their checksums. */
#ifndef DTP_SOURCES_H
#define DTP_SOURCES_H

#include "agree.h"
#include "json.h"

struct dtp_sources {
	struct dtp_part part[DTP_NPARTS];
	int nimages;                                    /* of the pixels of each reference, as they are used */
	char image[DTP_MAX_REFERENCES][DTP_DIGEST_TEXT];
	char latents[DTP_DIGEST_TEXT];                  /* of the given noise; empty: none */
};

/* request: with the references' pixels. */
enum dtp_code dtp_sources_find(const struct dtp_pipeline *p, const struct dtp_request *request, struct dtp_sources *out,
			       struct dtp_err *err);
/* An object of what is present: part, image (an array), latents -> SHA-256.  NULL: out of memory. */
cJSON *dtp_sources_json(const struct dtp_sources *s);
#endif
