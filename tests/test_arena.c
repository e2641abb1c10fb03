/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch arenas, the backend that computes nothing, which sizes them, and the CPU's pool of freed memory. */
#include "op.h"

#include <sys/mman.h>

#include "arena.h"

static void arena_alloc_aligned_until_full(void **state)
{
	struct dtp_backend *be;
	struct dtp_arena a;
	(void)state;
	MUST(dtp_backend_cpu(DTP_F32, 1, &be, err));
	MUST(dtp_arena_init(&a, be, 256, err));
	char *p = dtp_arena_alloc(&a, 1), *q = dtp_arena_alloc(&a, 65);
	assert_true(p && q && (uintptr_t)p % 64 == 0 && q == p + 64);
	assert_int_equal(a.used, 192);
	assert_null(dtp_arena_alloc(&a, 65));
	assert_null(dtp_arena_alloc(&a, UINT64_MAX));
	assert_null(dtp_arena_alloc(&a, UINT64_MAX - 60));
	assert_ptr_equal(dtp_arena_alloc(&a, 64), q + 128);
	assert_null(dtp_arena_alloc(&a, 0)); /* an empty tensor has an address of its own */
	assert_int_equal(a.peak, 256);
	memset(p, 1, 256);
	dtp_arena_free(&a);
	dtp_arena_free(&a);
	be->ops->destroy(be);
}

static void arena_release_keeps_peak(void **state)
{
	struct dtp_backend *be;
	struct dtp_arena a;
	(void)state;
	MUST(dtp_backend_cpu(DTP_F32, 1, &be, err));
	MUST(dtp_arena_init(&a, be, 1024, err));
	dtp_arena_alloc(&a, 100);
	uint64_t mark = dtp_arena_mark(&a);
	void *p = dtp_arena_alloc(&a, 500);
	dtp_arena_release(&a, mark);
	assert_int_equal(a.used, 128);
	assert_ptr_equal(dtp_arena_alloc(&a, 10), p);
	assert_int_equal(a.peak, 128 + 512);
	dtp_arena_free(&a);
	be->ops->destroy(be);
}

/* What measuring says is what it takes. */
static void arena_measure_then_fit(void **state)
{
	static const uint64_t sizes[] = {1, 64, 1000, 0, 77, 4096};
	struct dtp_backend *be;
	struct dtp_arena m, a;
	(void)state;
	MUST(dtp_backend_cpu(DTP_BF16, 1, &be, err));
	dtp_arena_measure(&m);
	for (size_t i = 0; i < 6; i++)
		assert_non_null(dtp_arena_alloc(&m, sizes[i]));
	assert_non_null(dtp_arena_alloc(&m, 1ull << 50));
	dtp_arena_release(&m, 64);
	m.peak = m.used;
	for (size_t i = 1; i < 6; i++)
		dtp_arena_alloc(&m, sizes[i]);
	MUST(dtp_arena_init(&a, be, m.peak, err));
	for (size_t i = 0; i < 6; i++)
		assert_non_null(dtp_arena_alloc(&a, sizes[i]));
	assert_int_equal(a.used, m.peak);
	assert_null(dtp_arena_alloc(&a, 1));
	dtp_arena_free(&a);
	dtp_arena_free(&m);
	be->ops->destroy(be);
}

static void arena_init_too_large(void **state)
{
	struct dtp_err e = DTP_ERR_INIT;
	struct dtp_backend *be;
	struct dtp_arena a;
	(void)state;
	MUST(dtp_backend_cpu(DTP_F32, 1, &be, err));
	assert_int_equal(dtp_arena_init(&a, be, 1ull << 60, &e), DTP_FAILED);
	assert_message(&e, DTP_FAILED, "1152921504606846976", NULL);
	dtp_arena_free(&a);
	be->ops->destroy(be);
}

