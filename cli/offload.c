/* SPDX-License-Identifier: Apache-2.0 */
#include "offload.h"

#include "units.h"

#include <string.h>

enum dtp_arg_offload dtp_offload_asked(const struct dtp_args *args)
{
	/* What was typed counts before a default, of either name. */
	bool counts = DTP_GIVEN(args, keep_text_encoder) ? DTP_GIVEN(args, offload) : DTP_HAS(args, offload);

	if (args->keep_text_encoder && !counts)
		return DTP_ARG_OFFLOAD_NONE;
	return (enum dtp_arg_offload)args->offload;
}

struct dtp_offload_wish dtp_offload_wish(const struct dtp_args *args)
{
	enum dtp_arg_offload asked = dtp_offload_asked(args);

	return (struct dtp_offload_wish){.asked = asked, .prompts = args->prompts || (asked == DTP_ARG_OFFLOAD_NONE && args->repeat > 1),
					 .passes = args->guidance_passes == DTP_ARG_PASSES_AUTO};
}

/* ---- choosing */

/* From least memory to most.  Embeddings that wait take 8 MB each for a model of 4B. */
static const struct dtp_residency levels[] = {
	{.prompts = 1}, {.pictures = true, .prompts = 1}, {.pictures = true, .prompts = 4},
	{.pictures = true, .prompts = DTP_GROUP}, {.pictures = true, .text = true, .prompts = 1},
};
enum { STAGE, PICTURES, ALL = sizeof levels / sizeof levels[0] - 1 };

struct dtp_residency dtp_offload_least(enum dtp_arg_offload asked)
{
	return levels[asked == DTP_ARG_OFFLOAD_NONE ? ALL : STAGE];
}

struct dtp_residency dtp_offload_stay(int level, bool again)
{
	struct dtp_residency stay = levels[level];

	stay.again = again;
	return stay;
}

/* The most and the least that may be chosen: nothing is kept that is needed once. */
static void range(const struct dtp_offload_wish *wish, bool images, int *least, int *most)
{
	*least = wish->asked == DTP_ARG_OFFLOAD_NONE ? ALL : STAGE;
	*most = wish->asked == DTP_ARG_OFFLOAD_NONE || (wish->asked == DTP_ARG_OFFLOAD_AUTO && wish->prompts) ? ALL
		: wish->asked == DTP_ARG_OFFLOAD_AUTO && images ? PICTURES : STAGE;
}

static enum dtp_code try(struct dtp_pipeline *p, const struct dtp_options *o, const struct dtp_request *r,
			 const struct dtp_offload_wish *wish, const struct dtp_bound *bounds, int n, struct dtp_offload *f, struct dtp_err *err)
{
	f->stay = dtp_offload_stay(f->level, wish->prompts);
	dtp_pipeline_stay(p, f->stay);
	if (dtp_fit_predict(p, o, r, &f->fit, err))
		return err->code;
	f->over = dtp_fit_over(&f->fit, bounds, n);
	f->room = dtp_fit_room(&f->fit, bounds, n);
	return DTP_OK;
}

static enum dtp_offload_why why(const struct dtp_offload_wish *wish, bool stays, bool again)
{
	if (wish->asked != DTP_ARG_OFFLOAD_AUTO)
		return DTP_OFFLOAD_ASKED;
	return !again ? DTP_OFFLOAD_ONCE : stays ? DTP_OFFLOAD_FITS : DTP_OFFLOAD_NO_ROOM;
}

enum dtp_code dtp_offload_choose(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_request *r,
				 const struct dtp_offload_wish *wish, const struct dtp_bound *bounds, int n, struct dtp_offload *f,
				 struct dtp_err *err)
{
	bool images = wish->prompts || r->num_images > 1;
	int least, most;

	*f = (struct dtp_offload){0};
	range(wish, images, &least, &most);
	/* By what must stay alone: the pictures are the same however much more does. */
	dtp_pipeline_stay(p, dtp_offload_stay(least, wish->prompts));
	if (wish->passes && dtp_fit_passes(p, o, r, bounds, n, err))
		return err->code;
	for (f->level = most; !try(p, o, r, wish, bounds, n, f, err) && f->over && f->level > least; f->level--) {
		if (f->stay.text)
			f->text_room = f->room;
		else
			f->pictures_room = f->room;
	}
	if (err->code)
		return err->code;
	f->text_why = why(wish, f->stay.text, wish->prompts);
	f->pictures_why = why(wish, f->stay.pictures, images);
	return DTP_OK;
}

