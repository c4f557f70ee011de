// SPDX-License-Identifier: Apache-2.0
// The file that dwz(1) moved common parts of debugging information to.
#ifndef STALL_DWARF_ALT_H
#define STALL_DWARF_ALT_H

#include "packs/dwarf_sections.h"

// Opens the file that .gnu_debugaltlink of `elf`, which is at `path`, names, if its build-id is the
// right one. *ret is NULL where there is none; *ret_missing: there should be one. One that is not
// trusted is an error.
struct stall_error *stall_dwarf_alt_open(const struct stall_elf *elf, const char *path,
					 struct stall_dwarf **ret, bool *ret_missing);

#endif
