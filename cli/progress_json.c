/* SPDX-License-Identifier: Apache-2.0 */
/* Progress for programs: one JSON object a line. */
#include "progress.h"

#include "footprints.h"
#include "json.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

/* Names of files may be no UTF-8, JSON must be. */
static void put(struct dtp_progress *p, cJSON *o)
{
	char *text = cJSON_PrintUnformatted(o), *valid = text ? dtp_utf8_repair(text, strlen(text)) : NULL;

	if (valid)
		fprintf(p->f, "%s\n", valid);
	fflush(p->f);
	free(valid);
	free(text);
	cJSON_Delete(o);
}

static cJSON *event(const char *name)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "event", name);
	return o;
}

/* Seconds to a thousandth: more is noise. */
static void add_seconds(cJSON *o, const char *name, double seconds)
{
	char text[32];

	snprintf(text, sizeof text, "%.3f", seconds);
	cJSON_AddRawToObject(o, name, text);
}

void dtp_progress_json_state(struct dtp_progress *p, const char *name)
{
	static const char *const phases[] = {
		[DTP_PHASE_START] = "start", [DTP_PHASE_RENDEZVOUS] = "rendezvous", [DTP_PHASE_LOAD] = "load",
		[DTP_PHASE_ENCODE] = "encode", [DTP_PHASE_STEP] = "step", [DTP_PHASE_DECODE] = "decode", [DTP_PHASE_WRITE] = "write",
		[DTP_PHASE_INPUT] = "input",
	};
	struct dtp_estimate e = dtp_progress_estimate(p);
	cJSON *o = event(name);

	cJSON_AddStringToObject(o, "phase", phases[p->phase]);
	cJSON_AddStringToObject(o, "stage", p->stage);
	add_seconds(o, "seconds", e.spent);
	if (e.steps) {
		cJSON_AddNumberToObject(o, "step", (double)e.step);
		cJSON_AddNumberToObject(o, "steps", (double)e.steps);
	}
	if (e.per_step > 0)
		add_seconds(o, "seconds_per_step", e.per_step);
	if (p->total) {
		cJSON_AddNumberToObject(o, "done", (double)p->done);
		cJSON_AddNumberToObject(o, "total", (double)p->total);
	}
	if (p->phase == DTP_PHASE_LOAD && p->total && e.spent > 0)
		cJSON_AddNumberToObject(o, "bytes_per_second", (double)(int64_t)((double)p->done / e.spent));
	if (e.left >= 0)
		add_seconds(o, "seconds_left", e.left);
	put(p, o);
}

void dtp_progress_json_text(struct dtp_progress *p, const char *name, int rank, const char *text)
{
	cJSON *o = event(name);

	if (rank >= 0)
		cJSON_AddNumberToObject(o, "rank", rank);
	cJSON_AddStringToObject(o, "text", text);
	put(p, o);
}

void dtp_progress_json_image(struct dtp_progress *p, const struct dtp_event *e)
{
	char seed[32];
	cJSON *o = event("image");

	snprintf(seed, sizeof seed, "%llu", (unsigned long long)e->seed); /* a double has 53 bits */
	cJSON_AddStringToObject(o, "path", e->text);
	cJSON_AddNumberToObject(o, "width", e->width);
	cJSON_AddNumberToObject(o, "height", e->height);
	if (e->has_seed)
		cJSON_AddRawToObject(o, "seed", seed);
	put(p, o);
}

void dtp_progress_json_memory(struct dtp_progress *p, const struct dtp_event *e)
{
	cJSON *o = event("memory");

	cJSON_AddStringToObject(o, "name", e->text);
	cJSON_AddNumberToObject(o, "rank", e->rank);
	dtp_footprint_add(o, e->memory);
	put(p, o);
}

void dtp_progress_json_end(struct dtp_progress *p, enum dtp_code code, const struct dtp_err *err)
{
	cJSON *o = event("end");

	cJSON_AddNumberToObject(o, "code", code);
	if (err->code)
		cJSON_AddStringToObject(o, "message", err->message);
	put(p, o);
}
