/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for NCCL: what its operations do when their turn on the stream comes. */
#include "ranks.h"

#include "tensor.h"

#include <string.h>

size_t emu_type_size(ncclDataType_t t)
{
	switch (t) {
	case ncclInt8: case ncclUint8: return 1;
	case ncclFloat16: case ncclBfloat16: return 2;
	case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
	case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
	default: emu_misuse("NCCL's data type %d is not emulated", (int)t);
	}
}

const char *emu_op_name(int op)
{
	static const char *const names[] = {"nothing yet", "ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclSend or ncclRecv"};
	return names[op];
}

/* ---- collectives: all ranks lay out a piece, then all look at all pieces, then the next */

static int type_of(const struct emu_collective *o)
{
	return o->call.type;
}

/* sum[i] += value of p[i]. */
#define ADD(sum_type, type, value)                                                                                      \
	do {                                                                                                            \
		for (size_t i = 0; i < n; i++)                                                                          \
			((sum_type *)sum)[i] += value(((const type *)p)[i]);                                            \
	} while (0)

/* bf16 is summed in f32. */
static void add(void *sum, const void *p, size_t n, int type)
{
	switch (type) {
	case ncclFloat32: ADD(float, float, ); break;
	case ncclBfloat16: ADD(float, uint16_t, dtp_bf16_to_f32); break;
	case ncclInt32: ADD(uint32_t, uint32_t, ); break;
	case ncclInt64: ADD(uint64_t, uint64_t, ); break;
	default: emu_misuse("ncclAllReduce of data type %d is not emulated", type);
	}
}

/* In the order of the ranks; bf16 is rounded once. */
static void reduce(struct emu_collective *o, size_t n)
{
	ncclComm_t c = o->comm;
	size_t size = emu_type_size((ncclDataType_t)type_of(o));
	_Alignas(8) char sum[2 * EMU_PIECE]; /* of bf16 in f32 */
	char *out = o->recv + o->at * size;

	memset(sum, 0, n * (size > sizeof(float) ? size : sizeof(float)));
	for (int r = 0; r < c->size; r++)
		add(sum, c->world->piece[r], n, type_of(o));
	if (type_of(o) != ncclBfloat16) {
		memcpy(out, sum, n * size);
		return;
	}
	for (size_t i = 0; i < n; i++)
		((uint16_t *)out)[i] = dtp_f32_to_bf16(((float *)sum)[i]);
}

static void take_pieces(struct emu_collective *o, size_t n)
{
	ncclComm_t c = o->comm;
	size_t size = emu_type_size((ncclDataType_t)type_of(o));

	if (o->call.op == EMU_ALL_REDUCE)
		reduce(o, n);
	else if (o->call.op == EMU_BROADCAST)
		memcpy(o->recv + o->at * size, c->world->piece[o->call.root], n * size);
	else
		for (int r = 0; r < c->size; r++)
			memcpy(o->recv + ((uint64_t)r * o->call.count + o->at) * size, c->world->piece[r], n * size);
}

static bool same(const struct emu_posted *a, const struct emu_posted *b)
{
	return a->number == b->number && a->count == b->count && a->op == b->op && a->type == b->type && a->redop == b->redop &&
	       a->root == b->root && a->at == b->at && a->captured == b->captured;
}

static void compare(struct emu_collective *o)
{
	ncclComm_t c = o->comm;

	for (int r = 0; r < c->size; r++) {
		const struct emu_posted *theirs = &c->world->seats[r].posted[o->call.number & 1], *ours = &o->call;
		if (!same(ours, theirs))
			emu_misuse("NCCL's ranks do different things: collective %llu of rank %d is %s (count %llu, type %d, op %d, root %d, at "
				   "%lld of registered memory%s), of rank %d %s (count %llu, type %d, op %d, root %d, at %lld%s)",
				   (unsigned long long)ours->number, c->rank, emu_op_name(ours->op), (unsigned long long)ours->count,
				   ours->type, ours->redop, ours->root, (long long)ours->at, ours->captured ? ", in a graph" : "", r,
				   emu_op_name(theirs->op), (unsigned long long)theirs->count, theirs->type, theirs->redop, theirs->root,
				   (long long)theirs->at, theirs->captured ? ", in a graph" : "");
	}
}

static void begin(struct emu_collective *o)
{
	ncclComm_t c = o->comm;
	struct emu_seat *mine = &c->world->seats[c->rank];

	o->begun = true;
	c->begun++;
	o->call.number = ++c->numbers;
	/* The call before last is compared by all: all have begun the last one, or this rank could not have ended it. */
	mine->posted[o->call.number & 1] = mine->doing = o->call;
}

