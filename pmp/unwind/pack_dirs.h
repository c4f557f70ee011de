// SPDX-License-Identifier: Apache-2.0
// Finds packs: directories with files IDENTITY.pack.
#ifndef STALL_PACK_DIRS_H
#define STALL_PACK_DIRS_H

#include "base/error.h"
#include "unwind/elf_file.h"
#include "unwind/pack_file.h"
#include "unwind/search_dirs.h"

#define STALL_PACK_DIR "/usr/share/stallscope/packs" // the system's

// *ret and *ret_path are unchanged where there is none. An error: none is found that can be used, and
// one of that name is there, or a directory is not used; its message names it.
struct stall_error *stall_pack_dirs_find(const struct stall_search_dirs *dirs, const char *identity,
					 struct stall_pack **ret, char **ret_path);
// The same by the identity of a file.
struct stall_error *stall_pack_dirs_find_for(const struct stall_search_dirs *dirs,
					     const struct stall_elf *elf, struct stall_pack **ret,
					     char **ret_path);

#endif
