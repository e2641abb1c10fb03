/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for cuBLASLt: products are right, and whatever the library would not take, or not notice, ends the process.  On a GPU: the
 * library's own products. */
#include "scenes.h"

#include "../../cuda/cuda.h"
#include "../../cuda/lt.h"

#include <cublasLt.h>
#include <math.h>

/* D [M,N] = op(A) op(B) (+ C) (+ bias), as a case asks for it. */
struct ask {
	int m, n, k, gap;         /* elements between the columns of every matrix */
	bool ta, tb, bf16, bf16_out, bias;
	float beta;
	cublasComputeType_t compute;
	uint32_t align;           /* bytes that all pointers are multiples of, as the library is told; 0: it is not told */
	int offset;               /* of A, elements */
	int short_of;             /* elements that D's memory lacks */
	size_t workspace;
};
static const struct ask plain = {.m = 9, .n = 6, .k = 7, .ta = true, .compute = CUBLAS_COMPUTE_32F, .align = 16, .workspace = 4096};

#define LT(name) ((__typeof__(&name))symbol(#name))
static void *symbol(const char *name)
{
	char why[256] = "";
	void *p = dtp_cuda_symbol(DTP_LIB_CUBLASLT, name, why, sizeof why);

	if (!p)
		fprintf(stderr, "%s: %s\n", name, why);
	must(p != NULL);
	return p;
}

/* A matrix on the device and what it holds, column by column without gaps. */
struct matrix {
	int rows, columns;
	bool bf16;
	char *memory, *p;
	float *values;
	cublasLtMatrixLayout_t layout;
};

struct problem {
	struct ask ask;
	struct matrix a, b, d;
	char *bias, *workspace;
	float *bias_values;
	cudaStream_t stream;
	cublasLtHandle_t handle;
	cublasLtMatmulDesc_t desc;
	cublasLtMatmulHeuristicResult_t found;
};

static size_t element(bool bf16)
{
	return bf16 ? 2 : 4;
}

static char *on_device(const void *host, size_t size)
{
	void *p;

	ok(cudaMalloc(&p, size));
	ok(cudaMemcpy(p, host, size, cudaMemcpyHostToDevice));
	return p;
}

/* Random values, rounded to the type; packed with a gap after every column. */
static char *pack(float *values, int rows, int columns, int gap, bool bf16, int offset, int short_of)
{
	size_t n = (size_t)(columns - 1) * (size_t)(rows + gap) + (size_t)(rows + offset - short_of);
	char *host = calloc(n + (size_t)short_of, element(bf16));

	for (int j = 0; j < columns; j++)
		for (int i = 0; i < rows; i++) {
			size_t at = (size_t)(j * (rows + gap) + i + offset);
			float *x = &values[j * rows + i];
			*x = test_normal();
			if (bf16) {
				uint16_t u = dtp_f32_to_bf16(*x);
				*x = dtp_bf16_to_f32(u);
				memcpy(host + 2 * at, &u, 2);
			} else {
				memcpy(host + 4 * at, x, 4);
			}
		}
	char *p = on_device(host, n * element(bf16));
	free(host);
	return p;
}

static void matrix(struct matrix *m, int rows, int columns, int gap, bool bf16, int offset, int short_of)
{
	*m = (struct matrix){.rows = rows, .columns = columns, .bf16 = bf16,
			     .values = calloc((size_t)(rows * columns), sizeof(float))};
	m->memory = pack(m->values, rows, columns, gap, bf16, offset, short_of);
	m->p = m->memory + (size_t)offset * element(bf16);
	must(!LT(cublasLtMatrixLayoutCreate)(&m->layout, bf16 ? CUDA_R_16BF : CUDA_R_32F, (uint64_t)rows, (uint64_t)columns, rows + gap));
}

static void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *value, size_t size)
{
	must(!LT(cublasLtMatmulDescSetAttribute)(d, a, value, size));
}

