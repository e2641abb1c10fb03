/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* On the wire: uint32 length of what follows, uint32 type, the numbers, then each text as uint32 length, bytes, NUL; in
 * the byte order of the machine, which all ranks share. */
#define HEAD (2 * sizeof(uint32_t) + DTP_MSG_NUMBERS * sizeof(uint64_t))
#define MAX_BODY (16u << 20) /* more than any rendezvous needs: a longer message is garbage */

struct dtp_msg dtp_msg_text(enum dtp_msg_type type, const char *text)
{
	return (struct dtp_msg){.type = type, .text = {{text, strlen(text)}}};
}

static char *put(char *p, const void *src, size_t n)
{
	if (n)
		memcpy(p, src, n);
	return p + n;
}

/* malloc'd; NULL when out of memory or too long. */
static char *pack(const struct dtp_msg *m, size_t *len)
{
	size_t total = HEAD;
	uint32_t u;
	char *buf, *p;

	for (int i = 0; i < DTP_MSG_TEXTS; i++)
		total += sizeof u + m->text[i].len + 1;
	if (total > MAX_BODY || !(buf = malloc(total)))
		return NULL;
	*len = total;
	u = (uint32_t)(total - sizeof u);
	p = put(buf, &u, sizeof u);
	u = m->type;
	p = put(p, &u, sizeof u);
	p = put(p, m->n, sizeof m->n);
	for (int i = 0; i < DTP_MSG_TEXTS; i++) {
		u = (uint32_t)m->text[i].len;
		p = put(p, &u, sizeof u);
		p = put(p, m->text[i].p, u);
		*p++ = '\0';
	}
	return buf;
}

