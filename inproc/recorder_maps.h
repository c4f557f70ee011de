/* SPDX-License-Identifier: Apache-2.0 */
/* Which files are mapped where, so that addresses have names also after the server's death. */
#ifndef STALL_RECORDER_MAPS_H
#define STALL_RECORDER_MAPS_H

#include "inproc/recorder_memory.h"

/* Reads /proc/self/maps again, if that was not done lately: it waits for the memory map. Called where
 * the process makes or ends a thread, which waits for it, too. */
void recorder_maps_refresh(struct recorder_ring *ring, uint64_t now);
/* The same in a wait, where the process has no other thread. */
void recorder_maps_refresh_alone(struct recorder_ring *ring, uint64_t now);
void recorder_maps_forget(void);

#endif
