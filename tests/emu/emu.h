/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the emulator share.  cudart.c stands in for the CUDA runtime: device memory is host memory, a stream is a queue of
 * work items, and nothing here needs a GPU.  The other parts (kernels compiled as C++, cuBLASLt, cuDNN, NCCL) put their work on
 * its streams and ask it about memory.
 *
 * DIFFTP_EMU_STREAMS  when the work of a stream runs.  eager: when it is given, as far as its events allow; deferred: only when
 *                     somebody waits for it, in the order that events ask for; random: after every call a random number of items
 *                     of random streams (DIFFTP_EMU_SEED).  Eager without it.
 * DIFFTP_EMU_FAIL     CALL:N[:CODE][@DEVICE][+ADDRESS]: the Nth call of a process to CALL fails, with CODE or what that call usually
 *                     fails with; with @DEVICE only in processes that use this device; with +ADDRESS only calls from that place in
 *                     cuda/X.c are counted.  CALL may be "work": what runs on a stream.
 * DIFFTP_EMU_MISSING  cublasLt, cudnn or nccl: no function whose name begins so is to be found.
 * DIFFTP_EMU_CUDNN    the version that cuDNN says it has (90800).
 * DIFFTP_EMU_MOST     how many things of a kind (emu_hold) may be alive at once.
 * DIFFTP_EMU_CALLS    a file that gets a line "CALL COUNT" per function called, appended when the process ends.
 * DIFFTP_EMU_SITES    the same with "CALL ADDRESS DEVICE COUNT" per function and place in cuda/X.c that it is called from (that of the
 *                     kernel's launcher for a launch): addr2line tells file and line.  0x0: from elsewhere, or work.
 *
 * Wrong use by the program under test ends the process with EMU_EXIT and one line on stderr: it is never a mere error code, which
 * the program could swallow.  Every function may be called from any thread. */
#ifndef EMU_H
#define EMU_H

#include <stdbool.h>
#include <stddef.h>

#include <driver_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Exit status of a process that used the API wrongly. */
enum { EMU_EXIT = 86 };

#define EMU_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Prints "emulator: MESSAGE" and ends the process with EMU_EXIT. */
void emu_misuse(const char *format, ...) EMU_PRINTF(1, 2) __attribute__((noreturn));

/* Work on a stream.  arg: the copy of this run; it may be changed, and is gone after the run.  Returns false when it cannot be
 * finished now (another process has not come yet): it is called again, and what stands behind it in its stream waits.  It must not
 * call the runtime. */
typedef bool emu_work(void *arg);

/* Puts work at the end of stream, or into the graph that is being captured from it; arg_size bytes at arg are copied now, and
 * anew for every launch of a captured graph.  name: for messages, a string that lives on. */
cudaError_t emu_enqueue(cudaStream_t stream, emu_work *work, const void *arg, size_t arg_size, const char *name);

/* Whether what is given to stream goes into a graph; and whether a graph, or what is captured of one, has work of which `is` says yes: a
 * library asks what of its own would come back. */
bool emu_is_captured(cudaStream_t stream);
bool emu_graphs_have(bool (*is)(emu_work *work, const void *arg, const void *what), const void *what);

/* Keeps an error for cudaGetLastError, as every call of the runtime does; returns it. */
cudaError_t emu_result(cudaError_t result);

/* The device of this thread, and what it is; false if there is none of that number.  For the stand-ins of libraries: the program's own
 * calls are counted, these are not. */
int emu_device(void);
bool emu_device_properties(int device, struct cudaDeviceProp *p);

/* Bytes of dynamic shared memory that a kernel may be launched with: more than 48 KB once cudaFuncSetAttribute asked for it. */
size_t emu_shared_limit(const void *kernel);

/* From inside of work: the error that every later call that waits returns, as after a failed kernel. */
void emu_async_error(cudaError_t error);

/* Counts a call to one of the emulated functions; true when DIFFTP_EMU_FAIL wants this one to fail.  *code gets the CODE given there
 * and is left alone otherwise.  Every function of every library begins with it. */
bool emu_call(const char *name, int *code);

/* Counts things of a library that are alive, such as its handles; what is left of them when the process ends is an error.  what: a
 * plural, a string that lives on. */
void emu_hold(const char *what, int change);

enum emu_memory { EMU_DEVICE, EMU_PINNED, EMU_UNKNOWN /* pageable host memory, or nothing */ };

/* An allocation that is alive.  Device memory is touched by work only: in deferred mode nobody else may. */
struct emu_range {
	enum emu_memory kind;
	char *base;
	size_t size;
};

/* The allocation that p lies in; kind EMU_UNKNOWN if in none. */
struct emu_range emu_find(const void *p);

/* Device memory for the stand-in of a library that gives memory itself; NULL: there is not as much.  Freeing it waits for nothing: ends the process
 * where work may still use it, as far as the host knows. */
void *emu_device_new(size_t size);
void emu_device_free(void *p, const char *call);

/* Ends the process unless [p, p + size) lies in one live allocation of device memory, or is empty.  what: "cublasLtMatmul: A". */
void emu_device_range(const void *p, size_t size, const char *what);

/* Whether every access of a kernel is seen (make EMULATE=shadow). */
bool emu_sees_accesses(void);

/* From inside of work: it reads or writes these bytes of one allocation, as a whole or `height` rows of `width` bytes that are pitch bytes
 * apart.  Ends the process where work of another stream uses them too, one of the two writes, and nothing orders them (order.c). */
void emu_uses(const void *p, size_t size, bool write);
void emu_uses_rows(const void *p, size_t pitch, size_t width, size_t height, bool write);

#ifdef __cplusplus
}
#endif
#endif
