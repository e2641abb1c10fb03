/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator over Gloo's TCP transport.  Gloo gives connected pairs and messages that land in place; the collectives
 * are ours, for three reasons: sums in the order of the ranks (Gloo's ring starts each piece at another rank), bf16
 * summed in f32 and rounded once (a reduce function sees two operands at a time), and an abort that wakes waiters (closing a
 * Gloo context does not). */
#include "comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <net/if.h>

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace {

/* Deadlines belong to the launcher, which sees all ranks; Gloo wants a number. */
constexpr std::chrono::milliseconds never = std::chrono::hours(24 * 365);
/* A message: bounded, so that no length overflows what a socket call takes. */
constexpr size_t max_message = size_t(64) << 20;
/* What all ranks together sum in one round of an all-reduce.  Large rounds: a message costs two notices and wakes two
 * threads, and on a machine with fewer cores than ranks each wake may wait for a time slice (5 MB between 2 ranks on 2
 * cores: 4.2 ms in one round, 6.9 ms in five). */
constexpr size_t round_bytes = size_t(16) << 20;

struct aborted : std::runtime_error {
	aborted() : std::runtime_error("the run is ending") {}
};

struct gloo_comm;

enum kind { REDUCE, GATHER, EXCHANGE, SHIFT, BROADCAST, BARRIER };

/* What the communicators that descend from one dtp_comm_gloo share. */
struct family {
	std::mutex m; /* guards all below, and the members marked (m) of the communicators */
	bool is_aborted = false;
	std::set<gloo_comm *> members;
	std::shared_ptr<gloo::transport::Device> device;

	void abort();
	bool aborted_before()
	{
		std::lock_guard<std::mutex> lock(m);
		return is_aborted;
	}
};

struct gloo_comm : dtp_comm {
	std::shared_ptr<family> fam;
	std::shared_ptr<gloo::transport::Context> context;   /* (m) */
	std::set<gloo::transport::UnboundBuffer *> in_flight; /* (m) what abort must wake */
	std::vector<char> scratch;
	uint64_t calls = 0;

	gloo_comm(int rank_, int size_, const dtp_monitor *mon_, std::shared_ptr<family> f);
	~gloo_comm();
	/* Messages of different calls never meet: a rank that calls another collective than its peers waits for ever (and
	 * is found by the launcher's deadline) rather than take their bytes for its own. */
	uint64_t next_slot(kind k) { return ++calls << 8 | uint64_t(k) << 5; }
};

void family::abort()
{
	std::lock_guard<std::mutex> lock(m);
	if (is_aborted)
		return;
	is_aborted = true;
	for (gloo_comm *c : members) {
		for (auto *b : c->in_flight) {
			b->abortWaitRecv();
			b->abortWaitSend();
		}
		/* The peers see the closed connections: the end spreads even where no launcher tells them. */
		for (int r = 0; c->context && r < c->size; r++)
			if (r != c->rank && c->context->getPair(r))
				c->context->getPair(r)->close();
	}
}

/* Memory that takes part in messages during one collective. */
class transfer {
	gloo_comm *c;
	std::unique_ptr<gloo::transport::UnboundBuffer> buf;
	int sends = 0, recvs = 0;

	void done(bool completed)
	{
		if (!completed)
			throw aborted();
	}

public:
	transfer(gloo_comm *comm, const void *p, size_t nbytes)
		: c(comm), buf(comm->context->createUnboundBuffer(const_cast<void *>(p), nbytes))
	{
		std::lock_guard<std::mutex> lock(c->fam->m);
		if (c->fam->is_aborted)
			throw aborted();
		c->in_flight.insert(buf.get());
	}
	transfer(transfer &&o) : c(o.c), buf(std::move(o.buf)), sends(o.sends), recvs(o.recvs) {}
	transfer(const transfer &) = delete;
	transfer &operator=(const transfer &) = delete;
	~transfer()
	{
		if (!buf)
			return;
		std::lock_guard<std::mutex> lock(c->fam->m);
		c->in_flight.erase(buf.get());
	}
	void send(int to, uint64_t slot, size_t offset, size_t n)
	{
		for (size_t m; n; n -= m, offset += m, sends++)
			buf->send(to, slot, offset, m = std::min(n, max_message));
	}
	void recv(int from, uint64_t slot, size_t offset, size_t n)
	{
		for (size_t m; n; n -= m, offset += m, recvs++)
			buf->recv(from, slot, offset, m = std::min(n, max_message));
	}
	void wait_one_recv()
	{
		done(buf->waitRecv(nullptr, never));
		recvs--;
	}
	void wait()
	{
		for (; recvs; recvs--)
			done(buf->waitRecv(nullptr, never));
		for (; sends; sends--)
			done(buf->waitSend(nullptr, never));
	}
};

/* One transfer for each rank, so that completions tell the peers apart. */
std::vector<transfer> transfers(gloo_comm *c, const void *p, size_t nbytes)
{
	std::vector<transfer> t;
	t.reserve(size_t(c->size));
	for (int r = 0; r < c->size; r++)
		t.emplace_back(c, p, nbytes);
	return t;
}

/* ---- sums: dst[i] = parts[0][i] + parts[1][i] + ..., in this order; dst may be one of the parts. */
constexpr size_t tile = 256;

template <typename T, typename Acc, Acc load(T), T store(Acc)>
__attribute__((always_inline)) inline void sum_tile(T *dst, const void *const *parts, int nparts, size_t at, size_t n)
{
	Acc acc[tile];
	for (int r = 0; r < nparts; r++) {
		const T *src = static_cast<const T *>(parts[r]) + at;
		if (r == 0)
			for (size_t j = 0; j < n; j++)
				acc[j] = load(src[j]);
		else
			for (size_t j = 0; j < n; j++)
				acc[j] += load(src[j]);
	}
	for (size_t j = 0; j < n; j++)
		dst[j] = store(acc[j]);
}

template <typename T, typename Acc, Acc load(T), T store(Acc)>
void sum(void *dst, const void *const *parts, int nparts, size_t n)
{
	T *out = static_cast<T *>(dst);
	size_t at = 0;
	for (; at + tile <= n; at += tile) /* of constant length: the compiler makes vector code of it */
		sum_tile<T, Acc, load, store>(out + at, parts, nparts, at, tile);
	if (at < n)
		sum_tile<T, Acc, load, store>(out + at, parts, nparts, at, n - at);
}

template <typename T> inline T same(T x)
{
	return x;
}

typedef void (*sum_fn)(void *, const void *const *, int, size_t);

sum_fn sum_of(dtp_dtype t)
{
	switch (t) {
	case DTP_F32:
		return sum<float, float, same<float>, same<float>>;
	case DTP_BF16:
		return sum<uint16_t, float, dtp_bf16_to_f32, dtp_f32_to_bf16>;
	case DTP_I64: /* as unsigned: an overflow wraps */
		return sum<uint64_t, uint64_t, same<uint64_t>, same<uint64_t>>;
	case DTP_I32:
		return sum<uint32_t, uint32_t, same<uint32_t>, same<uint32_t>>;
	default:
		throw std::invalid_argument("this dtype cannot be summed");
	}
}

/* ---- collectives; all throw */

/* Reduce-scatter and all-gather by direct messages, in rounds: in each, every rank owns a piece, gets it from all others,
 * sums, and sends the sum to all.  While it sums one round, the pieces of the next are on their way. */
class reduction {
	gloo_comm *c;
	char *buf;
	size_t count, esize, per, rounds;
	sum_fn add;
	uint64_t slot;
	std::vector<transfer> data, in;

	std::pair<size_t, size_t> piece(size_t round, int rank) const /* begin, length in elements */
	{
		size_t first = round * per * size_t(c->size), len = std::min(count - first, per * size_t(c->size));
		size_t each = (len + size_t(c->size) - 1) / size_t(c->size);
		size_t b = std::min(len, each * size_t(rank)), e = std::min(len, b + each);
		return {first + b, e - b};
	}
	size_t scratch_at(size_t round, int rank) const
	{
		return ((round & 1) * size_t(c->size) + size_t(rank)) * per * esize;
	}
	void start(size_t round)
	{
		auto mine = piece(round, c->rank);
		for (int i = 1; i < c->size; i++) {
			int r = (c->rank + i) % c->size;
			auto theirs = piece(round, r);
			in[size_t(r)].recv(r, slot, scratch_at(round, r), mine.second * esize);
			data[size_t(r)].recv(r, slot + 1, theirs.first * esize, theirs.second * esize);
			data[size_t(r)].send(r, slot, theirs.first * esize, theirs.second * esize);
		}
	}
	void finish(size_t round)
	{
		auto mine = piece(round, c->rank);
		if (!mine.second)
			return;
		char *dst = buf + mine.first * esize;
		std::vector<const void *> parts(size_t(c->size), dst);
		for (int r = 0; r < c->size; r++) {
			if (r == c->rank)
				continue;
			in[size_t(r)].wait_one_recv();
			parts[size_t(r)] = c->scratch.data() + scratch_at(round, r);
		}
		add(dst, parts.data(), c->size, mine.second);
		for (int i = 1; i < c->size; i++) {
			int r = (c->rank + i) % c->size;
			data[size_t(r)].send(r, slot + 1, mine.first * esize, mine.second * esize);
		}
	}
	static char *scratch_of(gloo_comm *c, size_t n)
	{
		if (c->scratch.size() < n)
			c->scratch.resize(n);
		return c->scratch.data();
	}
	size_t scratch_size() const { return (rounds > 1 ? 2 : 1) * size_t(c->size) * per * esize; }

public:
	reduction(gloo_comm *comm, void *p, size_t n, dtp_dtype t)
		: c(comm), buf(static_cast<char *>(p)), count(n), esize(dtp_dtype_size(t)),
		  per((std::min(round_bytes / esize, n) + size_t(comm->size) - 1) / size_t(comm->size)),
		  rounds((n + per * size_t(comm->size) - 1) / (per * size_t(comm->size))), add(sum_of(t)),
		  slot(comm->next_slot(REDUCE)), data(transfers(comm, p, n * esize)),
		  in(transfers(comm, scratch_of(comm, scratch_size()), scratch_size()))
	{
	}
	void run()
	{
		start(0);
		for (size_t k = 0; k < rounds; k++) {
			if (k + 1 < rounds)
				start(k + 1);
			finish(k);
		}
		for (auto &t : data)
			t.wait();
	}
};

void all_gather(gloo_comm *c, char *dst, const char *src, size_t n)
{
	uint64_t slot = c->next_slot(GATHER);
	auto out = transfers(c, src, n), in = transfers(c, dst, n * size_t(c->size));
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank + c->size - i) % c->size, to = (c->rank + i) % c->size;
		in[size_t(from)].recv(from, slot, size_t(from) * n, n);
		out[size_t(to)].send(to, slot, 0, n);
	}
	if (dst + size_t(c->rank) * n != src)
		std::memcpy(dst + size_t(c->rank) * n, src, n);
	for (int r = 0; r < c->size; r++) {
		in[size_t(r)].wait();
		out[size_t(r)].wait();
	}
}

