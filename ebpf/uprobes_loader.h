// SPDX-License-Identifier: Apache-2.0
// The part of the loader that sets uprobes.
#ifndef STALL_UPROBES_LOADER_H
#define STALL_UPROBES_LOADER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "ebpf/uprobes.h"

struct stall_bpf_waits;
struct stall_uprobes;
struct waits; // the skeleton

// Before the skeleton is loaded: excludes the programs that this kernel does not support.
void stall_uprobes_prepare(struct stall_uprobes *uprobes, struct waits *skeleton);
void stall_uprobes_deinit(struct stall_uprobes *uprobes);

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
