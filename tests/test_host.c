/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of control groups, read from a made-up /proc and /sys. */
#include "support.h"

#include "host.h"

#include <sched.h>
#include <sys/stat.h>

static int roots;

/* A fresh root folder. */
static const char *new_root(void)
{
	static char path[600];
	snprintf(path, sizeof path, "%s/root%d", temp_dir(), roots++);
	assert_int_equal(mkdir(path, 0755), 0);
	return path;
}

static void put(const char *root, const char *name, const char *text)
{
	char path[1200];
	snprintf(path, sizeof path, "%s/%s", root, name);
	for (char *p = path + strlen(root) + 1; *p; p++)
		if (*p == '/') {
			*p = '\0';
			mkdir(path, 0755);
			*p = '/';
		}
	write_file(path, text, strlen(text));
}

static int processors(void)
{
	cpu_set_t set;
	assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
	return CPU_COUNT(&set);
}

static void host_without_limits(void **state)
{
	(void)state;
	const char *root = new_root();
	struct dtp_host_memory m = dtp_host_memory(root);
	assert_true(m.available == UINT64_MAX && m.cgroup == UINT64_MAX);
	assert_int_equal(dtp_host_threads(root), processors());

	put(root, "proc/meminfo", "MemTotal:       100 kB\nMemAvailable:    42 kB\n");
	put(root, "proc/self/cgroup", "0::/\n");
	put(root, "sys/fs/cgroup/memory.max", "max\n");
	put(root, "sys/fs/cgroup/memory.current", "1000\n");
	put(root, "sys/fs/cgroup/cpu.max", "max 100000\n");
	m = dtp_host_memory(root);
	assert_true(m.available == 42 * 1024 && m.machine == 42 * 1024 && m.cgroup == UINT64_MAX);
	assert_int_equal(dtp_host_threads(root), processors());
}

static void host_cgroup_v2_tightest_level_counts(void **state)
{
	(void)state;
	const char *root = new_root();
	put(root, "proc/meminfo", "MemAvailable: 1000000 kB\n");
	put(root, "proc/self/cgroup", "0::/a/b\n");
	put(root, "sys/fs/cgroup/a/memory.max", "5000000\n");
	put(root, "sys/fs/cgroup/a/memory.current", "3000000\n");
	put(root, "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file_x 7\ninactive_file 500000\n");
	put(root, "sys/fs/cgroup/a/b/memory.max", "9000000\n");
	put(root, "sys/fs/cgroup/a/b/memory.current", "1000000\n");
	put(root, "sys/fs/cgroup/a/cpu.max", "max 100000\n");
	put(root, "sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
	struct dtp_host_memory m = dtp_host_memory(root);
	assert_true(m.cgroup == 2500000 && m.available == 2500000 && m.machine == 1000000 * 1024u);
	assert_int_equal(dtp_host_threads(root), 1);
	if (processors() >= 2) {
		put(root, "sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"); /* one and a half: two threads */
		assert_int_equal(dtp_host_threads(root), 2);
	}
	/* More in use than allowed, as when the limit was lowered. */
	put(root, "sys/fs/cgroup/a/b/memory.max", "10\n");
	assert_true(dtp_host_memory(root).available == 0);
}

static void host_cgroup_v1(void **state)
{
	(void)state;
	const char *root = new_root();
	/* In a container the path is the host's; only the mount's own files exist. */
	put(root, "proc/self/cgroup", "9:memory:/docker/x\n3:cpuacct,cpu:/docker/x\n1:name=systemd:/docker/x\n");
	put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "8000000\n");
	put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000\n");
	put(root, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1000000\n");
	put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
	put(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
	assert_true(dtp_host_memory(root).available == 6000000);
	assert_int_equal(dtp_host_threads(root), 1);
	put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
	assert_true(dtp_host_memory(root).available == UINT64_MAX);
	assert_int_equal(dtp_host_threads(root), processors());
}

static void host_garbage_is_no_limit(void **state)
{
	(void)state;
	const char *root = new_root();
	put(root, "proc/meminfo", "MemAvailable: lots\n");
	put(root, "proc/self/cgroup", "\n:::\nx\n0:\n0::/nowhere/../\n");
	put(root, "sys/fs/cgroup/memory.max", "\n");
	put(root, "sys/fs/cgroup/memory.current", "x\n");
	put(root, "sys/fs/cgroup/cpu.max", "1 0\n");
	assert_true(dtp_host_memory(root).available == UINT64_MAX);
	assert_int_equal(dtp_host_threads(root), processors());
}

static void host_threads_are_shared_out(void **state)
{
	(void)state;
	for (int total = 1; total < 40; total++)
		for (int ranks = 1; ranks <= total; ranks++) {
			int sum = 0;
			for (int r = 0; r < ranks; r++) {
				int n = dtp_host_share(total, ranks, r);
				assert_true(n == total / ranks || n == total / ranks + 1);
				assert_true(r == 0 || n <= dtp_host_share(total, ranks, r - 1));
				sum += n;
			}
			assert_int_equal(sum, total);
		}
	assert_int_equal(dtp_host_share(2, 8, 7), 1);
}

static void host_the_real_one_answers(void **state)
{
	(void)state;
	assert_true(dtp_host_threads("") >= 1 && dtp_host_threads("") <= processors());
	assert_true(dtp_host_memory("").available > 1 << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_without_limits),
		cmocka_unit_test(host_cgroup_v2_tightest_level_counts),
		cmocka_unit_test(host_cgroup_v1),
		cmocka_unit_test(host_garbage_is_no_limit),
		cmocka_unit_test(host_threads_are_shared_out),
		cmocka_unit_test(host_the_real_one_answers),
	};
	return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
