/* SPDX-License-Identifier: Apache-2.0 */
/* The file of the ring, in its folder, with its header. */
#ifndef STALL_RECORDER_FILE_H
#define STALL_RECORDER_FILE_H

#include "inproc/recorder_memory.h"

/* Makes and maps it, and removes old ones of servers that have ended. 0, or an errno, and what
 * failed. */
int recorder_create(struct recorder_ring *ring, const char **ret_what);

#endif
