/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for the four functions of cuBLASLt that need a GPU.  Descriptors are the real library's: it checks what is set, and is asked
 * here for what they hold; they are counted.  What it would not notice, or notice as a crash, ends the process. */
#include "library.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt_work.h"

enum { WORKSPACE = 4096, MAGIC = 0x4c74 };

struct cublasLtContext {
	int magic;
	struct cublasLtContext *next; /* destroyed before it */
};

/* ---- the real library's functions */

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name)
{
	char why[256];
	void *p = emu_real_symbol(DTP_LIB_CUBLASLT, name, why, sizeof why);

	if (!p)
		emu_misuse("'%s' of the real library: %s", name, why);
	return p;
}

/* A call that passes through: the fault on demand, then the library. */
static cublasStatus_t fault(const char *name, cublasStatus_t usual)
{
	int code = (int)usual;

	return emu_call(name, &code) ? (cublasStatus_t)code : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t created(cublasStatus_t s, const char *what)
{
	if (!s)
		emu_hold(what, 1);
	return s;
}

#define DESC "descriptions of matrix products"
#define LAYOUT "layouts of matrices"
#define PREFERENCE "preferences for matrix products"
#define HANDLE "cuBLASLt handles"

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
	cublasStatus_t s = fault("cublasLtMatmulDescCreate", CUBLAS_STATUS_ALLOC_FAILED);

	return s ? s : created(REAL(cublasLtMatmulDescCreate)(out, compute, scale), DESC);
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows, uint64_t columns, int64_t ld)
{
	cublasStatus_t s = fault("cublasLtMatrixLayoutCreate", CUBLAS_STATUS_ALLOC_FAILED);

	return s ? s : created(REAL(cublasLtMatrixLayoutCreate)(out, type, rows, columns, ld), LAYOUT);
}

static cublasStatus_t preference_create(cublasLtMatmulPreference_t *out)
{
	cublasStatus_t s = fault("cublasLtMatmulPreferenceCreate", CUBLAS_STATUS_ALLOC_FAILED);

	return s ? s : created(REAL(cublasLtMatmulPreferenceCreate)(out), PREFERENCE);
}

/* They destroy even when they fail. */
static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t d)
{
	cublasStatus_t s = fault("cublasLtMatmulDescDestroy", CUBLAS_STATUS_INTERNAL_ERROR);

	emu_hold(DESC, -1);
	cublasStatus_t r = REAL(cublasLtMatmulDescDestroy)(d);
	return s ? s : r;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t l)
{
	cublasStatus_t s = fault("cublasLtMatrixLayoutDestroy", CUBLAS_STATUS_INTERNAL_ERROR);

	emu_hold(LAYOUT, -1);
	cublasStatus_t r = REAL(cublasLtMatrixLayoutDestroy)(l);
	return s ? s : r;
}

static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t p)
{
	cublasStatus_t s = fault("cublasLtMatmulPreferenceDestroy", CUBLAS_STATUS_INTERNAL_ERROR);

	emu_hold(PREFERENCE, -1);
	cublasStatus_t r = REAL(cublasLtMatmulPreferenceDestroy)(p);
	return s ? s : r;
}

static cublasStatus_t desc_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *value, size_t size)
{
	cublasStatus_t s = fault("cublasLtMatmulDescSetAttribute", CUBLAS_STATUS_INVALID_VALUE);

	return s ? s : REAL(cublasLtMatmulDescSetAttribute)(d, a, value, size);
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *value, size_t size)
{
	cublasStatus_t s = fault("cublasLtMatmulPreferenceSetAttribute", CUBLAS_STATUS_INVALID_VALUE);

	return s ? s : REAL(cublasLtMatmulPreferenceSetAttribute)(p, a, value, size);
}

/* ---- what the descriptors hold */

