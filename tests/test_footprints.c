/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of memory that was not foreseen. */
#include "footprints.h"
#include "support.h"

enum { RANKS = 3 };

static struct dtp_footprint taken(uint64_t predicted, uint64_t peak)
{
	return (struct dtp_footprint){.weights = predicted, .predicted = predicted, .use = {.peak = peak}};
}

static bool excess(struct dtp_footprint rank[RANKS][DTP_NPHASES], char text[400])
{
	const struct dtp_footprints m = {RANKS, {"text_encoder", "transformer", "vae", "references"}, rank};

	return dtp_footprints_excess(&m, text, 400);
}

static void footprints_as_foreseen(void **state)
{
	struct dtp_footprint rank[RANKS][DTP_NPHASES] = {{{0}}};
	char text[400];

	(void)state;
	assert_false(excess(rank, text)); /* nobody has done anything */
	for (int i = 0; i < RANKS; i++)
		for (int k = 0; k < DTP_NPHASES; k++)
			rank[i][k] = taken(1000000000, k == 2 ? 300000000 : 1050000000); /* just as much as is allowed, or less */
	assert_false(excess(rank, text));
	rank[1][0] = taken(0, 5000);       /* no part of it was foreseen, and none can be compared */
	rank[2][0] = taken(1000000000, 0); /* foreseen, and never begun */
	assert_false(excess(rank, text));
}

static void footprints_worst_excess_is_told(void **state)
{
	struct dtp_footprint rank[RANKS][DTP_NPHASES] = {{{0}}};
	char text[400];

	(void)state;
	rank[0][1] = taken(8000000000, 9000000000);
	assert_true(excess(rank, text));
	assert_string_equal(text, "rank 0 took 9.0 GB of memory in phase 'transformer', where 8.0 GB were foreseen: what the check before a "
				  "run and difftp plan say of this model is too little");
	rank[0][2] = taken(1000000, 1060000);
	rank[2][3] = taken(1000000, 1300000); /* less, but by more */
	assert_true(excess(rank, text));
	assert_non_null(strstr(text, "rank 2 took 1.3 MB of memory in phase 'references', where 1.0 MB were foreseen"));
	rank[2][3] = taken(1000000, 1000000);
	rank[0][1] = taken(8000000000, 8000000000);
	assert_true(excess(rank, text));
	assert_non_null(strstr(text, "rank 0 took 1.1 MB of memory in phase 'vae', where 1.0 MB were foreseen"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(footprints_as_foreseen),
		cmocka_unit_test(footprints_worst_excess_is_told),
	};
	return cmocka_run_group_tests_name("footprints", tests, NULL, NULL);
}
