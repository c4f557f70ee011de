// SPDX-License-Identifier: Apache-2.0
// The part of the loader that sets uprobes.
#ifndef STALL_UPROBES_LOADER_H
#define STALL_UPROBES_LOADER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct stall_bpf_waits;
struct stall_uprobes;
struct waits; // the skeleton

// Before the skeleton is loaded: excludes the programs that this kernel does not support.
void stall_uprobes_prepare(struct stall_uprobes *uprobes, struct waits *skeleton);
void stall_uprobes_deinit(struct stall_uprobes *uprobes);

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
// At rest it is set with the next stall_bpf_waits_set_uprobes().
struct stall_error *stall_bpf_waits_add_uprobe(struct stall_bpf_waits *waits,
					       const struct stall_bpf_uprobe *uprobe);
// Sets all, which takes some milliseconds, and takes all away again until then. One that the kernel
// refuses is left out.
void stall_bpf_waits_set_uprobes(struct stall_bpf_waits *waits);
void stall_bpf_waits_rest_uprobes(struct stall_bpf_waits *waits);
// Removes those of a process that has ended, or with pid 0 those of a function in all processes.
void stall_bpf_waits_remove_uprobes(struct stall_bpf_waits *waits, pid_t pid, uint32_t function);
void stall_bpf_waits_remove_all_uprobes(struct stall_bpf_waits *waits);
// The number of uprobes of a function.
uint32_t stall_bpf_waits_uprobe_places(const struct stall_bpf_waits *waits, uint32_t function);
// The number of hits of a function's uprobes.
uint64_t stall_bpf_waits_uprobe_hits(const struct stall_bpf_waits *waits, uint32_t function);

#endif
