/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator between threads of one test program. */
#ifndef TEST_THREAD_COMM_H
#define TEST_THREAD_COMM_H

#include "comm.h"
#include "support.h"

#include <pthread.h>

#define MAX_THREAD_RANKS 8

struct hub {
	pthread_barrier_t barrier;
	const void *part[MAX_THREAD_RANKS];
};

struct thread_comm {
	struct dtp_comm base;
	struct hub *hub;
};

static inline void publish(struct dtp_comm *c, const void *buf)
{
	struct hub *h = ((struct thread_comm *)c)->hub;
	h->part[c->rank] = buf;
	pthread_barrier_wait(&h->barrier);
}

/* Nobody's part may change before all have read it. */
static inline void withdraw(struct dtp_comm *c)
{
	pthread_barrier_wait(&((struct thread_comm *)c)->hub->barrier);
}

static inline enum dtp_code thread_all_reduce(struct dtp_comm *c, void *buf, int64_t count, enum dtp_dtype t,
					      struct dtp_err *err)
{
	struct hub *h = ((struct thread_comm *)c)->hub;
	float *sum = calloc((size_t)count + 1, sizeof *sum), *one = calloc((size_t)count + 1, sizeof *one);

	(void)err;
	publish(c, buf);
	for (int r = 0; r < c->size; r++) {
		dtp_to_f32(one, h->part[r], t, (size_t)count);
		for (int64_t i = 0; i < count; i++)
			sum[i] += one[i];
	}
	withdraw(c);
	dtp_from_f32(buf, t, sum, (size_t)count);
	free(sum);
	free(one);
	return DTP_OK;
}

static inline enum dtp_code thread_all_gather(struct dtp_comm *c, void *dst, const void *src, int64_t count,
					      enum dtp_dtype t, struct dtp_err *err)
{
	size_t bytes = (size_t)count * dtp_dtype_size(t);

	(void)err;
	publish(c, src);
	for (int r = 0; r < c->size; r++)
		memcpy((char *)dst + (size_t)r * bytes, ((struct thread_comm *)c)->hub->part[r], bytes);
	withdraw(c);
	return DTP_OK;
}

static inline enum dtp_code thread_broadcast(struct dtp_comm *c, void *buf, int64_t nbytes, int root, struct dtp_err *err)
{
	(void)err;
	publish(c, buf);
	if (c->rank != root)
		memcpy(buf, ((struct thread_comm *)c)->hub->part[root], (size_t)nbytes);
	withdraw(c);
	return DTP_OK;
}

static inline enum dtp_code thread_barrier(struct dtp_comm *c, struct dtp_err *err)
{
	(void)err;
	withdraw(c);
	return DTP_OK;
}

static inline void thread_destroy(struct dtp_comm *c)
{
	(void)c;
}

static const struct dtp_comm_ops thread_ops = {
	.name = "threads", .all_reduce = thread_all_reduce, .all_gather = thread_all_gather, .broadcast = thread_broadcast,
	.barrier = thread_barrier, .destroy = thread_destroy,
};

static inline struct thread_comm thread_comm_make(int rank, int size, struct hub *hub)
{
	return (struct thread_comm){{rank, size, &thread_ops, &dtp_monitor_none}, hub};
}
#endif