static void dry_touches_nothing(void **state)
{
	struct dtp_backend *be;
	struct dtp_weight *w;
	struct dtp_attention att = {.scale = 1, .group = 1};
	void *p, *q;
	float host[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	uint8_t rgb[12] = {9};
	(void)state;
	MUST(dtp_backend_dry(DTP_BF16, DTP_DEVICE_CPU, &be, err));
	assert_true(be->dry && be->compute == DTP_BF16);
	MUST(be->ops->alloc(be, 1ull << 50, &p, err)); /* more than any machine has */
	MUST(be->ops->alloc(be, 0, &q, err));
	assert_true(p && q && p != q && (uintptr_t)q % 64 == 0 && (uintptr_t)q >= (uintptr_t)p + (1ull << 50));
	struct dtp_tensor x = dtp_tensor_make(p, DTP_BF16, 2, (int64_t[]){2, 4}), y = dtp_split_last(x, 2, 2);
	MUST(be->ops->weight_new(be, DTP_WEIGHT_MATRIX, 2, (int64_t[]){1 << 20, 1 << 20}, &w, err));
	assert_int_equal(w->nbytes, 1ull << 41);
	assert_int_equal(w->row_align, 64);
	MUST(be->ops->weight_write(be, w, 0, 64, NULL, DTP_F32, err));
	MUST(be->ops->upload(be, x, NULL, DTP_F32, err));
	MUST(be->ops->linear(be, x, x, w, NULL, err));
	MUST(be->ops->embedding(be, x, NULL, w, 0, err));
	MUST(be->ops->modulated_norm(be, x, x, x, x, 0, err));
	MUST(be->ops->rms_norm(be, x, x, w, 0, err));
	MUST(be->ops->qk_norm_rope(be, y, y, w, w, 0, DTP_ROPE_HALF, x, x, err));
	MUST(be->ops->attention(be, y, y, y, y, &att, err));
	MUST(be->ops->swiglu(be, x, x, x, err));
	MUST(be->ops->gated_residual(be, x, x, x, err));
	MUST(be->ops->add_bias(be, x, w, err));
	MUST(be->ops->silu(be, x, x, err));
	MUST(be->ops->add(be, x, x, x, err));
	MUST(be->ops->copy(be, x, x, err));
	MUST(be->ops->euler_step(be, x, x, x, err));
	MUST(be->ops->conv2d(be, y, y, w, NULL, 1, 1, 1, err));
	MUST(be->ops->group_norm(be, y, y, w, w, 1, 0, true, err));
	MUST(be->ops->upsample2x(be, y, y, 0, err));
	MUST(be->ops->unpatchify(be, y, x, w, w, 0, err));
	MUST(be->ops->patchify(be, x, y, w, w, 0, err));
	MUST(be->ops->download(be, host, DTP_F32, x, err));
	MUST(be->ops->quantise(be, rgb, x, err));
	MUST(be->ops->sync(be, err));
	for (int i = 0; i < 8; i++)
		assert_true(host[i] == 0 && rgb[i] == 0);
	assert_int_equal(be->ops->set_threads(be, 3), 1);
	be->ops->weight_free(be, w);
	be->ops->free(be, p, 1ull << 50);
	be->ops->destroy(be);
}

/* Parts of one mapping come and go at random: what is taken is never taken twice, and what is given back joins up. */
static void pool_take_and_give(void **state)
{
	enum { PAGES = 64, PAGE = 4096 };
	struct dtp_pool pool = {0};
	char *base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int taken[PAGES] = {0}; /* pages of the part that begins here */
	(void)state;
	assert_true(base != MAP_FAILED);
	assert_null(dtp_pool_take(&pool, PAGE));
	dtp_pool_give(&pool, base, PAGES * PAGE);
	uint64_t out = 0;
	for (int i = 0; i < 3000; i++) {
		int n = 1 + (int)(test_random() % 9), at = (int)(test_random() % PAGES);
		if (test_random() % 2 && taken[at]) {
			for (int j = 0; j < taken[at] * PAGE; j += PAGE)
				assert_int_equal(base[at * PAGE + j], (char)(at + 1));
			dtp_pool_give(&pool, base + at * PAGE, (uint64_t)taken[at] * PAGE);
			out -= (uint64_t)taken[at];
			taken[at] = 0;
			continue;
		}
		char *p = dtp_pool_take(&pool, (uint64_t)n * PAGE);
		if (p) {
			at = (int)((p - base) / PAGE);
			taken[at] = n;
			out += (uint64_t)n;
			memset(p, at + 1, (size_t)n * PAGE);
		}
		assert_int_equal(pool.total, (PAGES - out) * PAGE);
		for (int j = 1; j < pool.n; j++)
			assert_true(pool.ranges[j - 1].p + pool.ranges[j - 1].nbytes < pool.ranges[j].p);
	}
	for (int at = 0; at < PAGES; at++)
		if (taken[at])
			dtp_pool_give(&pool, base + at * PAGE, (uint64_t)taken[at] * PAGE);
	assert_int_equal(pool.n, 1);
	assert_ptr_equal(pool.ranges[0].p, base);
	assert_int_equal(pool.ranges[0].nbytes, PAGES * PAGE);
	dtp_pool_trim(&pool, 5 * PAGE + 1); /* whole pages: less is left, not more */
	assert_int_equal(pool.total, 5 * PAGE);
	assert_int_equal(pool.ranges[0].nbytes, 5 * PAGE);
	dtp_pool_free(&pool);
	assert_int_equal(pool.total, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_alloc_aligned_until_full), cmocka_unit_test(arena_release_keeps_peak),
		cmocka_unit_test(arena_measure_then_fit),	  cmocka_unit_test(arena_init_too_large),
		cmocka_unit_test(dry_touches_nothing),		  cmocka_unit_test(pool_take_and_give),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
