/* SPDX-License-Identifier: Apache-2.0 */
/* What the operation tests share: the backends that each case runs on, and tensors whose neighbourhood is guarded. */
#ifndef TEST_OP_H
#define TEST_OP_H

#include <math.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend.h"
#include "cpu/cpu.h"
#include "support.h"

/* Every way to compute, on one thread and on several. */
struct config {
	const char *name;
	enum dtp_dtype t;
	enum dtp_cpu_method method;
	int threads;
};
static const struct config configs[] = {
	{"f32", DTP_F32, DTP_CPU_AUTO, 1},
	{"f32, 3 threads", DTP_F32, DTP_CPU_AUTO, 3},
	{"bf16 widened", DTP_BF16, DTP_CPU_WIDEN, 1},
	{"bf16 widened, 3 threads", DTP_BF16, DTP_CPU_WIDEN, 3},
	{"bf16 native, 2 threads", DTP_BF16, DTP_CPU_NATIVE, 2},
};
#define NCONFIGS (sizeof configs / sizeof configs[0])

/* NULL where this CPU lacks the method. */
static inline struct dtp_backend *open_backend(const struct config *c)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_backend *be;
	enum dtp_code rc = dtp_cpu_create(c->t, c->threads, c->method, &be, &err);

	if (rc == DTP_REFUSED && c->method == DTP_CPU_NATIVE)
		return NULL;
	if (rc)
		fail_msg("%s: %s", c->name, err.message);
	return be;
}

#define FOR_EACH_BACKEND(be, c) \
	for (const struct config *c = configs; c < configs + NCONFIGS; c++) \
		for (struct dtp_backend *be = open_backend(c); be; be->ops->destroy(be), be = NULL)

#define MUST(call) \
	do { \
		struct dtp_err err_ = DTP_ERR_INIT, *err = &err_; \
		if (call) \
			fail_msg("%s", err_.message); \
	} while (0)

/* n normal values of type t. */
static inline float *random_values(enum dtp_dtype t, int64_t n)
{
	float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
	for (int64_t i = 0; i < n; i++)
		v[i] = dtp_round_to(t, test_normal());
	return v;
}

/* A tensor of its own memory, which ends where the last row ends; rows are `gap` elements apart.  values may be NULL.  Memory
 * that holds no element holds NaNs. */
static inline struct dtp_tensor make_tensor(enum dtp_dtype t, int ndim, const int64_t *shape, int64_t gap, const float *values)
{
	struct dtp_tensor x = dtp_tensor_make(NULL, t, ndim, shape);
	int64_t rows = ndim > 1 ? shape[0] : 1, row = dtp_numel(&x) / (rows ? rows : 1), total;
	void *p;

	if (ndim > 1)
		x.stride[0] = row + gap;
	total = rows ? (rows - 1) * (row + gap) + row : 0;
	if (posix_memalign(&p, 64, total ? (size_t)total * dtp_dtype_size(t) : 1))
		abort();
	memset(p, 0xff, (size_t)total * dtp_dtype_size(t));
	x.data = p;
	for (int64_t r = 0; values && r < rows; r++)
		dtp_from_f32((char *)p + r * (row + gap) * (int64_t)dtp_dtype_size(t), t, values + r * row, (size_t)row);
	return x;
}

static inline struct dtp_tensor make2(enum dtp_dtype t, int64_t rows, int64_t cols, int64_t gap, const float *values)
{
	return make_tensor(t, 2, (int64_t[]){rows, cols}, gap, values);
}

static inline struct dtp_tensor make3(enum dtp_dtype t, int64_t a, int64_t b, int64_t c, int64_t gap, const float *values)
{
	return make_tensor(t, 3, (int64_t[]){a, b, c}, gap, values);
}

