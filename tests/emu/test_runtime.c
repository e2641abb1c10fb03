/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA runtime: it does what the runtime is documented to do, and ends a process that uses it wrongly.  Every
 * case is a process of its own, in each of the modes that it is for. */
#include "scenes.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define N 1000

/* ---- pieces of cases */

struct add {
	int *p, n, by;
};

static bool add_to(void *arg)
{
	const struct add *a = arg;

	for (int i = 0; i < a->n; i++)
		a->p[i] += a->by;
	return true;
}

static void add(cudaStream_t st, int *p, int n, int by)
{
	struct add a = {p, n, by};

	ok(emu_enqueue(st, add_to, &a, sizeof a, "add"));
}

static bool double_all(void *arg)
{
	const struct add *a = arg;

	for (int i = 0; i < a->n; i++)
		a->p[i] *= 2;
	return true;
}

static void twice(cudaStream_t st, int *p, int n)
{
	struct add a = {p, n, 0};

	ok(emu_enqueue(st, double_all, &a, sizeof a, "twice"));
}

static int *device_ints(int n)
{
	void *p;

	ok(cudaMalloc(&p, (size_t)n * sizeof(int)));
	return p;
}

static int *pinned_ints(int n)
{
	void *p;

	ok(cudaMallocHost(&p, (size_t)n * sizeof(int)));
	return p;
}

static cudaStream_t stream(void)
{
	cudaStream_t st;

	ok(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
	return st;
}

static cudaEvent_t event(void)
{
	cudaEvent_t e;

	ok(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	return e;
}

static int first(const int *p, cudaStream_t st)
{
	int value;

	ok(cudaMemcpyAsync(&value, p, sizeof value, cudaMemcpyDeviceToHost, st));
	return value;
}

/* ---- what is right */

static void copies_there_and_back(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(N), *h = pinned_ints(N);

	for (int i = 0; i < N; i++)
		h[i] = i;
	ok(cudaMemcpyAsync(d, h, N * sizeof *h, cudaMemcpyHostToDevice, st));
	add(st, d, N, 5);
	ok(cudaStreamSynchronize(st));
	ok(cudaMemcpyAsync(h, d, N * sizeof *h, cudaMemcpyDeviceToHost, st));
	ok(cudaStreamSynchronize(st));
	for (int i = 0; i < N; i++)
		must(h[i] == i + 5);
	ok(cudaFree(d));
	ok(cudaFreeHost(h));
	ok(cudaStreamDestroy(st));
}

static void pageable_memory_is_taken_at_the_call(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1), value = 7;

	ok(cudaMemcpyAsync(d, &value, sizeof value, cudaMemcpyHostToDevice, st));
	value = 8;
	must(first(d, st) == 7);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(st));
}

static void rows_with_gaps(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(12), h[6] = {1, 2, 3, 4, 5, 6}, back[12];

	ok(cudaMemsetAsync(d, 0, 12 * sizeof *d, st));
	ok(cudaMemcpy2DAsync(d, 4 * sizeof *d, h, 2 * sizeof *h, 2 * sizeof *h, 3, cudaMemcpyHostToDevice, st));
	ok(cudaMemcpyAsync(back, d, sizeof back, cudaMemcpyDeviceToHost, st));
	for (int i = 0; i < 12; i++)
		must(back[i] == (i % 4 < 2 ? h[i / 4 * 2 + i % 4] : 0));
	ok(cudaFree(d));
	ok(cudaStreamDestroy(st));
}

static void new_memory_is_nan(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(N), *h = pinned_ints(1);

	must(first(d + N - 1, st) == -1);
	must(*h == -1);
	ok(cudaFree(d));
	ok(cudaFreeHost(h));
	ok(cudaStreamDestroy(st));
}

/* (x + 1) * 2 over two streams, ordered by an event or not. */
static int over_two_streams(bool ordered)
{
	cudaStream_t a = stream(), b = stream();
	cudaEvent_t e = event();
	int *d = device_ints(1);

	ok(cudaMemset(d, 0, sizeof *d));
	ok(cudaDeviceSynchronize());
	add(a, d, 1, 1);
	ok(cudaEventRecord(e, a));
	if (ordered)
		ok(cudaStreamWaitEvent(b, e, 0));
	twice(b, d, 1);
	int value = first(d, b);
	ok(cudaDeviceSynchronize());
	ok(cudaFree(d));
	ok(cudaEventDestroy(e));
	ok(cudaStreamDestroy(a));
	ok(cudaStreamDestroy(b));
	return value;
}

