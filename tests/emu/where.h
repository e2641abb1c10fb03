/* SPDX-License-Identifier: Apache-2.0 */
/* Where a test of the CUDA backend runs: on the emulator or, built without it (make gpu-tests), on a GPU.  What the emulator alone has
 * is told here and nowhere else. */
#ifndef EMU_WHERE_H
#define EMU_WHERE_H

#ifdef DTP_EMULATED
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif

/* In which order the emulator lets threads and blocks run, and when the work of a stream; a GPU does not ask: one turn is enough. */
static const char *const thread_orders[] = {EMULATED ? "forward" : "GPU", "reverse", "rotated"};
static const char *const stream_modes[] = {EMULATED ? "eager" : "GPU", "deferred", "random"};
enum { NORDERS = EMULATED ? 3 : 1, NMODES = EMULATED ? 3 : 1 };

/* A process on a GPU first opens NVIDIA's libraries, which are large. */
enum { WHERE_SECONDS = EMULATED ? 20 : 120 };
#endif
