// SPDX-License-Identifier: Apache-2.0
// The mappings of a dumped process and the files that belong in them.
#ifndef STALL_CORE_MODULES_H
#define STALL_CORE_MODULES_H

#include "base/error.h"
#include "core/core_files.h"
#include "core/core_memory.h"
#include "core/core_notes.h"
#include "snapshot/maps.h"

// Opens each file by its path, and compares it with its part in the core: where they differ, the
// module has an error instead. *ret_main is the index of the program, or STALL_NO_MODULE.
struct stall_error *stall_core_maps_create(const struct stall_core_memory *memory,
					   const struct stall_core_notes *notes,
					   const struct stall_core_files *files,
					   struct stall_maps **ret, uint32_t *ret_main);

#endif
