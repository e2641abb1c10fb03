/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: how a call begins and ends, faults on demand, wrong use, what is left at the end. */
#include "runtime.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CALLS = 512, MAX_FRAMES = 24 };

/* The code of cuda/X.c, which cuda/build.mk puts there; none in a program that has none. */
extern const char __start_calls_of_cuda[] __attribute__((weak)), __stop_calls_of_cuda[] __attribute__((weak));
extern const char __executable_start[];

static struct {
	pthread_once_t once;
	pthread_mutex_t lock;
	int depth; /* how often its owner took it */
	pid_t pid; /* a forked child is not asked what it leaves */
	enum emu_mode mode;
	unsigned seed;
	uint64_t random;
	char fail[64]; /* the call that must fail, "" for none */
	unsigned long fail_at;
	int fail_code;
	bool fail_coded, faulted;
	int fail_device; /* or -1 */
	unsigned long fail_site; /* 0: from anywhere */
	bool sites; /* are told apart; else all are 0 */
	struct call {
		const char *name;
		unsigned long site, count;
		int device;
	} calls[MAX_CALLS];
	unsigned ncalls;
	struct {
		const char *what;
		int count;
	} held[32];
	cudaError_t sticky;
} state = {.once = PTHREAD_ONCE_INIT};

static _Thread_local cudaError_t last_error;

uint64_t emu_setting(const char *name, uint64_t otherwise)
{
	const char *s = getenv(name);
	char *end;

	if (!s || !*s)
		return otherwise;
	errno = 0;
	unsigned long long n = strtoull(s, &end, 0);
	if (errno || *end)
		emu_misuse("%s is '%s', which is no number", name, s);
	return n;
}

static const char *mode_name(void)
{
	static const char *const names[] = {"eager", "deferred", "random"};
	return names[state.mode];
}

void emu_misuse(const char *format, ...)
{
	char text[2048];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	fprintf(stderr, "emulator (%s streams, seed %u): %s\n", mode_name(), state.seed, text);
	fflush(stderr);
	_exit(EMU_EXIT);
}

/* site NULL: the first from anywhere; state.ncalls: none yet. */
static unsigned find_call(const char *name, const unsigned long *site)
{
	unsigned i = 0;

	while (i < state.ncalls && (strcmp(state.calls[i].name, name) || (site && state.calls[i].site != *site)))
		i++;
	return i;
}

/* From all places together. */
static unsigned long count_of(const char *name)
{
	unsigned long n = 0;

	for (unsigned i = 0; i < state.ncalls; i++)
		n += strcmp(state.calls[i].name, name) ? 0 : state.calls[i].count;
	return n;
}

/* Lines that other processes' do not get into: all are written at once. */
static void write_calls(const char *setting, bool sites)
{
	static char buf[MAX_CALLS * 128];
	const char *path = getenv(setting);
	FILE *f = path && *path ? fopen(path, "a") : NULL;

	if (!f)
		return;
	setvbuf(f, buf, _IOFBF, sizeof buf);
	for (unsigned i = 0; i < state.ncalls; i++) {
		const struct call *c = &state.calls[i];
		if (sites)
			fprintf(f, "%s 0x%lx %d %lu\n", c->name, c->site, c->device, c->count);
		else if (find_call(c->name, NULL) == i)
			fprintf(f, "%s %lu\n", c->name, count_of(c->name));
	}
	fclose(f);
}

void emu_hold(const char *what, int change)
{
	size_t i = 0;

	emu_lock();
	while (i < sizeof state.held / sizeof state.held[0] && state.held[i].what && strcmp(state.held[i].what, what))
		i++;
	if (i == sizeof state.held / sizeof state.held[0])
		emu_misuse("too many kinds of things");
	state.held[i].what = what;
	state.held[i].count += change;
	if (state.held[i].count < 0)
		emu_misuse("more %s destroyed than made", what);
	if ((uint64_t)state.held[i].count > emu_setting("DIFFTP_EMU_MOST", UINT64_MAX))
		emu_misuse("more than DIFFTP_EMU_MOST %s", what);
	emu_unlock();
}

static unsigned held_leaks(char *text, size_t size)
{
	unsigned n = 0;

	for (size_t i = 0; i < sizeof state.held / sizeof state.held[0]; i++) {
		size_t used = strlen(text);
		if (state.held[i].count)
			snprintf(text + used, size - used, " %d %s;", state.held[i].count, state.held[i].what);
		n += (unsigned)state.held[i].count;
	}
	return n;
}

static void at_exit(void)
{
	char text[1024];

	if (getpid() != state.pid)
		return;
	emu_lock();
	write_calls("DIFFTP_EMU_CALLS", false);
	write_calls("DIFFTP_EMU_SITES", true);
	text[0] = 0;
	unsigned n = emu_graph_leaks(text, sizeof text) + held_leaks(text, sizeof text);
	n += emu_stream_leaks(text, sizeof text) + emu_memory_leaks(text, sizeof text);
	if (n)
		emu_misuse("%u things are left when the process ends:%s", n, text);
	emu_unlock();
}

static void read_fault(const char *s)
{
	state.fail_device = -1;
	if (!s || !*s)
		return;
	int used = sscanf(s, "%63[^:]:%lu:%d", state.fail, &state.fail_at, &state.fail_code);
	const char *device = strchr(s, '@'), *site = strchr(s, '+');
	if (used < 2 || !state.fail_at || (device && sscanf(device, "@%d", &state.fail_device) != 1) ||
	    (site && sscanf(site, "+%lx", &state.fail_site) != 1))
		emu_misuse("DIFFTP_EMU_FAIL is '%s'; it must be CALL:N[:CODE][@DEVICE][+ADDRESS], N from 1", s);
	state.fail_coded = used == 3;
	state.sites |= site != NULL;
}

