// SPDX-License-Identifier: Apache-2.0
// What a system call costs on this host at this moment.
#ifndef STALL_CALL_COST_H
#define STALL_CALL_COST_H

#include <stdint.h>

// Of one that does nothing, in picoseconds: the fastest of some batches. Takes about a millisecond.
uint64_t stall_call_cost_ps(void);

#endif
