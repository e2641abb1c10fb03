/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CPU backend, and moving tensors in and out of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu.h"
#include "vec.h"

#define PAGE 4096u
#define LARGE (1u << 20) /* from here on by mmap, in huge pages where the system has them; kept for a while when freed */

/* Bytes that the system can still give: free, or kept only as cache; UINT64_MAX where it does not say. */
static uint64_t available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	uint64_t kb, ram = UINT64_MAX, swap = 0;

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "MemAvailable: %" SCNu64, &kb) == 1)
			ram = kb << 10;
		else if (sscanf(line, "SwapFree: %" SCNu64, &kb) == 1)
			swap = kb << 10;
	}
	fclose(f);
	return ram == UINT64_MAX ? ram : ram + swap;
}

static enum dtp_code no_memory(uint64_t nbytes, struct dtp_err *err)
{
	return dtp_fail(err, DTP_FAILED, "out of memory: %" PRIu64 " bytes are needed, %" PRIu64 " are available", nbytes,
			available());
}

static uint64_t pages(uint64_t nbytes)
{
	return (uint64_t)dtp_round_up((int64_t)nbytes, PAGE);
}

static enum dtp_code map(uint64_t nbytes, void **p, struct dtp_err *err)
{
	*p = NULL;
	/* The system promises more than it has; who believes it is killed later. */
	if (nbytes >= 64u << 20 && nbytes > available())
		return no_memory(nbytes, err);
	void *m = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED)
		return no_memory(nbytes, err);
	madvise(m, nbytes, MADV_HUGEPAGE); /* only a hint */
	*p = m;
	return DTP_OK;
}

static enum dtp_code take(struct dtp_cpu *cpu, uint64_t nbytes, void **p, struct dtp_err *err)
{
	*p = NULL;
	if (nbytes > (uint64_t)INT64_MAX - PAGE)
		return no_memory(nbytes, err);
	if (nbytes < LARGE) {
		*p = aligned_alloc(64, (size_t)dtp_round_up(nbytes ? (int64_t)nbytes : 1, 64));
		return *p ? DTP_OK : no_memory(nbytes, err);
	}
	nbytes = pages(nbytes);
	*p = dtp_pool_take(&cpu->pool, nbytes);
	if (*p)
		return DTP_OK;
	/* No hole is large enough: what is kept goes as new memory comes, so that there is never more than there was. */
	dtp_pool_trim(&cpu->pool, cpu->pool.total > nbytes ? cpu->pool.total - nbytes : 0);
	return map(nbytes, p, err);
}

enum dtp_code dtp_cpu_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	enum dtp_code rc = take(cpu, nbytes, p, err);

	cpu->in_use += rc ? 0 : nbytes;
	cpu->peak = cpu->in_use > cpu->peak ? cpu->in_use : cpu->peak;
	return rc;
}

void dtp_cpu_free(struct dtp_backend *be, void *p, uint64_t nbytes)
{
	dtp_cpu_of(be)->in_use -= p ? nbytes : 0;
	if (nbytes < LARGE)
		free(p);
	else if (p)
		dtp_pool_give(&dtp_cpu_of(be)->pool, p, pages(nbytes));
}

enum dtp_code dtp_cpu_host_alloc(struct dtp_backend *be, uint64_t nbytes, void **p, struct dtp_err *err)
{
	(void)be;
	*p = aligned_alloc(PAGE, (size_t)pages(nbytes));
	return *p ? DTP_OK : no_memory(nbytes, err);
}

void dtp_cpu_host_free(struct dtp_backend *be, void *p)
{
	(void)be;
	free(p);
}

static void unmap(void *p, uint64_t nbytes)
{
	if (p)
		munmap(p, nbytes);
}

enum dtp_code dtp_cpu_scratch(struct dtp_cpu *cpu, uint64_t shared, uint64_t local, struct dtp_err *err)
{
	enum dtp_code rc = DTP_OK;
	void *p;

	/* Where it computes, what was freed is no longer about to be replaced. */
	dtp_pool_trim(&cpu->pool, 0);
	shared = pages(shared);
	if (shared > cpu->shared_size) {
		unmap(cpu->shared, cpu->shared_size);
		cpu->shared_size = 0;
		rc = map(shared, &cpu->shared, err);
		if (rc)
			return rc;
		cpu->shared_size = shared;
	}
	local = pages(local);
	if (local > cpu->local_size) {
		unmap(cpu->local, (uint64_t)cpu->capacity * cpu->local_size);
		cpu->local = NULL;
		cpu->local_size = 0;
		rc = map((uint64_t)cpu->capacity * local, &p, err);
		if (rc)
			return rc;
		cpu->local = p;
		cpu->local_size = local;
	}
	return rc;
}

/* What operations take is the threads', and stays. */
enum dtp_code dtp_cpu_reserve(struct dtp_backend *be, uint64_t nbytes, struct dtp_err *err)
{
	(void)be, (void)nbytes, (void)err;
	return DTP_OK;
}

void dtp_cpu_memory(struct dtp_backend *be, struct dtp_memory_use *out)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);

	*out = (struct dtp_memory_use){.in_use = cpu->in_use, .peak = cpu->peak};
	cpu->peak = cpu->in_use;
}

void dtp_cpu_drop_scratch(struct dtp_cpu *cpu)
{
	unmap(cpu->shared, cpu->shared_size);
	unmap(cpu->local, (uint64_t)cpu->capacity * cpu->local_size);
	cpu->shared = NULL;
	cpu->local = NULL;
	cpu->shared_size = cpu->local_size = 0;
}

/* n dense elements between two dtypes. */
static void convert(void *dst, enum dtp_dtype dst_type, const void *src, enum dtp_dtype src_type, size_t n)
{
	float piece[DTP_PIECE];
	size_t ds = dtp_dtype_size(dst_type), ss = dtp_dtype_size(src_type);

	if (dst_type == src_type) {
		memcpy(dst, src, n * ds);
		return;
	}
	for (size_t i = 0; i < n; i += DTP_PIECE) {
		size_t m = n - i < DTP_PIECE ? n - i : DTP_PIECE;
		dtp_to_f32(piece, (const char *)src + i * ss, src_type, m);
		dtp_from_f32((char *)dst + i * ds, dst_type, piece, m);
	}
}

enum dtp_code dtp_cpu_upload(struct dtp_backend *be, struct dtp_tensor dst, const void *src, enum dtp_dtype src_type,
			     struct dtp_err *err)
{
	(void)be, (void)err;
	convert(dst.data, dst.dtype, src, src_type, (size_t)dtp_numel(&dst));
	return DTP_OK;
}

enum dtp_code dtp_cpu_download(struct dtp_backend *be, void *dst, enum dtp_dtype dst_type, struct dtp_tensor src,
			       struct dtp_err *err)
{
	(void)be, (void)err;
	convert(dst, dst_type, src.data, src.dtype, (size_t)dtp_numel(&src));
	return DTP_OK;
}

enum dtp_code dtp_cpu_sync(struct dtp_backend *be, struct dtp_err *err)
{
	(void)be, (void)err;
	return DTP_OK;
}
