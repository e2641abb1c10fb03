/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the ranks of an emulated NCCL communicator share: a file without a name, which the other processes open as its maker's
 * descriptor, so that nothing is left of it however they end. */
#include "ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MADE = 64, TIMEOUT_S = 120 };

/* Worlds that this process has made and that others may still open. */
static struct emu_card made[MAX_MADE];
static int nmade;

struct emu_card emu_world_make(void)
{
	struct emu_card card = {.pid = getpid(), .fd = memfd_create("difftp-emulated-nccl", MFD_CLOEXEC)};

	if (nmade == MAX_MADE)
		emu_misuse("more than %d NCCL communicators that not all ranks have joined", MAX_MADE);
	if (card.fd < 0 || ftruncate(card.fd, sizeof(struct emu_world)) ||
	    getrandom(card.token, sizeof card.token, 0) != sizeof card.token ||
	    pwrite(card.fd, card.token, sizeof card.token, offsetof(struct emu_world, token)) != sizeof card.token)
		emu_misuse("no memory for the ranks of NCCL: memfd_create, ftruncate or pwrite failed");
	made[nmade++] = card;
	return card;
}

struct emu_world *emu_world_open(const struct emu_card *card)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)card->pid, (int)card->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	struct emu_world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (w == MAP_FAILED)
		return NULL;
	if (!memcmp(w->token, card->token, sizeof w->token))
		return w;
	munmap(w, sizeof *w);
	return NULL;
}

void emu_world_close(const char token[16])
{
	for (int i = 0; i < nmade; i++)
		if (!memcmp(made[i].token, token, sizeof made[i].token)) {
			close(made[i].fd);
			made[i] = made[--nmade];
			return;
		}
}

/* ---- the others */

void emu_watch_peers(ncclComm_t c)
{
	for (int r = 0; r < c->size; r++)
		c->peer[r] = r == c->rank ? -1 : (int)syscall(SYS_pidfd_open, c->world->seats[r].pid, 0);
}

void emu_unwatch_peers(ncclComm_t c)
{
	for (int r = 0; c->joined && r < c->size; r++)
		if (c->peer[r] >= 0)
			close(c->peer[r]);
}

bool emu_peer_gone(ncclComm_t c, int r)
{
	struct pollfd p = {.fd = c->peer[r], .events = POLLIN};

	if (r == c->rank || !c->joined)
		return false;
	return c->world->seats[r].here != EMU_HERE || p.fd < 0 || poll(&p, 1, 0) == 1;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double timeout(void)
{
	const char *s = getenv("DIFFTP_EMU_NCCL_TIMEOUT");

	return s && *s ? strtod(s, NULL) : TIMEOUT_S;
}

static const char *describe(const struct emu_posted *p, char *buf, size_t size)
{
	snprintf(buf, size, "%s, %llu elements, collective %llu", emu_op_name(p->op), (unsigned long long)p->count,
		 (unsigned long long)p->number);
	return buf;
}

void emu_waits(ncclComm_t c, int r, const char *what)
{
	char ours[128], theirs[128];

	if (emu_peer_gone(c, r)) {
		snprintf(c->error, sizeof c->error, "%s: rank %d of %d is gone", what, r, c->size);
		c->state = ncclRemoteError;
		return;
	}
	if (!c->since)
		c->since = now();
	else if (now() - c->since > timeout())
		emu_misuse("deadlock: rank %d of %d has waited %g s for rank %d: %s (%s), the other's last: %s", c->rank, c->size,
			   now() - c->since, r, what, describe(&c->world->seats[c->rank].doing, ours, sizeof ours),
			   describe(&c->world->seats[r].doing, theirs, sizeof theirs));
}

void emu_waited(ncclComm_t c)
{
	c->since = 0;
}
