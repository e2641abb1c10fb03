/* SPDX-License-Identifier: Apache-2.0 */
#include "guest.h"
#include "fnv.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the one who comes */

static void link_of(const char *path, char *buf, size_t size)
{
	ssize_t n = readlink(path, buf, size - 1);

	buf[n > 0 ? n : 0] = '\0';
}

/* A number that is the same for the same set of processors (a hash of their bits). */
static void processors(char *buf, size_t size)
{
	uint64_t h = 0;

	for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) { /* a machine may have more than cpu_set_t holds */
		cpu_set_t *set = CPU_ALLOC(cpus);
		size_t bytes = CPU_ALLOC_SIZE(cpus);
		int rc = set ? sched_getaffinity(0, bytes, set) : 0;
		if (set && !rc)
			h = dtp_fnv1a(set, bytes);
		CPU_FREE(set);
		if (!rc)
			break;
	}
	snprintf(buf, size, "%" PRIx64, h);
}

void dtp_guest_self(struct dtp_guest *g)
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	*g = (struct dtp_guest){.pid = getpid()};
	gethostname(g->host, sizeof g->host - 1);
	if (!f || !fgets(g->machine, sizeof g->machine, f))
		snprintf(g->machine, sizeof g->machine, "%s", g->host);
	if (f)
		fclose(f);
	g->machine[strcspn(g->machine, "\n")] = '\0';
	link_of("/proc/self/ns/net", g->net, sizeof g->net);
	link_of("/proc/self/ns/pid", g->pids, sizeof g->pids);
	processors(g->processors, sizeof g->processors);
	snprintf(g->version, sizeof g->version, "%s", DTP_VERSION);
}

/* Strings of fixed room, packed one behind the other with their NULs; `version` first, which every version reads. */
struct field {
	char *at;
	size_t size;
};
#define NFIELDS 7
static void fields(const struct dtp_guest *g, struct field f[NFIELDS])
{
	struct dtp_guest *w = (struct dtp_guest *)g;
	const struct field all[NFIELDS] = {{w->version, sizeof w->version}, {w->host, sizeof w->host},
		{w->machine, sizeof w->machine}, {w->net, sizeof w->net}, {w->pids, sizeof w->pids},
		{w->processors, sizeof w->processors}, {w->address, sizeof w->address}};

	memcpy(f, all, sizeof all);
}

struct dtp_msg dtp_guest_message(const struct dtp_guest *g, char *buf, size_t size)
{
	struct dtp_msg m = {.type = DTP_MSG_JOIN,
		.n = {DTP_CONTROL_VERSION, (uint64_t)g->rank, (uint64_t)g->pid, (uint64_t)g->size},
		.text = {{buf, 0}, {g->args, g->args_len}}};
	struct field f[NFIELDS];

	fields(g, f);
	for (int i = 0; i < NFIELDS && m.text[0].len + f[i].size <= size; i++) {
		size_t n = strlen(f[i].at) + 1;
		memcpy(buf + m.text[0].len, f[i].at, n);
		m.text[0].len += n;
	}
	return m;
}

bool dtp_guest_read(struct dtp_guest *g, const struct dtp_msg *m)
{
	const char *p = m->text[0].p, *end = p + m->text[0].len;
	struct field f[NFIELDS];

	*g = (struct dtp_guest){.rank = m->n[1] < INT32_MAX ? (int)m->n[1] : -1, .pid = (pid_t)m->n[2],
		.size = m->n[3] < INT32_MAX ? (int)m->n[3] : -1};
	fields(g, f);
	for (int i = 0; i < NFIELDS; i++) {
		const char *nul = p < end ? memchr(p, '\0', (size_t)(end - p)) : NULL;
		if (!nul)
			return false;
		snprintf(f[i].at, f[i].size, "%s", p);
		p = nul + 1;
	}
	if (m->n[0] != DTP_CONTROL_VERSION || !(g->args = malloc(m->text[1].len + 1)))
		return false;
	memcpy(g->args, m->text[1].p, m->text[1].len + 1);
	g->args_len = m->text[1].len;
	return true;
}