void all_to_all(gloo_comm *c, char *dst, const char *src, size_t n)
{
	uint64_t slot = c->next_slot(EXCHANGE);
	size_t all = n * size_t(c->size);
	auto out = transfers(c, src, all), in = transfers(c, dst, all);
	for (int i = 1; i < c->size; i++) {
		int from = (c->rank + c->size - i) % c->size, to = (c->rank + i) % c->size;
		in[size_t(from)].recv(from, slot, size_t(from) * n, n);
		out[size_t(to)].send(to, slot, size_t(to) * n, n);
	}
	std::memcpy(dst + size_t(c->rank) * n, src + size_t(c->rank) * n, n);
	for (int r = 0; r < c->size; r++) {
		in[size_t(r)].wait();
		out[size_t(r)].wait();
	}
}

void ring_shift(gloo_comm *c, char *dst, const char *src, size_t n)
{
	uint64_t slot = c->next_slot(SHIFT);
	transfer in(c, dst, n), out(c, src, n);
	in.recv((c->rank + c->size - 1) % c->size, slot, 0, n);
	out.send((c->rank + 1) % c->size, slot, 0, n);
	in.wait();
	out.wait();
}

void broadcast(gloo_comm *c, char *buf, size_t n, int root)
{
	uint64_t slot = c->next_slot(BROADCAST);
	if (c->rank != root) {
		transfer in(c, buf, n);
		in.recv(root, slot, 0, n);
		in.wait();
		return;
	}
	auto out = transfers(c, buf, n);
	for (int r = 0; r < c->size; r++)
		if (r != root)
			out[size_t(r)].send(r, slot, 0, n);
	for (auto &t : out)
		t.wait();
}

