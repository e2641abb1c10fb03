/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for cuBLASLt: the product. */
#include "cublaslt_work.h"

#include "emu.h"
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows and columns of D that are summed at once. */
enum { ROWS = 8, COLUMNS = 4 };
typedef float rows_of_d __attribute__((vector_size(ROWS * sizeof(float))));

static size_t element(bool bf16)
{
	return bf16 ? 2 : 4;
}

static void check_matrix(const struct emu_matrix *m)
{
	char what[64];

	snprintf(what, sizeof what, "cublasLtMatmul: %s", m->name);
	if (m->p)
		emu_device_range(m->p, ((m->columns - 1) * (uint64_t)m->ld + m->rows) * element(m->bf16), what);
}

void emu_product_check(const struct emu_product *p)
{
	check_matrix(&p->a);
	check_matrix(&p->b);
	check_matrix(&p->c);
	check_matrix(&p->d);
	if (p->bias)
		emu_device_range(p->bias, p->m * element(p->d.bf16), "cublasLtMatmul: bias");
	emu_device_range(p->workspace, p->workspace_size, "cublasLtMatmul: workspace");
}

static float value(const char *p, bool bf16, size_t i)
{
	return bf16 ? dtp_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static size_t place(const struct emu_matrix *m, uint64_t row, uint64_t column)
{
	return column * (uint64_t)m->ld + row;
}

/* op(A)'s rows [first, first + ROWS), k of them side by side; what lies beyond is 0. */
static void take_rows(const struct emu_product *p, uint64_t first, rows_of_d *panel)
{
	for (uint64_t k = 0; k < p->k; k++)
		for (uint64_t i = 0; i < ROWS; i++) {
			uint64_t row = first + i;
			panel[k][i] = row >= p->m ? 0 :
				      value(p->a.p, p->a.bf16, p->transpose_a ? place(&p->a, k, row) : place(&p->a, row, k));
		}
}

static float *take_columns(const struct emu_product *p)
{
	float *b = malloc(p->n * p->k * sizeof *b);

	if (!b)
		emu_misuse("no memory for the emulator itself");
	for (uint64_t n = 0; n < p->n; n++)
		for (uint64_t k = 0; k < p->k; k++)
			b[n * p->k + k] = value(p->b.p, p->b.bf16, p->transpose_b ? place(&p->b, n, k) : place(&p->b, k, n));
	return b;
}

static void put(const struct emu_product *p, uint64_t row, uint64_t column, float sum)
{
	size_t at = place(&p->d, row, column);
	float x = p->alpha * sum;

	if (p->c.p)
		x += p->beta * value(p->c.p, p->c.bf16, place(&p->c, row, column));
	if (p->bias)
		x += value(p->bias, p->d.bf16, row);
	if (p->d.bf16)
		((uint16_t *)p->d.p)[at] = dtp_f32_to_bf16(x);
	else
		((float *)p->d.p)[at] = x;
}

static void some_columns(const struct emu_product *p, const rows_of_d *panel, const float *b, uint64_t row, uint64_t column)
{
	const float *columns[COLUMNS];
	rows_of_d sum[COLUMNS] = {0};

	for (uint64_t j = 0; j < COLUMNS; j++)
		columns[j] = b + (column + j < p->n ? column + j : column) * p->k;
	for (uint64_t k = 0; k < p->k; k++)
		for (int j = 0; j < COLUMNS; j++)
			sum[j] += panel[k] * columns[j][k];
	for (uint64_t j = 0; j < COLUMNS && column + j < p->n; j++)
		for (uint64_t i = 0; i < ROWS && row + i < p->m; i++)
			put(p, row + i, column + j, sum[j][i]);
}

static void uses(const struct emu_matrix *m, bool write)
{
	if (m->p)
		emu_uses_rows(m->p, (size_t)m->ld * element(m->bf16), m->rows * element(m->bf16), m->columns, write);
}

bool emu_product_compute(void *product)
{
	const struct emu_product *p = product;
	rows_of_d *panel = aligned_alloc(sizeof *panel, p->k * sizeof *panel);

	if (!panel)
		emu_misuse("no memory for the emulator itself");
	emu_product_check(p);
	uses(&p->a, false);
	uses(&p->b, false);
	uses(&p->c, false);
	uses(&p->d, true);
	if (p->bias)
		emu_uses(p->bias, p->m * element(p->d.bf16), false);
	emu_uses(p->workspace, p->workspace_size, true);
	float *b = take_columns(p);
	for (uint64_t row = 0; row < p->m; row += ROWS) {
		take_rows(p, row, panel);
		for (uint64_t column = 0; column < p->n; column += COLUMNS)
			some_columns(p, panel, b, row, column);
	}
	memset(p->workspace, 0xff, p->workspace_size); /* nothing of it is there afterwards */
	free(b);
	free(panel);
	return true;
}
