// SPDX-License-Identifier: Apache-2.0
// A uprobe in a function of the server.
#ifndef STALL_UPROBES_H
#define STALL_UPROBES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// A uprobe on an instruction of a file (file offset, not virtual address), for one process.
// `lock_arg`, `second_arg`: the number (1 to 6) of the argument, 0 none. `event`: it is a record by
// itself (STALL_RECORD_SERVER), not the start of a wait. `prepares`: the wait is not in this call
// but in its caller's next one, to a function that begins `next_call` bytes further on.
struct stall_bpf_uprobe {
	pid_t pid;
	const char *path; // opens this very file, e.g. /proc/PID/map_files/...
	uint64_t file_offset;
	uint32_t function; // index into the caller's table; comes back + 1 in stall_wait_server
	uint8_t lock_arg, second_arg;
	bool event, prepares;
	int32_t next_call;
};
#define STALL_BPF_UPROBE_FUNCTIONS 64

#endif
