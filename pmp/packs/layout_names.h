// SPDX-License-Identifier: Apache-2.0
// The structures whose layouts a pack has: those of the servers' own locks, and of what is read to
// say who has them.
#ifndef STALL_LAYOUT_NAMES_H
#define STALL_LAYOUT_NAMES_H

#include <stdbool.h>

// The name as in DWARF without blanks; of a template with its arguments.
bool stall_layout_is_wanted(const char *name);

#endif
