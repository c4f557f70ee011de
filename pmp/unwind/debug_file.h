// SPDX-License-Identifier: Apache-2.0
// Finds the separate debug file of an ELF file, like gdb: by build-id, then by .gnu_debuglink.
#ifndef STALL_DEBUG_FILE_H
#define STALL_DEBUG_FILE_H

#include "base/error.h"
#include "unwind/elf_file.h"

// .gnu_debugdata: an xz-compressed ELF file with the symbols of static functions, which Fedora and
// related distributions put into their programs ("MiniDebugInfo").

// *ret is unchanged where the file has none.
struct stall_error *stall_minidebug_open(const struct stall_elf *elf, struct stall_elf **ret);

// Directories are kept open: an unprivileged process may not be able to open them by path.
struct stall_debug_dirs {
	struct {
		int fd;
		char *path;
	} dirs[8];
	size_t count;
};

// A directory that is missing is skipped; /usr/lib/debug comes last by itself.
struct stall_error *stall_debug_dirs_init(struct stall_debug_dirs *dirs, const char *const *paths,
					  size_t count);
void stall_debug_dirs_deinit(struct stall_debug_dirs *dirs);

// *ret and *ret_path are unchanged where there is none. `path` is the file's own, for debuglink;
// may be NULL.
struct stall_error *stall_debug_file_open(const struct stall_debug_dirs *dirs,
					  const struct stall_elf *elf, const char *path,
					  struct stall_elf **ret, char **ret_path);

// Only by build-id, which must have only hex digits. NULL: there is none.
struct stall_elf *stall_debug_dirs_find(const struct stall_debug_dirs *dirs, const char *build_id,
					char **ret_path);

// Opens name under the directory if it is a regular file, without blocking on anything else.
int stall_open_file_at(int dir, const char *name);

#endif
