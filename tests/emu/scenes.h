/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the emulator, and of what it stands in for: a case is a process of its own, in each of the modes that it is for, which must
 * end as it says.  On a GPU (where.h) only those that ask nothing of the emulator are played, once: they are right, and without settings. */
#ifndef EMU_SCENES_H
#define EMU_SCENES_H

#include "../support.h"

#include "emu.h"
#include "where.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { E = 1, D = 2, R = 4, ALL = E | D | R, /* eager, deferred, random */
	ONLY_EMULATED = 8 /* makes calls fail, or counts what only the emulator counts */ };

struct scene {
	const char *name;
	void (*play)(void);
	int modes, status;
	const char *says, *settings[2]; /* NAME=VALUE */
};
#define RIGHT(f, modes, ...) {#f, f, modes, 0, "", {__VA_ARGS__}}
#define WRONG(f, modes, says) {#f, f, modes, EMU_EXIT, says, {NULL}}

/* What must hold in the process of a case: its message is what the test shows. */
static inline void must_(bool holds, const char *what, int line)
{
	if (!holds) {
		fprintf(stderr, "line %d: %s does not hold\n", line, what);
		_exit(1);
	}
}
#define must(x) must_(x, #x, __LINE__)
#define ok(call) must((call) == cudaSuccess)

static inline void play(const struct scene *s, int mode)
{
	FILE *log = tmpfile();
	char text[4096] = "";
	int status;

	assert_non_null(log);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fileno(log), STDERR_FILENO);
		setenv("DIFFTP_EMU_STREAMS", stream_modes[mode], 1);
		for (int i = 0; i < 2 && s->settings[i]; i++)
			putenv((char *)(uintptr_t)s->settings[i]);
		alarm(WHERE_SECONDS);
		s->play();
		exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	rewind(log);
	text[fread(text, 1, sizeof text - 1, log)] = 0;
	fclose(log);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != s->status || !strstr(text, s->says))
		fail_msg("%s streams: status %#x instead of exit %d, and on stderr '%s' instead of '%s'", stream_modes[mode], (unsigned)status,
			 s->status, text, s->says);
}

static inline bool played_here(const struct scene *s)
{
	return EMULATED || !(s->modes & ONLY_EMULATED || s->status || s->settings[0]);
}

static inline void in_its_modes(void **state)
{
	const struct scene *s = *state;

	for (int mode = 0; mode < NMODES; mode++)
		if (!EMULATED || s->modes & 1 << mode)
			play(s, mode);
}

static inline int play_all(const char *group, const struct scene *scenes, size_t n)
{
	struct CMUnitTest *tests = calloc(n, sizeof *tests);
	size_t played = 0;

	if (!tests)
		return 1;
	for (size_t i = 0; i < n; i++)
		if (played_here(&scenes[i]))
			tests[played++] = (struct CMUnitTest){.name = scenes[i].name, .test_func = in_its_modes,
							      .initial_state = (void *)(uintptr_t)&scenes[i]};
	int rc = _cmocka_run_group_tests(group, tests, played, NULL, NULL);
	free(tests);
	return rc;
}
#endif
