/* SPDX-License-Identifier: Apache-2.0 */
/* The first rank of each replica leads it: it decides what comes next, tells the others, and all do it. */
#include "batch.h"

#include "clock.h"
#include "footprints.h"
#include "items.h"
#include "line.h"
#include "naming.h"
#include "output.h"
#include "request.h"
#include "units.h"
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- before the ranks */

const char *dtp_batch_folder(const struct dtp_args *args)
{
	return args->output ? args->output : "out";
}

enum dtp_code dtp_batch_check_options(const struct dtp_args *args, struct dtp_err *err)
{
	if (args->prompt && args->prompts)
		return dtp_fail(err, DTP_REFUSED, "--prompt and --prompts: give one of them");
	if (args->dump_stages && args->prompts)
		return dtp_fail(err, DTP_REFUSED, "--dump-stages records one prompt: it cannot be given with --prompts");
	if (args->prompts && args->latents)
		return dtp_fail(err, DTP_REFUSED, "--latents is the noise of one picture: it cannot be given with --prompts");
	if (args->resume && args->force)
		return dtp_fail(err, DTP_REFUSED, "--resume and --force: give one of them");
	if (args->prompts && args->grid)
		return dtp_fail(err, DTP_REFUSED, "--grid is a sheet of one prompt's images: it cannot be given with --prompts");
	if (args->resume && !args->prompts)
		return dtp_fail(err, DTP_REFUSED, "--resume goes on with a batch: it needs --prompts");
	if (!args->prompts || !args->pattern)
		return DTP_OK;
	return dtp_name_check(args->pattern, err) || dtp_line_check_output(args->pattern, err) ? err->code
		: dtp_output_check_format(args->pattern, args->output_type == DTP_ARG_LATENT, err);
}

enum dtp_code dtp_batch_check_files(const struct dtp_args *args, struct dtp_err *err)
{
	const char *folder = dtp_batch_folder(args);
	struct stat st;

	if (dtp_lines_check(args->prompts, err))
		return err->code;
	if (mkdir(folder, 0777) && errno != EEXIST)
		return dtp_fail(err, DTP_REFUSED, "cannot make the folder '%s': %s", folder, strerror(errno));
	if (stat(folder, &st) || !S_ISDIR(st.st_mode))
		return dtp_fail(err, DTP_REFUSED, "'%s' is no folder: with --prompts, --output names one", folder);
	return DTP_OK;
}

/* ---- what all ranks of a replica do */

enum order { ENCODE, DRAW, DROP, STOP };

struct command {
	int64_t order, slot;
	int64_t level, first, length; /* ENCODE: a line of so many bytes follows */
	int64_t image, number, total; /* DRAW; total 0: not known */
};

struct slot {
	struct dtp_line line;
	struct dtp_request request;
	struct dtp_run *run;
};

struct batch {
	struct dtp_rank *rank;
	struct dtp_session session;
	struct slot slot[DTP_GROUP];
	/* of a leader */
	struct dtp_items items;
	struct dtp_record *record;
	const struct dtp_sources *sources;
	int64_t total;              /* images of the whole batch, if they are known */
	int told;                   /* the least level of dtp_offload that was told of */
	struct dtp_item *group[DTP_GROUP];
	int ngroup;
	const struct dtp_item *at;  /* what is being drawn */
};

static enum dtp_code write_image(void *arg, const struct dtp_image *image, struct dtp_err *err);

static enum dtp_code encode(struct batch *b, const struct command *c, const char *text, struct dtp_err *err)
{
	struct slot *s = &b->slot[c->slot];

	dtp_pipeline_stay(b->rank->pipeline, dtp_offload_stay((int)c->level, true));
	if (dtp_item_request(b->rank, text, (size_t)c->length, c->first, &s->line, &s->request, err))
		return err->code;
	return dtp_session_encode(&b->session, &s->request, &s->run, err);
}

static enum dtp_code draw(struct batch *b, const struct command *c, struct dtp_err *err)
{
	char label[64];

	if (c->total)
		snprintf(label, sizeof label, "image %" PRId64 "/%" PRId64, c->number, c->total);
	else
		snprintf(label, sizeof label, "image %" PRId64, c->number);
	return dtp_session_draw(&b->session, b->slot[c->slot].run, (int)c->image, label, write_image, b, err);
}

static void drop(struct slot *s)
{
	dtp_session_drop(s->run);
	dtp_line_free(&s->line);
	*s = (struct slot){0};
}

static enum dtp_code carry_out(struct batch *b, const struct command *c, const char *text, struct dtp_err *err)
{
	switch ((enum order)c->order) {
	case ENCODE:
		return encode(b, c, text, err);
	case DRAW:
		return draw(b, c, err);
	case DROP:
		drop(&b->slot[c->slot]);
		return DTP_OK;
	case STOP:
		return DTP_OK;
	}
	return DTP_OK;
}