/* ---- telling */

/* "3.1 GB of 24.0 GB stay free" */
static void tell_free(const struct dtp_room *room, char *buf, size_t size)
{
	if (room->have == UINT64_MAX)
		snprintf(buf, size, "%s are needed, no limit is known", dtp_bytes_text(room->need).s);
	else if (room->need <= room->have)
		snprintf(buf, size, "%s of %s stay free", dtp_bytes_text(room->have - room->need).s, dtp_bytes_text(room->have).s);
	else
		snprintf(buf, size, "%s of %s are needed", dtp_bytes_text(room->need).s, dtp_bytes_text(room->have).s);
}

static void tell_why(const struct dtp_offload *f, int i, char *buf, size_t size)
{
	static const char *const freed[] = {"freed before the transformer", "freed before the VAE", "freed after each image"};
	bool text = i == 0, stays = text ? f->stay.text : f->stay.pictures;
	enum dtp_offload_why reason = text ? f->text_why : f->pictures_why;
	const struct dtp_room *room = text ? &f->text_room : &f->pictures_room;
	struct dtp_text_pair sizes = dtp_bytes_apart(room->need, room->have);
	char left[96];

	tell_free(&f->room, left, sizeof left);
	if (stays)
		snprintf(buf, size, "kept%s: %s", reason == DTP_OFFLOAD_ASKED ? " as --offload none says" : "", left);
	else if (reason == DTP_OFFLOAD_ASKED)
		snprintf(buf, size, "%s as --offload stage says", freed[i]);
	else if (reason == DTP_OFFLOAD_ONCE)
		snprintf(buf, size, "%s: one %s needs it once", i == 2 ? "loaded last" : freed[i], text ? "prompt" : "image");
	else
		snprintf(buf, size, "%s: %s would need %s of %s", freed[i], text ? "all three" : "it and the other", sizes.a.s, sizes.b.s);
	if (text && f->stay.prompts > 1) {
		size_t used = strlen(buf);
		snprintf(buf + used, size - used, "; up to %d prompts are encoded at a time", f->stay.prompts);
	}
}

void dtp_offload_part(const struct dtp_offload *f, int i, int degree, struct dtp_offload_part *out)
{
	static const char *const names[] = {"text_encoder", "transformer", "vae"}, *const titles[] = {"text encoder", "transformer", "VAE"};
	bool text = i == 0, stays = text ? f->stay.text : f->stay.pictures;
	/* Transformer and VAE that stay are freed where the text encoder of further prompts needs their room. */
	bool resident = stays && (f->stay.text || !f->stay.again);

	*out = (struct dtp_offload_part){
		.name = names[i], .title = titles[i], .ranks = i == 2 ? 1 : degree, .resident = resident,
		.from = names[stays && !resident ? 1 : i], .to = names[stays ? 2 : i],
	};
	tell_why(f, i, out->why, sizeof out->why);
}

void dtp_offload_text(const struct dtp_offload *f, int i, int degree, int replicas, enum dtp_device device, char *buf, size_t size)
{
	struct dtp_offload_part part;
	char ranks[48] = "rank 0", when[64] = "resident";

	dtp_offload_part(f, i, degree, &part);
	if (part.ranks > 1)
		snprintf(ranks, sizeof ranks, "ranks 0 %s %d", part.ranks > 2 ? "to" : "and", part.ranks - 1);
	if (!part.resident && strcmp(part.from, part.to))
		snprintf(when, sizeof when, "phases '%s' to '%s'", part.from, part.to);
	else if (!part.resident)
		snprintf(when, sizeof when, "phase '%s'", part.from);
	snprintf(buf, size, "%s: %s%s (%s), %s; %s", part.title, ranks, replicas > 1 ? " of each replica" : "",
		 device == DTP_DEVICE_CUDA ? "GPU" : "CPU", when, part.why);
}
