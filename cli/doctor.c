/* SPDX-License-Identifier: Apache-2.0 */
/* The command that looks at the machine: what a run would meet, what hinders it, what to do. */
#include "doctor.h"

#include "commands.h"
#include "text.h"
#include "worker.h"

#include <string.h>

static const struct dtp_probe probes[] = {
	{"processors", dtp_look_processors, 5, DTP_VERDICT_FAILURE},
	{"memory", dtp_look_memory, 5, DTP_VERDICT_FAILURE},
	{"shared memory", dtp_look_shared_memory, 5, DTP_VERDICT_WARNING},
	{"limits", dtp_look_limits, 5, DTP_VERDICT_WARNING},
	{"libraries", dtp_look_libraries, 5, DTP_VERDICT_WARNING},
	{"disk", dtp_look_disk, 10, DTP_VERDICT_FAILURE},   /* network file systems answer late */
	{"model", dtp_look_model, 30, DTP_VERDICT_FAILURE},
	{"GPUs", dtp_look_gpus, 20, DTP_VERDICT_WARNING},   /* a driver without persistence starts every GPU first */
	{"GPU links", dtp_look_gpu_links, 20, DTP_VERDICT_WARNING},
	{"CUDA", dtp_look_cuda, 20, DTP_VERDICT_WARNING},
	{"GPU libraries", dtp_look_gpu_libraries, 20, DTP_VERDICT_WARNING},
	{"NCCL", dtp_look_nccl, 10, DTP_VERDICT_WARNING},
	{"ranks", dtp_look_ranks, 20, DTP_VERDICT_FAILURE},
	{"NCCL in ranks", dtp_look_rank_nccl, 20, DTP_VERDICT_WARNING},
};
#define NPROBES (sizeof probes / sizeof probes[0])

static const char *string_of(const cJSON *o, const char *key)
{
	const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
	return s ? s : "";
}

static void print(const cJSON *finding)
{
	const char *advice = string_of(finding, "advice");

	printf("%-8s %-14s ", string_of(finding, "verdict"), string_of(finding, "probe"));
	dtp_write_text(stdout, string_of(finding, "text"));
	putchar('\n');
	if (*advice)
		printf("%-23s -> %s\n", "", advice);
}

struct sums {
	int of[DTP_NVERDICTS];
};

static void count(struct sums *s, const cJSON *finding)
{
	for (int v = 0; v < DTP_NVERDICTS; v++)
		s->of[v] += !strcmp(string_of(finding, "verdict"), dtp_verdict_name(v));
}

/* Runs all probes; each finding is counted, and printed at once or put into `all`. */
static void look(const struct dtp_args *args, char **argv, struct sums *s, cJSON *all)
{
	for (size_t i = 0; i < NPROBES; i++) {
		if (probes[i].look == dtp_look_model && !args->model)
			continue;
		cJSON *found = dtp_probe_run(&probes[i], args, argv), *item;
		while ((item = cJSON_DetachItemFromArray(found, 0))) {
			count(s, item);
			if (all) {
				cJSON_AddItemToArray(all, item);
				continue;
			}
			print(item);
			fflush(stdout);
			cJSON_Delete(item);
		}
		cJSON_Delete(found);
	}
}

static enum dtp_code print_json(const struct sums *s, cJSON *all, struct dtp_err *err)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "difftp", DTP_VERSION);
	for (int v = 0; v < DTP_NVERDICTS; v++)
		cJSON_AddNumberToObject(o, dtp_verdict_name(v), s->of[v]);
	cJSON_AddItemToObject(o, "findings", all);
	return dtp_write_json(stdout, o, err);
}

enum dtp_code dtp_cmd_doctor(const struct dtp_args *args, char **argv, struct dtp_err *err)
{
	struct sums s = {{0}};

	if (dtp_worker_is_rank())
		return dtp_doctor_rank(err);
	cJSON *all = args->json ? cJSON_CreateArray() : NULL;
	look(args, argv, &s, all);
	if (all && print_json(&s, all, err))
		return err->code;
	if (!all)
		printf("%d ok, %d warning%s, %d failure%s\n", s.of[DTP_VERDICT_OK], s.of[DTP_VERDICT_WARNING],
		       s.of[DTP_VERDICT_WARNING] == 1 ? "" : "s", s.of[DTP_VERDICT_FAILURE], s.of[DTP_VERDICT_FAILURE] == 1 ? "" : "s");
	if (dtp_flush(stdout, err))
		return err->code;
	if (s.of[DTP_VERDICT_FAILURE])
		return dtp_fail(err, DTP_FAILED, "a run would fail on this machine as it is: %d failure%s above",
				s.of[DTP_VERDICT_FAILURE], s.of[DTP_VERDICT_FAILURE] == 1 ? "" : "s");
	return DTP_OK;
}
