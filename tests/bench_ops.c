/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ops [bf16|fp32] [threads] [pattern]: speed of the CPU backend's operations at the shapes of FLUX.2-klein-4B, each
 * the best of several runs, beside the peak of a matrix product measured in between.  method=native|widen in the
 * environment overrides the choice.  Not a test: `make bench-ops` builds and runs it. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend.h"
#include "cpu/cpu.h"

static struct dtp_backend *be;
static const char *pattern = "";
static double peak;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(enum dtp_code rc, const struct dtp_err *err)
{
	if (rc) {
		fprintf(stderr, "%s\n", err->message);
		exit(rc);
	}
}

static struct dtp_tensor filled(enum dtp_dtype t, int ndim, const int64_t *shape)
{
	struct dtp_tensor x = dtp_tensor_make(NULL, t, ndim, shape);
	struct dtp_err err = DTP_ERR_INIT;
	int64_t n = dtp_numel(&x);
	uint32_t s = 12345;

	must(be->ops->alloc(be, (uint64_t)n * dtp_dtype_size(t), &x.data, &err), &err);
	for (int64_t i = 0; i < n; i++) {
		s = s * 1664525u + 1013904223u;
		float f = (float)(s >> 8) * 0x1p-23f - 1;
		if (t == DTP_F32)
			((float *)x.data)[i] = f;
		else
			((uint16_t *)x.data)[i] = dtp_f32_to_bf16(f);
	}
	return x;
}

static void drop(struct dtp_tensor x)
{
	be->ops->free(be, x.data, (uint64_t)dtp_numel(&x) * dtp_dtype_size(x.dtype));
}

static struct dtp_weight *weight(enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_weight *w;
	struct dtp_tensor v = filled(DTP_BF16, ndim, shape);

	must(be->ops->weight_new(be, kind, ndim, shape, &w, &err), &err);
	must(be->ops->weight_write(be, w, 0, shape[0], v.data, DTP_BF16, &err), &err);
	drop(v);
	return w;
}

/* Runs `call` until 7 runs or 2 seconds are over, and prints its best with what it moved or computed. */
#define BENCH(flops, bytes, call, ...) \
	do { \
		struct dtp_err err_ = DTP_ERR_INIT, *err = &err_; \
		double best_ = INFINITY, begin_ = now(); \
		for (int i_ = 0; i_ < 7 && (i_ < 2 || now() - begin_ < 2); i_++) { \
			double start_ = now(); \
			must(call, err); \
			best_ = fmin(best_, now() - start_); \
		} \
		report(best_, flops, bytes, __VA_ARGS__); \
	} while (0)

__attribute__((format(printf, 4, 5))) static void report(double seconds, double flops, double bytes, const char *fmt, ...)
{
	va_list ap;
	char name[120];

	va_start(ap, fmt);
	vsnprintf(name, sizeof name, fmt, ap);
	va_end(ap);
	printf("%-46s %9.3f ms", name, seconds * 1e3);
	if (flops > 0)
		printf(" %8.1f GFLOP/s  %.3f of peak", flops / seconds * 1e-9, flops / seconds / peak);
	if (bytes > 0)
		printf(" %7.2f GB/s", bytes / seconds * 1e-9);
	printf("\n");
	fflush(stdout);
}

static bool wanted(const char *what)
{
	if (!strstr(what, pattern))
		return false;
	struct dtp_err err = DTP_ERR_INIT;
	must(be->ops->measure_peak(be, &peak, &err), &err);
	printf("%s: peak %.1f GFLOP/s\n", what, peak * 1e-9);
	return true;
}

static void bench_pack(void)
{
	static const int64_t shapes[][2] = {{9216, 3072}, {27648, 3072}, {3072, 12288}, {9728, 2560}, {2560, 9728}};
	if (!wanted("pack"))
		return;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		int64_t n = shapes[i][0], k = shapes[i][1], panel = 64 * 8;
		struct dtp_err e = DTP_ERR_INIT;
		struct dtp_tensor src = filled(DTP_BF16, 2, (int64_t[]){panel, k});
		struct dtp_weight *w;
		double best[2] = {INFINITY, INFINITY}; /* new memory, reused memory */
		for (int r = 0; r < 10; r++) {
			int used = r % 2;
			struct dtp_tensor none = dtp_tensor_make(NULL, be->compute, 2, (int64_t[]){0, 0});
			if (!used) /* an operation, after which freed memory is not kept any longer */
				must(be->ops->rms_norm(be, none, none, NULL, 0, &e), &e);
			must(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, shapes[i], &w, &e), &e);
			double start = now();
			for (int64_t row = 0; row < n; row += panel)
				must(be->ops->weight_write(be, w, row, n - row < panel ? n - row : panel, src.data, DTP_BF16, &e),
				     &e);
			best[used] = fmin(best[used], now() - start);
			be->ops->weight_free(be, w);
		}
		report(best[0], 0, 2.0 * (double)(n * k), "pack [%d,%d], memory new", (int)n, (int)k);
		report(best[1], 0, 2.0 * (double)(n * k), "pack [%d,%d], memory reused", (int)n, (int)k);
		drop(src);
	}
}

