/* SPDX-License-Identifier: Apache-2.0 */
/* --offload: which components stay in memory beside each other, decided before any is loaded, and told. */
#ifndef DTP_OFFLOAD_H
#define DTP_OFFLOAD_H

#include "fit.h"
#include "flags.h"

#define DTP_GROUP 32 /* the most prompts that are encoded before the first of them is drawn */

/* What the command line asks for. */
enum dtp_arg_offload dtp_offload_asked(const struct dtp_args *args);
/* What a pipeline keeps until something is chosen: with auto the least. */
struct dtp_residency dtp_offload_least(enum dtp_arg_offload asked);
/* What stays at a level of struct dtp_offload, and whether other prompts follow. */
struct dtp_residency dtp_offload_stay(int level, bool again);

struct dtp_offload_wish {
	enum dtp_arg_offload asked;
	bool prompts; /* several may come, each with images of its own: a batch; or the same once more, beside what stays */
	bool passes;  /* whether two passes of a step are taken together may be chosen too (dtp_fit_passes) */
};

/* Of a run of one prompt, of its repetitions, which keep all or nothing from one to the next, or of a batch. */
struct dtp_offload_wish dtp_offload_wish(const struct dtp_args *args);

/* Why a component stays, or does not. */
enum dtp_offload_why { DTP_OFFLOAD_ASKED, DTP_OFFLOAD_ONCE, DTP_OFFLOAD_FITS, DTP_OFFLOAD_NO_ROOM };

struct dtp_offload {
	struct dtp_residency stay;
	int level;                   /* greater: more stays */
	const struct dtp_bound *over; /* the first bound that even this breaks; NULL: it fits */
	struct dtp_fit fit;          /* the prediction */
	struct dtp_room room;
	enum dtp_offload_why text_why, pictures_why;
	struct dtp_room text_room, pictures_room; /* NO_ROOM: what staying would have needed */
};
/* The choice for a request by the prediction and n bounds; the pipeline keeps it (dtp_pipeline_stay).  The same on all ranks
 * that are given the same.  Sets r->passes_in_turn if wish->passes, whatever of that which need not stay stays. */
enum dtp_code dtp_offload_choose(struct dtp_pipeline *p, const struct dtp_options *o, struct dtp_request *r,
				 const struct dtp_offload_wish *wish, const struct dtp_bound *bounds, int n, struct dtp_offload *out,
				 struct dtp_err *err);

/* One of text encoder, transformer and VAE, in this order, as it is told. */
#define DTP_OFFLOAD_PARTS 3
struct dtp_offload_part {
	const char *name, *title;      /* "text_encoder", "text encoder" */
	int ranks;                     /* of a replica: ranks 0 to ranks - 1 have it */
	bool resident;                 /* to the end, once it is loaded */
	const char *from, *to;         /* phases of dtp_phase_memory; from its own where it is resident */
	char why[200];
};
void dtp_offload_part(const struct dtp_offload *f, int i, int degree, struct dtp_offload_part *out);
/* "text encoder: ranks 0 to 3 (GPU), resident; kept: ..." */
void dtp_offload_text(const struct dtp_offload *f, int i, int degree, int replicas, enum dtp_device device, char *buf, size_t size);
#endif