static void events_order_streams(void)
{
	must(over_two_streams(true) == 2);
}

static void eager_hides_a_missing_event(void)
{
	must(over_two_streams(false) == 2);
}

static void deferred_shows_a_missing_event(void)
{
	must(over_two_streams(false) == 0);
}

static void random_shows_a_missing_event(void)
{
	bool wrong = false;

	for (int i = 0; i < 50; i++)
		wrong |= over_two_streams(false) != 2;
	must(wrong);
}

static void a_copy_is_there_after_the_wait_only(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1), *h = pinned_ints(1);

	*h = 3;
	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	ok(cudaMemcpyAsync(h, d, sizeof *h, cudaMemcpyDeviceToHost, st));
	must(*h == -1);
	ok(cudaStreamSynchronize(st));
	must(*h == 0);
	ok(cudaFree(d));
	ok(cudaFreeHost(h));
	ok(cudaStreamDestroy(st));
}

static void queries_come_to_an_end(void)
{
	cudaStream_t st = stream();
	cudaEvent_t e = event();
	int *d = device_ints(1);

	must(cudaEventQuery(e) == cudaSuccess);
	must(cudaStreamQuery(st) == cudaSuccess);
	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	ok(cudaEventRecord(e, st));
	add(st, d, 1, 1);
	for (cudaError_t r; (r = cudaEventQuery(e));)
		must(r == cudaErrorNotReady);
	for (cudaError_t r; (r = cudaStreamQuery(st));)
		must(r == cudaErrorNotReady);
	must(cudaGetLastError() == cudaSuccess); /* that it is not ready is no error */
	must(first(d, st) == 1);
	ok(cudaFree(d));
	ok(cudaEventDestroy(e));
	ok(cudaStreamDestroy(st));
}

static void the_first_query_says_no(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1);

	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	must(cudaStreamQuery(st) == cudaErrorNotReady);
	must(cudaStreamQuery(st) == cudaSuccess);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(st));
}

static void the_default_stream_orders_blocking_ones(void)
{
	cudaStream_t st;
	int *d = device_ints(1), h = 4;

	ok(cudaStreamCreate(&st));
	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	add(st, d, 1, 3);
	ok(cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost));
	must(h == 3);
	h = 9;
	ok(cudaMemcpy(d, &h, sizeof h, cudaMemcpyHostToDevice));
	add(st, d, 1, 1);
	must(first(d, st) == 10);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(st));
}

static void times_of_events(void)
{
	cudaStream_t st = stream();
	cudaEvent_t a, b;
	float ms = -1;

	ok(cudaEventCreate(&a));
	ok(cudaEventCreate(&b));
	ok(cudaEventRecord(a, st));
	ok(cudaEventRecord(b, st));
	ok(cudaEventSynchronize(b));
	ok(cudaEventElapsedTime(&ms, a, b));
	must(ms >= 0);
	ok(cudaEventDestroy(a));
	ok(cudaEventDestroy(b));
	ok(cudaStreamDestroy(st));
}

static int host_value;

static void set_host_value(void *p)
{
	host_value = *(int *)p;
}

static void functions_of_the_host(void)
{
	cudaStream_t st = stream();
	int value = 5;

	ok(cudaLaunchHostFunc(st, set_host_value, &value));
	ok(cudaStreamSynchronize(st));
	must(host_value == 5);
	ok(cudaStreamDestroy(st));
}