static void bench_linear(void)
{
	static const int64_t shapes[][3] = {
		{768, 9216, 3072}, {512, 9216, 3072}, {256, 9216, 3072}, {768, 27648, 3072}, {768, 3072, 12288},
		{512, 18432, 3072}, {256, 18432, 3072}, {512, 3072, 9216}, {256, 3072, 9216}, {768, 3072, 3072},
		{512, 4096, 2560}, {512, 1024, 2560}, {512, 9728, 2560}, {512, 2560, 9728}, {512, 3072, 7680},
		{4608, 9216, 3072}, {4608, 3072, 12288}, {1, 18432, 3072}, {768, 128, 3072}, {256, 3072, 128}};
	if (!wanted("linear"))
		return;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
		struct dtp_weight *w = weight(DTP_WEIGHT_MATRIX, 2, (int64_t[]){n, k});
		struct dtp_tensor x = filled(be->compute, 2, (int64_t[]){m, k}), out = filled(be->compute, 2, (int64_t[]){m, n});
		BENCH(2.0 * (double)m * (double)n * (double)k, m == 1 ? 2.0 * (double)(n * k) : 0,
		      be->ops->linear(be, out, x, w, NULL, err), "linear M %d, K %d, N %d", (int)m, (int)k, (int)n);
		be->ops->weight_free(be, w);
		drop(x), drop(out);
	}
}

static void bench_attention(void)
{
	static const struct {
		int64_t s, h, kv, d;
		bool causal;
	} shapes[] = {{768, 24, 24, 128, false}, {768, 12, 12, 128, false}, {512, 32, 8, 128, true}, {1536, 24, 24, 128, false},
		      {4608, 24, 24, 128, false}, {1024, 1, 1, 512, false}, {4096, 1, 1, 512, false}};
	if (!wanted("attention"))
		return;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		int64_t s = shapes[i].s, h = shapes[i].h, kv = shapes[i].kv, d = shapes[i].d;
		struct dtp_tensor q = filled(be->compute, 3, (int64_t[]){s, h, d}), k = filled(be->compute, 3, (int64_t[]){s, kv, d});
		struct dtp_tensor v = filled(be->compute, 3, (int64_t[]){s, kv, d}), o = filled(be->compute, 3, (int64_t[]){s, h, d});
		struct dtp_attention a = {1 / sqrtf((float)d), shapes[i].causal, 0, s, 0, 0, h / kv};
		BENCH(4.0 * (double)(s * s) * (double)(h * d) * (a.causal ? 0.5 : 1), 0,
		      be->ops->attention(be, o, q, k, v, &a, err), "attention S %d, H %d/%d, D %d%s", (int)s, (int)h, (int)kv,
		      (int)d, a.causal ? ", causal" : "");
		drop(q), drop(k), drop(v), drop(o);
	}
}

static void bench_conv(void)
{
	static const int64_t shapes[][4] = {{32, 32, 512, 3}, {32, 512, 512, 3}, {64, 512, 512, 3}, {128, 512, 512, 3}, {128, 512, 256, 3}, {128, 256, 256, 3},
					    {256, 256, 256, 3}, {256, 256, 128, 3}, {256, 128, 128, 3}, {256, 128, 3, 3}, {256, 256, 128, 1}};
	if (!wanted("conv"))
		return;
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		int64_t h = shapes[i][0], c = shapes[i][1], n = shapes[i][2], k = shapes[i][3];
		struct dtp_weight *w = weight(DTP_WEIGHT_CONV, 4, (int64_t[]){n, c, k, k}), *b = weight(DTP_WEIGHT_VECTOR, 1, &n);
		struct dtp_tensor x = filled(be->compute, 3, (int64_t[]){h, h, c}), o = filled(be->compute, 3, (int64_t[]){h, h, n});
		BENCH(2.0 * (double)(h * h * c * n * k * k), 0, be->ops->conv2d(be, o, x, w, b, 1, (int)k / 2, (int)k / 2, err),
		      "conv [%d,%d,%d] to %d, %dx%d", (int)h, (int)h, (int)c, (int)n, (int)k, (int)k);
		be->ops->weight_free(be, w);
		be->ops->weight_free(be, b);
		drop(x), drop(o);
	}
}

