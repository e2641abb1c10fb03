/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "fit.h"
#include "units.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPU_MEMORY "the GPU's memory"
#define FREE_MEMORY "what is free of the GPU's memory"
#define DRIVER_PATIENCE_S 60 /* without persistence mode a machine of eight GPUs takes more than ten to start them */

/* ---- what the driver says */

struct answer {
	struct dtp_gpus gpus;
	struct dtp_err err;
};

static void ask(struct answer *a)
{
	a->err = (struct dtp_err)DTP_ERR_INIT;
	if (dtp_cuda_gpus(a->gpus.gpu, DTP_MAX_GPUS, &a->gpus.n, &a->err))
		a->gpus.n = 0;
	if (a->gpus.n > DTP_MAX_GPUS)
		a->gpus.n = DTP_MAX_GPUS;
}

/* What the child wrote, whole or not. */
static bool hear(int fd, struct answer *a)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	size_t got = 0;
	ssize_t n = 1;

	while (got < sizeof *a && n > 0) {
		int ready = poll(&p, 1, DRIVER_PATIENCE_S * 1000);
		if (ready < 0 && errno == EINTR)
			continue;
		n = ready > 0 ? read(fd, (char *)a + got, sizeof *a - got) : 0;
		got += n > 0 ? (size_t)n : 0;
	}
	return got == sizeof *a;
}

static void ask_in_child(struct answer *a)
{
	bool heard = false;
	int fds[2], failed = 0;
	pid_t child = -1;

	a->gpus.n = 0;
	a->err = (struct dtp_err)DTP_ERR_INIT;
	if (pipe(fds)) {
		failed = errno;
	} else {
		child = fork();
		failed = errno;
		if (child == 0) {
			ask(a);
			_exit(write(fds[1], a, sizeof *a) == (ssize_t)sizeof *a ? 0 : 1);
		}
		close(fds[1]);
		heard = child > 0 && hear(fds[0], a);
		if (child > 0 && !heard) {
			a->gpus.n = 0;
			dtp_fail(&a->err, DTP_REFUSED, "the NVIDIA driver does not answer, or crashed; difftp doctor says more");
		}
		close(fds[0]);
	}
	if (child < 0) {
		dtp_fail(&a->err, DTP_FAILED, "cannot ask the NVIDIA driver: %s", strerror(failed));
		return;
	}
	kill(child, SIGKILL); /* if it still waits for the driver */
	/* One that is stuck in the driver does not die of it, and is left. */
	for (int tries = 0; tries < 20; tries++) {
		pid_t got = waitpid(child, NULL, heard ? 0 : WNOHANG);
		if (got == child || (got < 0 && errno != EINTR))
			break;
		poll(NULL, 0, 50);
	}
}

enum dtp_code dtp_device_find(const struct dtp_args *args, struct dtp_gpus *gpus, void (*warn)(void *arg, const char *text), void *arg,
			      struct dtp_err *err)
{
	struct answer a = {0};

	*gpus = (struct dtp_gpus){0};
	if (args->device == DTP_ARG_CPU)
		return DTP_OK;
	if (dtp_cuda_built().cuda)
		ask_in_child(&a);
	else
		ask(&a); /* no driver is asked */
	*gpus = a.gpus;
	if (gpus->n)
		return DTP_OK;
	if (args->device == DTP_ARG_CUDA)
		return dtp_fail(err, a.err.code, "--device cuda: %s", a.err.message);
	if (warn && !access("/dev/nvidiactl", F_OK)) {
		char text[sizeof a.err.message + 64];
		snprintf(text, sizeof text, "computing on the CPU: %s", a.err.message);
		warn(arg, text);
	}
	return DTP_OK;
}

enum dtp_code dtp_device_libraries(const struct dtp_args *args, bool pictures, bool sums, struct dtp_err *err)
{
	const struct dtp_cuda_needs needs = {true, pictures, args->attention == DTP_ATTENTION_CUDNN, sums};

	if (!dtp_cuda_libraries(&needs, err))
		return DTP_OK;
	size_t used = strlen(err->message);
	snprintf(err->message + used, sizeof err->message - used, "; --device cpu computes without it");
	return err->code;
}

/* Ranks take the GPUs in turn: which one of these, and what each of n ranks has of it. */
static int gpu_of(const struct dtp_gpus *gpus, int local_rank)
{
	return local_rank % gpus->n;
}

static uint64_t part_of(const struct dtp_gpus *gpus, int local_rank, int ranks)
{
	int gpu = gpu_of(gpus, local_rank), sharers = ranks / gpus->n + (gpu < ranks % gpus->n);

	return gpus->gpu[gpu].bytes / (uint64_t)(sharers ? sharers : 1);
}

