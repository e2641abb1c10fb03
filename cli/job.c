/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include "agree.h"
#include "batch.h"
#include "copies.h"
#include "device.h"
#include "exclude.h"
#include "fit.h"
#include "gather.h"
#include "host.h"
#include "hosts.h"
#include "infile.h"
#include "launch.h"
#include "lines.h"
#include "member.h"
#include "offload.h"
#include "progress.h"
#include "recall.h"
#include "record.h"
#include "request.h"
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* How long ranks that refuse their own options wait for the others, to see whether theirs are different. */
#define REFUSAL_S 2.0

static void degrees_of(const struct dtp_args *args, int sizes[DTP_MESH_DIMS])
{
	sizes[DTP_MESH_DP] = (int)args->dp_degree;
	sizes[DTP_MESH_RING] = (int)args->ring_degree;
	sizes[DTP_MESH_ULYSSES] = (int)args->ulysses_degree;
	sizes[DTP_MESH_TP] = (int)args->tp_degree;
}

/* ring and ulysses are 1 wherever this is asked. */
static int ranks_of(const struct dtp_args *args)
{
	return (int)(args->dp_degree * args->tp_degree);
}

static int node_threads(const struct dtp_args *args)
{
	return args->threads ? (int)args->threads : dtp_host_threads("");
}

/* Of the replica that draws most. */
static struct dtp_request largest_share(const struct dtp_args *args, const struct dtp_request *q)
{
	struct dtp_request share = *q;

	share.num_images = dtp_replica_images(q->num_images, (int)args->dp_degree);
	return share;
}

/* ---- a rank */

static void silent(void *arg, const char *text)
{
	(void)arg, (void)text;
}

/* The first process has read the same folder and told what there was to tell. */
static enum dtp_code open_model(struct dtp_rank *r, struct dtp_err *err)
{
	r->muted = *r->mon;
	r->muted.note = r->muted.warn = silent;
	enum dtp_code code = dtp_pipeline_open(&r->options, &r->muted, &r->pipeline, err);
	return code ? code : dtp_pipeline_resolve(r->pipeline, &r->request, err);
}

/* That of the batch that goes on, else a random one. */
static enum dtp_code choose_seed(struct dtp_rank *r, uint64_t *seed, struct dtp_err *err)
{
	bool recorded = r->args->resume && dtp_record_seed(dtp_batch_folder(r->args), seed);
	uint32_t bits; /* all that the generator uses; more would be more to copy by hand */
	char text[96];

	if (!recorded && getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits)
		return dtp_fail(err, DTP_FAILED, "no random seed: getrandom: %s", strerror(errno));
	*seed = recorded ? *seed : bits;
	snprintf(text, sizeof text, "seed %" PRIu64 "%s", *seed, recorded ? " (the record's)" : "");
	r->mon->note(r->mon->arg, text);
	return DTP_OK;
}

/* Rank 0 chooses a seed when none was given, nor the noise itself; all use it. */
static enum dtp_code agree_on_seed(struct dtp_rank *r, struct dtp_err *err)
{
	uint64_t *seed = &r->request.seed;

	if (DTP_HAS(r->args, seed) || r->options.encode_only || r->request.noise)
		return DTP_OK;
	if (r->rank == 0 && choose_seed(r, seed, err))
		return err->code;
	return dtp_broadcast(r->world, seed, sizeof *seed, 0, err);
}

/* A default name that is free on rank 0's host is every replica's. */
static enum dtp_code agree_on_name(struct dtp_rank *r, struct dtp_err *err)
{
	r->output_number = r->rank == 0 ? dtp_output_free(r->args, r->request.num_images) : 1;
	if (r->args->output || r->args->prompts)
		return DTP_OK;
	return dtp_broadcast(r->world, &r->output_number, sizeof r->output_number, 0, err);
}

void dtp_rank_tell_offload(const struct dtp_rank *r, const struct dtp_offload *f)
{
	const struct dtp_options *o = &r->options;
	char text[400];

	for (int i = o->prompt_embeds ? 1 : 0; i < (o->encode_only ? 1 : DTP_OFFLOAD_PARTS); i++) {
		dtp_offload_text(f, i, o->tp_degree, (int)r->args->dp_degree, o->device, text, sizeof text);
		r->mon->note(r->mon->arg, text);
	}
}

