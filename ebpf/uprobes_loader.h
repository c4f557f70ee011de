// SPDX-License-Identifier: Apache-2.0
// The part of the loader that sets uprobes. Used by waits_loader.c alone.
#ifndef STALL_UPROBES_LOADER_H
#define STALL_UPROBES_LOADER_H

#include <bpf/libbpf.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct waits; // the skeleton

struct stall_uprobes {
	struct stall_uprobe_link {
		struct bpf_link *link;
		pid_t pid;
		uint32_t function;
	} * links;
	size_t count, capacity;
	const char *why_not; // NULL where this kernel has what it takes
};

// Before the skeleton is loaded: leaves the programs out that this kernel does not take.
void stall_uprobes_prepare(struct stall_uprobes *uprobes, struct waits *skeleton);
void stall_uprobes_deinit(struct stall_uprobes *uprobes);

#endif