enum dtp_code dtp_device_check(const struct dtp_args *args, const struct dtp_gpus *gpus, int ranks, struct dtp_err *err)
{
	if (!gpus->n || ranks <= gpus->n || args->oversubscribe)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "%d ranks need a GPU each, this machine has %d that can be used (%s)\nlower --tp-degree or --dp-degree to %d, "
			"see CUDA_VISIBLE_DEVICES, compute on the CPU with --device cpu, or let ranks share a GPU with --oversubscribe", ranks,
			gpus->n, gpus->gpu[0].name, gpus->n);
}

void dtp_device_limits(const struct dtp_gpus *gpus, int ranks, struct dtp_limits *out)
{
	*out = (struct dtp_limits){.option = GPU_MEMORY, .n = !gpus->n ? 0 : ranks < DTP_MAX_RANKS ? ranks : DTP_MAX_RANKS};
	for (int i = 0; i < out->n; i++)
		out->bytes[i] = part_of(gpus, i, ranks);
}

void dtp_device_text(const struct dtp_gpus *gpus, int ranks, char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = '\0';
	for (int i = 0, same; i < gpus->n && i < ranks && at < size; i += same) {
		for (same = 1; i + same < gpus->n && i + same < ranks && !strcmp(gpus->gpu[i].name, gpus->gpu[i + same].name);)
			same++;
		if (same > 1)
			at += (size_t)snprintf(buf + at, size - at, "%s%d x %s", at ? ", " : "", same, gpus->gpu[i].name);
		else
			at += (size_t)snprintf(buf + at, size - at, "%s%s", at ? ", " : "", gpus->gpu[i].name);
	}
}

/* ---- in a rank */

/* What a rank tells the others of its GPU. */
struct card {
	uint64_t bytes; /* 0: it computes on a CPU */
	char id[16], name[96];
};

static enum dtp_code own_card(const struct dtp_args *args, int local_rank, struct dtp_seated *out, struct card *mine, struct dtp_err *err)
{
	struct answer *a = calloc(1, sizeof *a);
	enum dtp_code code = DTP_OK;

	if (!a)
		return dtp_fail(err, DTP_FAILED, "out of memory for a list of GPUs");
	if (args->device != DTP_ARG_CPU)
		ask(a);
	if (args->device == DTP_ARG_CUDA && !a->gpus.n)
		code = dtp_fail(err, a->err.code, "--device cuda: %s", a->err.message);
	if (a->gpus.n) {
		const struct dtp_gpu *own = &a->gpus.gpu[gpu_of(&a->gpus, local_rank)];
		out->gpu = own->number;
		out->gpus = a->gpus.n;
		mine->bytes = own->bytes;
		memcpy(mine->id, own->id, sizeof mine->id);
		memcpy(mine->name, own->name, sizeof mine->name);
	}
	free(a);
	return code;
}

/* How many ranks have the GPU of rank r; *other: one of them, or r. */
static int sharers(const struct card *all, int n, int r, int *other)
{
	int same = 0;

	*other = r;
	for (int i = 0; i < n; i++)
		if (!memcmp(all[i].id, all[r].id, sizeof all[r].id)) {
			same++;
			*other = i != r ? i : *other;
		}
	return same;
}

/* All ranks come to the same verdict: they have the same cards. */
static enum dtp_code compare(const struct dtp_args *args, const struct card *all, int n, struct dtp_seated *out, struct dtp_err *err)
{
	for (int r = 0; r < n && r < DTP_MAX_RANKS; r++) {
		int other, same = sharers(all, n, r, &other);
		if (!all[r].bytes != !all[0].bytes)
			return dtp_fail(err, DTP_REFUSED, "rank 0 computes on %s, rank %d on %s: say which with --device cpu or cuda",
					all[0].bytes ? "a GPU" : "a CPU", r, all[r].bytes ? "a GPU" : "a CPU");
		if (all[r].bytes && same > 1 && !args->oversubscribe)
			return dtp_fail(err, DTP_REFUSED, "%d ranks, rank %d and rank %d among them, would share a GPU (%s)\neach needs its own: start "
					"fewer ranks on its machine, see CUDA_VISIBLE_DEVICES there, or let them share it with --oversubscribe",
					same, r, other, all[r].name);
		out->memory.bytes[r] = all[r].bytes / (uint64_t)same;
		out->shared = out->shared || (all[r].bytes && same > 1);
		out->memory.n = all[r].bytes ? r + 1 : 0;
	}
	return DTP_OK;
}