/* Dissemination: after round k each rank has heard, directly or not, of 2^k others. */
void barrier(gloo_comm *c)
{
	uint64_t slot = c->next_slot(BARRIER);
	for (int d = 1; d < c->size; d *= 2, slot++) {
		char token[2] = {0, 0};
		transfer out(c, &token[0], 1), in(c, &token[1], 1);
		in.recv((c->rank + c->size - d) % c->size, slot, 0, 1);
		out.send((c->rank + d) % c->size, slot, 0, 1);
		in.wait();
		out.wait();
	}
}

/* ---- rendezvous */

typedef std::vector<char> bytes;
/* Gives a rank's bytes to all and returns those of every rank. */
typedef std::function<std::vector<bytes>(const bytes &)> exchange;

/* Each pair of ranks has its own two listening addresses; a rank's bytes are its addresses for rank 0, 1, ... */
void connect_all(gloo_comm *c, const exchange &ex)
{
	bytes mine;
	size_t each = 0;
	{
		std::lock_guard<std::mutex> lock(c->fam->m);
		if (c->fam->is_aborted)
			throw aborted();
		c->context = c->fam->device->createContext(c->rank, c->size);
		c->context->setTimeout(never);
		for (int r = 0; r < c->size; r++) {
			if (r == c->rank)
				continue;
			auto a = c->context->createPair(r)->address().bytes();
			each = a.size();
			mine.resize(each * size_t(c->size));
			std::copy(a.begin(), a.end(), mine.begin() + long(each) * r);
		}
	}
	auto all = ex(mine);
	for (int r = 0; r < c->size; r++) {
		if (r == c->rank)
			continue;
		if (all[size_t(r)].size() != mine.size())
			throw std::runtime_error("rank " + std::to_string(r) + " sent " +
						 std::to_string(all[size_t(r)].size()) + " bytes of addresses, " +
						 std::to_string(mine.size()) + " expected");
		auto at = all[size_t(r)].begin() + long(each) * c->rank;
		c->context->getPair(r)->connect(bytes(at, at + long(each)));
		if (c->fam->aborted_before())
			throw aborted();
	}
}

