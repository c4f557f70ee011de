// SPDX-License-Identifier: Apache-2.0
// The one run of one program that a poke is for.
#ifndef STALL_POKE_PROCESS_H
#define STALL_POKE_PROCESS_H

#include <stdint.h>

#include "base/error.h"
#include "base/sha256.h"
#include "snapshot/target.h"

#define STALL_POKE_HEAD 4096 // bytes: ELF header, program headers, and mostly the build-id

// A process that executes another program, or the same one again, keeps its pid and its start time:
// where its stack begins changes then, and its program's address.
struct stall_poke_identity {
	uint64_t start_time;	      // clock ticks since boot
	uint64_t start_stack;	      // 0: not known
	uint64_t base;		      // where the beginning of its program's file is in memory
	char head[STALL_SHA256_TEXT]; // of the STALL_POKE_HEAD bytes there
};

struct stall_poke_process {
	struct stall_target target;
	struct stall_poke_identity identity;
	char state;	// as in /proc/PID/stat
	char exe[4096]; // as /proc shows it, without " (deleted)"
	uint8_t head[STALL_POKE_HEAD];
};

// Holds the process by a pidfd and reads its identity. Nothing in it is stopped or written.
struct stall_error *stall_poke_process_init(struct stall_poke_process *process, pid_t pid);
void stall_poke_process_deinit(struct stall_poke_process *process);

// Parsed from, and written as, "START-TIME:START-STACK:BASE:SHA256".
struct stall_error *stall_poke_identity_parse(const char *text, struct stall_poke_identity *ret);

// The error says that it is another process, or another run of a program.
struct stall_error *stall_poke_identity_check(const struct stall_poke_process *process,
					      const struct stall_poke_identity *expected);

// The mapping that holds the bytes: an error where there is none.
struct stall_poke_mapping {
	uint64_t start, end;
	bool writable, shared;
};
struct stall_error *stall_poke_mapping_find(const struct stall_target *target, uint64_t address,
					    uint64_t size, struct stall_poke_mapping *ret);

#endif