/* On two streams: d[0] = (d[0] + 1) * 2, d[1] = d[1] + 3, then d[0] += 10. */
static cudaGraph_t capture(cudaStream_t a, cudaStream_t b, int *d)
{
	cudaEvent_t forked = event(), joined = event();
	cudaGraph_t graph;

	ok(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
	ok(cudaEventRecord(forked, a));
	ok(cudaStreamWaitEvent(b, forked, 0));
	add(a, d, 1, 1);
	add(b, d + 1, 1, 3);
	twice(a, d, 1);
	ok(cudaEventRecord(joined, b));
	ok(cudaStreamWaitEvent(a, joined, 0));
	add(a, d, 1, 10);
	ok(cudaStreamEndCapture(a, &graph));
	ok(cudaEventDestroy(forked));
	ok(cudaEventDestroy(joined));
	return graph;
}

static void graphs(void)
{
	cudaStream_t a = stream(), b = stream();
	int *d = device_ints(2);
	cudaGraphExec_t exec;
	size_t n;

	ok(cudaMemset(d, 0, 2 * sizeof *d));
	ok(cudaDeviceSynchronize());
	cudaGraph_t graph = capture(a, b, d);
	must(first(d, a) == 0); /* nothing ran */
	ok(cudaGraphGetNodes(graph, NULL, &n));
	must(n == 4);
	ok(cudaGraphInstantiate(&exec, graph, 0));
	ok(cudaGraphDestroy(graph));
	ok(cudaGraphLaunch(exec, a));
	ok(cudaGraphLaunch(exec, b)); /* after the first, whatever the stream */
	ok(cudaGraphExecDestroy(exec));
	must(first(d, b) == 36);
	must(first(d + 1, b) == 6);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(a));
	ok(cudaStreamDestroy(b));
}

static void memory_has_an_end(void)
{
	size_t available, total;
	void *p, *q;

	ok(cudaMemGetInfo(&available, &total));
	must(total == 1 << 20 && available == total);
	ok(cudaMalloc(&p, 1 << 19));
	must(cudaMalloc(&q, (1 << 19) + 1) == cudaErrorMemoryAllocation);
	must(!q);
	must(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
	must(cudaGetLastError() == cudaErrorMemoryAllocation);
	must(cudaGetLastError() == cudaSuccess);
	ok(cudaMemGetInfo(&available, &total));
	must(available == 1 << 19);
	ok(cudaFree(p));
}

static void some_devices_are_visible(void)
{
	struct cudaDeviceProp prop;
	int n;

	ok(cudaGetDeviceCount(&n));
	must(n == 2);
	must(cudaSetDevice(2) == cudaErrorInvalidDevice);
	ok(cudaSetDevice(1));
	ok(cudaGetDeviceProperties(&prop, 1));
	must(prop.major == 8 && prop.minor == 6);
}

static void no_device(void)
{
	int n;

	must(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
}

static void old_driver(void)
{
	int n;

	must(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
	ok(cudaDriverGetVersion(&n));
	must(n == 12040);
}

static void the_second_allocation_fails(void)
{
	void *p = NULL, *q = NULL;

	ok(cudaMalloc(&p, 100));
	must(cudaMalloc(&q, 100) == cudaErrorMemoryAllocation);
	ok(cudaMalloc(&q, 100));
	ok(cudaFree(p));
	ok(cudaFree(q));
}

static void faults_of_one_device(void)
{
	void *p;

	ok(cudaSetDevice(1));
	must(cudaMalloc(&p, 100) == cudaErrorMemoryAllocation);
}

static void no_fault_of_another_device(void)
{
	void *p;

	ok(cudaMalloc(&p, 100));
	ok(cudaFree(p));
}

/* The third thing that a stream runs crashes: nothing of the device works from then on, and nothing hangs. */
static void work_crashes(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1);

	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	for (int i = 0; i < 4; i++) {
		struct add a = {d, 1, 1};
		emu_enqueue(st, add_to, &a, sizeof a, "add");
	}
	must(cudaStreamSynchronize(st) == cudaErrorECCUncorrectable);
	must(cudaGetLastError() == cudaErrorECCUncorrectable);
	must(cudaMemsetAsync(d, 0, sizeof *d, st) == cudaErrorECCUncorrectable);
	must(cudaFree(d) == cudaErrorECCUncorrectable);
	must(cudaStreamDestroy(st) == cudaErrorECCUncorrectable);
}

/* Of work that cannot be finished at once. */
static bool three_times(void *arg)
{
	int *left = arg;

	return --*left == 0;
}

static void work_that_waits(void)
{
	cudaStream_t st = stream();
	int left = 3, *d = device_ints(1);

	ok(cudaMemsetAsync(d, 0, sizeof *d, st));
	ok(emu_enqueue(st, three_times, &left, sizeof left, "waits"));
	add(st, d, 1, 1);
	must(first(d, st) == 1);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(st));
}

static void *upload(void *p)
{
	cudaStream_t st = stream();
	int *h = pinned_ints(N);

	for (int i = 0; i < N; i++)
		h[i] = i;
	ok(cudaMemcpyAsync(p, h, N * sizeof *h, cudaMemcpyHostToDevice, st));
	ok(cudaStreamSynchronize(st));
	ok(cudaFreeHost(h));
	ok(cudaStreamDestroy(st));
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	int *d[4];
	cudaStream_t st = stream();

	for (int i = 0; i < 4; i++) {
		d[i] = device_ints(N);
		must(!pthread_create(&t[i], NULL, upload, d[i]));
	}
	for (int i = 0; i < 4; i++) {
		must(!pthread_join(t[i], NULL));
		must(first(d[i] + N - 1, st) == N - 1);
		ok(cudaFree(d[i]));
	}
	ok(cudaStreamDestroy(st));
}

/* ---- what is wrong */

static void copy_of_freed_memory(void)
{
	int *d = device_ints(1), h;

	ok(cudaFree(d));
	cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost);
}

