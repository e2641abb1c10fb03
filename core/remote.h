/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read over a network: there a request costs more than many bytes do. */
#ifndef DTP_REMOTE_H
#define DTP_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether statfs's f_type is one of those file systems whose files may lie on another machine.  FUSE is: whatever serves it answers each
 * request by itself. */
bool dtp_remote_type(uint32_t f_type);
/* Of an open file; false where the system does not say. */
bool dtp_remote_file(int fd);
#endif