/* All ranks know the same memory, so that they choose alike what stays in it, and whether the two passes of a step take turns.  A
 * batch chooses the former for each line. */
static enum dtp_code agree_on_memory(struct dtp_rank *r, struct dtp_err *err)
{
	const struct dtp_args *args = r->args;
	const struct dtp_offload_wish wish = dtp_offload_wish(args);
	struct dtp_request share = largest_share(args, &r->request);
	struct dtp_offload f;

	r->hosts = calloc(1, sizeof *r->hosts);
	if (!r->hosts)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (dtp_hosts_gather(r, r->hosts, err))
		return err->code;
	if (args->prompts && !(wish.passes && dtp_pipeline_passes(r->pipeline, &share) > 1))
		return DTP_OK;
	if (dtp_offload_choose(r->pipeline, &r->options, &share, &wish, r->hosts->bound, r->hosts->n, &f, err))
		return err->code;
	/* The first process knew the GPUs' memory, but not what of it others have taken. */
	if (f.over && !args->prompts && r->options.device == DTP_DEVICE_CUDA)
		return dtp_fit_check(r->pipeline, &r->options, &share, f.over, err);
	r->stay = f.stay;
	r->spare = f.room.have > f.room.need ? f.room.have - f.room.need : 0;
	r->request.passes_in_turn = share.passes_in_turn;
	if (r->rank == 0 && r->request.passes_in_turn && wish.passes)
		r->mon->note(r->mon->arg, "the two passes of a step take turns, as both together do not fit");
	if (r->rank == 0 && !args->prompts && args->command != DTP_CMD_VERIFY)
		dtp_rank_tell_offload(r, &f);
	return DTP_OK;
}

/* Whether the VAE decodes or encodes. */
static bool pictures(const struct dtp_options *o, const struct dtp_request *q)
{
	return o->references || (!o->encode_only && q->output == DTP_OUTPUT_PNG);
}

static enum dtp_code open_device(struct dtp_rank *r, struct dtp_err *err)
{
	struct dtp_comm *tp = r->mesh.dim[DTP_MESH_TP];

	r->mon->stage(r->mon->arg, DTP_PHASE_START, "open the device");
	if (r->options.device == DTP_DEVICE_CUDA &&
	    dtp_device_libraries(r->args, tp->rank == 0 && pictures(&r->options, &r->request), tp->size > 1 && !r->seated.shared, err))
		return err->code;
	if (dtp_device_open(&r->seated, r->options.compute, r->threads, r->args, r->mon, &r->backend, err))
		return err->code;
	return dtp_device_room(&r->seated, r->backend, r->world, err);
}

static enum dtp_code join_devices(struct dtp_rank *r, struct dtp_err *err)
{
	struct dtp_comm *tp = r->mesh.dim[DTP_MESH_TP];
	double patience = r->args->timeout > 0 ? r->args->timeout : DTP_TIMEOUT_DEFAULT;

	if (r->options.device == DTP_DEVICE_CUDA && tp->size > 1 &&
	    dtp_comm_cuda(tp, r->backend, r->seated.shared, true, patience, &r->mesh.sums, err))
		return err->code;
	return dtp_copies_join(r, patience, err);
}

static enum dtp_code set_up(struct dtp_rank *r, struct dtp_err *err)
{
	int sizes[DTP_MESH_DIMS];

	degrees_of(r->args, sizes);
	r->mon->stage(r->mon->arg, DTP_PHASE_START, "open the model");
	if (dtp_mesh_make(r->world, sizes, &r->mesh, err))
		return err->code;
	r->options.one_rank = true;
	r->options.rank = r->mesh.dim[DTP_MESH_TP]->rank;
	if (dtp_device_agree(r->args, r->world, dtp_worker_local_rank(r->worker), r->mon, &r->seated, err))
		return err->code;
	r->options.device = r->seated.memory.n ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU;
	if (dtp_inputs_share(r->args, r->world, r->options.rank == 0, &r->inputs, &r->request, err) || open_model(r, err))
		return err->code;
	r->mon->stage(r->mon->arg, DTP_PHASE_START, "compare the ranks' models");
	if (dtp_pipeline_agree(r->pipeline, r->world, err))
		return err->code;
	if (open_device(r, err) || agree_on_memory(r, err) || agree_on_name(r, err) || agree_on_seed(r, err))
		return err->code;
	return join_devices(r, err);
}