/* The store failed and has filled in *err. */
struct store_failed {};

std::vector<bytes> through_store(const bytes &mine, int rank, int size, const dtp_store *store, const std::string &prefix,
				 dtp_err *err)
{
	std::vector<bytes> all{size_t(size)};
	if (store->set(store->arg, (prefix + std::to_string(rank)).c_str(), mine.data(), mine.size(), err))
		throw store_failed();
	for (int r = 0; r < size; r++) {
		void *val;
		size_t len;
		if (r == rank)
			continue;
		if (store->get(store->arg, (prefix + std::to_string(r)).c_str(), &val, &len, err))
			throw store_failed();
		std::unique_ptr<void, decltype(&free)> own(val, free);
		all[size_t(r)].assign(static_cast<char *>(val), static_cast<char *>(val) + len);
	}
	return all;
}

std::vector<bytes> through_comm(const bytes &mine, gloo_comm *parent, const std::vector<int> &members)
{
	/* Groups may differ in size, and so do their address lists; all take part in both gathers. */
	std::vector<int64_t> sizes(size_t(parent->size));
	int64_t n = int64_t(mine.size());
	all_gather(parent, reinterpret_cast<char *>(sizes.data()), reinterpret_cast<char *>(&n), sizeof n);
	size_t room = size_t(*std::max_element(sizes.begin(), sizes.end()));
	bytes padded = mine, got(room * size_t(parent->size));
	padded.resize(room);
	if (room)
		all_gather(parent, got.data(), padded.data(), room);
	std::vector<bytes> all;
	for (int m : members) {
		auto at = got.begin() + long(room) * m;
		all.emplace_back(at, at + long(sizes[size_t(m)]));
	}
	return all;
}