/* The first rank that has not come so far; -1: none. */
static int behind(ncclComm_t c, bool put, uint64_t pieces)
{
	for (int r = 0; r < c->size; r++)
		if (atomic_load(put ? &c->world->seats[r].put : &c->world->seats[r].got) < pieces)
			return r;
	return -1;
}

static bool all_there(ncclComm_t c, bool put, uint64_t pieces, const struct emu_collective *o)
{
	int r = behind(c, put, pieces);

	if (r >= 0)
		emu_waits(c, r, emu_op_name(o->call.op));
	else
		emu_waited(c);
	return r < 0;
}

/* True when what stands behind it on the stream may go on: the communicator is gone, which ends its kernels. */
static bool over(ncclComm_t c, bool begun)
{
	if (c->life == EMU_DESTROYED)
		emu_misuse("an NCCL operation comes to its turn after its communicator was destroyed");
	if (c->life == EMU_GONE && begun)
		c->begun--;
	return c->life == EMU_GONE;
}

bool emu_collective(void *arg)
{
	struct emu_collective *o = arg;
	ncclComm_t c = o->comm;

	if (over(c, o->begun))
		return true;
	if (!o->begun)
		begin(o);
	size_t size = emu_type_size((ncclDataType_t)type_of(o)), most = EMU_PIECE / size;
	emu_uses(o->send, o->call.op == EMU_BROADCAST && o->call.root != c->rank ? 0 : o->call.count * size, false);
	emu_uses(o->recv, o->call.count * size * (o->call.op == EMU_ALL_GATHER ? (size_t)c->size : 1), true);
	struct emu_seat *mine = &c->world->seats[c->rank];
	while (o->at < o->call.count) {
		size_t n = o->call.count - o->at < most ? o->call.count - o->at : most;
		if (!o->put) {
			if (!all_there(c, false, c->pieces, o))
				return false;
			if (o->call.op != EMU_BROADCAST || o->call.root == c->rank)
				memcpy(c->world->piece[c->rank], o->send + o->at * size, n * size);
			atomic_store(&mine->put, c->pieces + 1);
			o->put = true;
		}
		if (!all_there(c, true, c->pieces + 1, o))
			return false;
		if (o->at == 0)
			compare(o);
		take_pieces(o, n);
		atomic_store(&mine->got, ++c->pieces);
		o->put = false;
		o->at += n;
	}
	c->begun--;
	return true;
}

/* ---- sends and receives */

/* Whether anything of it could be moved. */
static bool move(ncclComm_t c, struct emu_message *m)
{
	struct emu_mailbox *box = m->receive ? &c->world->mail[m->peer][c->rank] : &c->world->mail[c->rank][m->peer];
	bool full = atomic_load(&box->put) != atomic_load(&box->got);
	uint64_t n = m->nbytes - m->at < EMU_MAIL ? m->nbytes - m->at : EMU_MAIL;

	if (m->at == m->nbytes || full != m->receive)
		return false;
	if (m->receive && (box->nbytes != m->nbytes || box->length != n))
		emu_misuse("rank %d receives %llu bytes from rank %d, which sends %llu", c->rank, (unsigned long long)m->nbytes, m->peer,
			   (unsigned long long)box->nbytes);
	if (m->receive) {
		memcpy(m->data + m->at, box->data, n);
		atomic_fetch_add(&box->got, 1);
	} else {
		memcpy(box->data, m->data + m->at, n);
		box->nbytes = m->nbytes;
		box->length = n;
		atomic_fetch_add(&box->put, 1);
	}
	m->at += n;
	return true;
}

bool emu_exchange(void *arg)
{
	struct emu_exchange *e = arg;
	ncclComm_t c = e->comm;
	bool moved = true;

	if (over(c, e->begun))
		return true;
	if (!e->begun) {
		e->begun = true;
		c->begun++;
		c->world->seats[c->rank].doing = (struct emu_posted){.op = EMU_POINT_TO_POINT, .number = c->numbers};
	}
	for (int i = 0; i < e->n; i++)
		emu_uses(e->message[i].data, e->message[i].nbytes, e->message[i].receive);
	while (moved) {
		moved = false;
		for (int i = 0; i < e->n; i++)
			moved |= move(c, &e->message[i]);
		if (moved)
			emu_waited(c);
	}
	for (int i = 0; i < e->n; i++)
		if (e->message[i].at < e->message[i].nbytes) {
			emu_waits(c, e->message[i].peer, e->message[i].receive ? "ncclRecv" : "ncclSend");
			return false;
		}
	c->begun--;
	return true;
}
