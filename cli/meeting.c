/* SPDX-License-Identifier: Apache-2.0 */
#include "meeting.h"

#include "clock.h"
#include "control.h"
#include "file.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECT_S 1.0 /* for one address: to connect, and to hear the token */
#define FILE_MAGIC "difftp-rendezvous"
#define MAX_FILE 4096

/* ---- which */

static enum dtp_code parse_tcp(const char *s, struct dtp_meeting *m, struct dtp_err *err)
{
	const char *colon = strrchr(s, ':');
	size_t len = colon ? (size_t)(colon - s) : 0;
	bool brackets = len > 2 && s[0] == '[' && s[len - 1] == ']';
	long port = colon && colon[1] ? strtol(colon + 1, NULL, 10) : 0;

	if (!len || len >= sizeof m->host || colon[1 + strspn(colon + 1, "0123456789")] || port < 1 || port > 65535)
		return dtp_fail(err, DTP_REFUSED,
				"option '--rendezvous': 'tcp:%s' is not 'tcp:HOST:PORT' with a port from 1 to 65535", s);
	snprintf(m->host, sizeof m->host, "%.*s", (int)(len - 2 * brackets), s + brackets);
	m->port = (int)port;
	m->kind = DTP_MEET_TCP;
	snprintf(m->text, sizeof m->text, "tcp:%s", s);
	return DTP_OK;
}

static enum dtp_code parse_rendezvous(const char *s, struct dtp_meeting *m, struct dtp_err *err)
{
	if (!strncmp(s, "tcp:", 4))
		return parse_tcp(s + 4, m, err);
	if (strncmp(s, "file:", 5) || !s[5])
		return dtp_fail(err, DTP_REFUSED, "option '--rendezvous': '%s' is neither 'file:PATH' nor 'tcp:HOST:PORT'", s);
	m->kind = DTP_MEET_FILE;
	m->path = s + 5;
	snprintf(m->text, sizeof m->text, "file '%s'", m->path);
	return DTP_OK;
}

static enum dtp_code derive_ports(const struct dtp_place *p, struct dtp_meeting *m, struct dtp_err *err)
{
	if (strlen(p->master) >= sizeof m->host || p->master_port + DTP_DERIVED_PORTS > 65535)
		return dtp_fail(err, DTP_REFUSED,
				"the variables 'MASTER_ADDR' ('%s') and 'MASTER_PORT' (%d): no name of a host, or a port without %d "
				"others above it, where the ranks meet; --rendezvous tcp:HOST:PORT names another place",
				p->master, p->master_port, DTP_DERIVED_PORTS);
	m->kind = DTP_MEET_PORTS;
	m->port = p->master_port + 1;
	snprintf(m->host, sizeof m->host, "%s", p->master);
	snprintf(m->text, sizeof m->text, "MASTER_ADDR '%s', ports %d to %d", m->host, m->port,
		 m->port + DTP_DERIVED_PORTS - 1);
	return DTP_OK;
}

enum dtp_code dtp_meeting_find(const struct dtp_place *p, const char *rendezvous, struct dtp_meeting *m, struct dtp_err *err)
{
	*m = (struct dtp_meeting){.one_host = p->one_host};
	if (rendezvous && parse_rendezvous(rendezvous, m, err))
		return err->code;
	if (!rendezvous && p->master && derive_ports(p, m, err))
		return err->code;
	if (!rendezvous && !p->master) {
		if (!p->near)
			return dtp_fail(err, DTP_REFUSED,
					"the %d ranks of this job of %s are on several hosts and do not know where to meet: give all of them "
					"--rendezvous file:PATH (in a folder that the hosts share) or tcp:HOST:PORT (on rank 0's host), or set "
					"'MASTER_ADDR' and 'MASTER_PORT'",
					p->size, p->launcher);
		m->kind = DTP_MEET_LOCAL;
		snprintf(m->text, sizeof m->text, "a socket of this host");
	}
	/* A job without a name is told apart by where it meets. */
	snprintf(m->token, sizeof m->token, "%s job '%s'", p->launcher, p->job);
	size_t used = strlen(m->token);
	if (m->kind == DTP_MEET_PORTS || m->kind == DTP_MEET_TCP)
		snprintf(m->token + used, sizeof m->token - used, " port %d",
			 m->kind == DTP_MEET_PORTS ? p->master_port : m->port);
	else if (m->kind == DTP_MEET_LOCAL)
		snprintf(m->token + used, sizeof m->token - used, " user %ld session %ld", (long)getuid(),
			 p->job[0] ? 0L : (long)getsid(0));
	return DTP_OK;
}