static void bench_rows(void)
{
	int64_t s = 768, k = 3072, f = 9216, d = 128;
	double size = (double)dtp_dtype_size(be->compute), sk = (double)(s * k), sf = (double)(s * f);

	if (!wanted("rows"))
		return;
	struct dtp_tensor x = filled(be->compute, 2, (int64_t[]){s, k}), y = filled(be->compute, 2, (int64_t[]){s, k});
	struct dtp_tensor g = filled(be->compute, 1, &k), wide = filled(be->compute, 2, (int64_t[]){s, 2 * f});
	struct dtp_tensor act = filled(be->compute, 2, (int64_t[]){s, f}), sum = filled(DTP_F32, 2, (int64_t[]){s, k});
	struct dtp_tensor cos = filled(DTP_F32, 2, (int64_t[]){s, d / 2}), sin = filled(DTP_F32, 2, (int64_t[]){s, d / 2});
	struct dtp_weight *w = weight(DTP_WEIGHT_VECTOR, 1, &k), *wd = weight(DTP_WEIGHT_VECTOR, 1, &d);
	BENCH(0, 2 * sk * size, be->ops->modulated_norm(be, y, x, g, g, 1e-6f, err), "modulated_norm [768,3072]");
	BENCH(0, 2 * sk * size, be->ops->rms_norm(be, y, x, w, 1e-6f, err), "rms_norm [768,3072]");
	BENCH(0, 2 * sk * size, be->ops->qk_norm_rope(be, dtp_split_last(y, 24, d), wd, 1e-6f, DTP_ROPE_INTERLEAVED, cos, sin, err),
	      "qk_norm_rope [768,24,128] interleaved");
	BENCH(0, 2 * sk * size, be->ops->qk_norm_rope(be, dtp_split_last(y, 24, d), wd, 1e-6f, DTP_ROPE_HALF, cos, sin, err),
	      "qk_norm_rope [768,24,128] half");
	BENCH(0, 3 * sf * size, be->ops->swiglu(be, act, dtp_narrow(wide, 1, 0, f), dtp_narrow(wide, 1, f, f), err), "swiglu [768,9216]");
	BENCH(0, sk * (2 * size + 4), be->ops->gated_residual(be, y, g, sum, err), "gated_residual [768,3072] of f32");
	BENCH(0, sk * (size + 4), be->ops->copy(be, y, sum, err), "copy [768,3072] from f32");
	drop(x), drop(y), drop(g), drop(wide), drop(act), drop(sum), drop(cos), drop(sin);
	be->ops->weight_free(be, w);
	be->ops->weight_free(be, wd);
	struct dtp_tensor pic = filled(be->compute, 3, (int64_t[]){256, 256, 128}), out = filled(be->compute, 3, (int64_t[]){256, 256, 128});
	struct dtp_weight *c = weight(DTP_WEIGHT_VECTOR, 1, &d);
	BENCH(0, 3 * 256 * 256 * 128 * size, be->ops->group_norm(be, out, pic, c, c, 32, 1e-6f, true, err), "group_norm [256,256,128] silu");
	BENCH(0, 2 * 256 * 256 * 128 * size, be->ops->add(be, out, pic, out, err), "add [256,256,128]");
	be->ops->weight_free(be, c);
	drop(pic), drop(out);
}

int main(int argc, char **argv)
{
	enum dtp_dtype t = argc > 1 && !strcmp(argv[1], "fp32") ? DTP_F32 : DTP_BF16;
	const char *method = getenv("method");
	struct dtp_err err = DTP_ERR_INIT;

	if (argc > 3)
		pattern = argv[3];
	must(dtp_cpu_create(t, argc > 2 ? atoi(argv[2]) : 1,
			    !method ? DTP_CPU_AUTO : !strcmp(method, "native") ? DTP_CPU_NATIVE : DTP_CPU_WIDEN, &be, &err), &err);
	bench_pack();
	bench_linear();
	bench_attention();
	bench_conv();
	bench_rows();
	be->ops->destroy(be);
	return 0;
}
