// SPDX-License-Identifier: Apache-2.0
// Undoes a poke at a deadline, whatever happens to the command that asked for it. Two processes in
// sessions of their own, each of which watches the other: where one is killed, the other starts a
// new one. Only if both are killed at once does the poke stay; its record then says so.
#ifndef STALL_SUPERVISOR_H
#define STALL_SUPERVISOR_H

#include "poke/poke.h"

// Returns when both are ready, before anything is written to the target. `record`: locked by the
// caller, who writes to the target next. Without success nothing may be written.
struct stall_error *stall_supervisor_start(const struct stall_poke *poke, int record,
					   uint64_t duration_ns);

#endif