static void read_settings(void)
{
	const char *s = getenv("DIFFTP_EMU_STREAMS");

	if (s && !strcmp(s, "deferred"))
		state.mode = EMU_DEFERRED;
	else if (s && !strcmp(s, "random"))
		state.mode = EMU_RANDOM;
	else if (s && *s && strcmp(s, "eager"))
		emu_misuse("DIFFTP_EMU_STREAMS is '%s'; it may be eager, deferred or random", s);
	state.seed = (unsigned)emu_setting("DIFFTP_EMU_SEED", 1);
	state.random = state.seed * 0x9e3779b97f4a7c15u + 1;
	s = getenv("DIFFTP_EMU_SITES");
	state.sites = s && *s;
	read_fault(getenv("DIFFTP_EMU_FAIL"));
}

static void start(void)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&state.lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	state.pid = getpid();
	read_settings();
	atexit(at_exit);
}

void emu_lock(void)
{
	pthread_once(&state.once, start);
	pthread_mutex_lock(&state.lock);
	state.depth++;
}

void emu_unlock(void)
{
	if (!--state.depth)
		emu_heap_close();
	pthread_mutex_unlock(&state.lock);
}

enum emu_mode emu_mode(void)
{
	return state.mode;
}

unsigned emu_random(unsigned n)
{
	state.random ^= state.random << 13;
	state.random ^= state.random >> 7;
	state.random ^= state.random << 17;
	return (unsigned)((state.random >> 16) % n);
}

/* Where in cuda/X.c the program is, as addr2line knows it: 0 for nowhere there. */
static unsigned long site(void)
{
	void *frames[MAX_FRAMES];
	int n = backtrace(frames, MAX_FRAMES);

	for (int i = 0; i < n; i++) {
		const char *at = (const char *)frames[i] - 1; /* in the call, not behind it */
		if (at >= __start_calls_of_cuda && at < __stop_calls_of_cuda)
			return (unsigned long)(at - __executable_start);
	}
	return 0;
}

static struct call *count_call(const char *name)
{
	unsigned long from = state.sites && strcmp(name, "work") ? site() : 0;
	unsigned i = find_call(name, &from);

	if (i == state.ncalls) {
		if (i == MAX_CALLS)
			emu_misuse("more than %d functions and places that they are called from", MAX_CALLS);
		state.calls[state.ncalls++] = (struct call){name, from, 0, emu_device()};
	}
	state.calls[i].count++;
	return &state.calls[i];
}

bool emu_call(const char *name, int *code)
{
	emu_lock();
	const struct call *c = count_call(name);
	bool fail = !strcmp(state.fail, name) && (!state.fail_site || state.fail_site == c->site) &&
		    state.fail_at == (state.fail_site ? c->count : count_of(name)) &&
		    (state.fail_device < 0 || state.fail_device == emu_device());
	state.faulted |= fail;
	if (fail && state.fail_coded)
		*code = state.fail_code;
	emu_unlock();
	return fail;
}

void emu_async_error(cudaError_t error)
{
	emu_lock();
	if (!state.sticky)
		state.sticky = error;
	emu_unlock();
}

bool emu_faulted(void)
{
	return state.faulted;
}

cudaError_t emu_sticky(void)
{
	return state.sticky;
}

cudaError_t emu_begin(const char *name, cudaError_t usual)
{
	int code = (int)usual;

	emu_lock();
	if (emu_call(name, &code))
		return (cudaError_t)code;
	return state.sticky;
}

cudaError_t emu_result(cudaError_t result)
{
	if (result)
		last_error = result;
	return result;
}

cudaError_t emu_end(cudaError_t result)
{
	emu_advance();
	emu_unlock();
	return emu_result(result);
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = emu_begin("cudaGetLastError", cudaErrorUnknown);

	e = e ? e : last_error;
	emu_end(cudaSuccess);
	last_error = cudaSuccess;
	return e;
}

cudaError_t cudaPeekAtLastError(void)
{
	cudaError_t e = emu_begin("cudaPeekAtLastError", cudaErrorUnknown);

	e = e ? e : last_error;
	emu_end(cudaSuccess);
	return e;
}

/* Name and meaning of the codes that this runtime gives. */
#define CODES(X)                                                                                                       \
	X(cudaSuccess, "no error")                                                                                     \
	X(cudaErrorInvalidValue, "invalid argument")                                                                   \
	X(cudaErrorMemoryAllocation, "out of memory")                                                                  \
	X(cudaErrorInitializationError, "initialization error")                                                        \
	X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                             \
	X(cudaErrorStubLibrary, "the CUDA driver is a stub library")                                                   \
	X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                 \
	X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                     \
	X(cudaErrorInvalidDevice, "invalid device ordinal")                                                            \
	X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")                 \
	X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                                            \
	X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                   \
	X(cudaErrorNotReady, "device not ready")                                                                       \
	X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                         \
	X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                                    \
	X(cudaErrorLaunchFailure, "unspecified launch failure")                                                        \
	X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                       \
	X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                        \
	X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                \
	X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error)
{
	switch (error) {
#define X(code, text)                                                                                                  \
	case code: return #code;
		CODES(X)
#undef X
	default: return "unrecognized error code";
	}
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
#define X(code, text)                                                                                                  \
	case code: return text;
		CODES(X)
#undef X
	default: return "unrecognized error code";
	}
}
