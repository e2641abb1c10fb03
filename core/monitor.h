/* SPDX-License-Identifier: Apache-2.0 */
/* How core/ tells its process what it is doing.  The process (cli/) fills the table; core/ only calls it.  All calls are
 * cheap (no system call on the beat path) and safe from any thread. */
#ifndef DTP_MONITOR_H
#define DTP_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtp_phase { DTP_PHASE_START, DTP_PHASE_RENDEZVOUS, DTP_PHASE_LOAD, DTP_PHASE_ENCODE, DTP_PHASE_STEP,
	DTP_PHASE_DECODE, DTP_PHASE_WRITE,
	DTP_PHASE_INPUT /* waiting for the user: while one rank does, no deadline runs for those that wait */ };

struct dtp_monitor {
	void *arg;
	/* A new stage begins: phase, and its text ("load transformer", "step 3/4").  Kept for the error message of a rank
	 * that dies in it. */
	void (*stage)(void *arg, enum dtp_phase phase, const char *text);
	/* Progress within the stage: done of total (bytes while loading, blocks or steps else).  Each call is a heartbeat. */
	void (*progress)(void *arg, uint64_t done, uint64_t total);
	/* Something moved (a block, a tile, 64 MB read).  Lack of beats, not time, ends a run. */
	void (*beat)(void *arg);
	/* Entering or leaving a wait for another rank or for input: no beats are expected in between. */
	void (*waiting)(void *arg, bool yes);
	/* A line for the user's stderr, and a warning for it. */
	void (*note)(void *arg, const char *text);
	void (*warn)(void *arg, const char *text);
	/* True once the run is to end (a signal, an abort): long loops return DTP_INTERRUPTED. */
	bool (*stopped)(void *arg);
};

/* A monitor that does nothing: for tests, and to begin with where some calls are wanted. */
extern const struct dtp_monitor dtp_monitor_none;

#ifdef __cplusplus
}
#endif
#endif