enum dtp_code dtp_rank_sources(struct dtp_rank *r, const struct dtp_sources **out, struct dtp_err *err)
{
	struct dtp_sources *s = r->sources ? r->sources : malloc(sizeof *s);

	*out = NULL;
	if (!s)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	if (!r->sources && dtp_sources_find(r->pipeline, &r->request, s, err)) {
		free(s);
		return err->code;
	}
	*out = r->sources = s;
	return DTP_OK;
}

/* The threads of a host are divided among its replicas, and those of a replica among its ranks there. */
static void share_threads(struct dtp_rank *r, const struct dtp_worker *w)
{
	int tp = (int)r->args->tp_degree, replicas = 0, replica = 0, ranks = 0, rank = 0;

	for (int i = 0, last = -1; i < r->size; i++) {
		if (!dtp_worker_shares_processors(w, i))
			continue;
		if (i / tp == r->rank / tp) {
			replica = replicas - (last == i / tp);
			rank += i < r->rank;
			ranks++;
		}
		replicas += last != i / tp;
		last = i / tp;
	}
	r->threads_in_all = node_threads(r->args);
	r->node_threads = dtp_host_share(r->threads_in_all, replicas, replica);
	r->threads = dtp_host_share(r->node_threads, ranks, rank);
}

/* A GPU had less room than it had at the check, or the check said too little: what would fit into what this rank could have had.  Of a
 * batch's line nothing is known here, and ranks that share a GPU have no room of their own. */
static void advise(struct dtp_rank *r, struct dtp_err *err)
{
	struct dtp_limits room = {.n = r->seated.gpus > r->size ? r->seated.gpus : r->size};
	struct dtp_bound bound = {.replicas = (int)r->args->dp_degree, .device = &room, .limit = r->hosts ? &r->hosts->limits : NULL};
	struct dtp_request share = largest_share(r->args, &r->request);
	struct dtp_options o = r->options;

	if (r->args->prompts || r->seated.shared)
		return;
	o.stay = r->stay;
	for (int i = 0; i < room.n; i++)
		room.bytes[i] = dtp_device_free(r->backend, r->options.tp_degree);
	dtp_fit_advise(r->pipeline, &o, &share, &bound, err);
}

static enum dtp_code run_rank(const struct dtp_args *args, dtp_rank_fn work, struct dtp_err *err)
{
	struct dtp_rank r = {.args = args};
	struct dtp_worker *w;
	enum dtp_code code = dtp_worker_open(&w, err);

	if (code == DTP_OK) {
		r.worker = w;
		r.mon = dtp_worker_monitor(w);
		r.world = dtp_worker_world(w);
		r.rank = dtp_worker_rank(w);
		r.size = dtp_worker_size(w);
		share_threads(&r, w);
		dtp_request_make(args, &r.options, &r.request);
		code = set_up(&r, err);
		if (code == DTP_OK)
			code = work(&r, err);
		if (code && err->no_room && r.backend)
			advise(&r, err);
		if (code == DTP_OK) /* replicas leave together: the end of one is no lost peer of the others */
			code = dtp_barrier(r.world, err);
		dtp_inputs_free(&r.inputs);
		free(r.sources);
		if (r.pipeline)
			dtp_pipeline_close(r.pipeline);
		dtp_comm_destroy(r.mesh.copies);
		dtp_comm_destroy(r.mesh.sums);
		if (r.backend)
			r.backend->ops->destroy(r.backend);
		dtp_comm_destroy(r.neighbours);
		dtp_mesh_free(&r.mesh);
		if (r.hosts)
			dtp_hosts_free(r.hosts);
		free(r.hosts);
		code = dtp_worker_close(w, code, err);
		err->code = DTP_OK; /* the launcher has it and prints it, once */
	}
	return code;
}

