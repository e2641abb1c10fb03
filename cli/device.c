/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define GPU_MEMORY "the GPU's memory"
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
	int fds[2];
	pid_t child = -1;

	a->gpus.n = 0;
	a->err = (struct dtp_err)DTP_ERR_INIT;
	if (!pipe(fds)) {
		child = fork();
		if (child == 0) {
			ask(a);
			_exit(write(fds[1], a, sizeof *a) == (ssize_t)sizeof *a ? 0 : 1);
		}
		close(fds[1]);
		if (child > 0 && !hear(fds[0], a)) {
			a->gpus.n = 0;
			dtp_fail(&a->err, DTP_REFUSED, "the NVIDIA driver does not answer, or crashed; difftp doctor says more");
		}
		close(fds[0]);
	}
	if (child < 0) {
		dtp_fail(&a->err, DTP_FAILED, "cannot ask the NVIDIA driver: %s", strerror(errno));
		return;
	}
	kill(child, SIGKILL); /* if it still waits for the driver */
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

enum dtp_code dtp_device_find(const struct dtp_args *args, struct dtp_gpus *gpus, void (*warn)(void *arg, const char *text), void *arg,
			      struct dtp_err *err)
{
	struct answer a = {0};

	*gpus = (struct dtp_gpus){0};
	if (args->device == DTP_ARG_CPU)
		return DTP_OK;
	ask_in_child(&a);
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

enum dtp_code dtp_device_check(const struct dtp_gpus *gpus, int ranks, struct dtp_err *err)
{
	if (!gpus->n || ranks <= gpus->n)
		return DTP_OK;
	return dtp_fail(err, DTP_REFUSED, "%d ranks need a GPU each, %d %s visible on this machine (%s)\nlower --tp-degree or --dp-degree to %d, "
			"see CUDA_VISIBLE_DEVICES, or compute on the CPU with --device cpu", ranks, gpus->n, gpus->n == 1 ? "is" : "are",
			gpus->gpu[0].name, gpus->n);
}

void dtp_device_limits(const struct dtp_gpus *gpus, struct dtp_limits *out)
{
	*out = (struct dtp_limits){.option = GPU_MEMORY, .n = gpus->n};
	for (int i = 0; i < gpus->n; i++)
		out->bytes[i] = gpus->gpu[i].bytes;
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

/* Bytes of this rank's GPU; 0: it computes on a CPU. */
static enum dtp_code own_memory(const struct dtp_args *args, int local_rank, int64_t *bytes, struct dtp_err *err)
{
	struct answer *a = calloc(1, sizeof *a);
	enum dtp_code code = DTP_OK;

	*bytes = 0;
	if (!a)
		return dtp_fail(err, DTP_FAILED, "out of memory for a list of GPUs");
	if (args->device != DTP_ARG_CPU)
		ask(a);
	if (args->device == DTP_ARG_CUDA && !a->gpus.n)
		code = dtp_fail(err, a->err.code, "--device cuda: %s", a->err.message);
	else if (a->gpus.n && local_rank >= a->gpus.n)
		code = dtp_device_check(&a->gpus, local_rank + 1, err);
	else if (a->gpus.n)
		*bytes = (int64_t)a->gpus.gpu[local_rank].bytes;
	free(a);
	return code;
}

enum dtp_code dtp_device_agree(const struct dtp_args *args, struct dtp_comm *world, int local_rank, struct dtp_limits *memory,
			       struct dtp_err *err)
{
	int64_t mine, *all = calloc((size_t)world->size, sizeof *all);
	enum dtp_code code = all ? DTP_OK : dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", world->size);

	*memory = (struct dtp_limits){.option = GPU_MEMORY};
	if (!code)
		code = own_memory(args, local_rank, &mine, err);
	if (!code)
		code = dtp_all_gather(world, all, &mine, 1, DTP_I64, err);
	for (int r = 0; !code && r < world->size && r < DTP_MAX_RANKS; r++) {
		if (!all[r] != !all[0])
			code = dtp_fail(err, DTP_REFUSED, "rank 0 computes on %s, rank %d on %s: say which with --device cpu or cuda",
					all[0] ? "a GPU" : "a CPU", r, all[r] ? "a GPU" : "a CPU");
		memory->bytes[r] = (uint64_t)all[r];
	}
	if (!code && all[0])
		memory->n = world->size < DTP_MAX_RANKS ? world->size : DTP_MAX_RANKS;
	free(all);
	return code;
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

enum dtp_code dtp_device_open(enum dtp_device device, enum dtp_dtype compute, int local_rank, int threads, enum dtp_cuda_attention attention,
			      const struct dtp_monitor *mon, struct dtp_backend **out, struct dtp_err *err)
{
	struct dtp_cuda_options o = {.device = local_rank, .attention = attention, .mon = mon};
	char cache[4096];

	if (device == DTP_DEVICE_CPU)
		return dtp_backend_cpu(compute, threads, out, err);
	cache_folder(cache, sizeof cache);
	o.cache = *cache ? cache : NULL;
	return dtp_backend_cuda(compute, &o, out, err);
}
