/* SPDX-License-Identifier: Apache-2.0 */
/* Of the stand-in for cuBLASLt: a matrix product, column by column, D = alpha op(A) op(B) + beta C + bias. */
#ifndef EMU_CUBLASLT_WORK_H
#define EMU_CUBLASLT_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct emu_matrix {
	const char *name;
	char *p;
	uint64_t rows, columns;
	int64_t ld; /* elements from one column to the next */
	bool bf16;  /* or f32 */
};

struct emu_product {
	struct emu_matrix a, b, c, d; /* c.p NULL: beta is 0 */
	bool transpose_a, transpose_b;
	uint64_t m, n, k;
	float alpha, beta;
	const void *bias;             /* [m], of D's type; or NULL */
	char *workspace;
	size_t workspace_size;
};

/* Ends the process unless all of its memory is alive. */
void emu_product_check(const struct emu_product *p);
/* The work: sums are f32, in the order of k, whatever the shape. */
bool emu_product_compute(void *product);
#endif