/* ---- connecting */

/* Whether the other side says the token, in time. */
static bool knows_token(int fd, const char *token, double until)
{
	struct dtp_inbox in = {0};
	struct dtp_msg m;
	bool ok = false;

	for (;;) {
		enum dtp_inbox_state st = dtp_inbox_next(&in, &m);
		if (st == DTP_INBOX_OK)
			ok = m.type == DTP_MSG_TOKEN && !strcmp(m.text[0].p, token);
		if (st != DTP_INBOX_EMPTY)
			break;
		double left = until - dtp_seconds();
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) < 1 || dtp_inbox_read(&in, fd) == DTP_INBOX_CLOSED)
			break;
	}
	dtp_inbox_free(&in);
	return ok;
}

/* A connection to a server that knows the token, or -1 with errno. */
static int connect_to(const struct sockaddr *addr, socklen_t len, const char *token)
{
	double until = dtp_seconds() + CONNECT_S;
	int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	socklen_t size = sizeof error;

	if (fd < 0)
		return -1;
	if (connect(fd, addr, len))
		error = errno;
	if (error == EINPROGRESS && poll(&p, 1, (int)(CONNECT_S * 1000)) < 1)
		error = ETIMEDOUT;
	else if (error == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
		error = errno;
	if (!error && !knows_token(fd, token, until))
		error = EADDRINUSE; /* by somebody else */
	if (!error)
		return fd;
	close(fd);
	errno = error;
	return -1;
}

static socklen_t local_address(const struct dtp_meeting *m, struct sockaddr_un *addr)
{
	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	/* The leading zero makes it a name without a file. */
	int n = snprintf(addr->sun_path + 1, sizeof addr->sun_path - 1, "difftp %s", m->token);
	size_t room = sizeof addr->sun_path - 1;
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + ((size_t)n < room ? (size_t)n : room - 1));
}

static int connect_tcp(const char *host, int port, const char *token, char *why, size_t size)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
	char service[8];
	int fd = -1, rc;

	snprintf(service, sizeof service, "%d", port);
	rc = getaddrinfo(host, service, &hints, &list);
	if (rc) {
		snprintf(why, size, "'%s': %s", host, gai_strerror(rc));
		return -1;
	}
	for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
		fd = connect_to(a->ai_addr, a->ai_addrlen, token);
		if (fd < 0)
			snprintf(why, size, "port %d of '%s': %s", port, host,
				 errno == EADDRINUSE ? "another program answers there" : strerror(errno));
	}
	freeaddrinfo(list);
	return fd;
}

/* ---- the file: a line each for what it is, the token, the port, and every address of rank 0 */

static bool read_file(const char *path, char *buf, size_t size)
{
	FILE *f = fopen(path, "re");
	size_t n = f ? fread(buf, 1, size - 1, f) : 0;

	if (f)
		fclose(f);
	buf[n] = '\0';
	return f != NULL;
}

/* The next line of *text, cut out of it; "" at the end. */
static char *next_line(char **text)
{
	char *line = *text, *end = strchr(line, '\n');

	if (end)
		*end++ = '\0';
	*text = end ? end : line + strlen(line);
	return line;
}

/* A rendezvous of this job (begins as our token does), taken apart. */
static bool parse_file(char *text, const char *job, char **token, int *port, char **addresses)
{
	if (strcmp(next_line(&text), FILE_MAGIC))
		return false;
	*token = next_line(&text);
	*port = (int)strtol(next_line(&text), NULL, 10);
	*addresses = text;
	return !strncmp(*token, job, strlen(job)) && *port > 0 && *port < 65536;
}

static int connect_by_file(const struct dtp_meeting *m, char *why, size_t size)
{
	char text[MAX_FILE], *token, *addresses;
	int port, fd = -1;

	if (!read_file(m->path, text, sizeof text)) {
		snprintf(why, size, "%s", strerror(errno));
		return -1;
	}
	if (!parse_file(text, m->token, &token, &port, &addresses)) {
		snprintf(why, size, "the file is not of this job");
		return -1;
	}
	while (*addresses && fd < 0)
		fd = connect_tcp(next_line(&addresses), port, token, why, size);
	return fd;
}