static void copy_beyond_the_end(void)
{
	int *d = device_ints(N), h[2] = {0};

	cudaMemcpyAsync(d + N - 1, h, sizeof h, cudaMemcpyHostToDevice, stream());
}

static void copy_of_the_wrong_kind(void)
{
	int *d = device_ints(1), h = 0;

	cudaMemcpyAsync(d, &h, sizeof h, cudaMemcpyDeviceToDevice, stream());
}

static void kernel_writes_behind(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(N);

	ok(cudaMemsetAsync(d, 0, N * sizeof *d, st));
	add(st, d, N + 1, 1);
	ok(cudaStreamSynchronize(st));
	cudaFree(d);
}

static void kernel_writes_far_behind(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(N);

	add(st, d, N + 4096, 1);
	cudaStreamSynchronize(st);
}

static void kernel_uses_freed_memory(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(N);

	ok(cudaFree(d));
	add(st, d, N, 1);
	cudaStreamSynchronize(st);
}

static void host_reads_device_memory(void)
{
	int *d = device_ints(N);

	must(d[3] == 5);
}

static void source_changes(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1), *h = pinned_ints(1);

	*h = 1;
	ok(cudaMemcpyAsync(d, h, sizeof *h, cudaMemcpyHostToDevice, st));
	*h = 2;
	cudaStreamSynchronize(st);
}

static void pinned_memory_freed_early(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1), *h = pinned_ints(1);

	ok(cudaMemcpyAsync(d, h, sizeof *h, cudaMemcpyHostToDevice, st));
	cudaFreeHost(h);
}

static void freed_twice(void)
{
	int *d = device_ints(1);

	ok(cudaFree(d));
	cudaFree(d);
}

static void freed_in_the_middle(void)
{
	cudaFree(device_ints(2) + 1);
}

static void leaks_memory(void)
{
	device_ints(N);
}

static void leaks_pinned_memory(void)
{
	pinned_ints(N);
}

static void leaks_a_stream(void)
{
	stream();
}

static void leaks_an_event(void)
{
	event();
}

static void leaks_a_graph(void)
{
	cudaStream_t a = stream(), b = stream();
	int *d = device_ints(2);

	capture(a, b, d);
	ok(cudaFree(d));
	ok(cudaStreamDestroy(a));
	ok(cudaStreamDestroy(b));
}

static void destroyed_stream(void)
{
	cudaStream_t st = stream();

	ok(cudaStreamDestroy(st));
	cudaStreamSynchronize(st);
}

static void destroyed_event(void)
{
	cudaEvent_t e = event();

	ok(cudaEventDestroy(e));
	cudaEventRecord(e, stream());
}

static void no_stream(void)
{
	int i;

	cudaStreamSynchronize((cudaStream_t)(void *)&i);
}

static void destroyed_graph(void)
{
	cudaStream_t a = stream(), b = stream();
	cudaGraphExec_t exec;
	cudaGraph_t graph = capture(a, b, device_ints(2));

	ok(cudaGraphInstantiate(&exec, graph, 0));
	ok(cudaGraphExecDestroy(exec));
	cudaGraphLaunch(exec, a);
}

