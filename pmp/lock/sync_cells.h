// SPDX-License-Identifier: Apache-2.0
// Finds InnoDB's latches, up to MariaDB 10.5 and in MySQL, that threads of memory->process wait for,
// where the layout has its keys.
#ifndef STALL_SYNC_CELLS_H
#define STALL_SYNC_CELLS_H

#include "base/error.h"
#include "lock/server_memory.h"

struct stall_error *stall_sync_cells_find(struct stall_server_memory *memory);

#endif
