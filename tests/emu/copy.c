/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for the CUDA runtime: copies and fills.
 * Pinned host memory is read and written when the copy runs.  What the host does to it before is an error that is reported: the
 * source must then be as it was, and the destination of a copy that has not run holds NaN.  Pageable memory is read at the call, and
 * written before the call returns. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct copy {
	char *dst, *src;
	size_t dst_pitch, src_pitch, width, height;
	bool to_device, from_device;
	bool taken;       /* the source was pageable memory, and its bytes follow this */
	bool watched;     /* src is pinned memory, and sum what it summed to at the call */
	uint64_t sum;
};

static uint64_t sum_of(const struct copy *c)
{
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t row = 0; row < c->height; row++) {
		const char *p = c->src + row * c->src_pitch;
		size_t i = 0;
		for (uint64_t word; i + sizeof word <= c->width; i += sizeof word) {
			memcpy(&word, p + i, sizeof word);
			sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
			sum ^= sum >> 29;
		}
		for (; i < c->width; i++)
			sum = (sum ^ (unsigned char)p[i]) * 0x100000001b3u;
	}
	return sum;
}

static size_t extent(size_t pitch, size_t width, size_t height)
{
	return height ? (height - 1) * pitch + width : 0;
}

static void check_device(const struct copy *c, const char *call)
{
	char what[96];

	snprintf(what, sizeof what, "%s: destination", call);
	if (c->to_device)
		emu_check(c->dst, extent(c->dst_pitch, c->width, c->height), EMU_DEVICE, what);
	snprintf(what, sizeof what, "%s: source", call);
	if (c->from_device)
		emu_check(c->src, extent(c->src_pitch, c->width, c->height), EMU_DEVICE, what);
}

static bool run_copy(void *arg)
{
	struct copy *c = arg;

	check_device(c, "a copy");
	if (c->taken)
		c->src = (char *)(c + 1);
	if (c->watched && sum_of(c) != c->sum)
		emu_misuse("the host changed the %zu bytes that a copy to the device reads, before it ran", c->width * c->height);
	if (!c->taken)
		emu_uses_rows(c->src, c->src_pitch, c->width, c->height, false);
	emu_uses_rows(c->dst, c->dst_pitch, c->width, c->height, true);
	for (size_t row = 0; row < c->height; row++)
		memmove(c->dst + row * c->dst_pitch, c->src + row * c->src_pitch, c->width);
	return true;
}

static bool overlap(const char *a, size_t na, const char *b, size_t nb)
{
	return na && nb && a < b + nb && b < a + na;
}

bool emu_copy_uses(emu_work *work, const void *arg, const void *p, size_t size)
{
	const struct copy *c = arg;

	return work == run_copy && (overlap(c->src, extent(c->src_pitch, c->width, c->height), p, size) ||
				    overlap(c->dst, extent(c->dst_pitch, c->width, c->height), p, size));
}