/* ---- where it sits */

static bool same_host(const struct dtp_guest *a, const struct dtp_guest *b)
{
	return !strcmp(a->machine, b->machine) && !strcmp(a->host, b->host);
}

/* Rank 0's end of the connections to the others is as good for all that share its network; it has been put into all[0]. */
static const char *address_of(const struct dtp_guest *all, const struct dtp_guest *g)
{
	bool near = !strcmp(all[0].machine, g->machine) && !strcmp(all[0].net, g->net);

	return near ? all[0].address : g->address;
}

bool dtp_seat_make(struct dtp_seat *seat, const struct dtp_guest *all, int size, int rank)
{
	const struct dtp_guest *me = &all[rank];
	bool near = !strcmp(all[0].machine, me->machine) && !strcmp(all[0].pids, me->pids);

	*seat = (struct dtp_seat){.rank = rank, .size = size, .local = calloc(2 * (size_t)size, sizeof(int)),
		.first_pid = near ? all[0].pid : 0};
	if (!seat->local)
		return false;
	for (int r = 0; r < size; r++) {
		bool first = true;
		for (int s = 0; s < r && first; s++)
			first = !same_host(&all[r], &all[s]);
		seat->hosts += first;
		if (!same_host(&all[r], me))
			continue;
		seat->local_rank += r < rank;
		seat->local[seat->nlocal++] = r;
	}
	for (int i = 0; i < seat->nlocal; i++)
		seat->local[seat->nlocal + i] = !strcmp(all[seat->local[i]].processors, me->processors);
	snprintf(seat->address, sizeof seat->address, "%s", address_of(all, me));
	snprintf(seat->first_host, sizeof seat->first_host, "%s", all[0].host);
	return true;
}

/* texts: the local ranks; then address, host, number of hosts, own number, as strings */
struct dtp_msg dtp_seat_message(const struct dtp_seat *s, char *buf, size_t size)
{
	int n = snprintf(buf, size, "%s%c%s%c%d%c%d%c%d", s->address, 0, s->first_host, 0, s->hosts, 0, s->rank, 0, s->size);

	return (struct dtp_msg){.type = DTP_MSG_SEAT,
		.n = {(uint64_t)s->local_rank, (uint64_t)s->nlocal, (uint64_t)s->first_pid},
		.text = {{(const char *)s->local, 2 * (size_t)s->nlocal * sizeof(int)}, {buf, n > 0 && (size_t)n < size ? (size_t)n : 0}}};
}

bool dtp_seat_read(struct dtp_seat *s, const struct dtp_msg *m)
{
	const char *p = m->text[1].p, *end = p + m->text[1].len, *word[5] = {NULL};

	*s = (struct dtp_seat){.local_rank = (int)m->n[0], .nlocal = (int)m->n[1], .first_pid = (pid_t)m->n[2]};
	for (int i = 0; i < 5 && p <= end; i++, p += strlen(p) + 1)
		word[i] = p;
	s->local = malloc(m->text[0].len + sizeof(int));
	if (!word[4] || !s->local || m->text[0].len != 2 * (size_t)s->nlocal * sizeof(int))
		return false;
	memcpy(s->local, m->text[0].p, m->text[0].len);
	snprintf(s->address, sizeof s->address, "%s", word[0]);
	snprintf(s->first_host, sizeof s->first_host, "%s", word[1]);
	s->hosts = (int)strtol(word[2], NULL, 10);
	s->rank = (int)strtol(word[3], NULL, 10);
	s->size = (int)strtol(word[4], NULL, 10);
	return true;
}

void dtp_seat_free(struct dtp_seat *s)
{
	free(s->local);
	s->local = NULL;
}