/* ---- the first process */

static void note(void *arg, const char *text)
{
	dtp_progress_note(arg, text);
}

static void warn(void *arg, const char *text)
{
	dtp_progress_warn(arg, text);
}

/* What is drawn: the request's own, or what the lines of a batch have where they say nothing else. */
static void describe(const struct dtp_args *args, const struct dtp_pipeline *p, const struct dtp_request *q, char *buf, size_t size)
{
	char images[64], references[40] = "";

	if (q->nimages)
		snprintf(references, sizeof references, ", %d reference%s", q->nimages, q->nimages == 1 ? "" : "s");
	snprintf(images, sizeof images, "%d image%s%s", q->num_images, q->num_images == 1 ? "" : "s", args->prompts ? " a line" : "");
	snprintf(buf, size, "%s%s%s%lldx%lld, %d step%s, guidance %g%s, %s%s", args->prompts ? "prompts of " : "",
		 args->prompts ? dtp_lines_name(args->prompts) : "", args->prompts ? ", where they say nothing else " : "",
		 (long long)q->width, (long long)q->height, q->steps, q->steps == 1 ? "" : "s", q->guidance_scale,
		 dtp_pipeline_guided(p) ? "" : " (no effect: the model is distilled)", images, references);
}

/* How many ranks share this process's processors. */
static int sharers(const struct dtp_args *args, const struct dtp_seat *seat)
{
	int n = 0;

	for (int i = 0; seat && i < seat->nlocal; i++)
		n += seat->local[seat->nlocal + i];
	return seat ? n : ranks_of(args);
}

/* One line that says what is going to be done, defaults filled in. */
static void announce(const struct dtp_args *args, struct dtp_progress *progress, const struct dtp_pipeline *p,
		     const struct dtp_options *o, const struct dtp_request *q, const struct dtp_seat *seat, const struct dtp_gpus *gpus)
{
	char text[1400], what[640], dp[32] = "", hosts[48] = "", device[256];
	int ranks = sharers(args, seat), threads = node_threads(args);

	if (args->dp_degree > 1)
		snprintf(dp, sizeof dp, "dp %d x ", (int)args->dp_degree);
	if (seat && seat->hosts > 1)
		snprintf(hosts, sizeof hosts, " here, %d hosts", seat->hosts);
	if (o->encode_only)
		snprintf(what, sizeof what, "encode the prompt, %lld tokens", (long long)q->max_sequence_length);
	else
		describe(args, p, q, what, sizeof what);
	if (gpus->n)
		dtp_device_text(gpus, seat ? seat->nlocal : ranks, device, sizeof device);
	else
		snprintf(device, sizeof device, "%d thread%s", threads, threads == 1 ? "" : "s");
	snprintf(text, sizeof text, "%s: %s, %s, %stp %d (%s), %s%s", dtp_pipeline_class(p), what, o->compute == DTP_F32 ? "fp32" : "bf16",
		 dp, o->tp_degree, dtp_pipeline_plan(p), device, hosts);
	dtp_progress_note(progress, text);
	if (!gpus->n && threads < ranks) {
		snprintf(text, sizeof text, "%d ranks share %d thread%s' worth of processors: expect them to be slow",
			 ranks, threads, threads == 1 ? "" : "s");
		dtp_progress_warn(progress, text);
	}
}

/* What was asked for and changes nothing. */
static void warn_without_effect(const struct dtp_args *args, struct dtp_progress *progress, const struct dtp_pipeline *p,
				const struct dtp_request *q)
{
	char text[256];

	if (DTP_TYPED(args, guidance_scale) && !dtp_pipeline_guided(p))
		dtp_progress_warn(progress, "--guidance-scale has no effect: the model is distilled");
	if (args->negative_prompt && dtp_pipeline_passes(p, q) < 2) {
		snprintf(text, sizeof text, "--negative-prompt has no effect: %s takes one pass a step at guidance %g%s",
			 dtp_pipeline_class(p), q->guidance_scale, dtp_pipeline_guided(p) ? "" : ", the model is distilled");
		dtp_progress_warn(progress, text);
	}
	if (DTP_TYPED(args, seed) && q->noise)
		dtp_progress_warn(progress, "--seed has no effect: the noise is that of --latents");
	if (args->system_message && !dtp_pipeline_has_system(p)) {
		snprintf(text, sizeof text, "--system-message has no effect: the prompts of %s have none", dtp_pipeline_class(p));
		dtp_progress_warn(progress, text);
	}
}