static void describe(struct problem *p)
{
	const struct ask *q = &p->ask;
	const int32_t t = CUBLAS_OP_T;
	const uint32_t bias = CUBLASLT_EPILOGUE_BIAS;

	must(!LT(cublasLtMatmulDescCreate)(&p->desc, q->compute, CUDA_R_32F));
	if (q->ta)
		set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
	if (q->tb)
		set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &t, sizeof t);
	if (q->bias) {
		p->bias_values = calloc((size_t)q->m, sizeof(float));
		p->bias = pack(p->bias_values, q->m, 1, 0, q->bf16_out, 0, 0);
		set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
		set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
	}
}

static cublasStatus_t choose(struct problem *p)
{
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	cublasLtMatmulPreference_t preference;
	const uint64_t workspace = 4096;
	int n = 0;

	must(!LT(cublasLtMatmulPreferenceCreate)(&preference));
	must(!LT(cublasLtMatmulPreferenceSetAttribute)(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
	for (int i = 0; i < 4 && p->ask.align; i++)
		must(!LT(cublasLtMatmulPreferenceSetAttribute)(preference, aligned[i], &p->ask.align, sizeof p->ask.align));
	cublasStatus_t s = LT(cublasLtMatmulAlgoGetHeuristic)(p->handle, p->desc, p->a.layout, p->b.layout, p->d.layout, p->d.layout, preference,
							      1, &p->found, &n);
	must(s || (n == 1 && p->found.workspaceSize <= workspace));
	must(!LT(cublasLtMatmulPreferenceDestroy)(preference));
	return s;
}

static void start(struct problem *p, struct ask q)
{
	*p = (struct problem){.ask = q};
	ok(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
	must(!LT(cublasLtCreate)(&p->handle));
	matrix(&p->a, q.ta ? q.k : q.m, q.ta ? q.m : q.k, q.gap, q.bf16, q.offset, 0);
	matrix(&p->b, q.tb ? q.n : q.k, q.tb ? q.k : q.n, q.gap, q.bf16, 0, 0);
	matrix(&p->d, q.m, q.n, q.gap, q.bf16_out, 0, q.short_of);
	describe(p);
	if (q.workspace)
		ok(cudaMalloc((void **)&p->workspace, q.workspace));
	ok(cudaDeviceSynchronize());
}

static cublasStatus_t multiply(struct problem *p)
{
	const float alpha = 0.5f;

	return LT(cublasLtMatmul)(p->handle, p->desc, &alpha, p->a.p, p->a.layout, p->b.p, p->b.layout, &p->ask.beta, p->d.p, p->d.layout, p->d.p,
				  p->d.layout, &p->found.algo, p->workspace, p->ask.workspace, p->stream);
}

static void matrix_free(struct matrix *m)
{
	must(!LT(cublasLtMatrixLayoutDestroy)(m->layout));
	ok(cudaFree(m->memory));
	free(m->values);
}

static void end(struct problem *p)
{
	matrix_free(&p->a);
	matrix_free(&p->b);
	matrix_free(&p->d);
	must(!LT(cublasLtMatmulDescDestroy)(p->desc));
	ok(cudaFree(p->bias));
	ok(cudaFree(p->workspace));
	free(p->bias_values);
	must(!LT(cublasLtDestroy)(p->handle));
	ok(cudaStreamDestroy(p->stream));
}

/* ---- what is right */

static double expected(const struct problem *p, int i, int j)
{
	const struct ask *q = &p->ask;
	double sum = 0;

	for (int k = 0; k < q->k; k++)
		sum += (double)p->a.values[q->ta ? i * q->k + k : k * q->m + i] * (double)p->b.values[q->tb ? k * q->n + j : j * q->k + k];
	return 0.5 * sum + (double)q->beta * (double)p->d.values[j * q->m + i] + (q->bias ? (double)p->bias_values[i] : 0);
}

static void compare_product(struct problem *p)
{
	const struct ask *q = &p->ask;
	size_t n = (size_t)(q->n - 1) * (size_t)(q->m + q->gap) + (size_t)q->m;
	char *host = malloc(n * element(q->bf16_out));

	ok(cudaMemcpyAsync(host, p->d.p, n * element(q->bf16_out), cudaMemcpyDeviceToHost, p->stream));
	for (int j = 0; j < q->n; j++)
		for (int i = 0; i < q->m; i++) {
			size_t at = (size_t)(j * (q->m + q->gap) + i);
			float x = q->bf16_out ? dtp_bf16_to_f32(((uint16_t *)host)[at]) : ((float *)host)[at];
			double want = expected(p, i, j), size = fabs(want) + sqrt(q->k);
			must(fabs((double)x - want) <= size * (q->bf16_out ? 1.0 / 256 : 1e-6 * q->k));
		}
	free(host);
}

static void products(void)
{
	static const int shapes[][3] = {{9, 6, 7}, {1, 1, 1}, {8, 4, 16}, {17, 33, 65}};

	for (int i = 0; i < 4; i++)
		for (unsigned bits = 0; bits < 64; bits++) {
			struct problem p;
			struct ask q = plain;
			q.m = shapes[i][0], q.n = shapes[i][1], q.k = shapes[i][2];
			q.ta = bits & 1, q.tb = bits & 2, q.bf16 = bits & 4, q.bf16_out = q.bf16 && bits & 8, q.bias = bits & 16;
			q.beta = bits & 32 ? 2 : 0;
			q.gap = bits & 32 ? 5 : 0;
			start(&p, q);
			must(!choose(&p));
			must(!multiply(&p));
			compare_product(&p);
			end(&p);
		}
}

static void the_second_product_fails(void)
{
	struct problem p;

	start(&p, plain);
	must(!choose(&p));
	must(!multiply(&p));
	must(multiply(&p) == CUBLAS_STATUS_EXECUTION_FAILED);
	must(!multiply(&p));
	end(&p);
}

static void a_handle_fails(void)
{
	cublasLtHandle_t handle;

	must(LT(cublasLtCreate)(&handle) == CUBLAS_STATUS_NOT_INITIALIZED);
}

/* ---- what is wrong */

static void played(struct ask q)
{
	struct problem p;

	start(&p, q);
	choose(&p);
	multiply(&p);
	cudaStreamSynchronize(p.stream);
}

static struct problem chosen(struct ask q)
{
	struct problem p;

	start(&p, q);
	must(!choose(&p));
	return p;
}

#define CASE(name, change)                                                                                             \
	static void name(void)                                                                                         \
	{                                                                                                              \
		struct ask q = plain;                                                                                  \
		change;                                                                                                \
		played(q);                                                                                             \
	}
CASE(columns_that_overlap, q.gap = -1)
CASE(memory_too_short, q.short_of = 1)
CASE(misaligned, q.offset = 1)
CASE(misaligned_and_not_told, (q.offset = 4, q.align = 0))
CASE(rounded_to_tf32, q.compute = CUBLAS_COMPUTE_32F_FAST_TF32)
CASE(bf16_of_f32, q.bf16_out = true)
CASE(no_workspace, q.workspace = 0)

static void shapes_that_do_not_fit(void)
{
	struct problem p;

	start(&p, plain);
	p.b.layout = p.d.layout;
	choose(&p);
}

static void algorithm_of_another_problem(void)
{
	struct problem p, other;
	struct ask q = plain;

	p = chosen(q);
	q.n++;
	other = chosen(q);
	p.found = other.found;
	multiply(&p);
}

static void no_bias(void)
{
	struct problem p;
	const uint32_t bias = CUBLASLT_EPILOGUE_BIAS;

	start(&p, plain);
	set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
	choose(&p);
}

static void bias_on_the_host(void)
{
	struct ask q = plain;
	static const _Alignas(256) float values[16];
	const void *pointer = values;

	q.bias = true;
	struct problem p = chosen(q);
	set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointer, sizeof pointer);
	multiply(&p);
}

static void memory_freed_before(void)
{
	struct problem p = chosen(plain);

	ok(cudaFree(p.b.memory));
	multiply(&p);
}

static void destroyed_handle(void)
{
	struct problem p = chosen(plain);

	must(!LT(cublasLtDestroy)(p.handle));
	multiply(&p);
}

static void leaks_a_handle(void)
{
	cublasLtHandle_t handle;

	must(!LT(cublasLtCreate)(&handle));
}

static void leaks_a_layout(void)
{
	cublasLtMatrixLayout_t layout;

	must(!LT(cublasLtMatrixLayoutCreate)(&layout, CUDA_R_32F, 4, 4, 4));
}

/* Products of one shape after the other: what is kept of them has an end, and each is right. */
static void shapes_without_end(void)
{
	enum { MOST = 600, N = 4 };
	const float one[N] = {1, 2, 3, 4};
	struct dtp_err err = DTP_ERR_INIT;
	cudaStream_t stream;
	struct dtp_lt *lt;
	void *workspace;
	float got = 0;

	ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	ok(cudaMalloc(&workspace, DTP_CUDA_PRODUCT_WORKSPACE));
	must(!dtp_lt_open(workspace, &lt, &err));
	char *p = on_device(one, sizeof one), *out = on_device(one, sizeof one);
	struct dtp_tensor y = dtp_tensor_make(out, DTP_F32, 2, (int64_t[]){1, 1});
	for (int i = 0; i <= MOST; i++) { /* the first is one of the last, too */
		struct dtp_tensor x = dtp_tensor_make(p, DTP_F32, 2, (int64_t[]){1, N});
		x.stride[0] = 4 + 4 * (i % MOST);
		must(!dtp_lt_product(lt, stream, y, x, dtp_tensor_make(p, DTP_F32, 2, (int64_t[]){1, N}), NULL, &err));
	}
	ok(cudaStreamSynchronize(stream));
	ok(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
	must(got == 30);
	dtp_lt_close(lt);
	ok(cudaStreamDestroy(stream));
	ok(cudaFree(workspace));
	ok(cudaFree(p));
	ok(cudaFree(out));
}

static const struct scene scenes[] = {
	RIGHT(products, ALL, NULL),
	RIGHT(the_second_product_fails, ALL, "DIFFTP_EMU_FAIL=cublasLtMatmul:2"),
	RIGHT(a_handle_fails, E, "DIFFTP_EMU_FAIL=cublasLtCreate:1"),
	RIGHT(shapes_without_end, D, "DIFFTP_EMU_MOST=1560"), /* 3 layouts a shape */
	WRONG(columns_that_overlap, E, "A of 7 rows and 9 columns, 6 apart"),
	WRONG(memory_too_short, E, "cublasLtMatmul: D: bytes [0, 216) of device memory of 212 bytes"),
	WRONG(misaligned, E, "A is at "),
	WRONG(misaligned_and_not_told, E, "the algorithm was chosen for multiples of 256 bytes"),
	WRONG(rounded_to_tf32, E, "without TF32"),
	WRONG(bf16_of_f32, E, "operands in f32 cannot give bf16"),
	WRONG(no_workspace, E, "needs 4096 bytes, and has 0"),
	WRONG(shapes_that_do_not_fit, E, "A and B do not go together"),
	WRONG(algorithm_of_another_problem, E, "the algorithm was chosen for another problem"),
	WRONG(no_bias, E, "there is no pointer to it"),
	WRONG(bias_on_the_host, E, "cublasLtMatmul: bias"),
	WRONG(memory_freed_before, ALL, "cublasLtMatmul: B: byte 0 of device memory of 168 bytes that was freed"),
	WRONG(destroyed_handle, E, "no cuBLASLt handle or was destroyed"),
	WRONG(leaks_a_handle, E, "1 cuBLASLt handles"),
	WRONG(leaks_a_layout, E, "1 layouts of matrices"),
};

int main(void)
{
	return play_all("emulator.cublaslt", scenes, sizeof scenes / sizeof scenes[0]);
}
