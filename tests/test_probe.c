/* SPDX-License-Identifier: Apache-2.0 */
/* What doctor starts in a process of its own. */
#include "support.h"
#include "probe.h"

#include <string.h>
#include <unistd.h>

/* More than is kept of it: 16 MB, in lines of 2 KB. */
static void say_much(const struct dtp_args *args, char **argv, struct dtp_findings *found)
{
	char text[2000];

	(void)args, (void)argv;
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	for (int i = 0; i < 8000; i++)
		dtp_found(found, DTP_VERDICT_OK, NULL, NULL, "%s", text);
	usleep(300000); /* all of it has been read */
	dtp_found(found, DTP_VERDICT_OK, NULL, NULL, "there is room for a short one");
}

/* The rest is read all the same, so that it ends, and nothing of it is put behind what was kept. */
static void probe_that_says_too_much_ends(void **state)
{
	const struct dtp_probe p = {"much", say_much, 10, DTP_VERDICT_FAILURE};
	const struct dtp_args args = {0};
	const cJSON *item;
	int n = 0;

	(void)state;
	cJSON *all = dtp_probe_run(&p, &args, NULL);
	cJSON_ArrayForEach(item, all) {
		assert_string_equal(cJSON_GetObjectItemCaseSensitive(item, "verdict")->valuestring, "ok");
		assert_int_equal(strlen(cJSON_GetObjectItemCaseSensitive(item, "text")->valuestring), 1999);
		n++;
	}
	assert_true(n > 1000 && n < 4000);
	cJSON_Delete(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(probe_that_says_too_much_ends)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