/* seat: NULL where all ranks are of this host. */
static enum dtp_code check_model(const struct dtp_args *args, struct dtp_pipeline *p, const struct dtp_options *o,
				 struct dtp_request *q, bool writes, const struct dtp_limits *limits,
				 const struct dtp_seat *seat, const struct dtp_gpus *gpus, struct dtp_err *err)
{
	struct dtp_host_memory memory = dtp_host_memory("");
	struct dtp_limits devices;
	struct dtp_bound bound = {.replicas = (int)args->dp_degree, .host = gpus->n ? NULL : &memory,
				  .device = gpus->n ? &devices : NULL, .limit = limits};

	/* Without --oversubscribe each rank has a whole one, which another launcher may show to that rank alone. */
	dtp_device_limits(gpus, !args->oversubscribe ? gpus->n : seat ? seat->nlocal : ranks_of(args), &devices);
	if (seat && seat->hosts > 1) {
		bound.here = seat->local;
		bound.nhere = seat->nlocal;
	}
	if (dtp_pipeline_resolve(p, q, err))
		return err->code;
	if (args->prompts) /* each line is checked for itself */
		return dtp_batch_check_files(args, err);
	if (writes && dtp_outputs_check(args, q->num_images, err))
		return err->code;
	struct dtp_request share = largest_share(args, q);
	const struct dtp_offload_wish wish = dtp_offload_wish(args);
	struct dtp_offload f;
	if (dtp_offload_choose(p, o, &share, &wish, &bound, 1, &f, err))
		return err->code;
	return f.over ? dtp_fit_check(p, o, &share, &bound, err) : DTP_OK;
}

/* Whether a rank of this host has the VAE, which the first of each replica has. */
static bool has_vae(const struct dtp_args *args, const struct dtp_seat *seat)
{
	bool found = !seat;

	for (int i = 0; seat && i < seat->nlocal; i++)
		found = found || seat->local[i] % args->tp_degree == 0;
	return found;
}

/* Everything that can refuse the job, and the line that announces it; without progress, for another host than rank 0's, what
 * may be different there. */
static enum dtp_code prepare(const struct dtp_args *args, bool writes, const struct dtp_seat *seat,
			     struct dtp_progress *progress, struct dtp_err *err)
{
	struct dtp_monitor mon = dtp_monitor_none;
	struct dtp_options o;
	struct dtp_request q;
	struct dtp_pipeline *p;
	struct dtp_inputs inputs = {0};
	struct dtp_limits limits;
	struct dtp_gpus gpus;

