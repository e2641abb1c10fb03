/* SPDX-License-Identifier: Apache-2.0 */
/* Included before everything else of a .cu file that is compiled as plain C++: what nvcc gives a kernel.  Types and conversions come from
 * NVIDIA's own headers; threads are fibers, of which one runs at a time until it comes to a barrier or a shuffle.
 *
 * DIFFTP_EMU_ORDER  in which the threads of a block, and the blocks of a grid, take their turns: forward (without it), reverse, or
 *                   rotated: from the middle on.
 *
 * Stricter than a GPU: blocks of whole warps, shuffles among whole warps, no dynamic shared memory, 48 KiB of shared memory.  Shared
 * memory is filled with NaNs before each block.  What it cannot show: lockstep of a warp, weak order of memory, registers, speed. */
#ifndef EMU_DEVICE_H
#define EMU_DEVICE_H

/* NVIDIA's headers leave these alone where they are defined. */
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>
#undef __launch_bounds__
#define __launch_bounds__(...)

/* Where the running thread is. */
struct emu_place {
	uint3 thread, block;
	dim3 block_dim, grid_dim;
};
extern struct emu_place emu_here;
static const uint3 &threadIdx = emu_here.thread, &blockIdx = emu_here.block;
static const dim3 &blockDim = emu_here.block_dim, &gridDim = emu_here.grid_dim;

void emu_barrier();
#define __syncthreads() emu_barrier()

/* The 8 bytes that lane ^ distance of the same warp has given. */
uint64_t emu_exchange(uint32_t lanes, uint64_t bits, int distance);
template <class T> T __shfl_xor_sync(unsigned lanes, T x, int distance)
{
	static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
	uint64_t bits = 0;
	__builtin_memcpy(&bits, &x, sizeof x);
	bits = emu_exchange(lanes, bits, distance);
	__builtin_memcpy(&x, &bits, sizeof x);
	return x;
}

/* The same memory for all threads of a block that come by here; declaration: something that has this declaration's address. */
void *emu_shared(const void *declaration, size_t size, size_t align);
#define SHARED_ARRAY(T, name, n) \
	T *const name = [] { \
		static const char declaration = 0; \
		return static_cast<T *>(emu_shared(&declaration, sizeof(T) * (n), alignof(T))); \
	}()

/* name: where the launch is written.  body(closure) runs a thread. */
cudaError_t emu_launch(const char *name, const cudaLaunchConfig_t *config, void (*body)(void *closure), const void *closure, size_t size);

template <class T> struct emu_same {
	typedef T type;
};
template <class... P>
cudaError_t emu_launch_kernel(const char *name, const cudaLaunchConfig_t *config, void (*kernel)(P...), typename emu_same<P>::type... args)
{
	auto body = [=] { kernel(args...); };
	static_assert(std::is_trivially_copyable_v<decltype(body)>);
	return emu_launch(name, config, [](void *closure) { (*static_cast<decltype(body) *>(closure))(); }, &body, sizeof body);
}
#define EMU_TEXT(x) #x
#define EMU_NUMBER(x) EMU_TEXT(x)
#define cudaLaunchKernelEx(config, ...) emu_launch_kernel(__FILE__ ":" EMU_NUMBER(__LINE__), config, __VA_ARGS__)
#endif
