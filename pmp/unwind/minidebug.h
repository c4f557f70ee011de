// SPDX-License-Identifier: Apache-2.0
// .gnu_debugdata: an xz-compressed ELF file with the symbols of static functions, as Fedora and
// its relatives put into their programs ("MiniDebugInfo").
#ifndef STALL_MINIDEBUG_H
#define STALL_MINIDEBUG_H

#include "base/error.h"
#include "unwind/elf_file.h"

// Leaves *ret alone where the file has none.
struct stall_error *stall_minidebug_open(const struct stall_elf *elf, struct stall_elf **ret);

#endif
