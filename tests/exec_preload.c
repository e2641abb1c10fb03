/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded by LD_PRELOAD: the ranks are started as $RANK_PROGRAM instead of this very program file, so that a test can put
 * something around them.  (valgrind cannot follow execv of /proc/self/exe: that is valgrind.) */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int execv(const char *path, char *const argv[])
{
	int (*real)(const char *, char *const[]);
	const char *instead = getenv("RANK_PROGRAM");

	*(void **)&real = dlsym(RTLD_NEXT, "execv");
	return real(instead && !strcmp(path, "/proc/self/exe") ? instead : path, argv);
}