bool dtp_msg_send(int fd, const struct dtp_msg *m)
{
	size_t len, sent = 0;
	char *buf = pack(m, &len);

	if (!buf)
		return false;
	while (sent < len) {
		ssize_t n = send(fd, buf + sent, len - sent, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		sent += (size_t)n;
	}
	free(buf);
	return sent == len;
}

enum dtp_inbox_state dtp_inbox_read(struct dtp_inbox *in, int fd)
{
	ssize_t n;

	if (in->taken) {
		memmove(in->buf, in->buf + in->taken, in->len - in->taken);
		in->len -= in->taken;
		in->taken = 0;
	}
	if (in->cap - in->len < 4096) {
		size_t cap = in->cap ? 2 * in->cap : 16384;
		char *buf = realloc(in->buf, cap);
		if (!buf)
			return DTP_INBOX_CLOSED;
		in->buf = buf;
		in->cap = cap;
	}
	do
		n = recv(fd, in->buf + in->len, in->cap - in->len, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? DTP_INBOX_EMPTY : DTP_INBOX_CLOSED;
	in->len += (size_t)n;
	return n ? DTP_INBOX_OK : DTP_INBOX_CLOSED;
}

static bool unpack(const char *p, size_t len, struct dtp_msg *m)
{
	uint32_t u;

	if (len < HEAD - sizeof u)
		return false;
	memcpy(&u, p, sizeof u);
	if (u >= DTP_MSG_TYPES)
		return false;
	m->type = (enum dtp_msg_type)u;
	memcpy(m->n, p + sizeof u, sizeof m->n);
	p += HEAD - sizeof u;
	len -= HEAD - sizeof u;
	for (int i = 0; i < DTP_MSG_TEXTS; i++) {
		if (len < sizeof u)
			return false;
		memcpy(&u, p, sizeof u);
		if (len - sizeof u <= u || p[sizeof u + u])
			return false;
		m->text[i].p = p + sizeof u;
		m->text[i].len = u;
		p += sizeof u + u + 1;
		len -= sizeof u + u + 1;
	}
	return len == 0;
}

enum dtp_inbox_state dtp_inbox_next(struct dtp_inbox *in, struct dtp_msg *m)
{
	const char *p = in->buf + in->taken;
	size_t len = in->len - in->taken;
	uint32_t body;

	if (len < sizeof body)
		return DTP_INBOX_EMPTY;
	memcpy(&body, p, sizeof body);
	if (body > MAX_BODY)
		return DTP_INBOX_CLOSED;
	if (len - sizeof body < body)
		return DTP_INBOX_EMPTY;
	if (!unpack(p + sizeof body, body, m))
		return DTP_INBOX_CLOSED;
	in->taken += sizeof body + body;
	return DTP_INBOX_OK;
}

void dtp_inbox_free(struct dtp_inbox *in)
{
	free(in->buf);
	*in = (struct dtp_inbox){0};
}

/* ---- server */

struct stored {
	char *key, *val;
	size_t len;
	uint64_t takers; /* so many are still to get it, and then it is forgotten; 0: it stays */
	int owner;       /* who has set it */
};

struct peer {
	int fd; /* -1: none (yet, or any more) */
	struct dtp_inbox in;
	char *out; /* what the socket has not taken yet */
	size_t out_len;
	char *wants; /* the key that it waits for */
	double since;
};

/* Whoever connects has so many places before it is known who it is, and so much time and room to say it. */
#define STRANGERS 16
#define DEAF_S 0.2      /* between two tries to take a connection for which there was no room */
#define STRANGER_S 5.0
#define STRANGER_BYTES (4u << 20)
/* A host that is gone is taken for gone after so long without any sign of its network. */
#define UNREACHABLE_MS 30000

struct dtp_server {
	int npeers;
	struct peer *peers; /* the numbered ones, then the strangers */
	int listener;       /* -1: none */
	double deaf_until;  /* it is not asked until then: what is waiting there could not be taken */
	char *token;
	void *store; /* a tree of struct stored */
	struct dtp_server_events ev;
};

static int places(const struct dtp_server *s)
{
	return s->npeers + STRANGERS;
}

struct dtp_server *dtp_server_new(int npeers, const struct dtp_server_events *ev)
{
	struct dtp_server *s = calloc(1, sizeof *s);
	struct peer *peers = calloc((size_t)npeers + STRANGERS, sizeof *peers);

	if (!s || !peers) {
		free(s);
		free(peers);
		return NULL;
	}
	*s = (struct dtp_server){.npeers = npeers, .peers = peers, .listener = -1, .ev = *ev};
	for (int i = 0; i < places(s); i++)
		peers[i].fd = -1;
	return s;
}

void dtp_server_events(struct dtp_server *s, const struct dtp_server_events *ev)
{
	s->ev = *ev;
}

static void drop(struct peer *p)
{
	if (p->fd >= 0)
		close(p->fd);
	dtp_inbox_free(&p->in);
	free(p->out);
	free(p->wants);
	*p = (struct peer){.fd = -1};
}

static void free_entry(void *node)
{
	struct stored *e = node;

	free(e->key);
	free(e->val);
	free(e);
}

void dtp_server_forget(struct dtp_server *s)
{
	for (int i = 0; i < places(s); i++) {
		s->peers[i].fd = -1;
		drop(&s->peers[i]);
	}
	tdestroy(s->store, free_entry);
	free(s->token);
	free(s->peers);
	free(s);
}

void dtp_server_free(struct dtp_server *s)
{
	if (!s)
		return;
	for (int i = 0; i < places(s); i++)
		drop(&s->peers[i]);
	if (s->listener >= 0)
		close(s->listener);
	dtp_server_forget(s);
}

static void set_up_tcp(int fd)
{
	int yes = 1, ms = UNREACHABLE_MS;

	/* They fail where the socket is of another kind, and are not missed there. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

void dtp_server_add(struct dtp_server *s, int peer, int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	set_up_tcp(fd);
	s->peers[peer].fd = fd;
	s->peers[peer].since = dtp_seconds();
}

void dtp_server_listen(struct dtp_server *s, int fd, const char *token)
{
	s->listener = fd;
	s->token = strdup(token);
}

void dtp_server_move(struct dtp_server *s, int from, int to)
{
	s->peers[to] = s->peers[from];
	s->peers[from] = (struct peer){.fd = -1};
}

bool dtp_server_has(const struct dtp_server *s, int peer)
{
	return s->peers[peer].fd >= 0;
}

int dtp_server_socket(const struct dtp_server *s, int peer)
{
	return s->peers[peer].fd;
}

static void peer_closed(struct dtp_server *s, int peer)
{
	drop(&s->peers[peer]);
	if (peer < s->npeers)
		s->ev.closed(s->ev.arg, peer);
}

/* False: the peer is gone. */
static bool flush(struct peer *p)
{
	size_t sent = 0;

	while (sent < p->out_len) {
		ssize_t n = send(p->fd, p->out + sent, p->out_len - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			break;
		if (n < 0)
			return false;
		sent += (size_t)n;
	}
	p->out_len -= sent;
	if (sent)
		memmove(p->out, p->out + sent, p->out_len);
	return true;
}

void dtp_server_send(struct dtp_server *s, int peer, const struct dtp_msg *m)
{
	struct peer *p = &s->peers[peer];
	size_t len;
	char *msg, *out;

	if (p->fd < 0 || !(msg = pack(m, &len)))
		return;
	out = realloc(p->out, p->out_len + len);
	if (out) {
		memcpy(out + p->out_len, msg, len);
		p->out = out;
		p->out_len += len;
		if (!flush(p))
			p->out_len = 0; /* its end of stream is still to be read, after what it said last */
	}
	free(msg);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct stored *)a)->key, ((const struct stored *)b)->key);
}

static struct stored *lookup(const struct dtp_server *s, const char *key)
{
	struct stored like = {.key = (char *)(uintptr_t)key}, **at = tfind(&like, &s->store, by_key);

	return at ? *at : NULL;
}

/* The one with this key, made if need be; NULL: out of memory. */
static struct stored *entry_of(struct dtp_server *s, const char *key)
{
	struct stored *e = lookup(s, key);

	if (e || !(e = calloc(1, sizeof *e)))
		return e;
	if ((e->key = strdup(key)) && tsearch(e, &s->store, by_key))
		return e;
	free_entry(e);
	return NULL;
}

/* The last of its takers takes the entry with it. */
static void answer(struct dtp_server *s, int peer, struct stored *e)
{
	struct dtp_msg m = {.type = DTP_MSG_VALUE, .text = {{e->key, strlen(e->key)}, {e->val, e->len}}};

	dtp_server_send(s, peer, &m);
	if (!e->takers || --e->takers)
		return;
	m = (struct dtp_msg){.type = DTP_MSG_TAKEN};
	dtp_server_send(s, e->owner, &m);
	tdelete(e, &s->store, by_key);
	free_entry(e);
}

/* Those who wait for the key.  As many as take an entry may wait, so that it is gone after the last. */
static void answer_all(struct dtp_server *s, const char *key)
{
	for (int i = 0; i < s->npeers; i++)
		if (s->peers[i].wants && !strcmp(s->peers[i].wants, key)) {
			struct stored *e = lookup(s, key);
			if (!e)
				return;
			free(s->peers[i].wants);
			s->peers[i].wants = NULL;
			answer(s, i, e);
		}
}

/* Out of memory drops the value: the ranks that wait for it then run into their deadline. */
static void store_set(struct dtp_server *s, int peer, const struct dtp_msg *m)
{
	char *val = malloc(m->text[1].len + 1);
	struct stored *e = val ? entry_of(s, m->text[0].p) : NULL;

	if (!e) {
		free(val);
		return;
	}
	memcpy(val, m->text[1].p, m->text[1].len + 1);
	free(e->val);
	e->val = val;
	e->len = m->text[1].len;
	e->takers = m->n[0];
	e->owner = peer;
	answer_all(s, m->text[0].p);
}

static void store_get(struct dtp_server *s, int peer, const char *key)
{
	struct stored *e = lookup(s, key);

	if (e) {
		answer(s, peer, e);
	} else {
		free(s->peers[peer].wants);
		s->peers[peer].wants = strdup(key);
	}
}

static void take_messages(struct dtp_server *s, int peer)
{
	struct dtp_msg m;
	enum dtp_inbox_state st;

	while ((st = dtp_inbox_next(&s->peers[peer].in, &m)) == DTP_INBOX_OK) {
		bool stored = !s->ev.relay && peer < s->npeers;
		if (stored && m.type == DTP_MSG_SET)
			store_set(s, peer, &m);
		else if (stored && m.type == DTP_MSG_GET)
			store_get(s, peer, m.text[0].p);
		else
			s->ev.message(s->ev.arg, peer, &m);
		if (s->peers[peer].fd < 0) /* it is gone, or has another number */
			return;
	}
	if (st == DTP_INBOX_CLOSED)
		peer_closed(s, peer);
}

void dtp_server_drain(struct dtp_server *s, int peer)
{
	enum dtp_inbox_state st;

	while (s->peers[peer].fd >= 0) {
		st = dtp_inbox_read(&s->peers[peer].in, s->peers[peer].fd);
		if (st == DTP_INBOX_EMPTY)
			return;
		if (st == DTP_INBOX_CLOSED)
			peer_closed(s, peer);
		else
			take_messages(s, peer);
	}
}

void dtp_server_send_all(struct dtp_server *s, const struct dtp_msg *m)
{
	for (int i = 0; i < places(s); i++)
		dtp_server_send(s, i, m);
}

int dtp_server_entries(const struct dtp_server *s)
{
	return places(s) + 1;
}

void dtp_server_poll(const struct dtp_server *s, struct pollfd *fds)
{
	for (int i = 0; i < places(s); i++)
		fds[i] = (struct pollfd){.fd = s->peers[i].fd, .events = (short)(POLLIN | (s->peers[i].out_len ? POLLOUT : 0))};
	fds[places(s)] = (struct pollfd){.fd = dtp_seconds() < s->deaf_until ? -1 : s->listener, .events = POLLIN};
}

/* The place of a new stranger: a free one, or that of the one who has been silent longest. */
static int place_for_stranger(struct dtp_server *s)
{
	int best = s->npeers;

	for (int i = s->npeers; i < places(s); i++) {
		if (s->peers[i].fd < 0)
			return i;
		if (s->peers[i].since < s->peers[best].since)
			best = i;
	}
	drop(&s->peers[best]);
	return best;
}

static void accept_strangers(struct dtp_server *s)
{
	struct dtp_msg token = dtp_msg_text(DTP_MSG_TOKEN, s->token ? s->token : "");
	int fd;

	while ((fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		int peer = place_for_stranger(s);
		dtp_server_add(s, peer, fd);
		dtp_server_send(s, peer, &token);
	}
	/* No descriptors or memory: whoever waits is still there when asked again, and poll would not wait for it. */
	if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
		s->deaf_until = dtp_seconds() + DEAF_S;
}

static void drop_strangers(struct dtp_server *s)
{
	double now = dtp_seconds();

	for (int i = s->npeers; i < places(s); i++)
		if (s->peers[i].fd >= 0 && (now - s->peers[i].since > STRANGER_S || s->peers[i].in.len > STRANGER_BYTES))
			drop(&s->peers[i]);
}

void dtp_server_handle(struct dtp_server *s, const struct pollfd *fds)
{
	for (int i = 0; i < places(s); i++) {
		if (fds[i].fd != s->peers[i].fd || fds[i].fd < 0)
			continue;
		if (fds[i].revents & POLLOUT && !flush(&s->peers[i]))
			s->peers[i].out_len = 0;
		if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
			dtp_server_drain(s, i);
	}
	if (s->listener >= 0 && fds[places(s)].revents)
		accept_strangers(s);
	drop_strangers(s);
}

static bool is_flushed(const struct dtp_server *s)
{
	for (int i = 0; i < places(s); i++)
		if (s->peers[i].fd >= 0 && s->peers[i].out_len)
			return false;
	return true;
}

void dtp_server_flush(struct dtp_server *s, double seconds)
{
	for (double until = dtp_seconds() + seconds; !is_flushed(s) && dtp_seconds() < until; poll(NULL, 0, 10))
		for (int i = 0; i < places(s); i++)
			if (s->peers[i].fd >= 0 && !flush(&s->peers[i]))
				s->peers[i].out_len = 0;
}
