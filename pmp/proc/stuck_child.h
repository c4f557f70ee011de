// SPDX-License-Identifier: Apache-2.0
#ifndef STALL_STUCK_CHILD_H
#define STALL_STUCK_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// Whether a child that should work has waited all this time, and was never woken: for a disk that does
// not answer. To be asked each STALL_STUCK_LOOK_MS, first with 0.
struct stall_stuck {
	uint64_t switches; // of the CPU
	unsigned int ms;
};
#define STALL_STUCK_LOOK_MS 250
bool stall_child_is_stuck(pid_t pid, struct stall_stuck *stuck, unsigned int patience_ms);

#endif
