// SPDX-License-Identifier: Apache-2.0
// Finds InnoDB's latches of MariaDB 10.6 and later that threads of memory->process wait for, where the
// layout has its keys, in the snapshot's futex words.
#ifndef STALL_SUX_LOCKS_H
#define STALL_SUX_LOCKS_H

#include "lock/lock.h"
#include "lock/server_memory.h"

void stall_sux_locks_find(const struct stall_server_memory *memory,
			  const struct stall_unwound *unwound, const struct stall_locks *locks);

#endif