	if (progress) {
		mon.arg = progress;
		mon.note = note;
		mon.warn = warn;
	}
	if (args->tp_plan && dtp_path_reads_once(args->tp_plan))
		return dtp_fail(err, DTP_REFUSED, "--tp-plan '%s' is no regular file: each rank reads it again, so put it into a file", args->tp_plan);
	dtp_request_make(args, &o, &q);
	if (seat && seat->hosts > 1) { /* of a sharded folder this host has perhaps only the files of its own ranks */
		o.one_rank = true;
		o.rank = seat->rank % o.tp_degree;
	}
	if (dtp_device_find(args, &gpus, progress ? warn : NULL, progress, err) ||
	    (!seat && dtp_device_check(args, &gpus, ranks_of(args), err)))
		return err->code;
	o.device = gpus.n ? DTP_DEVICE_CUDA : DTP_DEVICE_CPU;
	if (gpus.n && dtp_device_libraries(args, has_vae(args, seat) && pictures(&o, &q), args->tp_degree > 1 && !args->oversubscribe, err))
		return err->code;
	if (dtp_max_memory_parse(args->max_memory, &limits, err) || dtp_max_memory_check(&limits, ranks_of(args), err) ||
	    dtp_pipeline_open(&o, &mon, &p, err))
		return err->code;
	enum dtp_code code = dtp_inputs_read(args, &inputs, &q, err);
	bool known = !code || progress; /* only rank 0's host must have them, and without them nothing can be predicted */
	if (!code)
		code = check_model(args, p, &o, &q, writes, &limits, seat, &gpus, err);
	if (!code && progress && gpus.n && o.beside_whole) {
		struct dtp_host_memory memory = dtp_host_memory("");
		code = dtp_fit_check_whole(p, &q, &memory, err);
	}
	code = known ? code : DTP_OK;
	if (code == DTP_OK && progress) {
		announce(args, progress, p, &o, &q, seat, &gpus);
		warn_without_effect(args, progress, p, &q);
		if (args->recall)
			code = dtp_recall_tell(args, p, &q, progress, err);
	}
	dtp_pipeline_close(p);
	dtp_inputs_free(&inputs);
	return code;
}

/* What can be said without a look at anything but the options.  place: NULL unless somebody else started the ranks. */
static enum dtp_code check_degrees(const struct dtp_args *args, const struct dtp_place *place, struct dtp_err *err)
{
	int sizes[DTP_MESH_DIMS];
	const char *not_yet = args->ring_degree > 1 ? "ring" : args->ulysses_degree > 1 ? "ulysses" : NULL;

	degrees_of(args, sizes);
	if (not_yet)
		return dtp_fail(err, DTP_REFUSED,
				"--%s-degree %d: dividing the tokens of a picture over ranks is not there yet, only --%s-degree 1 is; "
				"--tp-degree divides its layers, --dp-degree the images",
				not_yet, sizes[args->ring_degree > 1 ? DTP_MESH_RING : DTP_MESH_ULYSSES], not_yet);
	if (place && (int64_t)place->size != args->dp_degree * args->tp_degree)
		return dtp_fail(err, DTP_REFUSED,
				"%s has started %d rank%s, but --dp-degree %d x --ring-degree %d x --ulysses-degree %d x --tp-degree %d "
				"= %lld: the product of the degrees must be the number of ranks (--launcher self starts them itself)",
				place->launcher, place->size, place->size == 1 ? "" : "s", sizes[DTP_MESH_DP], sizes[DTP_MESH_RING],
				sizes[DTP_MESH_ULYSSES], sizes[DTP_MESH_TP], (long long)(args->dp_degree * args->tp_degree));
	if (args->dp_degree * args->tp_degree > DTP_MAX_RANKS)
		return dtp_fail(err, DTP_REFUSED, "--dp-degree %d x --tp-degree %d are %lld ranks, at most %d can be started",
				sizes[DTP_MESH_DP], sizes[DTP_MESH_TP], (long long)(args->dp_degree * args->tp_degree), DTP_MAX_RANKS);
	return DTP_OK;
}

/* ---- under somebody else's launcher: what this process finds wrong by itself counts unless the meeting finds more */

static enum dtp_code run_first(const struct dtp_args *args, const struct dtp_place *place, struct dtp_meeting *meeting,
			       bool writes, struct dtp_launch *launch, struct dtp_err *refusal, struct dtp_err *err)
{
	struct dtp_gathering g;
	double patience = refusal->code ? REFUSAL_S : dtp_launch_timeout(launch);
	enum dtp_code code = dtp_gather(&g, place, meeting, args, patience, err);

	if (!code && !refusal->code)
		prepare(args, writes, &g.seat, launch->arg, refusal);
	if (refusal->code && (!code || err->secondary)) {
		*err = *refusal;
		code = err->code;
	}
	if (code) {
		dtp_gathering_dismiss(&g, err);
	} else {
		launch->seat = &g.seat;
		launch->gathering = &g;
		launch->threads_per_rank = dtp_host_share(node_threads(args), sharers(args, &g.seat), 0);
		code = dtp_launch(launch, err);
	}
	dtp_gathering_free(&g);
	return code;
}

