/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's matrices lie column by column: a row-major [M,N] is its [N,M], so that out^T = w x^T is what is asked of it, with w
 * transposed. */
#include "lt.h"

#include <cublasLt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define MOST_PRODUCTS 512 /* shapes that are remembered: those of many pictures' sizes */

/* Under the names that the library gives them. */
struct functions {
	cublasStatus_t (*cublasLtCreate)(cublasLtHandle_t *);
	cublasStatus_t (*cublasLtDestroy)(cublasLtHandle_t);
	const char *(*cublasLtGetStatusString)(cublasStatus_t);
	cublasStatus_t (*cublasLtMatmulDescCreate)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
	cublasStatus_t (*cublasLtMatmulDescDestroy)(cublasLtMatmulDesc_t);
	cublasStatus_t (*cublasLtMatmulDescSetAttribute)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *, size_t);
	cublasStatus_t (*cublasLtMatrixLayoutCreate)(cublasLtMatrixLayout_t *, cudaDataType_t, uint64_t, uint64_t, int64_t);
	cublasStatus_t (*cublasLtMatrixLayoutDestroy)(cublasLtMatrixLayout_t);
	cublasStatus_t (*cublasLtMatmulPreferenceCreate)(cublasLtMatmulPreference_t *);
	cublasStatus_t (*cublasLtMatmulPreferenceDestroy)(cublasLtMatmulPreference_t);
	cublasStatus_t (*cublasLtMatmulPreferenceSetAttribute)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *,
							       size_t);
	cublasStatus_t (*cublasLtMatmulAlgoGetHeuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
							 cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
							 cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *);
	cublasStatus_t (*cublasLtMatmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t,
					 const void *, cublasLtMatrixLayout_t, const void *, const void *, cublasLtMatrixLayout_t, void *,
					 cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t);
};
#define SYMBOL(name) {#name, offsetof(struct functions, name)}
static const struct dtp_symbol symbols[] = {
	SYMBOL(cublasLtCreate), SYMBOL(cublasLtDestroy), SYMBOL(cublasLtGetStatusString), SYMBOL(cublasLtMatmulDescCreate),
	SYMBOL(cublasLtMatmulDescDestroy), SYMBOL(cublasLtMatmulDescSetAttribute), SYMBOL(cublasLtMatrixLayoutCreate),
	SYMBOL(cublasLtMatrixLayoutDestroy), SYMBOL(cublasLtMatmulPreferenceCreate), SYMBOL(cublasLtMatmulPreferenceDestroy),
	SYMBOL(cublasLtMatmulPreferenceSetAttribute), SYMBOL(cublasLtMatmulAlgoGetHeuristic), SYMBOL(cublasLtMatmul),
};

struct shape {
	int64_t m, n, k, x_row, w_row, out_row;
	enum dtp_dtype in, out;
	bool bias, weighted; /* weighted: w is [K,N] */
};
struct product {
	struct shape shape;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t w, x, out;
	cublasLtMatmulAlgo_t algo;
	struct product *next;
};

struct dtp_lt {
	struct functions f;
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t pref;
	void *workspace;
	struct product *products; /* the one used last comes first */
	int nproducts;
};

#define LT(lt, call, err) status(lt, call, #call, __LINE__, err)
static enum dtp_code status(const struct dtp_lt *lt, cublasStatus_t s, const char *call, int line, struct dtp_err *err)
{
	if (s == CUBLAS_STATUS_SUCCESS)
		return DTP_OK;
	const char *name = call + strlen("lt->f.");
	return dtp_fail(err, DTP_FAILED, "%.*s: %s (%d), %s:%d\n%s", (int)strcspn(name, "("), name, lt->f.cublasLtGetStatusString(s), (int)s,
			__FILE__, line, s == CUBLAS_STATUS_NOT_INITIALIZED || s == CUBLAS_STATUS_ALLOC_FAILED
			? "its first call takes memory on the GPU: see nvidia-smi for what is free"
			: "difftp doctor looks at the GPUs, the kernel log may say more (dmesg | grep -i nvrm)");
}

static enum dtp_code load(struct functions *f, struct dtp_err *err)
{
	return dtp_cuda_table(DTP_LIB_CUBLASLT, symbols, sizeof symbols / sizeof *symbols, f, err);
}

enum dtp_code dtp_lt_library(struct dtp_err *err)
{
	struct functions f;

	return load(&f, err);
}

enum dtp_code dtp_lt_open(void *workspace, struct dtp_lt **out, struct dtp_err *err)
{
	struct dtp_lt *lt = calloc(1, sizeof *lt);
	const uint64_t most = DTP_CUDA_PRODUCT_WORKSPACE;
	const uint32_t align = DTP_CUDA_ALIGN;
	const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts of a sum stay F32 */
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	};

	*out = NULL;
	if (!lt)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for matrix products", sizeof *lt);
	lt->workspace = workspace;
	enum dtp_code rc = load(&lt->f, err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtCreate(&lt->handle), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatmulPreferenceCreate(&lt->pref), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatmulPreferenceSetAttribute(lt->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatmulPreferenceSetAttribute(lt->pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums), err);
	for (int i = 0; !rc && i < 4; i++)
		rc = LT(lt, lt->f.cublasLtMatmulPreferenceSetAttribute(lt->pref, aligned[i], &align, sizeof align), err);
	if (rc) {
		dtp_lt_close(lt);
		return rc;
	}
	*out = lt;
	return DTP_OK;
}

static void product_free(const struct dtp_lt *lt, struct product *p)
{
	if (p->out)
		lt->f.cublasLtMatrixLayoutDestroy(p->out);
	if (p->x)
		lt->f.cublasLtMatrixLayoutDestroy(p->x);
	if (p->w)
		lt->f.cublasLtMatrixLayoutDestroy(p->w);
	if (p->desc)
		lt->f.cublasLtMatmulDescDestroy(p->desc);
	free(p);
}

