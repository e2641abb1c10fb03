/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a small file, without its newline; false if there is none. */
static bool first_line(const char *path, char *buf, int len)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(buf, len, f);

	if (f)
		fclose(f);
	if (ok)
		buf[strcspn(buf, "\n")] = '\0';
	return ok;
}

static bool join(char path[PATH_MAX], const char *dir, const char *name)
{
	int n = snprintf(path, PATH_MAX, "%s/%s", dir, name);

	return n > 0 && n < PATH_MAX;
}

/* The number behind `key` at the start of a line ("MemAvailable:  123 kB", "inactive_file 123"). */
static bool keyed(const char *dir, const char *name, const char *key, uint64_t *value)
{
	char path[PATH_MAX], line[256];
	bool found = false;
	FILE *f = join(path, dir, name) ? fopen(path, "re") : NULL;

	while (f && !found && fgets(line, sizeof line, f)) {
		size_t n = strlen(key);
		if (!strncmp(line, key, n) && (line[n] == ' ' || line[n] == ':'))
			found = sscanf(line + n + 1, "%" SCNu64, value) == 1;
	}
	if (f)
		fclose(f);
	return found;
}

static bool number(const char *dir, const char *name, uint64_t *value)
{
	char path[PATH_MAX], line[64];

	return join(path, dir, name) && first_line(path, line, sizeof line) && sscanf(line, "%" SCNu64, value) == 1;
}

/* ---- control groups */

struct group_limits {
	double cpus;   /* 0: none */
	uint64_t room; /* UINT64_MAX: none */
};

/* One folder of the hierarchy, version 2. */
static void limits_v2(const char *dir, struct group_limits *l)
{
	char path[PATH_MAX], line[64];
	uint64_t max, used, cache = 0, quota, period;

	if (number(dir, "memory.max", &max) && number(dir, "memory.current", &used)) {
		/* Clean file pages count as used, but make way. */
		keyed(dir, "memory.stat", "inactive_file", &cache);
		used = used > cache ? used - cache : 0;
		uint64_t room = max > used ? max - used : 0;
		l->room = room < l->room ? room : l->room;
	}
	if (join(path, dir, "cpu.max") && first_line(path, line, sizeof line) &&
	    sscanf(line, "%" SCNu64 " %" SCNu64, &quota, &period) == 2 && period) {
		double cpus = (double)quota / (double)period;
		l->cpus = !l->cpus || cpus < l->cpus ? cpus : l->cpus;
	}
}

static void limits_v1_memory(const char *dir, struct group_limits *l)
{
	uint64_t max, used, cache = 0;

	/* "No limit" is a number near 2^63 there. */
	if (!number(dir, "memory.limit_in_bytes", &max) || max > UINT64_MAX / 4 ||
	    !number(dir, "memory.usage_in_bytes", &used))
		return;
	keyed(dir, "memory.stat", "total_inactive_file", &cache);
	used = used > cache ? used - cache : 0;
	uint64_t room = max > used ? max - used : 0;
	l->room = room < l->room ? room : l->room;
}

static void limits_v1_cpu(const char *dir, struct group_limits *l)
{
	uint64_t quota, period; /* the quota is -1 when there is none: sscanf wraps it */

	if (!number(dir, "cpu.cfs_quota_us", &quota) || !number(dir, "cpu.cfs_period_us", &period) || !period ||
	    quota > INT64_MAX)
		return;
	double cpus = (double)quota / (double)period;
	l->cpus = !l->cpus || cpus < l->cpus ? cpus : l->cpus;
}

/* Calls fn for the group's folder below `mount` and for all above it: every level limits.  In a container the path may
 * name a folder that only the host sees; the mount itself is then the group's own. */
static void each_level(const char *mount, const char *group, void (*fn)(const char *, struct group_limits *),
		       struct group_limits *l)
{
	char dir[PATH_MAX];
	size_t base = strlen(mount);
	int n = snprintf(dir, sizeof dir, "%s%s", mount, group);

	if (n < 0 || (size_t)n >= sizeof dir)
		return;
	for (;;) {
		fn(dir, l);
		char *slash = strrchr(dir, '/');
		if (strlen(dir) <= base || !slash)
			return;
		*slash = '\0';
		if (strlen(dir) < base)
			return;
	}
}

/* Whether `name` is one of the comma-separated controllers list[0..len). */
static bool controls(const char *list, size_t len, const char *name)
{
	size_t n = strlen(name);

	while (len) {
		const char *comma = memchr(list, ',', len);
		size_t word = comma ? (size_t)(comma - list) : len;
		if (word == n && !memcmp(list, name, n))
			return true;
		word += comma != NULL;
		list += word;
		len -= word;
	}
	return false;
}

static struct group_limits group_limits(const char *root)
{
	struct group_limits l = {0, UINT64_MAX};
	char path[PATH_MAX], mount[PATH_MAX], line[PATH_MAX];

	FILE *f = join(path, root, "proc/self/cgroup") ? fopen(path, "re") : NULL;
	while (f && fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = '\0';
		/* "hierarchy:controllers:path" */
		char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
		if (!group)
			continue;
		size_t len = (size_t)(group++ - ++list);
		if (!strcmp(group, "/"))
			group = (char *)"";
		if (!len && join(mount, root, "sys/fs/cgroup"))
			each_level(mount, group, limits_v2, &l);
		if (controls(list, len, "memory") && join(mount, root, "sys/fs/cgroup/memory"))
			each_level(mount, group, limits_v1_memory, &l);
		if (controls(list, len, "cpu") && join(mount, root, "sys/fs/cgroup/cpu"))
			each_level(mount, group, limits_v1_cpu, &l);
	}
	if (f)
		fclose(f);
	return l;
}

/* ---- answers */

static int affinity(void)
{
	/* A machine may have more processors than cpu_set_t holds; the call then fails with EINVAL. */
	for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
		cpu_set_t *set = CPU_ALLOC(cpus);
		size_t size = CPU_ALLOC_SIZE(cpus);
		if (!set)
			break;
		int rc = sched_getaffinity(0, size, set), n = rc ? 0 : CPU_COUNT_S(size, set);
		bool more = rc && errno == EINVAL;
		CPU_FREE(set);
		if (n > 0)
			return n;
		if (!more)
			break;
	}
	return 1;
}

int dtp_host_threads(const char *root)
{
	int n = affinity();
	double cpus = group_limits(root).cpus;

	if (cpus > 0 && cpus < n) {
		n = (int)cpus;
		n += n < cpus;
	}
	return n > 0 ? n : 1;
}

int dtp_host_share(int total, int ranks, int rank)
{
	int n = total / ranks + (rank < total % ranks);

	return n > 0 ? n : 1;
}

struct dtp_host_memory dtp_host_memory(const char *root)
{
	struct dtp_host_memory m = {UINT64_MAX, UINT64_MAX, group_limits(root).room};
	char proc[PATH_MAX];
	uint64_t kb;

	if (join(proc, root, "proc") && keyed(proc, "meminfo", "MemAvailable", &kb) && kb <= UINT64_MAX / 1024)
		m.machine = kb * 1024;
	m.available = m.machine < m.cgroup ? m.machine : m.cgroup;
	return m;
}