static cudaStream_t capturing(enum cudaStreamCaptureMode mode)
{
	cudaStream_t st = stream();

	ok(cudaStreamBeginCapture(st, mode));
	return st;
}

static void allocates_while_capturing(void)
{
	capturing(cudaStreamCaptureModeThreadLocal);
	device_ints(1);
}

static void waits_while_capturing(void)
{
	cudaStreamSynchronize(capturing(cudaStreamCaptureModeRelaxed));
}

static void *allocates(void *unused)
{
	(void)unused;
	device_ints(1);
	_exit(0);
}

static void other_threads_may_allocate(void)
{
	pthread_t t;

	capturing(cudaStreamCaptureModeThreadLocal);
	must(!pthread_create(&t, NULL, allocates, NULL));
	pthread_join(t, NULL);
}

static void other_threads_may_not_allocate(void)
{
	pthread_t t;

	capturing(cudaStreamCaptureModeGlobal);
	must(!pthread_create(&t, NULL, allocates, NULL));
	pthread_join(t, NULL);
}

static void captures_pageable_memory(void)
{
	int *d = device_ints(1), h = 1;

	cudaMemcpyAsync(d, &h, sizeof h, cudaMemcpyHostToDevice, capturing(cudaStreamCaptureModeRelaxed));
}

static void default_stream_while_capturing(void)
{
	int *d = device_ints(1);

	capturing(cudaStreamCaptureModeThreadLocal);
	add(NULL, d, 1, 1);
}

static void graph_uses_freed_memory(void)
{
	cudaStream_t a = stream(), b = stream();
	int *d = device_ints(2);
	cudaGraphExec_t exec;
	cudaGraph_t graph = capture(a, b, d);

	ok(cudaGraphInstantiate(&exec, graph, 0));
	ok(cudaFree(d));
	ok(cudaGraphLaunch(exec, a));
	cudaStreamSynchronize(a);
}

static void capture_without_a_join(void)
{
	int *d = device_ints(1);
	cudaStream_t b = stream(), a = capturing(cudaStreamCaptureModeRelaxed);
	cudaEvent_t e = event();
	cudaGraph_t graph;

	ok(cudaEventRecord(e, a));
	ok(cudaStreamWaitEvent(b, e, 0));
	add(b, d, 1, 1);
	cudaStreamEndCapture(a, &graph);
}

static void capture_waits_for_the_outside(void)
{
	cudaStream_t b = stream();
	cudaEvent_t e = event();

	ok(cudaEventRecord(e, b));
	cudaStreamWaitEvent(capturing(cudaStreamCaptureModeRelaxed), e, 0);
}

static void wrong_device(void)
{
	cudaStream_t st = stream();
	int *d = device_ints(1);

	ok(cudaSetDevice(1));
	add(st, d, 1, 1);
}

static bool calls_the_runtime(void *unused)
{
	(void)unused;
	cudaGetLastError();
	return true;
}

static void work_calls_the_runtime(void)
{
	cudaStream_t st = stream();

	ok(emu_enqueue(st, calls_the_runtime, NULL, 0, "work"));
	cudaStreamSynchronize(st);
}

static void ends_wrongly(void)
{
	exit(1);
}

/* ---- the cases */