static enum dtp_code follow(struct batch *b, struct dtp_err *err)
{
	struct dtp_comm *tp = b->rank->mesh.dim[DTP_MESH_TP];
	struct command c = {0};
	enum dtp_code code = DTP_OK;

	while (!code && !(code = dtp_broadcast(tp, &c, sizeof c, 0, err)) && c.order != STOP) {
		char *text = c.order == ENCODE ? malloc((size_t)c.length + 1) : NULL;
		if (c.order == ENCODE && !text)
			return dtp_fail(err, DTP_FAILED, "out of memory for a line of %" PRId64 " bytes", c.length);
		if (text) {
			text[c.length] = '\0';
			code = dtp_broadcast(tp, text, c.length, 0, err);
		}
		if (!code)
			code = carry_out(b, &c, text, err);
		free(text);
	}
	return code;
}

/* ---- what leads */

static enum dtp_code lead(struct batch *b, const struct command *c, const char *text, struct dtp_err *err)
{
	struct dtp_comm *tp = b->rank->mesh.dim[DTP_MESH_TP];
	struct command copy = *c;

	if (dtp_broadcast(tp, &copy, sizeof copy, 0, err))
		return err->code;
	if (c->order == ENCODE && tp->size > 1 && dtp_broadcast(tp, (char *)(uintptr_t)text, c->length, 0, err))
		return err->code;
	return carry_out(b, c, text, err);
}

static enum dtp_code write_and_record(struct batch *b, const struct dtp_image *image, const char *file, struct dtp_err *err)
{
	const char *folder = dtp_batch_folder(b->rank->args);
	char *parameters = dtp_item_parameters(b->at, image->index, b->rank, b->sources), *path = NULL;
	enum dtp_code code;

	if (!parameters || asprintf(&path, "%s/%s", folder, file) < 0) {
		free(parameters);
		return dtp_fail(err, DTP_FAILED, "out of memory");
	}
	struct dtp_outkeep keep, *k = dtp_output_keep(b->rank->args, path, 0, &keep);
	code = dtp_make_folders(path, strlen(folder) + 1, DTP_FAILED, err);
	if (!code)
		code = dtp_output_write_as(&(struct dtp_drawn){b->rank, &b->at->line.args, &b->at->request}, path, k, image, err);
	dtp_outkeep_tell(k, path, b->rank->mon);
	if (!code)
		code = dtp_record_add(b->record, dtp_outkeep_name(k, path) + strlen(folder) + 1, parameters, err);
	dtp_outkeep_free(&keep);
	free(parameters);
	free(path);
	return code;
}

/* What cannot be written is told and counted; the other images may have better luck. */
static enum dtp_code write_image(void *arg, const struct dtp_image *image, struct dtp_err *err)
{
	struct batch *b = arg;
	struct dtp_err why = DTP_ERR_INIT;
	char *file = dtp_item_file(b->at, image->index);
	enum dtp_code code = file ? write_and_record(b, image, file, &why) : dtp_fail(&why, DTP_FAILED, "out of memory");

	(void)err;
	free(file);
	if (code) {
		b->items.tally.failed++;
		dtp_items_complain(&b->items, b->at->number, true, &why);
	} else {
		b->items.tally.drawn++;
	}
	return DTP_OK;
}

static bool finishing(const struct batch *b)
{
	return dtp_worker_finishing(b->rank->worker);
}

static enum dtp_code draw_item(struct batch *b, int slot, struct dtp_err *err)
{
	const struct dtp_item *item = b->at = b->group[slot];
	enum dtp_code code = DTP_OK;

	for (int i = 0; i < item->ntodo && !code; i++) {
		struct command c = {.order = DRAW, .slot = slot, .image = item->todo[i],
				    .number = item->first + item->todo[i] + 1, .total = b->total};
		if (finishing(b))
			b->items.tally.left++;
		else
			code = lead(b, &c, NULL, err);
	}
	return code ? code : lead(b, &(struct command){.order = DROP, .slot = slot}, NULL, err);
}

/* What stays loaded, at first and when it becomes less. */
static void tell_offload(struct batch *b, const struct dtp_offload *f)
{
	if (f->level >= b->told)
		return;
	b->told = f->level;
	if (b->rank->rank == 0)
		dtp_rank_tell_offload(b->rank, f);
}

/* All prompts first: an encoder that has to make room for the transformer is loaded once for the group. */
static enum dtp_code draw_group(struct batch *b, struct dtp_err *err)
{
	enum dtp_code code = DTP_OK;

