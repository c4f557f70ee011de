// SPDX-License-Identifier: Apache-2.0
// What is opened before a core file is read.
#ifndef STALL_CORE_FILES_H
#define STALL_CORE_FILES_H

// Taken over.
struct stall_core_files {
	int exe_fd;  // the dumped program; -1: by its path
	int vdso_fd; // an empty memfd for a copy of its vdso; -1: made here
	int sysroot; // the folder, as of a stall_path, with the paths of binaries; -1: "/"
};
#define STALL_CORE_NO_FILES ((struct stall_core_files){-1, -1, -1})

#endif