static enum dtp_code run_other(const struct dtp_args *args, const struct dtp_place *place, struct dtp_meeting *meeting,
			       struct dtp_launch *launch, struct dtp_err *refusal, struct dtp_err *err)
{
	struct dtp_member *m;
	double patience = refusal->code ? REFUSAL_S : dtp_launch_timeout(launch);
	enum dtp_code code = dtp_member_join(&m, place, meeting, args, patience, err);

	if (code && err->secondary && refusal->code) {
		*err = *refusal;
		code = err->code;
	}
	if (!code) {
		launch->seat = dtp_member_seat(m);
		launch->threads_per_rank = dtp_host_share(node_threads(args), sharers(args, launch->seat), 0);
		/* Of a host that rank 0 knows nothing of; a batch checks each line when it comes to it. */
		if (launch->seat->local_rank == 0 && !args->prompts && !prepare(args, false, launch->seat, NULL, refusal))
			*refusal = (struct dtp_err)DTP_ERR_INIT;
		code = dtp_member_run(m, launch, refusal->code ? refusal : NULL, err);
	}
	dtp_member_free(m);
	return code;
}

static enum dtp_code run_external(const struct dtp_args *args, const struct dtp_place *place, bool writes,
				  struct dtp_launch *launch, struct dtp_err *err)
{
	struct dtp_err refusal = DTP_ERR_INIT;
	struct dtp_meeting meeting;

	check_degrees(args, place, &refusal);
	if (dtp_meeting_find(place, args->rendezvous, &meeting, err)) {
		if (refusal.code)
			*err = refusal;
		return err->code;
	}
	launch->nranks = place->size;
	launch->parent = dtp_place_parent(place);
	launch->parent_name = place->launcher;
	return place->rank ? run_other(args, place, &meeting, launch, &refusal, err)
			   : run_first(args, place, &meeting, writes, launch, &refusal, err);
}

/* ---- */

static enum dtp_code start(const struct dtp_args *args, bool writes, struct dtp_place *place, struct dtp_launch *launch,
			   struct dtp_err *err)
{
	if (!args->model)
		return dtp_fail(err, DTP_REFUSED, "option '--model' is missing: the folder of the pipeline");
	if (dtp_embeds_options_check(args, err) || dtp_synthetic_options_check(args, err) || dtp_place_find(args->launcher, place, err))
		return err->code;
	if (DTP_GIVEN(args, rendezvous) && !place->launcher)
		return dtp_fail(err, DTP_REFUSED,
				"option '--rendezvous': no launcher's variables say that this process is one of its ranks (RANK, "
				"OMPI_COMM_WORLD_RANK, SLURM_PROCID and those that go with them), and ranks that difftp starts itself need no "
				"place to meet");
	if (place->size > 1)
		return run_external(args, place, writes, launch, err);
	if (check_degrees(args, place->launcher ? place : NULL, err) || prepare(args, writes, NULL, launch->arg, err))
		return err->code;
	launch->nranks = ranks_of(args);
	launch->threads_per_rank = dtp_host_share(node_threads(args), launch->nranks, 0);
	return dtp_launch(launch, err);
}

enum dtp_code dtp_job_run(const struct dtp_args *args, char **argv, bool writes, dtp_rank_fn work, struct dtp_err *err)
{
	struct dtp_progress progress;
	struct dtp_place place = {0};
	struct dtp_launch launch = {
		.argv = argv,
		.may_finish = args->prompts != NULL,
		.timeout_s = args->timeout,
		.on_event = dtp_progress_event,
		.arg = &progress,
	};

	if (dtp_worker_is_rank())
		return run_rank(args, work, err);
	dtp_progress_init(&progress, stderr, args->progress, args->quiet);
	dtp_progress_pictures(&progress, args);
	enum dtp_code code = start(args, writes, &place, &launch, err);
	/* Of another launcher's job rank 0's process tells the end, unless it is another that has to say why. */
	if (place.size > 1 && place.rank && !err->code)
		dtp_progress_end(&progress);
	else
		dtp_progress_close(&progress, code, err);
	return code;
}