void dtp_lt_close(struct dtp_lt *lt)
{
	if (!lt)
		return;
	for (struct product *p = lt->products, *next; p; p = next) {
		next = p->next;
		product_free(lt, p);
	}
	if (lt->pref)
		lt->f.cublasLtMatmulPreferenceDestroy(lt->pref);
	if (lt->handle)
		lt->f.cublasLtDestroy(lt->handle);
	free(lt);
}

static cudaDataType_t type_of(enum dtp_dtype t)
{
	return t == DTP_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static enum dtp_code describe(const struct dtp_lt *lt, struct product *p, struct dtp_err *err)
{
	const struct shape *s = &p->shape;
	const cublasOperation_t turned = s->weighted ? CUBLAS_OP_N : CUBLAS_OP_T;
	uint64_t w_rows = (uint64_t)(s->weighted ? s->n : s->k), w_columns = (uint64_t)(s->weighted ? s->k : s->n);
	const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
	enum dtp_code rc = LT(lt, lt->f.cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), err);

	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned), err);
	if (!rc && s->bias)
		rc = LT(lt, lt->f.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatrixLayoutCreate(&p->w, type_of(s->in), w_rows, w_columns, s->w_row), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatrixLayoutCreate(&p->x, type_of(s->in), (uint64_t)s->k, (uint64_t)s->m, s->x_row), err);
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatrixLayoutCreate(&p->out, type_of(s->out), (uint64_t)s->n, (uint64_t)s->m, s->out_row), err);
	return rc;
}

static enum dtp_code set_bias(const struct dtp_lt *lt, const struct product *p, const void *bias, struct dtp_err *err)
{
	return bias ? LT(lt, lt->f.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), err) : DTP_OK;
}

/* What was enqueued by its description does not need it any more. */
static void forget_oldest(struct dtp_lt *lt)
{
	struct product **at = &lt->products;

	while ((*at)->next)
		at = &(*at)->next;
	product_free(lt, *at);
	*at = NULL;
	lt->nproducts--;
}

static enum dtp_code plan(struct dtp_lt *lt, const struct shape *s, const void *bias, struct product **out, struct dtp_err *err)
{
	struct product *p = calloc(1, sizeof *p);
	cublasLtMatmulHeuristicResult_t found;
	int n = 0;

	if (!p)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for a matrix product", sizeof *p);
	p->shape = *s;
	enum dtp_code rc = describe(lt, p, err);
	if (!rc)
		rc = set_bias(lt, p, bias, err); /* its alignment counts */
	if (!rc)
		rc = LT(lt, lt->f.cublasLtMatmulAlgoGetHeuristic(lt->handle, p->desc, p->w, p->x, p->out, p->out, lt->pref, 1, &found, &n), err);
	if (!rc && (!n || found.state != CUBLAS_STATUS_SUCCESS))
		rc = dtp_fail(err, DTP_FAILED, "cuBLASLt knows no way to multiply [%" PRId64 ", %" PRId64 "] by [%" PRId64 ", %" PRId64 "] in %s",
			      s->m, s->k, s->k, s->n, dtp_dtype_name(s->in));
	if (rc) {
		product_free(lt, p);
		return rc;
	}
	p->algo = found.algo;
	p->next = lt->products;
	lt->products = *out = p;
	if (++lt->nproducts > MOST_PRODUCTS)
		forget_oldest(lt);
	return DTP_OK;
}

static bool same(const struct shape *a, const struct shape *b)
{
	return a->m == b->m && a->n == b->n && a->k == b->k && a->x_row == b->x_row && a->w_row == b->w_row && a->out_row == b->out_row &&
	       a->in == b->in && a->out == b->out && a->bias == b->bias && a->weighted == b->weighted;
}

static struct product *known(struct dtp_lt *lt, const struct shape *s)
{
	struct product **at = &lt->products, *p;

	while (*at && !same(&(*at)->shape, s))
		at = &(*at)->next;
	p = *at;
	if (p) {
		*at = p->next;
		p->next = lt->products;
		lt->products = p;
	}
	return p;
}

static enum dtp_code multiply(struct dtp_lt *lt, cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor w,
			      const void *bias, bool weighted, struct dtp_err *err)
{
	struct shape s = {.m = x.shape[0], .n = out.shape[1], .k = x.shape[1], .x_row = x.stride[0], .w_row = w.stride[0],
			  .out_row = out.stride[0], .in = x.dtype, .out = out.dtype, .bias = bias != NULL, .weighted = weighted};
	struct product *p = known(lt, &s);
	const float one = 1, zero = 0;

	enum dtp_code rc = p ? DTP_OK : plan(lt, &s, bias, &p, err);

	if (!rc)
		rc = set_bias(lt, p, bias, err);
	if (rc)
		return rc;
	return LT(lt, lt->f.cublasLtMatmul(lt->handle, p->desc, &one, w.data, p->w, x.data, p->x, &zero, out.data, p->out, out.data, p->out, &p->algo,
				   lt->workspace, DTP_CUDA_PRODUCT_WORKSPACE, stream), err);
}

enum dtp_code dtp_lt_product(struct dtp_lt *lt, cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor w,
			     const void *bias, struct dtp_err *err)
{
	return multiply(lt, stream, out, x, w, bias, false, err);
}

enum dtp_code dtp_lt_weighted(struct dtp_lt *lt, cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x, struct dtp_tensor w,
			      struct dtp_err *err)
{
	return multiply(lt, stream, out, x, w, NULL, true, err);
}
