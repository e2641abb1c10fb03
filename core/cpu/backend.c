/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's table, its life, its threads. */
#include <stdlib.h>
#include <unistd.h>

#include "cpu.h"
#include "dnnl.h"

static void destroy(struct dtp_backend *be)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);

	if (!be)
		return;
	dtp_cpu_drop_scratch(cpu);
	dtp_pool_free(&cpu->pool);
	dtp_dnnl_free(cpu->dnnl);
	free(cpu);
}

static uint64_t weight_bytes(struct dtp_backend *be, enum dtp_weight_kind kind, int ndim, const int64_t *shape)
{
	return dtp_cpu_weight_bytes(be->compute, kind, ndim, shape);
}

/* More threads than ever before need scratch of their own; where that fails, the number stays. */
static int set_threads(struct dtp_backend *be, int n)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	int former = cpu->threads;
	struct dtp_dnnl *d;

	if (n > cpu->capacity) {
		if (dtp_dnnl_new(n, &d, NULL))
			return former;
		dtp_dnnl_free(cpu->dnnl);
		dtp_cpu_drop_scratch(cpu);
		cpu->dnnl = d;
		cpu->capacity = n;
	}
	if (n > 0)
		cpu->threads = n;
	return former;
}

static enum dtp_code measure_peak(struct dtp_backend *be, double *flops, struct dtp_err *err)
{
	struct dtp_cpu *cpu = dtp_cpu_of(be);
	return dtp_dnnl_peak(dtp_cpu_operand(cpu), cpu->threads, flops, err);
}

static const struct dtp_backend_ops cpu_ops = {
	.name = "cpu",
	.destroy = destroy,
	.alloc = dtp_cpu_alloc,
	.free = dtp_cpu_free,
	.upload = dtp_cpu_upload,
	.download = dtp_cpu_download,
	.sync = dtp_cpu_sync,
	.host_alloc = dtp_cpu_host_alloc,
	.host_free = dtp_cpu_host_free,
	.reserve = dtp_cpu_reserve,
	.memory = dtp_cpu_memory,
	.weight_new = dtp_cpu_weight_new,
	.weight_write = dtp_cpu_weight_write,
	.weight_fill = dtp_cpu_weight_fill,
	.low_rank_add = dtp_cpu_low_rank_add,
	.weight_free = dtp_cpu_weight_free,
	.weight_bytes = weight_bytes,
	.linear = dtp_cpu_linear,
	.embedding = dtp_cpu_embedding,
	.modulated_norm = dtp_cpu_modulated_norm,
	.rms_norm = dtp_cpu_rms_norm,
	.qk_norm_rope = dtp_cpu_qk_norm_rope,
	.attention = dtp_cpu_attention,
	.swiglu = dtp_cpu_swiglu,
	.gated_residual = dtp_cpu_gated_residual,
	.add_bias = dtp_cpu_add_bias,
	.silu = dtp_cpu_silu,
	.add = dtp_cpu_add,
	.copy = dtp_cpu_copy,
	.euler_step = dtp_cpu_euler_step,
	.conv2d = dtp_cpu_conv2d,
	.group_norm = dtp_cpu_group_norm,
	.group_maps = dtp_cpu_group_maps,
	.window = dtp_cpu_window,
	.upsample2x = dtp_cpu_upsample2x,
	.unpatchify = dtp_cpu_unpatchify,
	.patchify = dtp_cpu_patchify,
	.quantise = dtp_cpu_quantise,
	.set_threads = set_threads,
	.measure_peak = measure_peak,
};

enum dtp_code dtp_cpu_create(enum dtp_dtype compute, int threads, enum dtp_cpu_method method, struct dtp_backend **out,
			     struct dtp_err *err)
{
	struct dtp_dnnl_facts facts = dtp_dnnl_facts();
	struct dtp_cpu *cpu;

	*out = NULL;
	if (compute != DTP_F32 && compute != DTP_BF16)
		return dtp_fail(err, DTP_REFUSED, "the CPU computes in F32 or BF16, not in '%s'", dtp_dtype_name(compute));
	if (threads < 1)
		return dtp_fail(err, DTP_REFUSED, "%d threads: at least 1 is needed", threads);
	if (compute == DTP_F32)
		method = DTP_CPU_WIDEN;
	else if (method == DTP_CPU_AUTO)
		method = facts.bf16_faster ? DTP_CPU_NATIVE : DTP_CPU_WIDEN;
	if (method == DTP_CPU_NATIVE && !(facts.blocked && facts.bf16))
		return dtp_fail(err, DTP_REFUSED, "this CPU has no bf16 products of its own");
	cpu = calloc(1, sizeof *cpu);
	if (!cpu)
		return dtp_fail(err, DTP_FAILED, "out of memory: no %zu bytes for the CPU backend", sizeof *cpu);
	cpu->base.ops = &cpu_ops;
	cpu->base.compute = compute;
	cpu->threads = cpu->capacity = threads;
	cpu->method = method;
	cpu->blocked = facts.blocked;
	cpu->bf16_fastest = method == DTP_CPU_NATIVE && facts.bf16_fastest;
	enum dtp_code rc = dtp_dnnl_new(threads, &cpu->dnnl, err);
	if (rc) {
		free(cpu);
		return rc;
	}
	*out = &cpu->base;
	return DTP_OK;
}

enum dtp_code dtp_backend_cpu(enum dtp_dtype compute, int threads, struct dtp_backend **out, struct dtp_err *err)
{
	return dtp_cpu_create(compute, threads, DTP_CPU_AUTO, out, err);
}