static void tell_mixed(const struct card *all, int n, const struct dtp_monitor *mon)
{
	int least = 0, most = 0, other = 0;
	char text[512], room[128] = "";

	for (int r = 1; r < n; r++) {
		least = all[r].bytes < all[least].bytes ? r : least;
		most = all[r].bytes > all[most].bytes ? r : most;
		if (!other && strcmp(all[r].name, all[0].name))
			other = r;
	}
	if (!other)
		return;
	if (all[most].bytes > all[least].bytes)
		snprintf(room, sizeof room, ", and rank %d's has the least memory, %s", least, dtp_bytes_text(all[least].bytes).s);
	snprintf(text, sizeof text, "the ranks' GPUs differ (rank 0: %s, rank %d: %s): all wait for the slowest%s", all[0].name, other,
		 all[other].name, room);
	mon->warn(mon->arg, text);
}

/* Where finished plans of cuDNN are kept, as the XDG specification has it; "" for nowhere. */
static void cache_folder(char *buf, size_t size)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	buf[0] = '\0';
	if (cache && cache[0] == '/')
		snprintf(buf, size, "%s/difftp", cache);
	else if (home && *home)
		snprintf(buf, size, "%s/.cache/difftp", home);
}

enum dtp_code dtp_device_agree(const struct dtp_args *args, struct dtp_comm *world, int local_rank, const struct dtp_monitor *mon,
			       struct dtp_seated *out, struct dtp_err *err)
{
	struct card mine = {0}, *all = calloc((size_t)world->size, sizeof *all);
	enum dtp_code code = all ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", world->size);

	*out = (struct dtp_seated){.memory.option = GPU_MEMORY};
	cache_folder(out->cache, sizeof out->cache);
	if (!code)
		code = own_card(args, local_rank, out, &mine, err);
	if (!code)
		code = dtp_all_gather(world, all, &mine, (int64_t)sizeof mine, DTP_U8, err);
	if (!code)
		code = compare(args, all, world->size, out, err);
	if (!code && world->rank == 0)
		tell_mixed(all, world->size, mon);
	free(all);
	return code;
}

void dtp_device_alone(const struct dtp_gpus *gpus, struct dtp_seated *out)
{
	*out = (struct dtp_seated){.gpu = gpus->gpu[0].number};
	dtp_device_limits(gpus, 1, &out->memory);
	cache_folder(out->cache, sizeof out->cache);
}

enum dtp_code dtp_device_open(const struct dtp_seated *seated, enum dtp_dtype compute, int threads, const struct dtp_args *args,
			      const struct dtp_monitor *mon, struct dtp_backend **out, struct dtp_err *err)
{
	const struct dtp_cuda_options options = {
		.device = seated->gpu, .attention = (enum dtp_cuda_attention)args->attention, .graph = (enum dtp_cuda_graph)args->graph,
		.cache = *seated->cache ? seated->cache : NULL, .mon = mon,
	};

	return seated->memory.n ? dtp_backend_cuda(compute, &options, out, err) : dtp_backend_cpu(compute, threads, out, err);
}

/* What it has taken is the backend's own, and the context, which nobody counts. */
uint64_t dtp_device_free(struct dtp_backend *be, int ranks)
{
	struct dtp_memory_use use;

	be->ops->memory(be, &use);
	if (!use.device_of) /* the driver did not say */
		return INT64_MAX;
	return use.device_of - use.device + use.in_use + dtp_rank_base_bytes(DTP_DEVICE_CUDA, ranks);
}

static void lower(struct dtp_seated *seated, int rank, uint64_t bytes)
{
	if (bytes < seated->memory.bytes[rank]) {
		seated->memory.bytes[rank] = bytes;
		seated->memory.option = FREE_MEMORY;
	}
}

void dtp_device_room_alone(struct dtp_seated *seated, struct dtp_backend *be)
{
	if (seated->memory.n)
		lower(seated, 0, dtp_device_free(be, 1));
}

enum dtp_code dtp_device_room(struct dtp_seated *seated, struct dtp_backend *be, struct dtp_comm *world, struct dtp_err *err)
{
	if (!seated->memory.n || seated->shared) /* ranks that share a GPU have their parts of it */
		return DTP_OK;
	uint64_t mine = dtp_device_free(be, 1);
	uint64_t *all = calloc((size_t)world->size, sizeof *all);
	enum dtp_code code = all ? dtp_all_gather(world, all, &mine, 1, DTP_I64, err)
				 : dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", world->size);
	for (int r = 0; !code && r < seated->memory.n; r++)
		lower(seated, r, all[r]);
	free(all);
	return code;
}
