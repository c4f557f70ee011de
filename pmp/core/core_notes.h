// SPDX-License-Identifier: Apache-2.0
// The notes of a core file (core(5), fs/binfmt_elf.c in the kernel).
#ifndef STALL_CORE_NOTES_H
#define STALL_CORE_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/procfs.h>
#include <sys/user.h>

#include "base/error.h"
#include "unwind/elf_file.h"

struct stall_core_thread {
	pid_t tid, ppid;
	struct user_regs_struct regs;
};

struct stall_core_file {
	uint64_t start, end, offset; // offset in bytes
	const char *path;	     // without " (deleted)"
	bool deleted;
};

struct stall_core_notes {
	struct stall_core_thread *threads; // in the order of the file: first the one that dumped
	size_t thread_count, thread_capacity;
	size_t threads_lost;
	struct stall_core_file *files; // of NT_FILE
	size_t file_count;
	char *paths; // storage of `files`
	bool has_process;
	struct elf_prpsinfo process;
	uint64_t entry, vdso; // AT_ENTRY, AT_SYSINFO_EHDR; 0 unknown
	bool torn;	      // notes end before their end
};

struct stall_error *stall_core_notes_init(struct stall_core_notes *notes,
					  const struct stall_elf *elf, size_t max_threads);
void stall_core_notes_deinit(struct stall_core_notes *notes);

#endif