int dtp_meeting_try(struct dtp_meeting *m, char *why, size_t size)
{
	struct sockaddr_un local;
	int fd = -1;

	switch (m->kind) {
	case DTP_MEET_TCP:
		return connect_tcp(m->host, m->port, m->token, why, size);
	case DTP_MEET_PORTS:
		for (int i = 0; i < DTP_DERIVED_PORTS && fd < 0; i++)
			fd = connect_tcp(m->host, m->port + i, m->token, why, size);
		return fd;
	case DTP_MEET_FILE:
		return connect_by_file(m, why, size);
	case DTP_MEET_LOCAL:
		fd = connect_to((struct sockaddr *)&local, local_address(m, &local), m->token);
		if (fd < 0)
			snprintf(why, size, "%s", strerror(errno));
	}
	return fd;
}

/* ---- listening */

static int listen_at(const struct sockaddr *addr, socklen_t len)
{
	int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1, error;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (!bind(fd, addr, len) && !listen(fd, 128))
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

/* All addresses of this host. */
static int listen_everywhere(int port)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
	struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = INADDR_ANY};
	int fd = listen_at((struct sockaddr *)&any6, sizeof any6); /* IPv4 comes in there too */

	return fd >= 0 || errno == EADDRINUSE ? fd : listen_at((struct sockaddr *)&any4, sizeof any4);
}

static bool is_loopback(const struct sockaddr *a)
{
	if (a->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
	return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* At the host's address.  A name that means the loopback here means another address on other hosts, and a name of a service
 * may mean one that is not this host's own: all addresses then, where `anyhow`. */
static int listen_tcp(const char *host, int port, bool anyhow, char *why, size_t size)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
	char service[8];
	int fd = -1, rc;

	snprintf(service, sizeof service, "%d", port);
	rc = getaddrinfo(host, service, &hints, &list);
	if (rc) {
		snprintf(why, size, "%s", gai_strerror(rc));
		errno = EADDRNOTAVAIL;
		return -1;
	}
	fd = anyhow && is_loopback(list->ai_addr) ? listen_everywhere(port) : listen_at(list->ai_addr, list->ai_addrlen);
	if (fd < 0 && errno == EADDRNOTAVAIL && anyhow)
		fd = listen_everywhere(port);
	rc = errno;
	freeaddrinfo(list);
	errno = rc;
	if (fd < 0)
		snprintf(why, size, "%s", errno == EADDRINUSE ? "the port is in use by another program"
				: errno == EADDRNOTAVAIL ? "no address of this host, on which rank 0 runs" : strerror(errno));
	return fd;
}

static enum dtp_code twice(const struct dtp_meeting *m, struct dtp_err *err)
{
	return dtp_fail(err, DTP_REFUSED, "rank 0 of this job is there already (%s): two processes have been given the number 0",
			m->text);
}

static enum dtp_code open_ports(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err)
{
	char why[160] = "";

	for (int i = 0; i < DTP_DERIVED_PORTS; i++) {
		*fd = listen_tcp(m->host, m->port + i, !m->one_host, why, sizeof why);
		if (*fd >= 0)
			return DTP_OK;
		if (errno == EADDRINUSE && (*twin = connect_tcp(m->host, m->port + i, m->token, why, sizeof why)) >= 0)
			return twice(m, err);
	}
	return dtp_fail(err, DTP_REFUSED, "cannot listen at %s: %s", m->text, why);
}

static enum dtp_code open_tcp(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err)
{
	char why[160], ignored[160];

	*fd = listen_tcp(m->host, m->port, false, why, sizeof why);
	if (*fd >= 0)
		return DTP_OK;
	if (errno == EADDRINUSE && (*twin = connect_tcp(m->host, m->port, m->token, ignored, sizeof ignored)) >= 0)
		return twice(m, err);
	return dtp_fail(err, DTP_REFUSED, "cannot listen at %s: %s", m->text, why);
}

static enum dtp_code open_local(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err)
{
	struct sockaddr_un local;
	socklen_t len = local_address(m, &local);

	*fd = listen_at((struct sockaddr *)&local, len);
	if (*fd >= 0)
		return DTP_OK;
	if (errno == EADDRINUSE && (*twin = connect_to((struct sockaddr *)&local, len, m->token)) >= 0)
		return twice(m, err);
	return dtp_fail(err, DTP_REFUSED, "cannot listen at %s: %s", m->text, strerror(errno));
}

/* The addresses of this host that others may reach, then those of the loopback. */
static void write_addresses(FILE *f, bool one_host)
{
	struct ifaddrs *all = NULL;
	char text[NI_MAXHOST];

	if (getifaddrs(&all))
		all = NULL;
	for (int loopback = one_host; loopback < 2; loopback++)
		for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
			const struct sockaddr *a = i->ifa_addr;
			if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6) || !(i->ifa_flags & IFF_UP) ||
			    is_loopback(a) != loopback)
				continue;
			socklen_t len = a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
			if (!getnameinfo(a, len, text, sizeof text, NULL, 0, NI_NUMERICHOST) && !strchr(text, '%'))
				fprintf(f, "%s\n", text);
		}
	freeifaddrs(all);
}