	if (b->ngroup)
		tell_offload(b, b->group[0]->offload);
	for (int i = 0; i < b->ngroup && !code && !finishing(b); i++) {
		const struct dtp_item *item = b->group[i];
		struct command c = {.order = ENCODE, .slot = i, .level = item->offload->level, .first = item->first,
				    .length = (int64_t)item->len};
		code = lead(b, &c, item->text, err);
	}
	for (int i = 0; i < b->ngroup && !code; i++)
		code = draw_item(b, i, err);
	for (int i = 0; i < b->ngroup; i++)
		dtp_item_free(b->group[i]);
	b->ngroup = 0;
	return code;
}

/* ---- the order of things */

/* Where items come from: all of a file's are known, those of stdin come. */
struct queue {
	struct dtp_item **items;
	size_t n, cap, at;
};

static enum dtp_code read_ahead(struct batch *b, struct queue *q, struct dtp_err *err)
{
	struct dtp_item *item;
	enum dtp_lines_got got;

	while ((got = dtp_items_next(&b->items, true, &item, err)) == DTP_LINES_LINE) {
		if (q->n == q->cap) {
			size_t cap = q->cap ? 2 * q->cap : 64;
			struct dtp_item **more = realloc(q->items, cap * sizeof *more);
			if (!more) {
				dtp_item_free(item);
				return dtp_fail(err, DTP_FAILED, "out of memory for %zu lines", cap);
			}
			q->items = more;
			q->cap = cap;
		}
		q->items[q->n++] = item;
	}
	return got == DTP_LINES_FAILED ? err->code : DTP_OK;
}

static enum dtp_lines_got next_item(struct batch *b, struct queue *q, bool wait, struct dtp_item **item, struct dtp_err *err)
{
	if (!dtp_lines_are_known(b->items.lines))
		return dtp_items_next(&b->items, wait, item, err);
	if (q->at == q->n)
		return DTP_LINES_END;
	*item = q->items[q->at++];
	return DTP_LINES_LINE;
}

/* As many as are there and are to be encoded together: one where everything stays loaded, so that it is drawn soon. */
static enum dtp_lines_got gather(struct batch *b, struct queue *q, struct dtp_item **next, struct dtp_err *err)
{
	enum dtp_lines_got got = *next ? DTP_LINES_LINE : next_item(b, q, true, next, err);

	while (got == DTP_LINES_LINE) {
		struct dtp_item *item = b->group[b->ngroup++] = *next;
		*next = NULL;
		if (b->ngroup == item->offload->stay.prompts)
			break;
		got = next_item(b, q, false, next, err);
		if (got == DTP_LINES_LINE && (*next)->offload->level != item->offload->level)
			break;
	}
	return got;
}

static enum dtp_code lead_all(struct batch *b, struct queue *q, struct dtp_err *err)
{
	struct dtp_item *next = NULL;
	enum dtp_lines_got got;
	enum dtp_code code;

	do {
		got = gather(b, q, &next, err);
		code = got == DTP_LINES_FAILED ? err->code : draw_group(b, err);
	} while (!code && got != DTP_LINES_END);
	dtp_item_free(next);
	return code ? code : lead(b, &(struct command){.order = STOP}, NULL, err);
}

/* ---- beginning and end */

static enum dtp_code open_record(struct batch *b, struct dtp_err *err)
{
	const struct dtp_rank *r = b->rank;
	bool first = r->rank == 0;

	if (dtp_record_open(dtp_batch_folder(r->args), first, r->args->resume, r->mon, &b->record, err))
		return err->code;
	if (first && !r->args->resume && !r->args->force && !dtp_record_is_new(b->record))
		return dtp_fail(err, DTP_REFUSED, "'%s' holds an earlier batch: --resume goes on with it, --force draws all of it anew; or give "
				"another folder", dtp_batch_folder(r->args));
	return first ? dtp_record_begin(b->record, r->request.seed, err) : DTP_OK;
}

static enum dtp_code begin(struct batch *b, struct dtp_err *err)
{
	struct dtp_rank *r = b->rank;

	/* Rank 0 has made the record, and locked it, before the other replicas open it. */
	if (dtp_rank_sources(r, &b->sources, err) || (r->rank == 0 && open_record(b, err)))
		return err->code;
	if (dtp_barrier(r->mesh.dim[DTP_MESH_DP], err) || (r->rank && open_record(b, err)))
		return err->code;
	b->items = (struct dtp_items){.rank = r, .sources = b->sources, .record = r->args->resume ? b->record : NULL};
	return dtp_lines_open(r, r->args->prompts, &b->items.lines, err);
}

/* What is known of a file before anything is loaded. */
static enum dtp_code check_file(struct batch *b, struct dtp_err *err)
{
	const struct dtp_items *items = &b->items;
	const struct dtp_monitor *mon = b->rank->mon;
	const char *name = b->rank->args->prompts;
	char text[400];

