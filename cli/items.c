/* SPDX-License-Identifier: Apache-2.0 */
#include "items.h"

#include "batch.h"
#include "hosts.h"
#include "naming.h"
#include "recipe.h"
#include "record.h"
#include "request.h"

#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

/* ---- one item */

void dtp_item_free(struct dtp_item *item)
{
	if (!item)
		return;
	dtp_line_free(&item->line);
	free(item->text);
	free(item->todo);
	free(item);
}

char *dtp_item_file(const struct dtp_item *item, int image)
{
	const struct dtp_name_values v = {item->request.prompt, item->request.seed + (uint64_t)image, item->first + image};
	const char *name = item->line.has_output ? item->line.args.output : item->line.args.pattern;
	char *s;

	if (name)
		return dtp_name_make(name, &v, image, item->request.num_images);
	return asprintf(&s, DTP_NAME_INDEX "%s", (long long)v.index,
			item->request.output == DTP_OUTPUT_LATENT ? ".safetensors" : ".png") < 0 ? NULL : s;
}

char *dtp_item_parameters(const struct dtp_item *item, int image, const struct dtp_rank *rank, const struct dtp_sources *sources)
{
	return dtp_recipe_text(rank, sources, &item->line.args, &item->request, item->request.seed + (uint64_t)image, 0, false);
}

enum dtp_code dtp_item_request(const struct dtp_rank *rank, const char *text, size_t len, int64_t first, struct dtp_line *line,
			       struct dtp_request *request, struct dtp_err *err)
{
	struct dtp_options unused;
	enum dtp_code code = dtp_line_parse(text, len, rank->args, line, err);

	dtp_request_make(&line->args, &unused, request);
	request->images = rank->request.images; /* the command line's are every line's */
	request->nimages = rank->request.nimages;
	request->passes_in_turn = rank->request.passes_in_turn;
	request->num_images = request->num_images ? request->num_images : 1;
	if (!line->has_seed)
		request->seed = rank->request.seed + (uint64_t)first;
	if (!code && line->has_output)
		code = dtp_output_check_format(line->args.output, request->output == DTP_OUTPUT_LATENT, err);
	return code ? code : dtp_pipeline_resolve(rank->pipeline, request, err);
}

/* ---- names that are taken */

struct name {
	char *file;
	int64_t number; /* of the line that has it */
};

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct name *)a)->file, ((const struct name *)b)->file);
}

static void free_name(void *node)
{
	free(((struct name *)node)->file);
	free(node);
}

static enum dtp_code take_name(struct dtp_items *items, const struct dtp_item *item, int image, struct dtp_err *err)
{
	struct name *mine = malloc(sizeof *mine), **at;

	if (!mine)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	*mine = (struct name){dtp_item_file(item, image), item->number};
	if (mine->file && !strcmp(mine->file, DTP_RECORD_NAME)) { /* as a pattern may have made it */
		free_name(mine);
		return dtp_fail(err, DTP_REFUSED, "output '" DTP_RECORD_NAME "' is the name of the record");
	}
	at = mine->file ? tsearch(mine, &items->names, by_file) : NULL;
	if (at && *at == mine)
		return DTP_OK;
	enum dtp_code code = at ? dtp_fail(err, DTP_REFUSED, "line %" PRId64 " writes '%s' already", (*at)->number, mine->file)
				: dtp_fail(err, DTP_FAILED, "out of memory");
	free_name(mine);
	return code;
}

static enum dtp_code take_names(struct dtp_items *items, const struct dtp_item *item, struct dtp_err *err)
{
	for (int i = 0; i < item->request.num_images; i++)
		if (take_name(items, item, i, err))
			return err->code;
	return DTP_OK;
}

/* ---- memory */

/* What memory depends on, and the answer: most lines ask for the same. */
struct dtp_fit_memo {
	struct dtp_fit_memo *next;
	int64_t height, width, length;
	bool guided;
	struct dtp_offload offload;
	struct dtp_err err; /* code DTP_OK: it fits, so */
};

static const struct dtp_fit_memo *memo_of(const struct dtp_items *items, const struct dtp_request *q)
{
	const struct dtp_fit_memo *m = items->memo;

	while (m && (m->height != q->height || m->width != q->width || m->length != q->max_sequence_length ||
		     m->guided != (q->guidance_scale > 1)))
		m = m->next;
	return m;
}

static enum dtp_code choose(const struct dtp_items *items, const struct dtp_request *q, struct dtp_offload *f, struct dtp_err *err)
{
	const struct dtp_rank *rank = items->rank;
	struct dtp_offload_wish wish = dtp_offload_wish(rank->args);
	struct dtp_request r = *q;

	wish.passes = false; /* decided for all lines before */
	if (dtp_offload_choose(rank->pipeline, &rank->options, &r, &wish, rank->hosts->bound, rank->hosts->n, f, err))
		return err->code;
	return f->over ? dtp_fit_check(rank->pipeline, &rank->options, &r, f->over, err) : DTP_OK;
}

static enum dtp_code check_memory(struct dtp_items *items, struct dtp_item *item, struct dtp_err *err)
{
	const struct dtp_request *q = &item->request;
	const struct dtp_fit_memo *known = memo_of(items, q);