static void check_kind(const struct copy *c, enum cudaMemcpyKind kind, const char *call)
{
	static const enum cudaMemcpyKind kinds[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
							{cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};

	if (kind != cudaMemcpyDefault && kind != kinds[c->from_device][c->to_device])
		emu_misuse("%s of kind %d from %s to %s memory", call, (int)kind, c->from_device ? "device" : "host",
			   c->to_device ? "device" : "host");
}

/* Host memory, if pinned, as a whole in one allocation. */
static bool pinned(const void *p, size_t size, const char *what)
{
	if (emu_find(p).kind != EMU_PINNED)
		return false;
	emu_check(p, size, EMU_PINNED, what);
	return true;
}

/* With the bytes of pageable memory as they are now. */
static cudaError_t put_with_source(cudaStream_t st, const struct copy *c)
{
	size_t size = sizeof *c + c->width * c->height;
	struct copy *taken = malloc(size);

	if (!taken)
		emu_misuse("no memory for the emulator itself");
	*taken = *c;
	taken->taken = true;
	taken->src = NULL;
	taken->src_pitch = c->width;
	for (size_t row = 0; row < c->height; row++)
		memcpy((char *)(taken + 1) + row * c->width, c->src + row * c->src_pitch, c->width);
	cudaError_t e = emu_put(st, run_copy, taken, size, "a copy");
	free(taken);
	return e;
}

static void wait_for(cudaStream_t st)
{
	struct emu_point *p = emu_mark(st);

	emu_reach(p);
	emu_point_drop(p);
}

static cudaError_t start(struct copy c, enum cudaMemcpyKind kind, cudaStream_t handle, bool wait, const char *call)
{
	cudaStream_t st = emu_stream(handle, call);
	bool captured = emu_captured(st), src_pinned, dst_pinned;

	if (!c.width || !c.height)
		return cudaSuccess;
	c.to_device = emu_in_heap(c.dst);
	c.from_device = emu_in_heap(c.src);
	check_kind(&c, kind, call);
	check_device(&c, call);
	src_pinned = !c.from_device && pinned(c.src, extent(c.src_pitch, c.width, c.height), call);
	dst_pinned = !c.to_device && pinned(c.dst, extent(c.dst_pitch, c.width, c.height), call);
	if (captured && ((!c.from_device && !src_pinned) || (!c.to_device && !dst_pinned)))
		emu_misuse("%s of pageable memory on a stream that is being captured", call);
	if (!captured && !wait && emu_mode() != EMU_EAGER) {
		c.watched = src_pinned;
		c.sum = src_pinned ? sum_of(&c) : 0;
		for (size_t row = 0; dst_pinned && row < c.height; row++)
			memset(c.dst + row * c.dst_pitch, 0xff, c.width);
	}
	/* A copy may be put on a stream of any device. */
	cudaError_t e = c.from_device || src_pinned ? emu_put(st, run_copy, &c, sizeof c, "a copy") : put_with_source(st, &c);
	if (!e && !captured && (wait || (!c.to_device && !dst_pinned))) {
		wait_for(st);
		e = emu_sticky();
	}
	return e;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	struct copy c = {.dst = dst, .src = (char *)(uintptr_t)src, .dst_pitch = size, .src_pitch = size, .width = size, .height = 1};
	cudaError_t e = emu_begin("cudaMemcpyAsync", cudaErrorLaunchFailure);

	if (!e)
		e = start(c, kind, stream, false, "cudaMemcpyAsync");
	return emu_end(e);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t height,
			      enum cudaMemcpyKind kind, cudaStream_t stream)
{
	struct copy c = {.dst = dst, .src = (char *)(uintptr_t)src, .dst_pitch = dst_pitch, .src_pitch = src_pitch, .width = width,
			 .height = height};
	cudaError_t e = emu_begin("cudaMemcpy2DAsync", cudaErrorLaunchFailure);

	if (!e && (width > dst_pitch || width > src_pitch))
		e = cudaErrorInvalidPitchValue;
	if (!e)
		e = start(c, kind, stream, false, "cudaMemcpy2DAsync");
	return emu_end(e);
}

/* On the default stream, and done when the call returns. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t size, enum cudaMemcpyKind kind)
{
	struct copy c = {.dst = dst, .src = (char *)(uintptr_t)src, .dst_pitch = size, .src_pitch = size, .width = size, .height = 1};
	cudaError_t e = emu_begin("cudaMemcpy", cudaErrorLaunchFailure);

	if (!e) {
		emu_not_while_capturing("cudaMemcpy");
		e = start(c, kind, NULL, true, "cudaMemcpy");
	}
	return emu_end(e);
}

struct fill {
	char *p;
	int value;
	size_t pitch, width, height;
};

static bool run_fill(void *arg)
{
	const struct fill *f = arg;

	emu_check(f->p, extent(f->pitch, f->width, f->height), EMU_DEVICE, "a fill");
	emu_uses_rows(f->p, f->pitch, f->width, f->height, true);
	for (size_t row = 0; row < f->height; row++)
		memset(f->p + row * f->pitch, f->value, f->width);
	return true;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t size, cudaStream_t stream)
{
	cudaError_t e = emu_begin("cudaMemsetAsync", cudaErrorLaunchFailure);
	struct fill f = {p, value, size, size, 1};

	if (!e) {
		emu_check(p, size, EMU_DEVICE, "cudaMemsetAsync");
		e = emu_put(emu_stream(stream, "cudaMemsetAsync"), run_fill, &f, sizeof f, "a fill");
	}
	return emu_end(e);
}

cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
	cudaError_t e = emu_begin("cudaMemset2DAsync", cudaErrorLaunchFailure);
	struct fill f = {p, value, pitch, width, height};

	if (!e && width > pitch)
		e = cudaErrorInvalidPitchValue;
	if (!e) {
		emu_check(p, extent(pitch, width, height), EMU_DEVICE, "cudaMemset2DAsync");
		e = emu_put(emu_stream(stream, "cudaMemset2DAsync"), run_fill, &f, sizeof f, "a fill");
	}
	return emu_end(e);
}

cudaError_t cudaMemset(void *p, int value, size_t size)
{
	cudaError_t e = emu_begin("cudaMemset", cudaErrorLaunchFailure);
	struct fill f = {p, value, size, size, 1};

	if (!e) {
		emu_not_while_capturing("cudaMemset");
		emu_check(p, size, EMU_DEVICE, "cudaMemset");
		e = emu_put(emu_stream(NULL, "cudaMemset"), run_fill, &f, sizeof f, "a fill");
	}
	return emu_end(e);
}