	if (!items->nimages)
		return dtp_fail(err, DTP_REFUSED, "'%s' has no prompt", name);
	if (!items->good)
		return dtp_fail(err, DTP_REFUSED, "no line of '%s' can be drawn: what is wrong with each stands above", name);
	b->total = items->nimages;
	snprintf(text, sizeof text, "%.200s: %" PRId64 " image%s", name, b->total, b->total == 1 ? "" : "s");
	if (b->rank->rank == 0)
		mon->note(mon->arg, text);
	return DTP_OK;
}

static void free_queue(struct queue *q)
{
	for (; q->at < q->n; q->at++)
		dtp_item_free(q->items[q->at]);
	free(q->items);
}

static enum dtp_code lead_replica(struct batch *b, struct dtp_err *err)
{
	struct queue q = {0};
	enum dtp_code code = begin(b, err);

	if (!code && dtp_lines_are_known(b->items.lines)) {
		code = read_ahead(b, &q, err);
		if (!code)
			code = check_file(b, err);
	}
	if (!code)
		code = lead_all(b, &q, err);
	free_queue(&q);
	dtp_lines_close(b->items.lines);
	dtp_items_free(&b->items);
	dtp_record_close(b->record);
	return code;
}

/* The loads of rank 0 are the proof that models stay loaded. */
static void summarise(const struct batch *b, const struct dtp_tally *all, double seconds)
{
	static const char *const names[] = {"load text_encoder", "load transformer", "load vae"};
	const struct dtp_phase_report *report;
	const struct dtp_monitor *mon = b->rank->mon;
	int n = dtp_pipeline_reports(b->rank->pipeline, &report), loads[3] = {0};
	uint64_t bytes = 0;
	char text[400], present[64] = "";

	for (int i = 0; i < n; i++)
		for (int k = 0; k < 3; k++)
			if (!strcmp(report[i].name, names[k])) {
				loads[k] = report[i].calls;
				bytes += report[i].bytes_read;
			}
	if (all->present)
		snprintf(present, sizeof present, " (%" PRId64 " %s there already)", all->present, all->present == 1 ? "was" : "were");
	snprintf(text, sizeof text, "drew %" PRId64 " image%s%s in %s; rank 0 loaded the text encoder %d, the transformer %d, the VAE %d "
		 "time%s: %s", all->drawn, all->drawn == 1 ? "" : "s", present, dtp_seconds_text(seconds).s, loads[0], loads[1], loads[2],
		 loads[2] == 1 ? "" : "s", dtp_bytes_text(bytes).s);
	mon->note(mon->arg, text);
}

/* What has come of all replicas, said by rank 0. */
static enum dtp_code conclude(struct batch *b, double began, struct dtp_err *err)
{
	const struct dtp_monitor *mon = b->rank->mon;
	struct dtp_tally all = b->items.tally;
	bool asked = finishing(b);

	mon->stage(mon->arg, DTP_PHASE_WRITE, "finish the batch");
	if (dtp_all_reduce(b->rank->world, &all, sizeof all / sizeof(int64_t), DTP_I64, err) || b->rank->rank)
		return err->code;
	summarise(b, &all, dtp_seconds() - began);
	if (!asked && !all.left && !all.failed)
		return DTP_OK;
	err->verdict = true;
	if (asked || all.left)
		return dtp_fail(err, DTP_INTERRUPTED, "interrupted: %" PRId64 " image%s left%s", all.left, all.left == 1 ? " is" : "s are",
				all.left ? "; --resume goes on with what is left" : "");
	return dtp_fail(err, DTP_FAILED, "%" PRId64 " of %" PRId64 " images failed: the warnings above say why", all.failed,
			all.failed + all.drawn + all.present);
}

enum dtp_code dtp_batch_work(struct dtp_rank *rank, struct dtp_err *err)
{
	struct batch *b = calloc(1, sizeof *b);
	double began = dtp_seconds();

	if (!b)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	b->rank = rank;
	b->told = INT_MAX;
	b->session = (struct dtp_session){.pipeline = rank->pipeline, .backend = rank->backend, .mesh = &rank->mesh,
		.mon = rank->mon, .node_threads = rank->node_threads, .output = rank->request.output};
	enum dtp_code code = rank->mesh.dim[DTP_MESH_TP]->rank ? follow(b, err) : lead_replica(b, err);
	for (int i = 0; i < DTP_GROUP; i++)
		drop(&b->slot[i]);
	dtp_session_end(&b->session);
	if (!code)
		code = dtp_footprints_tell(rank, err); /* all ranks are here, also where images have failed */
	if (!code)
		code = conclude(b, began, err);
	free(b);
	return code;
}