	if (!known) {
		struct dtp_fit_memo *m = malloc(sizeof *m);
		if (!m)
			return dtp_fail(err, DTP_FAILED, "out of memory");
		*m = (struct dtp_fit_memo){items->memo, q->height, q->width, q->max_sequence_length, q->guidance_scale > 1,
					   {.over = NULL}, DTP_ERR_INIT};
		choose(items, q, &m->offload, &m->err);
		known = items->memo = m;
	}
	item->offload = &known->offload;
	if (known->err.code)
		*err = known->err;
	return known->err.code;
}

/* ---- the items of the lines */

static bool is_own(const struct dtp_items *items, const struct dtp_item *item, int image)
{
	const struct dtp_comm *replicas = items->rank->mesh.dim[DTP_MESH_DP];

	return (item->first + image) % replicas->size == replicas->rank;
}

void dtp_items_complain(struct dtp_items *items, int64_t number, bool own, const struct dtp_err *why)
{
	const struct dtp_monitor *mon = items->rank->mon;
	char text[sizeof why->message + 300];

	if (!own && items->rank->rank)
		return;
	int n = snprintf(text, sizeof text, "%.200s:%" PRId64 ": ", dtp_lines_name(items->rank->args->prompts), number);
	if (strcmp(why->message, items->complaint))
		snprintf(text + n, sizeof text - (size_t)n, "%s", why->message);
	else /* many lines may be too large for this machine, or for the disk */
		snprintf(text + n, sizeof text - (size_t)n, "as line %" PRId64, items->complained);
	snprintf(items->complaint, sizeof items->complaint, "%s", why->message);
	items->complained = number;
	mon->warn(mon->arg, text);
}

/* An image of ours whose file nobody has said may be replaced: told, and left as it is. */
static bool is_taken(struct dtp_items *items, const struct dtp_item *item, const char *file)
{
	const struct dtp_args *args = items->rank->args;
	struct dtp_err why = DTP_ERR_INIT;
	char *path;

	if (args->resume || !file || asprintf(&path, "%s/%s", dtp_batch_folder(args), file) < 0)
		return false;
	enum dtp_code code = dtp_output_check_taken(args, path, &why);
	free(path);
	if (code) {
		items->tally.failed++;
		dtp_items_complain(items, item->number, true, &why);
	}
	return code;
}

static enum dtp_code find_todo(struct dtp_items *items, struct dtp_item *item, struct dtp_err *err)
{
	item->todo = calloc((size_t)item->request.num_images, sizeof *item->todo);
	if (!item->todo)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	for (int i = 0; i < item->request.num_images; i++) {
		if (!is_own(items, item, i))
			continue;
		char *file = dtp_item_file(item, i);
		char *parameters = file && items->record ? dtp_item_parameters(item, i, items->rank, items->sources) : NULL;
		if (parameters && dtp_record_has(items->record, file, parameters))
			items->tally.present++;
		else if (!is_taken(items, item, file))
			item->todo[item->ntodo++] = i;
		free(file);
		free(parameters);
	}
	return DTP_OK;
}

static enum dtp_code make_item(struct dtp_items *items, struct dtp_item *item, struct dtp_err *err)
{
	const struct dtp_rank *rank = items->rank;
	enum dtp_code code = dtp_item_request(rank, item->text, item->len, item->first, &item->line, &item->request, err);

	/* A line that fails keeps its numbers, so that mending it changes no other. */
	items->nimages += item->request.num_images;
	if (!code)
		code = take_names(items, item, err);
	if (!code)
		code = check_memory(items, item, err);
	return code ? code : find_todo(items, item, err);
}

static void leave_out(struct dtp_items *items, const struct dtp_item *item, const struct dtp_err *why)
{
	dtp_items_complain(items, item->number, false, why);
	for (int i = 0; i < item->request.num_images; i++)
		items->tally.failed += is_own(items, item, i);
}

static struct dtp_item *new_item(const struct dtp_items *items, const struct dtp_lines_line *line)
{
	struct dtp_item *item = calloc(1, sizeof *item);

	if (!item || !(item->text = malloc(line->len + 1))) {
		free(item);
		return NULL;
	}
	memcpy(item->text, line->text, line->len);
	item->text[line->len] = '\0';
	item->len = line->len;
	item->number = line->number;
	item->first = items->nimages;
	return item;
}

enum dtp_lines_got dtp_items_next(struct dtp_items *items, bool wait, struct dtp_item **out, struct dtp_err *err)
{
	const struct dtp_monitor *mon = items->rank->mon;
	struct dtp_lines_line line;
	enum dtp_lines_got got;

	while ((got = dtp_lines_next(items->lines, wait, &line, err)) == DTP_LINES_LINE) {
		struct dtp_err why = DTP_ERR_INIT;
		struct dtp_item *item = new_item(items, &line);
		if (!item) {
			dtp_fail(err, DTP_FAILED, "out of memory for line %" PRId64, line.number);
			return DTP_LINES_FAILED;
		}
		enum dtp_code code = make_item(items, item, &why);
		if (code)
			leave_out(items, item, &why);
		items->good += !code;
		mon->beat(mon->arg);
		if (!code && item->ntodo) {
			*out = item;
			return got;
		}
		dtp_item_free(item);
	}
	return got;
}

void dtp_items_free(struct dtp_items *items)
{
	struct dtp_fit_memo *next;

	tdestroy(items->names, free_name);
	for (struct dtp_fit_memo *m = items->memo; m; m = next) {
		next = m->next;
		free(m);
	}
}
