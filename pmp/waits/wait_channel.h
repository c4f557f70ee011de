// SPDX-License-Identifier: Apache-2.0
// The wait channel of a sleeping thread: the kernel function that made it sleep.
#ifndef STALL_WAIT_CHANNEL_H
#define STALL_WAIT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stall_wait_channels;

struct stall_wait_channels *stall_wait_channels_create(void); // NULL without memory
void stall_wait_channels_destroy(struct stall_wait_channels *channels);

// The innermost function that does not belong to the scheduler or to the kernel's own locks.
// Frames: innermost first. NULL: none is known. Valid until the next call.
const char *stall_wait_channel_find(struct stall_wait_channels *channels, const uint64_t *frames,
				    size_t count);

// Whether /proc/PID/wchan would omit this function, too: it says only that a thread sleeps.
bool stall_wait_channel_is_scheduler(const char *function);
// Its length without what a compiler has added (".constprop.0"), which differs between kernels.
size_t stall_wait_channel_length(const char *function);

#endif