static void get_layout(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, void *value, size_t size)
{
	if (REAL(cublasLtMatrixLayoutGetAttribute)(l, a, value, size, NULL))
		emu_misuse("a matrix layout has no attribute %d", (int)a);
}

static struct emu_matrix matrix_of(cublasLtMatrixLayout_t l, const char *name)
{
	uint32_t type;
	int32_t order, batch;
	struct emu_matrix m = {.name = name};

	get_layout(l, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
	get_layout(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
	get_layout(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
	get_layout(l, CUBLASLT_MATRIX_LAYOUT_ROWS, &m.rows, sizeof m.rows);
	get_layout(l, CUBLASLT_MATRIX_LAYOUT_COLS, &m.columns, sizeof m.columns);
	get_layout(l, CUBLASLT_MATRIX_LAYOUT_LD, &m.ld, sizeof m.ld);
	if (order != CUBLASLT_ORDER_COL || batch != 1)
		emu_misuse("cublasLtMatmul: %s of order %d and %d matrices, which is not emulated", name, (int)order, (int)batch);
	if (type != CUDA_R_32F && type != CUDA_R_16BF)
		emu_misuse("cublasLtMatmul: %s of type %u, which is not emulated", name, type);
	m.bf16 = type == CUDA_R_16BF;
	if (!m.rows || !m.columns || m.ld < (int64_t)m.rows)
		emu_misuse("cublasLtMatmul: %s of %" PRIu64 " rows and %" PRIu64 " columns, %" PRId64 " apart", name, m.rows, m.columns, m.ld);
	return m;
}

static void get_desc(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, void *value, size_t size)
{
	if (REAL(cublasLtMatmulDescGetAttribute)(d, a, value, size, NULL))
		emu_misuse("a description of a matrix product has no attribute %d", (int)a);
}

static void expect(bool holds, const char *what)
{
	if (!holds)
		emu_misuse("cublasLtMatmul: %s", what);
}

static void read_desc(cublasLtMatmulDesc_t d, struct emu_product *p)
{
	int32_t compute, scale, pointers, transa, transb, transc, bias_type;
	uint32_t epilogue;

	get_desc(d, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute);
	get_desc(d, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale, sizeof scale);
	get_desc(d, CUBLASLT_MATMUL_DESC_POINTER_MODE, &pointers, sizeof pointers);
	get_desc(d, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa);
	get_desc(d, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb);
	get_desc(d, CUBLASLT_MATMUL_DESC_TRANSC, &transc, sizeof transc);
	get_desc(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
	get_desc(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
	get_desc(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
	expect(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "it does not compute and scale in f32, without TF32");
	expect(pointers == CUBLASLT_POINTER_MODE_HOST, "alpha and beta are not in host memory");
	expect(transc == CUBLAS_OP_N, "C is transposed");
	expect(transa != CUBLAS_OP_C && transb != CUBLAS_OP_C, "an operand is conjugated");
	expect(epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS, "its epilogue is not emulated");
	expect(bias_type == -1, "its bias has a type of its own, which is not emulated");
	p->transpose_a = transa == CUBLAS_OP_T;
	p->transpose_b = transb == CUBLAS_OP_T;
	if (epilogue != CUBLASLT_EPILOGUE_BIAS)
		p->bias = NULL;
	else
		expect(p->bias != NULL, "the epilogue adds a bias, and there is no pointer to it");
}

static void read_problem(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
			 cublasLtMatrixLayout_t out, struct emu_product *p)
{
	memset(p, 0, sizeof *p); /* its bytes are summed */
	read_desc(d, p);
	p->a = matrix_of(a, "A");
	p->b = matrix_of(b, "B");
	p->c = matrix_of(c, "C");
	p->d = matrix_of(out, "D");
	p->m = p->transpose_a ? p->a.columns : p->a.rows;
	p->k = p->transpose_a ? p->a.rows : p->a.columns;
	p->n = p->transpose_b ? p->b.rows : p->b.columns;
	expect(p->k == (p->transpose_b ? p->b.columns : p->b.rows), "A and B do not go together");
	expect(p->d.rows == p->m && p->d.columns == p->n, "D does not have the shape of A B");
	expect(p->c.rows == p->m && p->c.columns == p->n, "C does not have the shape of D");
	expect(p->a.bf16 == p->b.bf16, "A and B are of different types");
	expect(p->c.bf16 == p->d.bf16, "C and D are of different types");
	expect(p->a.bf16 || !p->d.bf16, "operands in f32 cannot give bf16");
}

/* ---- an algorithm: what it was chosen for */

struct algorithm {
	int32_t magic;
	uint32_t align[4], bias_align; /* bytes: what the pointers are multiples of */
	uint32_t workspace;
	uint64_t problem;
};

static uint64_t sum_of(const struct emu_product *p)
{
	const uint64_t facts[] = {p->m, p->n, p->k, (uint64_t)p->a.ld, (uint64_t)p->b.ld, (uint64_t)p->c.ld, (uint64_t)p->d.ld,
				  p->a.bf16, p->d.bf16, p->transpose_a, p->transpose_b, p->bias != NULL};
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		sum = (sum ^ facts[i]) * 0x100000001b3u;
	return sum;
}

static uint32_t alignment(const void *p)
{
	uintptr_t at = (uintptr_t)p | 256;

	return (uint32_t)(at & -at);
}

static void get_preference(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, void *value, size_t size)
{
	if (REAL(cublasLtMatmulPreferenceGetAttribute)(p, a, value, size, NULL))
		emu_misuse("a preference for matrix products has no attribute %d", (int)a);
}

static void check_handle(cublasLtHandle_t h, const char *call)
{
	if (!h || h->magic != MAGIC)
		emu_misuse("%s with %p, which is no cuBLASLt handle or was destroyed", call, (void *)h);
}

static cublasStatus_t create(cublasLtHandle_t *out)
{
	cublasStatus_t s = fault("cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED);

	if (s)
		return s;
	*out = malloc(sizeof **out);
	if (!*out)
		return CUBLAS_STATUS_ALLOC_FAILED;
	(*out)->magic = MAGIC;
	return created(CUBLAS_STATUS_SUCCESS, HANDLE);
}

static cublasLtHandle_t destroyed;

static cublasStatus_t destroy(cublasLtHandle_t h)
{
	cublasStatus_t s = fault("cublasLtDestroy", CUBLAS_STATUS_NOT_INITIALIZED);

	check_handle(h, "cublasLtDestroy");
	h->magic = 0; /* kept, so that its use is seen */
	h->next = destroyed;
	destroyed = h;
	emu_hold(HANDLE, -1);
	return s;
}

static cublasStatus_t heuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
				cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
				cublasLtMatmulHeuristicResult_t *results, int *n)
{
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	cublasStatus_t s = fault("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED);
	struct algorithm found = {.magic = MAGIC};
	struct emu_product p;
	uint64_t most;

	if (s)
		return s;
	check_handle(h, "cublasLtMatmulAlgoGetHeuristic");
	if (wanted <= 0)
		return CUBLAS_STATUS_INVALID_VALUE;
	read_problem(desc, a, b, c, d, &p);
	for (int i = 0; i < 4; i++)
		get_preference(preference, aligned[i], &found.align[i], sizeof found.align[i]);
	get_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
	found.workspace = most < WORKSPACE ? 0 : WORKSPACE;
	found.bias_align = p.bias ? alignment(p.bias) : 0;
	found.problem = sum_of(&p);
	memset(&results[0], 0, sizeof results[0]);
	_Static_assert(sizeof found <= sizeof results[0].algo, "an algorithm holds what it was chosen for");
	memcpy(&results[0].algo, &found, sizeof found);
	results[0].workspaceSize = found.workspace;
	results[0].state = CUBLAS_STATUS_SUCCESS;
	results[0].wavesCount = 1;
	*n = 1;
	return CUBLAS_STATUS_SUCCESS;
}

static void check_pointer(const struct emu_matrix *m, uint32_t align)
{
	if ((uintptr_t)m->p % align)
		emu_misuse("cublasLtMatmul: %s is at %p, and the algorithm was chosen for multiples of %u bytes", m->name, (void *)m->p, align);
}

static cublasStatus_t matmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t layout_a,
			     const void *b, cublasLtMatrixLayout_t layout_b, const void *beta, const void *c, cublasLtMatrixLayout_t layout_c,
			     void *d, cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *algo, void *workspace,
			     size_t workspace_size, cudaStream_t stream)
{
	cublasStatus_t s = fault("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED);
	struct algorithm chosen;
	struct emu_product p;

	if (s)
		return s;
	check_handle(h, "cublasLtMatmul");
	expect(algo != NULL, "it searches an algorithm at every call");
	memcpy(&chosen, algo, sizeof chosen);
	expect(chosen.magic == MAGIC, "the algorithm comes from nowhere");
	read_problem(desc, layout_a, layout_b, layout_c, layout_d, &p);
	expect(chosen.problem == sum_of(&p), "the algorithm was chosen for another problem");
	memcpy(&p.alpha, alpha, sizeof p.alpha);
	memcpy(&p.beta, beta, sizeof p.beta);
	p.a.p = (char *)(uintptr_t)a;
	p.b.p = (char *)(uintptr_t)b;
	p.c.p = p.beta != 0 ? (char *)(uintptr_t)c : NULL;
	p.d.p = d;
	check_pointer(&p.a, chosen.align[0]);
	check_pointer(&p.b, chosen.align[1]);
	check_pointer(&p.c, chosen.align[2]);
	check_pointer(&p.d, chosen.align[3]);
	if (p.bias && (uintptr_t)p.bias % chosen.bias_align)
		emu_misuse("cublasLtMatmul: the bias is at %p, and the algorithm was chosen for multiples of %u bytes", p.bias, chosen.bias_align);
	if (chosen.workspace > workspace_size)
		emu_misuse("cublasLtMatmul: the algorithm needs %u bytes, and has %zu", chosen.workspace, workspace_size);
	p.workspace = workspace;
	p.workspace_size = chosen.workspace;
	expect((uintptr_t)workspace % 256 == 0, "the workspace is no multiple of 256 bytes");
	emu_product_check(&p);
	return emu_enqueue(stream, emu_product_compute, &p, sizeof p, "cublasLtMatmul") ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

void *emu_cublaslt(const char *name, char *why, size_t size)
{
	static const struct {
		const char *name;
		void (*function)(void);
	} ours[] = {
#define OURS(name, function) {#name, (void (*)(void))(function)}
		OURS(cublasLtCreate, create),
		OURS(cublasLtDestroy, destroy),
		OURS(cublasLtMatmulAlgoGetHeuristic, heuristic),
		OURS(cublasLtMatmul, matmul),
		OURS(cublasLtMatmulDescCreate, desc_create),
		OURS(cublasLtMatmulDescDestroy, desc_destroy),
		OURS(cublasLtMatmulDescSetAttribute, desc_set),
		OURS(cublasLtMatrixLayoutCreate, layout_create),
		OURS(cublasLtMatrixLayoutDestroy, layout_destroy),
		OURS(cublasLtMatmulPreferenceCreate, preference_create),
		OURS(cublasLtMatmulPreferenceDestroy, preference_destroy),
		OURS(cublasLtMatmulPreferenceSetAttribute, preference_set),
	};

	for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
		if (!strcmp(name, ours[i].name)) {
			void *p;
			memcpy(&p, &ours[i].function, sizeof p);
			return p;
		}
	return emu_real_symbol(DTP_LIB_CUBLASLT, name, why, size);
}
