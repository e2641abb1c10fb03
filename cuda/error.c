/* SPDX-License-Identifier: Apache-2.0 */
/* What a failed call of the CUDA runtime means, and tables of functions of NVIDIA's libraries. */
#include "cuda.h"

#include <nccl.h>

#include "comm_cuda.h"
#include "dnn_api.h"
#include "lt.h"

#include <stdio.h>
#include <string.h>

static const char *remedy(cudaError_t e)
{
	switch (e) {
	case cudaErrorMemoryAllocation:
		return "the GPU's memory is full: a smaller picture, more ranks or --dtype bf16 take less";
	case cudaErrorInsufficientDriver:
	case cudaErrorStubLibrary:
		return "no NVIDIA driver is installed, or it is older than the CUDA runtime in this program";
	case cudaErrorNoDevice:
		return "no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES";
	case cudaErrorDevicesUnavailable:
		return "another process holds the GPU in exclusive mode, or it is prohibited: see nvidia-smi";
	case cudaErrorNoKernelImageForDevice:
	case cudaErrorUnsupportedPtxVersion:
		return "this program was not built for this GPU: make CUDA_ARCHS=native";
	case cudaErrorECCUncorrectable:
		return "the GPU's memory had an error that it could not correct: reset or replace it (nvidia-smi -q -d ECC)";
	case cudaErrorIllegalAddress:
	case cudaErrorMisalignedAddress:
	case cudaErrorLaunchFailure:
	case cudaErrorHardwareStackError:
	case cudaErrorIllegalInstruction:
	case cudaErrorAssert:
		return "a kernel before this call crashed, which is a fault of this program or of the GPU: the kernel log has the Xid error "
		       "(dmesg | grep Xid)";
	default:
		return "difftp doctor looks at the GPUs, the kernel log may say more (dmesg | grep -i nvrm)";
	}
}

enum dtp_code dtp_cuda_status(cudaError_t e, const char *call, const char *file, int line, struct dtp_err *err)
{
	if (e == cudaSuccess)
		return DTP_OK;
	cudaGetLastError(); /* it is told here: a later call must not return it again */
	return dtp_fail(err, DTP_FAILED, "%.*s: %s (%d), %s:%d\n%s", (int)strcspn(call, "("), call, cudaGetErrorString(e), (int)e, file,
			line, remedy(e));
}

enum dtp_code dtp_cuda_table(enum dtp_cuda_library lib, const struct dtp_symbol *symbols, size_t n, void *table,
			     struct dtp_err *err)
{
	static const char *const names[DTP_NLIBS] = {
		[DTP_LIB_CUBLASLT] = "cuBLASLt, a part of the CUDA toolkit",
		[DTP_LIB_CUDNN] = "cuDNN 9",
		[DTP_LIB_NCCL] = "NCCL 2",
	};
	char why[512];

	for (size_t i = 0; i < n; i++) {
		void *p = dtp_cuda_symbol(lib, symbols[i].name, why, sizeof why);
		if (!p)
			return dtp_fail(err, DTP_REFUSED, "'%s' is missing: %s\nit belongs to %s: install that, or put its folder into "
					"LD_LIBRARY_PATH", symbols[i].name, why, names[lib]);
		memcpy((char *)table + symbols[i].offset, &p, sizeof p);
	}
	return DTP_OK;
}

enum dtp_code dtp_cuda_libraries(const struct dtp_cuda_needs *needs, struct dtp_err *err)
{
	struct dtp_cudnn api;

	if ((needs->products && dtp_lt_library(err)) || (needs->sums && dtp_nccl_library(err)))
		return err->code;
	if ((needs->convolutions || needs->attention) && dtp_cudnn_load(&api, err))
		return dtp_err_prefix(err, "%s: ", needs->convolutions ? "pictures need cuDNN, latents (--output-type latent) do not"
									       : "--attention cudnn");
	return DTP_OK;
}

struct dtp_cuda_built dtp_cuda_built(void)
{
	return (struct dtp_cuda_built){CUDART_VERSION, NCCL_VERSION_CODE};
}
