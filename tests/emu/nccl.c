/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for NCCL: its functions, over memory that the ranks' processes share.  Communicators that do not block make progress when
 * they are asked for their state, their first operation is "in progress" once, as NCCL's may be while it connects, and a child
 * of a split is known when its parent is done. */
#include "library.h"
#include "ranks.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static ncclComm_t comms; /* all there ever were */
static int group_depth;
static struct emu_exchange group;
static cudaStream_t group_stream;

/* The call is counted, and returns this when it is to fail. */
#define BEGIN(name, usual)                                                                                              \
	do {                                                                                                            \
		int code_ = usual;                                                                                      \
		if (emu_call(name, &code_))                                                                             \
			return (ncclResult_t)code_;                                                                     \
	} while (0)

static void check_alive(const char *call, ncclComm_t c)
{
	ncclComm_t k = comms;

	while (k && k != c)
		k = k->next;
	if (!k || c->life != EMU_ALIVE)
		emu_misuse("%s: this is no NCCL communicator%s", call, k ? " any more: it was destroyed or aborted" : "");
}

static void check_ready(const char *call, ncclComm_t c)
{
	check_alive(call, c);
	if (c->state == ncclInProgress)
		emu_misuse("%s: the communicator is still in progress with the call before", call);
}

/* ---- facts */

ncclResult_t ncclGetVersion(int *version)
{
	BEGIN("ncclGetVersion", ncclSystemError);
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
	static const char *const text[ncclNumResults] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
		"invalid argument", "invalid usage", "remote process exited or there was a network error", "in progress"};
	return r >= 0 && r < ncclNumResults ? text[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c)
{
	return c ? c->error : "";
}

/* ---- meeting */

static void report_leaks(void)
{
	for (ncclComm_t c = comms; c; c = c->next)
		if (c->life == EMU_ALIVE)
			emu_misuse("an NCCL communicator of %d ranks is left at the end of the process", c->size);
	if (group_depth)
		emu_misuse("%d calls to ncclGroupStart without ncclGroupEnd", group_depth);
}

static ncclComm_t new_comm(int rank, int size, const ncclConfig_t *config)
{
	ncclComm_t c = calloc(1, sizeof *c);

	if (!c)
		emu_misuse("out of memory");
	c->rank = rank;
	c->size = size;
	c->config = *config;
	c->blocking = config->blocking != 0;
	c->state = ncclInProgress;
	if (!comms)
		atexit(report_leaks);
	c->next = comms;
	comms = c;
	return c;
}

/* Takes its seat in a world. */
static void sit_down(ncclComm_t c, struct emu_world *w)
{
	struct cudaDeviceProp prop;
	struct emu_seat *mine = &w->seats[c->rank];

	if (!emu_device_properties(emu_device(), &prop))
		emu_misuse("NCCL was called without a device");
	c->world = w;
	if (mine->here != EMU_ABSENT)
		emu_misuse("two processes are rank %d of one NCCL communicator", c->rank);
	mine->pid = getpid();
	mine->size = c->size;
	memcpy(mine->device, prop.uuid.bytes, sizeof mine->device);
	atomic_store(&mine->here, EMU_HERE);
}

static ncclResult_t fail(ncclComm_t c, ncclResult_t r, const char *text, int a, int b)
{
	snprintf(c->error, sizeof c->error, "%s: rank %d and rank %d", text, a, b);
	return c->state = r;
}

/* Whether all have come; then the communicator is ready, or refused. */
static void try_join(ncclComm_t c)
{
	for (int r = 0; r < c->size; r++)
		if (c->world->seats[r].here == EMU_ABSENT) {
			emu_waits(c, r, "ncclCommInitRankConfig");
			return;
		}
	emu_waited(c);
	emu_watch_peers(c);
	c->joined = true;
	c->state = ncclSuccess;
	emu_world_close(c->world->token);
	for (int a = 0; a < c->size; a++) {
		if (c->world->seats[a].size != c->size)
			emu_misuse("rank %d has %d ranks in its NCCL communicator, rank %d has %d", c->rank, c->size, a,
				   c->world->seats[a].size);
		for (int b = a + 1; b < c->size; b++)
			if (!memcmp(c->world->seats[a].device, c->world->seats[b].device, sizeof c->world->seats[a].device))
				fail(c, ncclInvalidUsage, "Duplicate GPU detected", a, b);
	}
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	BEGIN("ncclGetUniqueId", ncclSystemError);
	struct emu_card card = emu_world_make();
	memset(id, 0, sizeof *id);
	memcpy(id->internal, &card, sizeof card);
	return ncclSuccess;
}

