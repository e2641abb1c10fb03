/* SPDX-License-Identifier: Apache-2.0 */
#include "footprints.h"

#include "units.h"
#include "worker.h"

#include <stdlib.h>

_Static_assert(sizeof(struct dtp_footprint) % sizeof(int64_t) == 0, "footprints travel as whole numbers of 64 bits");

enum dtp_code dtp_footprints_collect(struct dtp_rank *r, struct dtp_footprints *out, struct dtp_err *err)
{
	const struct dtp_phase_memory *p = dtp_pipeline_foreseen(r->pipeline);
	const struct dtp_phase_use *use = dtp_pipeline_use(r->pipeline);
	struct dtp_footprint own[DTP_NPHASES];

	out->ranks = r->size;
	out->rank = calloc((size_t)r->size, sizeof *out->rank);
	if (!out->rank)
		return dtp_fail(err, DTP_FAILED, "out of memory for %d ranks", r->size);
	for (int i = 0; i < DTP_NPHASES; i++) {
		out->name[i] = p[i].name;
		own[i] = (struct dtp_footprint){p[i].weights, p[i].scratch, p[i].workspace, dtp_phase_backend_bytes(&p[i]), use[i]};
	}
	return dtp_all_gather(r->world, out->rank, own, DTP_NPHASES * (int64_t)(sizeof *own / sizeof(int64_t)), DTP_I64, err);
}

static double ratio(const struct dtp_footprint *f)
{
	return f->predicted ? (double)f->use.peak / (double)f->predicted : 0;
}

/* That took most in a phase. */
static int largest_rank(const struct dtp_footprints *m, int phase)
{
	int most = 0;

	for (int rank = 1; rank < m->ranks; rank++)
		if (m->rank[rank][phase].use.peak > m->rank[most][phase].use.peak)
			most = rank;
	return most;
}

void dtp_footprints_print(const struct dtp_footprints *m, bool gpu)
{
	printf("\n%-18s %5s %9s %9s %9s%s\n", "memory", "rank", "predicted", "taken", "ratio", gpu ? " GPU in use" : "");
	for (int i = 0; i < DTP_NPHASES; i++) {
		int rank = largest_rank(m, i);
		const struct dtp_footprint *f = &m->rank[rank][i];
		if (!f->use.peak)
			continue;
		printf("%-18s %5d %9s %9s %9.3f", m->name[i], rank, dtp_bytes_text(f->predicted).s, dtp_bytes_text(f->use.peak).s, ratio(f));
		if (gpu)
			printf(" %10s", dtp_bytes_text(f->use.device).s);
		putchar('\n');
	}
}

void dtp_footprint_add(cJSON *o, const struct dtp_footprint *f)
{
	cJSON_AddNumberToObject(o, "weights", (double)f->weights);
	cJSON_AddNumberToObject(o, "activations", (double)f->scratch);
	cJSON_AddNumberToObject(o, "workspace", (double)f->workspace);
	cJSON_AddNumberToObject(o, "predicted_bytes", (double)f->predicted);
	cJSON_AddNumberToObject(o, "peak_bytes", (double)f->use.peak);
	cJSON_AddNumberToObject(o, "peak_of_predicted", ratio(f));
	cJSON_AddItemToObject(o, "device_used_bytes", f->use.device ? cJSON_CreateNumber((double)f->use.device) : cJSON_CreateNull());
}

static cJSON *footprint_json(const struct dtp_footprint *f)
{
	cJSON *o = f->use.peak ? cJSON_CreateObject() : cJSON_CreateNull();

	if (f->use.peak)
		dtp_footprint_add(o, f);
	return o;
}

cJSON *dtp_footprints_json(const struct dtp_footprints *m)
{
	cJSON *list = cJSON_CreateArray();

	for (int i = 0; i < DTP_NPHASES; i++) {
		cJSON *phase, *ranks;
		if (!m->rank[largest_rank(m, i)][i].use.peak)
			continue;
		phase = cJSON_CreateObject();
		cJSON_AddStringToObject(phase, "name", m->name[i]);
		ranks = cJSON_AddArrayToObject(phase, "ranks");
		for (int rank = 0; rank < m->ranks; rank++)
			cJSON_AddItemToArray(ranks, footprint_json(&m->rank[rank][i]));
		cJSON_AddItemToArray(list, phase);
	}
	return list;
}

/* ---- of a run */

#define EXCESS 1.05

bool dtp_footprints_excess(const struct dtp_footprints *m, char *buf, size_t size)
{
	double most = EXCESS;

	for (int rank = 0; rank < m->ranks; rank++)
		for (int i = 0; i < DTP_NPHASES; i++) {
			const struct dtp_footprint *f = &m->rank[rank][i];
			if (ratio(f) <= most)
				continue;
			most = ratio(f);
			struct dtp_text_pair sizes = dtp_bytes_apart(f->use.peak, f->predicted);
			snprintf(buf, size, "rank %d took %s of memory in phase '%s', where %s were foreseen: what the check before a run and "
				 "difftp plan say of this model is too little", rank, sizes.a.s, m->name[i], sizes.b.s);
		}
	return most > EXCESS;
}

static void tell(struct dtp_rank *r, const struct dtp_footprints *m)
{
	char text[400];

	for (int i = 0; i < DTP_NPHASES; i++) {
		int rank = largest_rank(m, i);
		if (m->rank[rank][i].use.peak)
			dtp_worker_memory(r->worker, m->name[i], rank, &m->rank[rank][i]);
	}
	if (dtp_footprints_excess(m, text, sizeof text))
		r->mon->note(r->mon->arg, text);
}

enum dtp_code dtp_footprints_tell(struct dtp_rank *r, struct dtp_err *err)
{
	struct dtp_footprints m = {0};
	enum dtp_code code = dtp_footprints_collect(r, &m, err);

	if (!code && r->rank == 0)
		tell(r, &m);
	free(m.rank);
	return code;
}