static enum dtp_code write_file(struct dtp_meeting *m, int fd, struct dtp_err *err)
{
	struct sockaddr_storage at;
	socklen_t len = sizeof at;
	struct dtp_outfile out;
	uint64_t nonce;
	size_t used = strlen(m->token);

	if (getsockname(fd, (struct sockaddr *)&at, &len) || getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
		return dtp_fail(err, DTP_FAILED, "no number for %s: %s", m->text, strerror(errno));
	snprintf(m->token + used, sizeof m->token - used, " %016llx", (unsigned long long)nonce);
	m->port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port : ((struct sockaddr_in6 *)&at)->sin6_port);
	if (dtp_outfile_open(m->path, NULL, &out, err))
		return dtp_err_prefix(err, "option '--rendezvous': ");
	fprintf(out.f, FILE_MAGIC "\n%s\n%d\n", m->token, m->port);
	write_addresses(out.f, m->one_host);
	return dtp_outfile_commit(&out, err);
}

static enum dtp_code open_file(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err)
{
	struct sockaddr_in loopback = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	char text[MAX_FILE], why[160];

	if (read_file(m->path, text, sizeof text) && strncmp(text, FILE_MAGIC "\n", strlen(FILE_MAGIC) + 1))
		return dtp_fail(err, DTP_REFUSED, "option '--rendezvous': '%s' exists and is no rendezvous of difftp: it is left as it is",
				m->path);
	*twin = connect_by_file(m, why, sizeof why);
	if (*twin >= 0)
		return twice(m, err);
	if (dtp_outfile_check(m->path, err))
		return dtp_err_prefix(err, "option '--rendezvous': ");
	*fd = m->one_host ? listen_at((struct sockaddr *)&loopback, sizeof loopback) : listen_everywhere(0);
	if (*fd < 0)
		return dtp_fail(err, DTP_FAILED, "cannot listen for %s: %s", m->text, strerror(errno));
	return write_file(m, *fd, err);
}

enum dtp_code dtp_meeting_open(struct dtp_meeting *m, int *fd, int *twin, struct dtp_err *err)
{
	enum dtp_code code = DTP_OK;

	*fd = *twin = -1;
	switch (m->kind) {
	case DTP_MEET_TCP:
		code = open_tcp(m, fd, twin, err);
		break;
	case DTP_MEET_PORTS:
		code = open_ports(m, fd, twin, err);
		break;
	case DTP_MEET_FILE:
		code = open_file(m, fd, twin, err);
		break;
	case DTP_MEET_LOCAL:
		code = open_local(m, fd, twin, err);
	}
	if (code && *fd >= 0)
		close(*fd);
	return code;
}

void dtp_meeting_close(const struct dtp_meeting *m)
{
	char text[MAX_FILE], *token, *addresses;
	int port;

	/* Unless another job has put its own there. */
	if (m->kind == DTP_MEET_FILE && read_file(m->path, text, sizeof text) &&
	    parse_file(text, m->token, &token, &port, &addresses))
		unlink(m->path);
}

void dtp_socket_address(int fd, char *buf, size_t size)
{
	struct sockaddr_storage at;
	socklen_t len = sizeof at;

	buf[0] = '\0';
	if (getsockname(fd, (struct sockaddr *)&at, &len) || at.ss_family == AF_UNIX)
		return;
	if (getnameinfo((struct sockaddr *)&at, len, buf, (socklen_t)size, NULL, 0, NI_NUMERICHOST))
		buf[0] = '\0';
	if (!strncmp(buf, "::ffff:", 7)) /* IPv4 that came in at an IPv6 socket */
		memmove(buf, buf + 7, strlen(buf + 7) + 1);
}

bool dtp_socket_unreachable(int fd)
{
	struct tcp_info info;
	socklen_t len = sizeof info;

	return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) && info.tcpi_retransmits > 1;
}