gloo::transport::tcp::attr address_of(const char *iface)
{
	gloo::transport::tcp::attr a;
	char addr[16];
	if (!iface)
		iface = "127.0.0.1";
	if (inet_pton(AF_INET, iface, addr) == 1 || inet_pton(AF_INET6, iface, addr) == 1)
		a.hostname = iface;
	else if (if_nametoindex(iface))
		a.iface = iface;
	else
		throw std::invalid_argument("neither a numeric address nor an interface of this host");
	return a;
}

std::shared_ptr<gloo::transport::Device> open_device(const char *iface)
{
	auto a = address_of(iface);
	if (a.iface.empty())
		return gloo::transport::tcp::CreateDevice(a);
	try { /* an interface has IPv4 and IPv6 addresses; a link-local one would not do */
		a.ai_family = AF_INET;
		return gloo::transport::tcp::CreateDevice(a);
	} catch (const std::exception &) {
		a.ai_family = AF_INET6;
		return gloo::transport::tcp::CreateDevice(a);
	}
}

/* ---- the C side */

class waiting {
	const dtp_monitor *mon;

public:
	explicit waiting(const dtp_monitor *m) : mon(m) { mon->waiting(mon->arg, true); }
	waiting(const waiting &) = delete;
	waiting &operator=(const waiting &) = delete;
	~waiting() { mon->waiting(mon->arg, false); }
};

/* Gloo's messages begin with its source file and line. */
const char *without_place(const char *what)
{
	const char *end = *what == '[' ? std::strstr(what, "] ") : nullptr;
	return end ? end + 2 : what;
}

/* Runs a collective.  Whatever it throws ends the whole family: the ranks no longer agree on where they are. */
dtp_code guarded(gloo_comm *c, const char *what, dtp_err *err, const std::function<void()> &f)
{
	bool lost = true;
	dtp_code code;
	try {
		waiting w(c->mon);
		f();
		return DTP_OK;
	} catch (const store_failed &) {
		lost = false;
		code = dtp_err_prefix(err, "rank %d of %d while meeting the others: ", c->rank, c->size);
	} catch (const std::bad_alloc &) {
		lost = false;
		code = dtp_fail(err, DTP_FAILED, "%s among %d ranks: out of memory", what, c->size);
	} catch (const std::exception &e) {
		if (c->fam->aborted_before())
			code = dtp_fail(err, DTP_FAILED, "%s among %d ranks was broken off: the run is ending", what, c->size);
		else
			code = dtp_fail(err, DTP_FAILED, "%s among %d ranks lost a peer: %s", what, c->size,
					without_place(e.what()));
	}
	c->fam->abort();
	if (err && lost)
		err->secondary = true;
	return code;
}

gloo_comm *self(dtp_comm *c)
{
	return static_cast<gloo_comm *>(c);
}

dtp_code c_all_reduce(dtp_comm *c, void *buf, int64_t count, dtp_dtype t, dtp_err *err)
{
	if (!count)
		return DTP_OK;
	return guarded(self(c), "all-reduce", err, [&] { reduction(self(c), buf, size_t(count), t).run(); });
}

typedef void (*mover)(gloo_comm *, char *, const char *, size_t);

dtp_code moved(dtp_comm *c, const char *what, mover f, void *dst, const void *src, int64_t count, dtp_dtype t, dtp_err *err)
{
	size_t n = size_t(count) * dtp_dtype_size(t);
	if (!n)
		return DTP_OK;
	return guarded(self(c), what, err,
		       [&] { f(self(c), static_cast<char *>(dst), static_cast<const char *>(src), n); });
}

dtp_code c_all_gather(dtp_comm *c, void *dst, const void *src, int64_t count, dtp_dtype t, dtp_err *err)
{
	return moved(c, "all-gather", all_gather, dst, src, count, t, err);
}

dtp_code c_all_to_all(dtp_comm *c, void *dst, const void *src, int64_t count, dtp_dtype t, dtp_err *err)
{
	return moved(c, "all-to-all", all_to_all, dst, src, count, t, err);
}

dtp_code c_ring_shift(dtp_comm *c, void *dst, const void *src, int64_t count, dtp_dtype t, dtp_err *err)
{
	return moved(c, "ring shift", ring_shift, dst, src, count, t, err);
}

