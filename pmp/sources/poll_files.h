// SPDX-License-Identifier: Apache-2.0
// Identifies the file of another process's descriptor, without ever waiting for its disk or its
// server.
#ifndef STALL_POLL_FILES_H
#define STALL_POLL_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "ebpf/waits.h"
#include "proc/target.h"

struct stall_poll_file {
	char path[STALL_PATH]; // as the process sees it; ".../" and its end where it is long
	bool is_known;	       // the fields below are: its disk has answered
	uint64_t dev, ino;     // dev in the kernel's encoding
	uint64_t size;
	uint32_t mode;
};

// False: it is no file with a name (a socket, a pipe, ...), or it is closed.
bool stall_poll_file_find(const struct stall_target *target, int fd, struct stall_poll_file *ret);

// A path cut at its beginning where there is no room for it.
void stall_poll_path_cut(const char *path, char ret[STALL_PATH]);

#endif
