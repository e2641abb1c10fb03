/* SPDX-License-Identifier: Apache-2.0 */
/* What is chosen by the processor's features, in words. */
#include "cpu.h"
#include "dnnl.h"
#include "vec.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

static const char *loops(void)
{
#if DTP_CLONED
	if (__builtin_cpu_supports("x86-64-v4"))
		return "AVX-512";
	if (__builtin_cpu_supports("x86-64-v3"))
		return "AVX2";
#endif
	return "the compiler's default";
}

void dtp_cpu_facts(struct dtp_cpu_facts *out)
{
	struct dtp_dnnl_facts f = dtp_dnnl_facts();
	const dnnl_version_t *v = dnnl_version();

	*out = (struct dtp_cpu_facts){
		.avx512 = f.blocked,
		.avx512_bf16 = f.bf16,
		.amx = f.bf16_fastest,
		.loops = loops(),
		.bf16 = f.bf16_fastest ? "by AMX" : f.bf16_faster ? "by avx512_bf16" : "widened to fp32",
		.mismatch = v->major != DNNL_VERSION_MAJOR || v->minor < DNNL_VERSION_MINOR,
	};
	snprintf(out->library, sizeof out->library, "oneDNN %d.%d.%d (compiled with %d.%d.%d)", v->major, v->minor, v->patch,
		 DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}