dtp_code c_broadcast(dtp_comm *c, void *buf, int64_t nbytes, int root, dtp_err *err)
{
	if (!nbytes)
		return DTP_OK;
	return guarded(self(c), "broadcast", err,
		       [&] { broadcast(self(c), static_cast<char *>(buf), size_t(nbytes), root); });
}

dtp_code c_barrier(dtp_comm *c, dtp_err *err)
{
	return guarded(self(c), "barrier", err, [&] { barrier(self(c)); });
}

void c_abort(dtp_comm *c)
{
	self(c)->fam->abort();
}

void c_destroy(dtp_comm *c)
{
	delete self(c);
}

dtp_code c_split(dtp_comm *c, int color, int key, dtp_comm **out, dtp_err *err);

const dtp_comm_ops gloo_ops = {"gloo",	  c_all_reduce, nullptr, nullptr, nullptr, nullptr, c_all_gather, c_all_to_all, c_ring_shift,
			       c_broadcast, c_barrier,	  c_split,      c_abort,	    c_destroy};

gloo_comm::gloo_comm(int rank_, int size_, const dtp_monitor *mon_, std::shared_ptr<family> f)
	: dtp_comm{rank_, size_, &gloo_ops, mon_}, fam(std::move(f))
{
	std::lock_guard<std::mutex> lock(fam->m);
	fam->members.insert(this);
}

gloo_comm::~gloo_comm()
{
	std::lock_guard<std::mutex> lock(fam->m);
	fam->members.erase(this);
}

struct seat {
	int color, key;
};

void split(gloo_comm *c, seat mine, std::unique_ptr<gloo_comm> *out)
{
	std::vector<seat> seats(size_t(c->size));
	all_gather(c, reinterpret_cast<char *>(seats.data()), reinterpret_cast<char *>(&mine), sizeof mine);
	std::vector<int> members;
	for (int r = 0; r < c->size; r++)
		if (seats[size_t(r)].color == mine.color)
			members.push_back(r);
	std::stable_sort(members.begin(), members.end(),
			 [&](int a, int b) { return seats[size_t(a)].key < seats[size_t(b)].key; });
	int rank = int(std::find(members.begin(), members.end(), c->rank) - members.begin());
	out->reset(new gloo_comm(rank, int(members.size()), c->mon, c->fam));
	connect_all(out->get(), [&](const bytes &b) { return through_comm(b, c, members); });
}

dtp_code c_split(dtp_comm *c, int color, int key, dtp_comm **out, dtp_err *err)
{
	std::unique_ptr<gloo_comm> part;
	dtp_code code = guarded(self(c), "split", err, [&] { split(self(c), {color, key}, &part); });
	if (code)
		return code;
	if (part->size == 1)
		return dtp_comm_single(c->mon, out, err);
	*out = part.release();
	return DTP_OK;
}

} // namespace

enum dtp_code dtp_comm_gloo(int rank, int size, const struct dtp_store *store, const char *prefix, const char *iface,
			    const struct dtp_monitor *mon, struct dtp_comm **out, struct dtp_err *err)
{
	std::unique_ptr<gloo_comm> c;
	try {
		auto fam = std::make_shared<family>();
		fam->device = open_device(iface);
		c.reset(new gloo_comm(rank, size, mon ? mon : &dtp_monitor_none, fam));
	} catch (const std::exception &e) {
		/* No thread or no memory is a failure, also of the loopback interface; another that cannot be had, the user's mistake. */
		bool resources = !iface || dynamic_cast<const std::system_error *>(&e) || dynamic_cast<const std::bad_alloc *>(&e);
		return dtp_fail(err, resources ? DTP_FAILED : DTP_REFUSED, "network interface '%s': %s",
				iface ? iface : "127.0.0.1", without_place(e.what()));
	}
	dtp_code code = guarded(c.get(), "rendezvous", err, [&] {
		connect_all(c.get(), [&](const bytes &b) {
			return through_store(b, rank, size, store, std::string(prefix) + "/", err);
		});
	});
	if (code)
		return code;
	*out = c.release();
	return DTP_OK;
}
