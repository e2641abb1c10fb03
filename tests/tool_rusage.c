/* SPDX-License-Identifier: Apache-2.0 */
/* What a command takes of the processors, whatever else they do: tool_rusage FILE COMMAND [ARGUMENT...]
 * Runs it, writes microseconds of processor time (its children's included) to FILE, and exits as it did. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long long microseconds(struct timeval t)
{
	return t.tv_sec * 1000000LL + t.tv_usec;
}

int main(int argc, char **argv)
{
	struct rusage used;
	int status;

	if (argc < 3) {
		fputs("usage: tool_rusage FILE COMMAND [ARGUMENT...]\n", stderr);
		return 2;
	}
	pid_t pid = fork();
	if (pid == 0) {
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}
	if (pid < 0 || wait4(pid, &status, 0, &used) != pid) {
		perror("tool_rusage");
		return 2;
	}
	FILE *f = fopen(argv[1], "w");
	if (!f || fprintf(f, "%lld\n", microseconds(used.ru_utime) + microseconds(used.ru_stime)) < 0 || fclose(f)) {
		perror(argv[1]);
		return 2;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