/* The elements, as floats; the gaps must be as they were. */
static inline float *values_of(struct dtp_tensor x)
{
	int64_t n = dtp_numel(&x), rows = x.ndim > 1 ? x.shape[0] : 1, row = n / (rows ? rows : 1);
	int64_t gap = x.ndim > 1 ? x.stride[0] - row : 0;
	size_t size = dtp_dtype_size(x.dtype);
	float *v = malloc((size_t)(n ? n : 1) * sizeof *v);

	for (int64_t r = 0; r < rows; r++) {
		const unsigned char *p = (unsigned char *)x.data + (size_t)(r * (row + gap)) * size;
		dtp_to_f32(v + r * row, p, x.dtype, (size_t)row);
		for (size_t i = 0; r + 1 < rows && i < (size_t)gap * size; i++)
			if (p[(size_t)row * size + i] != 0xff)
				fail_msg("wrote past row %lld", (long long)r);
	}
	return v;
}

/* A weight of n values given as floats, written in panels, in the dtype src (BF16, F16, F32). */
static inline struct dtp_weight *make_weight(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape,
					     const float *values, enum dtp_dtype src)
{
	struct dtp_weight *w;
	int64_t row = 1, panel;

	MUST(be->ops->weight_new(be, kind, ndim, shape, &w, err));
	assert_int_equal(w->nbytes, be->ops->weight_bytes(be, kind, ndim, shape));
	for (int d = 1; d < ndim; d++)
		row *= shape[d];
	panel = w->row_align * (1 + (int64_t)(test_random() % 3));
	for (int64_t r = 0; r < shape[0]; r += panel) {
		int64_t n = shape[0] - r < panel ? shape[0] - r : panel;
		void *p = malloc((size_t)(n * row) * dtp_dtype_size(src) + 1);
		dtp_from_f32(p, src, values + r * row, (size_t)(n * row));
		MUST(be->ops->weight_write(be, w, r, n, p, src, err));
		free(p);
	}
	return w;
}

/* The values of out against a reference.  Sums of n terms may be off by what tolerance() says, against the RMS; on top comes
 * the rounding to out's type, at most half a unit of the value's last place.  Where the operation rounds more often, each
 * time a value may fall the other way: by a unit of the largest.  more, unless NULL: what else each value may be off by. */
static inline void check_bounded(const char *what, struct dtp_tensor out, const float *ref, int64_t n, int roundings,
				 const float *more)
{
	int64_t count = dtp_numel(&out);
	float *got = values_of(out);
	/* Terms are of size 1: the RMS of few results says little about them, so one more of that size counts. */
	double ss = 1, largest = 0, half = out.dtype == DTP_BF16 ? 0x1p-8 : 0x1p-24;

	for (int64_t i = 0; i < count; i++) {
		ss += (double)ref[i] * ref[i];
		largest = fmax(largest, fabs(ref[i]));
	}
	for (int64_t i = 0; i < count; i++) {
		double diff = fabs((double)got[i] - ref[i]), value = fabs(ref[i]), rms = sqrt(ss / (double)count);
		double sum = tolerance(DTP_F32, n) * fmax(rms, value);
		double allowed = sum + half * (value + sum) + (roundings - 1) * 2 * half * largest;
		allowed += more ? (double)more[i] : 0;
		if (!(diff <= allowed))
			fail_msg("%s: element %lld is %g, expected %g: differs by %g, %g is allowed", what, (long long)i,
				 (double)got[i], (double)ref[i], diff, allowed);
	}
	free(got);
}

static inline void check_rounded(const char *what, struct dtp_tensor out, const float *ref, int64_t n, int roundings)
{
	check_bounded(what, out, ref, n, roundings, NULL);
}

static inline void check_values(const char *what, struct dtp_tensor out, const float *ref, int64_t n)
{
	check_rounded(what, out, ref, n, 1);
}

/* Runs this program again as if the CPU had no AVX-512; false where this is that run. */
static inline bool run_with_less(void)
{
	extern char **environ;
	char self[] = "/proc/self/exe", *argv[] = {self, NULL};
	pid_t pid;
	int status;

	if (getenv("DTP_TEST_CHILD"))
		return false;
	setenv("DTP_TEST_CHILD", "1", 1);
	setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
	assert_int_equal(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	unsetenv("DTP_TEST_CHILD");
	unsetenv("DNNL_MAX_CPU_ISA");
	assert_int_equal(status, 0);
	return true;
}
#endif
