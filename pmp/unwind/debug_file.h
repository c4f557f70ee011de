// SPDX-License-Identifier: Apache-2.0
// Finds the separate debug file of an ELF file, like gdb: by build-id, then by .gnu_debuglink.
#ifndef STALL_DEBUG_FILE_H
#define STALL_DEBUG_FILE_H

#include "base/error.h"
#include "unwind/elf_file.h"
#include "unwind/search_dirs.h"

// .gnu_debugdata: an xz-compressed ELF file with the symbols of static functions, which Fedora and
// related distributions put into their programs ("MiniDebugInfo").

// *ret is unchanged where the file has none.
struct stall_error *stall_minidebug_open(const struct stall_elf *elf, struct stall_elf **ret);

#define STALL_DEBUG_DIR "/usr/lib/debug" // the system's

// *ret and *ret_path are unchanged where there is none. `path` is the file's own, for debuglink;
// may be NULL. An error of stall_is_distrust(): none is found that is trusted.
struct stall_error *stall_debug_file_open(const struct stall_search_dirs *dirs,
					  const struct stall_elf *elf, const char *path,
					  struct stall_elf **ret, char **ret_path);

// Only by build-id, which must have only hex digits. As stall_debug_file_open().
struct stall_error *stall_debug_dirs_find(const struct stall_search_dirs *dirs,
					  const char *build_id, struct stall_elf **ret,
					  char **ret_path);

#endif
