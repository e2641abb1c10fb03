/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are computed: a panel at a time in each thread, which is then written as one from a file would be.  The panels together are
 * as bounded as what passes from a file. */
#include <omp.h>
#include <stdlib.h>

#include "cpu.h"
#include "vec.h"

/* n rows of k columns from the weight's row `row` on, into x. */
static void fill_rows(float *x, const struct dtp_fill *f, int64_t row, int64_t n, int64_t k)
{
	int64_t first = 0; /* of the weight's rows */

	for (int64_t r = 0; f->columns && r < n; r++) {
		uint32_t key = dtp_fill_key(f->seed, row + r);
		float *at = x + r * k;
		for (int i = 0; i < f->nruns; at += f->run[i].end - f->run[i].begin, i++)
			dtp_vec_fill(at, key, f->run[i].begin, f->mean, f->scale, f->run[i].end - f->run[i].begin);
	}
	for (int i = 0; !f->columns && i < f->nruns; first += f->run[i].end - f->run[i].begin, i++)
		for (int64_t r = 0; r < n; r++) {
			int64_t whole = f->run[i].begin + row + r - first;
			if (whole >= f->run[i].begin && whole < f->run[i].end)
				dtp_vec_fill(x + r * k, dtp_fill_key(f->seed, whole), 0, f->mean, f->scale, k);
		}
}

int dtp_cpu_fill_threads(int threads, int64_t panels, uint64_t panel_bytes)
{
	uint64_t n = DTP_STAGING_BYTES / panel_bytes;

	n = n < (uint64_t)panels ? n : (uint64_t)panels;
	return n < 1 ? 1 : n < (uint64_t)threads ? (int)n : threads;
}

enum dtp_code dtp_cpu_weight_fill(struct dtp_backend *be, struct dtp_weight *weight, const struct dtp_fill *f, struct dtp_err *err)
{
	const struct dtp_cpu_weight *w = dtp_cpu_weight_of(weight);
	int64_t panel = DTP_NB * w->k, panels = w->k ? dtp_pack_blocks(w->n) : 0;
	int threads = panels ? dtp_cpu_fill_threads(dtp_cpu_of(be)->threads, panels, (uint64_t)panel * sizeof(float)) : 1;
	size_t bytes = (size_t)(threads * panel) * sizeof(float);
	float *all = panels ? malloc(bytes) : NULL;
	struct dtp_err first = DTP_ERR_INIT;

	if (panels && !all)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes to compute rows of a weight in", bytes);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
	for (int64_t i = 0; i < panels; i++) {
		int64_t row = i * DTP_NB, n = w->n - row < DTP_NB ? w->n - row : DTP_NB;
		float *x = all + omp_get_thread_num() * panel;
		struct dtp_err e = DTP_ERR_INIT;
		fill_rows(x, f, row, n, w->k);
		if (dtp_cpu_weight_write(be, weight, row, n, x, DTP_F32, &e))
#pragma omp critical
			first = e;
	}
	free(all);
	return first.code ? dtp_fail(err, first.code, "%s", first.message) : DTP_OK;
}