static const struct scene scenes[] = {
	RIGHT(copies_there_and_back, ALL, NULL),
	RIGHT(pageable_memory_is_taken_at_the_call, ALL, NULL),
	RIGHT(rows_with_gaps, ALL, NULL),
	RIGHT(new_memory_is_nan, ALL, NULL),
	RIGHT(events_order_streams, ALL, NULL),
	RIGHT(eager_hides_a_missing_event, E, NULL),
	RIGHT(deferred_shows_a_missing_event, D, NULL),
	RIGHT(random_shows_a_missing_event, R, NULL),
	RIGHT(a_copy_is_there_after_the_wait_only, D, NULL),
	RIGHT(queries_come_to_an_end, ALL, NULL),
	RIGHT(the_first_query_says_no, D, NULL),
	RIGHT(the_default_stream_orders_blocking_ones, ALL, NULL),
	RIGHT(times_of_events, ALL, NULL),
	RIGHT(functions_of_the_host, ALL, NULL),
	RIGHT(graphs, ALL, NULL),
	RIGHT(memory_has_an_end, E, "DIFFTP_EMU_MEMORY=0x100000"),
	RIGHT(some_devices_are_visible, E, "CUDA_VISIBLE_DEVICES=3,1,9,0", "DIFFTP_EMU_ARCH=86"),
	RIGHT(no_device, E, "CUDA_VISIBLE_DEVICES="),
	RIGHT(old_driver, E, "DIFFTP_EMU_DRIVER=12040"),
	RIGHT(the_second_allocation_fails, ALL, "DIFFTP_EMU_FAIL=cudaMalloc:2"),
	RIGHT(faults_of_one_device, E, "DIFFTP_EMU_FAIL=cudaMalloc:1@1"),
	RIGHT(no_fault_of_another_device, E, "DIFFTP_EMU_FAIL=cudaMalloc:1@1"),
	RIGHT(work_crashes, ALL, "DIFFTP_EMU_FAIL=work:3:214"),
	RIGHT(work_that_waits, ALL, NULL),
	RIGHT(threads, ALL, NULL),
	RIGHT(other_threads_may_allocate, ALL, NULL),
	WRONG(copy_of_freed_memory, ALL, "byte 0 of device memory of 4 bytes that was freed"),
	WRONG(copy_beyond_the_end, ALL, "bytes [3996, 4004) of device memory of 4000 bytes"),
	WRONG(copy_of_the_wrong_kind, ALL, "from host to device memory"),
	WRONG(kernel_writes_behind, ALL, "byte 4000 of device memory of 4000 bytes was written"),
	WRONG(kernel_writes_far_behind, ALL, "add touches "),
	WRONG(kernel_uses_freed_memory, ALL, "add touches byte 0 of freed device memory of 4000 bytes"),
	WRONG(host_reads_device_memory, D, "the host touches byte 12 of device memory of 4000 bytes"),
	WRONG(source_changes, D, "the host changed the 4 bytes that a copy to the device reads"),
	WRONG(pinned_memory_freed_early, D, "'a copy' still waits to use"),
	WRONG(freed_twice, ALL, "that was freed before"),
	WRONG(freed_in_the_middle, ALL, "which device memory does not begin at"),
	WRONG(leaks_memory, ALL, "1 things are left when the process ends: device memory of 4000 bytes"),
	WRONG(leaks_pinned_memory, ALL, "pinned host memory of 4000 bytes"),
	WRONG(leaks_a_stream, ALL, "1 streams; 0 events"),
	WRONG(leaks_an_event, ALL, "0 streams; 1 events"),
	WRONG(leaks_a_graph, ALL, "1 graphs"),
	WRONG(destroyed_stream, ALL, "a stream that was destroyed"),
	WRONG(destroyed_event, ALL, "an event that was destroyed"),
	WRONG(no_stream, ALL, "which is no stream"),
	WRONG(destroyed_graph, ALL, "no executable graph or was destroyed"),
	WRONG(allocates_while_capturing, ALL, "cudaMalloc while a stream is being captured"),
	WRONG(waits_while_capturing, ALL, "cudaStreamSynchronize of a stream that is being captured"),
	WRONG(other_threads_may_not_allocate, ALL, "cudaMalloc while a stream is being captured"),
	WRONG(captures_pageable_memory, ALL, "pageable memory on a stream that is being captured"),
	WRONG(default_stream_while_capturing, ALL, "work in the default stream while a stream is being captured"),
	WRONG(graph_uses_freed_memory, ALL, "add touches byte "),
	WRONG(capture_without_a_join, ALL, "does not wait for 'add'"),
	WRONG(capture_waits_for_the_outside, ALL, "an event from outside of the capture"),
	WRONG(wrong_device, ALL, "on a stream of device 0 while the thread's device is 1"),
	WRONG(work_calls_the_runtime, ALL, "'work' calls the runtime"),
	{"ends_wrongly", ends_wrongly, E, 1, "", {NULL}},
};

int main(void)
{
	return play_all("emulator.runtime", scenes, sizeof scenes / sizeof scenes[0]);
}
