/* SPDX-License-Identifier: Apache-2.0 */
/* Work of two streams on the same memory that nothing orders is an error in every mode, whichever ran first; what orders work is none. */
#include "scenes.h"

#include "../../cuda/kernels.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define N 1000
#define TWO "of another stream writes: nothing orders the two"

struct pair {
	cudaStream_t a, b;
	cudaEvent_t e;
	char *d, *more;
};

static struct pair begin(void)
{
	struct pair p;
	void *d, *more;

	ok(cudaStreamCreateWithFlags(&p.a, cudaStreamNonBlocking));
	ok(cudaStreamCreateWithFlags(&p.b, cudaStreamNonBlocking));
	ok(cudaEventCreateWithFlags(&p.e, cudaEventDisableTiming));
	ok(cudaMalloc(&d, N));
	ok(cudaMalloc(&more, N));
	p.d = d;
	p.more = more;
	return p;
}

static void end(struct pair *p)
{
	ok(cudaStreamSynchronize(p->a));
	ok(cudaStreamSynchronize(p->b));
	ok(cudaFree(p->d));
	ok(cudaFree(p->more));
	ok(cudaEventDestroy(p->e));
	ok(cudaStreamDestroy(p->a));
	ok(cudaStreamDestroy(p->b));
}

static void fill(cudaStream_t st, char *p, size_t n)
{
	ok(cudaMemsetAsync(p, 1, n, st));
}

static void copy(cudaStream_t st, char *to, const char *from, size_t n)
{
	ok(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, st));
}

static void order(struct pair *p, cudaStream_t before, cudaStream_t after)
{
	ok(cudaEventRecord(p->e, before));
	ok(cudaStreamWaitEvent(after, p->e, 0));
}

/* ---- what is wrong */

static void two_writes(void)
{
	struct pair p = begin();

	fill(p.a, p.d, N);
	fill(p.b, p.d + N - 1, 1);
	end(&p);
}

static void read_of_what_is_written(void)
{
	struct pair p = begin();

	fill(p.a, p.d, N);
	copy(p.b, p.more, p.d + 500, 1);
	end(&p);
}

static void write_of_what_is_read(void)
{
	struct pair p = begin();

	copy(p.a, p.more, p.d, N);
	fill(p.b, p.d, 1);
	end(&p);
}

static void event_before_the_write(void)
{
	struct pair p = begin();

	order(&p, p.a, p.b);
	fill(p.a, p.d, N);
	copy(p.b, p.more, p.d, N);
	end(&p);
}

