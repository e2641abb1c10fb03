/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

#include "json.h"
#include "scheduler.h"

#include <math.h>
#include <sys/stat.h>

static const struct dtp_scheduler thousand = {1000};

static void assert_same(float got, const cJSON *want, const char *line, const char *what, int i)
{
	float w = (float)want->valuedouble;
	if (memcmp(&got, &w, sizeof w))
		fail_msg("%s[%d] is %.9g, expected %.9g: %.60s", what, i, (double)got, (double)w, line);
}

static void scheduler_schedule_vectors(void **state)
{
	char *all = read_file(fixture("reference/schedule_vectors.jsonl"), NULL), *save;
	int lines = 0;
	static struct dtp_schedule s;
	(void)state;
	for (char *line = strtok_r(all, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
		struct dtp_err err = DTP_ERR_INIT;
		struct dtp_json doc;
		int64_t tokens, steps;
		double mu;
		assert_int_equal(dtp_json_parse("line", line, strlen(line), &doc, &err), DTP_OK);
		assert_int_equal(dtp_json_int(&doc, NULL, "image_tokens", 1, 1 << 20, &tokens, &err), DTP_OK);
		assert_int_equal(dtp_json_int(&doc, NULL, "steps", 1, DTP_MAX_STEPS, &steps, &err), DTP_OK);
		assert_int_equal(dtp_json_double(&doc, NULL, "mu", -10, 10, &mu, &err), DTP_OK);
		dtp_schedule_make(&thousand, tokens, (int)steps, &s);
		if (s.mu != mu)
			fail_msg("mu is %.17g, expected %.17g", s.mu, mu);
		assert_int_equal(s.steps, steps);
		const cJSON *sigmas = cJSON_GetObjectItem(doc.root, "sigmas");
		const cJSON *timesteps = cJSON_GetObjectItem(doc.root, "timesteps");
		assert_int_equal(cJSON_GetArraySize(sigmas), steps + 1);
		assert_int_equal(cJSON_GetArraySize(timesteps), steps);
		for (int i = 0; i <= steps; i++)
			assert_same(s.sigmas[i], cJSON_GetArrayItem(sigmas, i), line, "sigmas", i);
		for (int i = 0; i < steps; i++)
			assert_same(s.timesteps[i], cJSON_GetArrayItem(timesteps, i), line, "timesteps", i);
		dtp_json_free(&doc);
	}
	assert_int_equal(lines, 66);
	free(all);
}

static void scheduler_schedule_bounds(void **state)
{
	static struct dtp_schedule s;
	(void)state;
	dtp_schedule_make(&thousand, 4096, 1, &s);
	assert_true(s.sigmas_in[0] == 1 && s.sigmas[0] == 1 && s.sigmas[1] == 0 && s.timesteps[0] == 1000);
	dtp_schedule_make(&thousand, 4096, DTP_MAX_STEPS, &s);
	assert_true(s.sigmas_in[DTP_MAX_STEPS - 1] == 1.0 / DTP_MAX_STEPS);
	assert_true(s.sigmas[DTP_MAX_STEPS] == 0);
	for (int i = 1; i <= DTP_MAX_STEPS; i++)
		assert_true(s.sigmas[i] < s.sigmas[i - 1]);
	dtp_schedule_make(&(struct dtp_scheduler){500}, 4096, 2, &s);
	assert_true(s.timesteps[1] == s.sigmas[1] * 500);
}

static enum dtp_code load(const char *text, struct dtp_scheduler *s, struct dtp_err *err)
{
	char path[600];
	snprintf(path, sizeof path, "%s/scheduler_config.json", temp_dir());
	write_file(path, text, strlen(text));
	*err = (struct dtp_err)DTP_ERR_INIT;
	return dtp_scheduler_load(temp_dir(), s, err);
}

static void scheduler_load_refused(void **state)
{
#define HEAD "{\"_class_name\":\"FlowMatchEulerDiscreteScheduler\""
#define ON HEAD ",\"use_dynamic_shifting\":true"
	static const struct {
		const char *text, *message[2];
	} cases[] = {
		{"{", {"scheduler_config.json:1:2: malformed JSON"}},
		{"{}", {"'_class_name' is missing"}},
		{"{\"_class_name\":\"DDIMScheduler\",\"use_dynamic_shifting\":true}", {"'DDIMScheduler'", "FlowMatchEuler"}},
		{HEAD "}", {"'use_dynamic_shifting' is false"}},
		{HEAD ",\"use_dynamic_shifting\":false}", {"'use_dynamic_shifting' is false"}},
		{HEAD ",\"use_dynamic_shifting\":1}", {"'use_dynamic_shifting' is 1"}},
		{ON ",\"use_karras_sigmas\":true}", {"'use_karras_sigmas' is true"}},
		{ON ",\"use_beta_sigmas\":true}", {"'use_beta_sigmas' is true"}},
		{ON ",\"use_exponential_sigmas\":true}", {"'use_exponential_sigmas' is true"}},
		{ON ",\"use_flow_sigmas\":true}", {"'use_flow_sigmas' is true"}},
		{ON ",\"invert_sigmas\":true}", {"'invert_sigmas' is true"}},
		{ON ",\"stochastic_sampling\":true}", {"'stochastic_sampling' is true"}},
		{ON ",\"shift_terminal\":0.02}", {"'shift_terminal' is 0.02"}},
		{ON ",\"time_shift_type\":\"linear\"}", {"'time_shift_type' is \"linear\"", "exponential"}},
		{ON ",\"time_shift_type\":null}", {"'time_shift_type' is null"}},
		{ON ",\"num_train_timesteps\":0}", {"'num_train_timesteps' is 0"}},
		{ON ",\"num_train_timesteps\":1e999}", {"'num_train_timesteps' is a number beyond"}},
	};
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_scheduler s;
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (load(cases[i].text, &s, &err) == DTP_OK)
			fail_msg("accepted: %s", cases[i].text);
		for (int j = 0; j < 2 && cases[i].message[j]; j++)
			assert_message(&err, DTP_REFUSED, "scheduler_config.json", cases[i].message[j], NULL);
	}
	assert_int_equal(dtp_scheduler_load("/absent", &s, &err), DTP_REFUSED);
	assert_message(&err, DTP_REFUSED, "/absent/scheduler_config.json", NULL);
}

static void scheduler_load_accepted(void **state)
{
	struct dtp_err err;
	struct dtp_scheduler s = {0};
	(void)state;
	assert_int_equal(load(ON "}", &s, &err), DTP_OK);
	assert_true(s.num_train_timesteps == 1000);
	assert_int_equal(load(ON ",\"num_train_timesteps\":500,\"shift_terminal\":null,\"shift\":3.0,\"new\":1}", &s, &err),
			 DTP_OK);
	assert_true(s.num_train_timesteps == 500);
	assert_int_equal(dtp_scheduler_load(fixture("models/klein-tiny/scheduler"), &s, &err), DTP_OK);
	assert_true(s.num_train_timesteps == 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scheduler_schedule_vectors), cmocka_unit_test(scheduler_schedule_bounds),
		cmocka_unit_test(scheduler_load_refused),     cmocka_unit_test(scheduler_load_accepted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
