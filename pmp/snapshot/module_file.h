// SPDX-License-Identifier: Apache-2.0
// Opening the very file that a process has mapped, whatever its path means by now.
#ifndef STALL_MODULE_FILE_H
#define STALL_MODULE_FILE_H

#include "error.h"
#include "maps.h"

// Fills module->fd, or module->error. `start` and `end` are those of one mapping of the file, as in
// /proc/PID/maps. Fails for want of memory only.
struct stall_error *stall_module_open(const struct stall_target *target,
				      struct stall_module *module, uint64_t start, uint64_t end);

// A name that ends in " (deleted)" can be meant so: sets path and deleted right.
struct stall_error *stall_module_settle_path(const struct stall_target *target,
					     struct stall_module *module);

#endif