/* The event says nothing of the stream that did not wait for it. */
static void order_of_others(void)
{
	struct pair p = begin();
	cudaStream_t c;

	ok(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
	fill(p.a, p.d, N);
	order(&p, p.a, p.b);
	copy(p.b, p.more, p.d, N);
	fill(c, p.d, N);
	ok(cudaStreamSynchronize(c));
	ok(cudaStreamDestroy(c));
	end(&p);
}

static void back_without_an_event(void)
{
	struct pair p = begin();

	fill(p.a, p.d, N);
	order(&p, p.a, p.b);
	fill(p.b, p.d, N / 2);
	copy(p.a, p.more, p.d, N / 2);
	end(&p);
}

static void capture_of_both(struct pair *p, cudaGraphExec_t *exec, bool apart)
{
	cudaGraph_t graph;

	ok(cudaStreamBeginCapture(p->a, cudaStreamCaptureModeGlobal));
	order(p, p->a, p->b);
	fill(p->a, p->d, N / 2);
	fill(p->b, p->d + (apart ? N / 2 : N / 2 - 1), N / 2);
	order(p, p->b, p->a);
	copy(p->a, p->more, p->d, N);
	ok(cudaStreamEndCapture(p->a, &graph));
	ok(cudaGraphInstantiate(exec, graph, 0));
	ok(cudaGraphDestroy(graph));
}

static void branches_of_a_graph(void)
{
	struct pair p = begin();
	cudaGraphExec_t exec;

	capture_of_both(&p, &exec, false);
	ok(cudaGraphLaunch(exec, p.a));
	ok(cudaStreamSynchronize(p.a));
	ok(cudaGraphExecDestroy(exec));
	end(&p);
}

static void a_graph_and_a_stream(void)
{
	struct pair p = begin();
	cudaGraphExec_t exec;
	cudaStream_t c;

	ok(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
	capture_of_both(&p, &exec, true);
	ok(cudaGraphLaunch(exec, p.a));
	copy(c, p.d, p.more, 1);
	ok(cudaStreamSynchronize(c));
	ok(cudaStreamDestroy(c));
	ok(cudaGraphExecDestroy(exec));
	end(&p);
}

/* In the middle of what a kernel writes, which only those see who see its accesses. */
static void middle_of_a_kernel(void)
{
	struct pair p = begin();
	struct dtp_tensor out = dtp_tensor_make(p.d, DTP_F32, 1, (int64_t[]){N / 4}), x = dtp_tensor_make(p.more, DTP_F32, 1, out.shape);

	fill(p.a, p.more, N);
	ok(dtp_k_silu(p.a, out, x));
	fill(p.b, p.d + N / 2, 1);
	end(&p);
}

/* By a library whose freeing waits for nothing. */
static void freed_while_it_is_used(void)
{
	struct pair p = begin();
	char *d = emu_device_new(N);

	fill(p.a, d, N);
	ok(cudaStreamSynchronize(p.a));
	copy(p.b, p.more, d, 1);
	emu_device_free(d, "somebody's free");
}

/* ---- what is right */

static void events(void)
{
	struct pair p = begin();

	for (int i = 0; i < 3; i++) {
		fill(p.a, p.d, N);
		order(&p, p.a, p.b);
		copy(p.b, p.more, p.d, N);
		order(&p, p.b, p.a);
	}
	end(&p);
}

static void other_bytes(void)
{
	struct pair p = begin();

	for (int i = 0; i < 3; i++) {
		fill(p.a, p.d, 301);
		fill(p.b, p.d + 301, N - 301);
		copy(p.a, p.more, p.d + 100, 201);
	}
	end(&p);
}

static void reads_of_both(void)
{
	struct pair p = begin();

	fill(p.a, p.d, N);
	order(&p, p.a, p.b);
	copy(p.a, p.more, p.d, 10);
	copy(p.b, p.more + 10, p.d, 10);
	end(&p);
}

static void waits_of_the_host(void)
{
	struct pair p = begin();

	fill(p.a, p.d, N);
	ok(cudaStreamSynchronize(p.a));
	fill(p.b, p.d, N);
	ok(cudaEventRecord(p.e, p.b));
	ok(cudaEventSynchronize(p.e));
	fill(p.a, p.d, N);
	while (cudaStreamQuery(p.a))
		;
	fill(p.b, p.d, N);
	ok(cudaEventRecord(p.e, p.b));
	while (cudaEventQuery(p.e))
		;
	fill(p.a, p.d, N);
	ok(cudaDeviceSynchronize());
	fill(p.b, p.d, N);
	end(&p);
}

/* Also where the one is idle when the other is given its work. */
static void default_stream_and_blocking_ones(void)
{
	struct pair p = begin();
	cudaStream_t c;

	ok(cudaStreamCreate(&c));
	for (int i = 0; i < 3; i++) {
		fill(c, p.d, N);
		fill(NULL, p.d, N);
	}
	ok(cudaStreamSynchronize(c));
	ok(cudaStreamDestroy(c));
	end(&p);
}

static cudaStream_t told;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t called = PTHREAD_COND_INITIALIZER;

static void tell(void *p)
{
	pthread_mutex_lock(&lock);
	told = *(cudaStream_t *)p;
	pthread_cond_signal(&called);
	pthread_mutex_unlock(&lock);
}

static void *drain(void *p)
{
	return cudaStreamSynchronize(*(cudaStream_t *)p) ? p : NULL;
}

/* A thread that the function told goes on behind what came before it. */
static void functions_of_the_host(void)
{
	struct pair p = begin();
	pthread_t t;

	fill(p.a, p.d, N);
	ok(cudaLaunchHostFunc(p.a, tell, &p.b));
	must(!pthread_create(&t, NULL, drain, &p.a));
	pthread_mutex_lock(&lock);
	while (!told)
		pthread_cond_wait(&called, &lock);
	pthread_mutex_unlock(&lock);
	fill(told, p.d, N);
	pthread_join(t, NULL);
	end(&p);
}

static void graphs(void)
{
	struct pair p = begin();
	cudaGraphExec_t exec;

	capture_of_both(&p, &exec, true);
	fill(p.a, p.d, N);
	for (int i = 0; i < 3; i++)
		ok(cudaGraphLaunch(exec, p.a));
	fill(p.a, p.d, N);
	ok(cudaGraphLaunch(exec, p.a));
	order(&p, p.a, p.b);
	ok(cudaGraphLaunch(exec, p.b));
	fill(p.b, p.more, N);
	ok(cudaStreamSynchronize(p.b));
	ok(cudaGraphExecDestroy(exec));
	end(&p);
}

/* More than are watched, and one after the other more than there are numbers. */
static void many_streams(void)
{
	cudaStream_t st[40];
	void *d;

	ok(cudaMalloc(&d, N));
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 40; i++) {
			ok(cudaStreamCreateWithFlags(&st[i], cudaStreamNonBlocking));
			fill(st[i], (char *)d + i, 1);
			ok(cudaStreamSynchronize(st[i]));
			fill(st[i], d, N);
			ok(cudaStreamSynchronize(st[i]));
		}
		for (int i = 0; i < 40; i++)
			ok(cudaStreamDestroy(st[i]));
	}
	ok(cudaFree(d));
}

static const struct scene scenes[] = {
	WRONG(two_writes, ALL, "'a fill' writes bytes [999, 1000) of device memory of 1000 bytes that 'a fill' " TWO),
	WRONG(read_of_what_is_written, ALL, TWO),
	WRONG(write_of_what_is_read, ALL, "nothing orders the two"),
	WRONG(event_before_the_write, ALL, "nothing orders the two"),
	WRONG(order_of_others, ALL, "nothing orders the two"),
	WRONG(back_without_an_event, ALL, "nothing orders the two"),
	WRONG(branches_of_a_graph, ALL, "[499, 500) of device memory of 1000 bytes that 'a fill' " TWO),
	WRONG(a_graph_and_a_stream, ALL, "nothing orders the two"),
	WRONG(freed_while_it_is_used, E, "somebody's free of memory that 'a copy' may still use: nobody has waited for it"),
	RIGHT(events, ALL, NULL),
	RIGHT(other_bytes, ALL, NULL),
	RIGHT(reads_of_both, ALL, NULL),
	RIGHT(waits_of_the_host, ALL, NULL),
	RIGHT(default_stream_and_blocking_ones, ALL, NULL),
	RIGHT(functions_of_the_host, ALL, NULL),
	RIGHT(graphs, ALL, NULL),
	RIGHT(many_streams, ALL, NULL),
	WRONG(middle_of_a_kernel, ALL, "nothing orders the two"), /* the last: see main */
};

int main(void)
{
	size_t n = sizeof scenes / sizeof scenes[0];

	return play_all("emulator.order", scenes, emu_sees_accesses() ? n : n - 1);
}
