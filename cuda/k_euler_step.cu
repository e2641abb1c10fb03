/* SPDX-License-Identifier: Apache-2.0 */
#include "device.cuh"

struct step_by {
	const float *dt;
	__device__ float operator()(float a, float b) const
	{
		return a + *dt * b;
	}
};

cudaError_t dtp_k_euler_step(cudaStream_t stream, struct dtp_tensor latents, struct dtp_tensor noise, const float *dt)
{
	if (reinterpret_cast<uintptr_t>(dt) % sizeof *dt)
		return cudaErrorInvalidValue;
	return launch_pointwise(stream, latents, latents, noise, step_by{dt});
}