/* A split goes on: all vote; the first of each group makes its world; all sit down in theirs. */
static void try_split(ncclComm_t c)
{
	struct emu_seat *seats = c->world->seats, *mine = &seats[c->rank];
	int rank = 0, size = 0, first = -1;
#define KEY(r) ((int64_t)seats[r].vote.key * EMU_RANKS + (r))

	for (int r = 0; r < c->size; r++)
		if (seats[r].vote.number < c->splits) {
			emu_waits(c, r, "ncclCommSplit");
			return;
		}
	for (int r = 0; r < c->size; r++)
		if (seats[r].vote.color == mine->vote.color) {
			size++;
			rank += KEY(r) < KEY(c->rank);
			first = first < 0 || KEY(r) < KEY(first) ? r : first;
		}
#undef KEY
	if (mine->vote.color != NCCL_SPLIT_NOCOLOR) {
		if (first == c->rank && mine->vote.made < c->splits) {
			struct emu_card card = emu_world_make();
			mine->vote.fd = card.fd;
			memcpy(mine->vote.token, card.token, sizeof card.token);
			atomic_store(&mine->vote.made, c->splits);
		}
		if (seats[first].vote.made < c->splits) {
			emu_waits(c, first, "ncclCommSplit");
			return;
		}
		struct emu_card card = {.pid = seats[first].pid, .fd = seats[first].vote.fd};
		memcpy(card.token, seats[first].vote.token, sizeof card.token);
		ncclComm_t child = new_comm(rank, size, &c->config);
		struct emu_world *w = emu_world_open(&card);
		if (!w)
			emu_misuse("rank %d of %d cannot open the memory of its part", c->rank, c->size);
		sit_down(child, w);
		*c->child = child;
	}
	emu_waited(c);
	atomic_store(&mine->vote.taken, c->splits);
	c->child = NULL;
	c->state = ncclSuccess;
}

static void progress(ncclComm_t c)
{
	if (c->state != ncclInProgress)
		return;
	if (!c->joined)
		try_join(c);
	else if (c->child)
		try_split(c);
	else
		c->state = ncclSuccess;
}

static ncclResult_t wait_if_blocking(ncclComm_t c)
{
	const struct timespec nap = {0, 100000};

	while (c->blocking && c->state == ncclInProgress) {
		progress(c);
		nanosleep(&nap, NULL);
	}
	return c->state;
}

static void check_config(const ncclConfig_t *config)
{
	static const ncclConfig_t proper = NCCL_CONFIG_INITIALIZER;

	if (config->size != proper.size || config->magic != proper.magic)
		emu_misuse("ncclConfig_t was not set to NCCL_CONFIG_INITIALIZER");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	struct emu_card card;

	BEGIN("ncclCommInitRankConfig", ncclSystemError);
	check_config(config);
	if (size < 1 || rank < 0 || rank >= size)
		return ncclInvalidArgument;
	if (size > EMU_RANKS)
		emu_misuse("an NCCL communicator of %d ranks: at most %d are emulated", size, (int)EMU_RANKS);
	memcpy(&card, id.internal, sizeof card);
	struct emu_world *w = emu_world_open(&card);
	if (!w)
		return ncclSystemError;
	*comm = new_comm(rank, size, config);
	sit_down(*comm, w);
	return wait_if_blocking(*comm);
}

ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *child, ncclConfig_t *config)
{
	BEGIN("ncclCommSplit", ncclSystemError);
	check_ready("ncclCommSplit", c);
	if (config)
		check_config(config);
	if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
		return ncclInvalidArgument;
	/* The vote before was read by all, or not all could have sat down. */
	for (int r = 0; r < c->size; r++)
		while (c->world->seats[r].vote.taken < c->splits && !emu_peer_gone(c, r))
			emu_waits(c, r, "ncclCommSplit");
	emu_waited(c);
	if (config)
		c->config = *config;
	*child = NULL;
	c->child = child;
	struct emu_seat *mine = &c->world->seats[c->rank];
	mine->vote.color = color;
	mine->vote.key = key;
	atomic_store(&mine->vote.number, ++c->splits);
	c->state = ncclInProgress;
	return wait_if_blocking(c);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
	BEGIN("ncclCommGetAsyncError", ncclSystemError);
	check_alive("ncclCommGetAsyncError", c);
	progress(c);
	*state = c->state;
	return ncclSuccess;
}

/* ---- leaving */

static bool is_of(emu_work *work, const void *arg, const void *comm)
{
	return (work == emu_collective && ((const struct emu_collective *)arg)->comm == comm) ||
	       (work == emu_exchange && ((const struct emu_exchange *)arg)->comm == comm);
}

static void check_graphs(const char *call, ncclComm_t c)
{
	if (emu_graphs_have(is_of, c))
		emu_misuse("%s: there is a graph with operations of this communicator, for whose end NCCL waits", call);
}

