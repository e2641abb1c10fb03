/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

struct sum_of {
	__device__ float operator()(float a, float b) const
	{
		return a + b;
	}
};

cudaError_t dtp_k_add(cudaStream_t stream, struct dtp_tensor out, struct dtp_tensor a, struct dtp_tensor b)
{
	return launch_pointwise(stream, out, a, b, sum_of{});
}
