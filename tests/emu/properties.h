/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU of each architecture that the program is built for, as cuDNN describes devices: enough to plan for them without having one.
 * The numbers are those of data sheets and of the CUDA programming guide's table of compute capabilities. */
#ifndef EMU_PROPERTIES_H
#define EMU_PROPERTIES_H

#include <stddef.h>

/* The JSON of compute capability sm (80, 86, 89, 90, 100, 120), as device number `device` of its machine, in buf, which is returned;
 * NULL: no such capability here. */
const char *emu_properties(int sm, int device, char *buf, size_t size);
#endif
