/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

struct silu_of {
	__device__ float operator()(float a, float) const
	{
		return silu(a);
	}
};

cudaError_t dtp_k_silu(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor x)
{
	return launch_pointwise(stream, out, x, x, silu_of{}); /* the second load is of no use, and the compiler drops it */
}
