// SPDX-License-Identifier: Apache-2.0
// O_DIRECT on files that a live process has open. A flag belongs to the open file, which the
// process and a copy of its descriptor share.
#ifndef STALL_POKE_FILES_H
#define STALL_POKE_FILES_H

#include "base/error.h"
#include "poke/poke_change.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

// FD:DEV:INO, decimal.
struct stall_error *stall_poke_file_parse(const char *text, struct stall_poke_file *ret);

// What a descriptor of the process is now.
struct stall_open_file {
	int copy; // ours; -1: the process has closed it, or has opened another file under its number
	int flags;
};

struct stall_error *stall_open_file_get(const struct stall_target *target,
					const struct stall_poke_file *file,
					struct stall_open_file *ret);

// Bytes that memory and offset of a direct write must be aligned to; 0: the file system does not
// say.
struct stall_alignment {
	uint32_t memory, offset;
};
struct stall_alignment stall_alignment_read(int fd);

struct stall_error *stall_poke_files_check(const struct stall_poke *poke);
struct stall_error *stall_poke_files_count(const struct stall_poke *poke, size_t *ret_direct,
					   size_t *ret_open);
struct stall_error *stall_poke_files_set(const struct stall_poke *poke);
struct stall_error *stall_poke_files_undo(const struct stall_poke *poke);

#endif
