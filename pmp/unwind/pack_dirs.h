// SPDX-License-Identifier: Apache-2.0
// Finds packs: directories with files IDENTITY.pack.
#ifndef STALL_PACK_DIRS_H
#define STALL_PACK_DIRS_H

#include <stddef.h>

#include "base/error.h"
#include "unwind/elf_file.h"
#include "unwind/pack_file.h"

#define STALL_MAX_PACK_DIRS 8 // given by the caller

// Directories are kept open: an unprivileged process may not be able to open them by path.
struct stall_pack_dirs {
	struct {
		int fd;
		char *path;
	} dirs[STALL_MAX_PACK_DIRS + 1];
	size_t count;
};

// A directory that is missing is skipped; /usr/share/stallscope/packs comes last by itself.
struct stall_error *stall_pack_dirs_init(struct stall_pack_dirs *dirs, const char *const *paths,
					 size_t count);
void stall_pack_dirs_deinit(struct stall_pack_dirs *dirs);

// *ret and *ret_path are unchanged where there is none. An error: a pack of that name is there, and
// none can be used; its message names it.
struct stall_error *stall_pack_dirs_find(const struct stall_pack_dirs *dirs, const char *identity,
					 struct stall_pack **ret, char **ret_path);
// The same by the identity of a file.
struct stall_error *stall_pack_dirs_find_for(const struct stall_pack_dirs *dirs,
					     const struct stall_elf *elf, struct stall_pack **ret,
					     char **ret_path);

#endif