static void end(ncclComm_t c, int presence, int life)
{
	for (struct emu_registration *r = c->registered, *next; r; r = next) {
		next = r->next;
		free(r);
	}
	c->registered = NULL;
	emu_unwatch_peers(c);
	atomic_store(&c->world->seats[c->rank].here, presence);
	emu_world_close(c->world->token);
	munmap(c->world, sizeof *c->world);
	c->world = NULL;
	c->life = life;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	BEGIN("ncclCommFinalize", ncclSystemError);
	check_ready("ncclCommFinalize", c);
	check_graphs("ncclCommFinalize", c);
	if (c->begun)
		emu_misuse("ncclCommFinalize: %u operations are under way", c->begun);
	c->state = c->blocking ? ncclSuccess : ncclInProgress;
	return c->state;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	BEGIN("ncclCommDestroy", ncclSystemError);
	check_ready("ncclCommDestroy", c);
	check_graphs("ncclCommDestroy", c);
	if (c->begun)
		emu_misuse("ncclCommDestroy: %u operations are under way", c->begun);
	if (c->registered)
		emu_misuse("ncclCommDestroy: %zu bytes are still registered", c->registered->size);
	end(c, EMU_LEFT, EMU_DESTROYED);
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	check_alive("ncclCommAbort", c);
	check_graphs("ncclCommAbort", c);
	end(c, EMU_ABORTED, EMU_GONE);
	BEGIN("ncclCommAbort", ncclSystemError); /* it has ended all the same: the caller has no second chance */
	return ncclSuccess;
}

/* ---- memory */

/* All that was given and is not freed. */
static struct gift {
	struct gift *next;
	char *p;
	size_t size;
} *gifts;

ncclResult_t ncclMemAlloc(void **p, size_t size)
{
	BEGIN("ncclMemAlloc", ncclUnhandledCudaError);
	struct gift *g = calloc(1, sizeof *g);
	if (!g)
		emu_misuse("out of memory");
	*p = emu_device_new(size);
	if (!*p) {
		free(g);
		return ncclUnhandledCudaError;
	}
	*g = (struct gift){gifts, *p, size};
	gifts = g;
	return ncclSuccess;
}

static struct gift **gift_of(const void *p)
{
	struct gift **g = &gifts;

	while (*g && ((char *)p < (*g)->p || (char *)p >= (*g)->p + (*g)->size))
		g = &(*g)->next;
	return g;
}

/* What frees does so even when it fails. */
ncclResult_t ncclMemFree(void *p)
{
	struct gift **at = gift_of(p), *g = *at;

	if (!g || g->p != p)
		emu_misuse("ncclMemFree of %p, which ncclMemAlloc has not given", p);
	for (ncclComm_t c = comms; c; c = c->next)
		for (struct emu_registration *r = c->registered; r; r = r->next)
			if (r->p >= g->p && r->p < g->p + g->size)
				emu_misuse("ncclMemFree of memory that a communicator still has registered");
	emu_device_free(p, "ncclMemFree");
	*at = g->next;
	free(g);
	BEGIN("ncclMemFree", ncclUnhandledCudaError);
	return ncclSuccess;
}

/* NCCL takes memory of cudaMalloc too, and does nothing with it unless a variable says so. */
ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t size, void **handle)
{
	BEGIN("ncclCommRegister", ncclSystemError);
	check_ready("ncclCommRegister", c);
	const struct gift *g = *gift_of(p);
	if (!g || (char *)p + size > g->p + g->size)
		emu_misuse("ncclCommRegister of %zu bytes at %p, which ncclMemAlloc has not given", size, p);
	struct emu_registration *r = calloc(1, sizeof *r);
	if (!r)
		emu_misuse("out of memory");
	*r = (struct emu_registration){c->registered, p, size};
	c->registered = r;
	*handle = r;
	return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
	struct emu_registration **at = &c->registered;

	check_alive("ncclCommDeregister", c);
	while (*at && *at != handle)
		at = &(*at)->next;
	if (!*at)
		emu_misuse("ncclCommDeregister of what this communicator has not registered, or no more");
	struct emu_registration *r = *at;
	*at = r->next;
	free(r);
	BEGIN("ncclCommDeregister", ncclSystemError);
	return ncclSuccess;
}

static int64_t place_in_registered(ncclComm_t c, const void *p)
{
	for (const struct emu_registration *r = c->registered; r; r = r->next)
		if ((const char *)p >= r->p && (const char *)p < r->p + r->size)
			return (const char *)p - r->p;
	return -1;
}

/* ---- operations */

/* What an operation returns that has been given to its stream. */
static ncclResult_t given(ncclComm_t c)
{
	if (!c->blocking && !c->connected)
		c->state = ncclInProgress;
	c->connected = true;
	return c->state;
}

