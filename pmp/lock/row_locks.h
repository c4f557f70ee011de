// SPDX-License-Identifier: Apache-2.0
// Finds the locks of InnoDB's transactions that threads of memory->process wait for, where the layout
// has its keys.
#ifndef STALL_ROW_LOCKS_H
#define STALL_ROW_LOCKS_H

#include "base/error.h"
#include "lock/server_memory.h"

struct stall_error *stall_row_locks_find(struct stall_server_memory *memory);

#endif
