/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper of a rank, where memory runs out before it has begun. */
#include "support.h"
#include "member.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The linker leads the program's own calls here (Makefile). */
extern void *__real_calloc(size_t, size_t);
void *__wrap_calloc(size_t n, size_t size);
static int good = -1; /* so many more are given; negative: all */

void *__wrap_calloc(size_t n, size_t size)
{
	if (good) {
		good -= good > 0;
		return __real_calloc(n, size);
	}
	errno = ENOMEM;
	return NULL;
}

/* Descriptor 0 is the standard input of whoever started the rank. */
static void no_memory_closes_nothing(void **state)
{
	struct dtp_place place = {.rank = 1, .size = 2};
	struct dtp_meeting meeting = {.kind = DTP_MEET_LOCAL};
	struct dtp_args args = {0};
	int fd = fcntl(STDIN_FILENO, F_GETFD) < 0 ? open("/dev/null", O_RDONLY) : -1;

	(void)state;
	for (int n = 0; n < 4; n++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_member *m;
		good = n;
		enum dtp_code code = dtp_member_join(&m, &place, &meeting, &args, 0.01, &err);
		dtp_member_free(m);
		good = -1;
		assert_int_equal(code, DTP_FAILED);
		assert_string_equal(err.message, "out of memory");
		assert_true(fcntl(STDIN_FILENO, F_GETFD) >= 0);
	}
	if (fd >= 0)
		close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_memory_closes_nothing)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