static ncclResult_t start(ncclComm_t c, const struct emu_posted *call, const void *send, size_t nsend, void *recv, size_t nrecv,
			  cudaStream_t stream)
{
	struct emu_collective o = {.comm = c, .call = *call, .send = send, .recv = recv};
	const char *name = emu_op_name(call->op);

	check_ready(name, c);
	if (c->state)
		return c->state;
	if (call->root < 0 || call->root >= c->size || (call->op == EMU_ALL_REDUCE && call->redop != ncclSum))
		return ncclInvalidArgument;
	if (nsend)
		emu_device_range(send, nsend, name);
	emu_device_range(recv, nrecv, name);
	o.call.at = place_in_registered(c, recv);
	o.call.captured = emu_is_captured(stream);
	if (emu_enqueue(stream, emu_collective, &o, sizeof o, name))
		return ncclUnhandledCudaError;
	return given(c);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t t, ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
	BEGIN("ncclAllReduce", ncclSystemError);
	struct emu_posted call = {.op = EMU_ALL_REDUCE, .count = count, .type = t, .redop = op};
	size_t n = count * emu_type_size(t);
	return start(c, &call, send, n, recv, n, s);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
	BEGIN("ncclAllGather", ncclSystemError);
	struct emu_posted call = {.op = EMU_ALL_GATHER, .count = count, .type = t};
	size_t n = count * emu_type_size(t);
	const char *own = (char *)recv + (size_t)c->rank * n, *from = send;
	if (from != own && from + n > (char *)recv && from < (char *)recv + (size_t)c->size * n)
		emu_misuse("ncclAllGather: what is sent overlaps with what is received, but is not its own place there");
	return start(c, &call, send, n, recv, n * (size_t)c->size, s);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s)
{
	BEGIN("ncclBroadcast", ncclSystemError);
	struct emu_posted call = {.op = EMU_BROADCAST, .count = count, .type = t, .root = root};
	size_t n = count * emu_type_size(t);
	return start(c, &call, send, root == c->rank ? n : 0, recv, n, s);
}

/* The header declares these two without their parameters. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
	BEGIN("ncclGroupStart", ncclSystemError);
	group_depth++;
	return ncclSuccess;
}

/* Sends and receives of one group go on together. */
static ncclResult_t flush(void)
{
	ncclComm_t c = group.comm;
	cudaError_t e = c ? emu_enqueue(group_stream, emu_exchange, &group, sizeof group, "ncclSend, ncclRecv") : cudaSuccess;

	memset(&group, 0, sizeof group);
	return e ? ncclUnhandledCudaError : c ? given(c) : ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	BEGIN("ncclGroupEnd", ncclSystemError);
	if (!group_depth)
		emu_misuse("ncclGroupEnd without ncclGroupStart");
	return --group_depth ? ncclSuccess : flush();
}

static ncclResult_t point_to_point(const char *name, ncclComm_t c, void *data, size_t nbytes, int peer, bool receive, cudaStream_t s)
{
	check_ready(name, c);
	if (c->state)
		return c->state;
	if (peer < 0 || peer >= c->size)
		return ncclInvalidArgument;
	emu_device_range(data, nbytes, name);
	if (group.n == 2 * EMU_RANKS || (group.comm && (group.comm != c || group_stream != s)))
		emu_misuse("%s: a group of so many, or of several communicators or streams, is not emulated", name);
	group.comm = c;
	group_stream = s;
	group.message[group.n++] = (struct emu_message){.data = data, .nbytes = nbytes, .peer = peer, .receive = receive};
	return group_depth ? ncclSuccess : flush();
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	BEGIN("ncclSend", ncclSystemError);
	return point_to_point("ncclSend", c, (void *)(uintptr_t)data, count * emu_type_size(t), peer, false, s);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	BEGIN("ncclRecv", ncclSystemError);
	return point_to_point("ncclRecv", c, data, count * emu_type_size(t), peer, true, s);
}

/* ---- what the program finds */

void *emu_nccl(const char *name, char *why, size_t size)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} functions[] = {
#define F(f) {#f, (void (*)(void))f}
		F(ncclGetVersion), F(ncclGetUniqueId), F(ncclGetErrorString), F(ncclGetLastError), F(ncclCommInitRankConfig),
		F(ncclCommSplit), F(ncclCommFinalize), F(ncclCommDestroy), F(ncclCommAbort), F(ncclCommGetAsyncError),
		F(ncclAllReduce), F(ncclAllGather), F(ncclBroadcast), F(ncclSend), F(ncclRecv), F(ncclGroupStart), F(ncclGroupEnd),
		F(ncclMemAlloc), F(ncclMemFree), F(ncclCommRegister), F(ncclCommDeregister),
#undef F
	};
	void *p;

	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (!strcmp(functions[i].name, name)) {
			memcpy(&p, &functions[i].f, sizeof p);
			return p;
		}
	snprintf(why, size, "nothing stands in for '%s'", name);
	return NULL;
}
