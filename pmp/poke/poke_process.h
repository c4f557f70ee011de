// SPDX-License-Identifier: Apache-2.0
// The one run of one program that a poke is for.
#ifndef STALL_POKE_PROCESS_H
#define STALL_POKE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/sha256.h"
#include "proc/target.h"

#define STALL_POKE_HEAD 4096 // bytes: ELF header, program headers, and mostly the build-id

// A process that executes another program, or the same one again, keeps its pid and its start time. What
// it keeps besides depends on the program and on the host's address space randomization, so the kernel's
// random bytes for each run are compared too.
struct stall_poke_identity {
	uint64_t start_time;	      // clock ticks since boot
	uint64_t start_stack;	      // 0: not known
	uint64_t base;		      // where the beginning of its program's file is in memory
	char head[STALL_SHA256_TEXT]; // of the STALL_POKE_HEAD bytes there
	char run[STALL_SHA256_TEXT];  // of the bytes at AT_RANDOM; "": not known
};

struct stall_poke_process {
	struct stall_target target;
	// /proc/PID/mem, opened once. It belongs to the memory of this run: after an exec nothing can be
	// read from it or written to it, whatever the pid runs then.
	int memory;
	struct stall_poke_identity identity;
};

// What is shown of it.
struct stall_poke_program {
	char state;	// as in /proc/PID/stat
	char exe[4096]; // as /proc shows it, without " (deleted)"
	uint8_t head[STALL_POKE_HEAD];
};

// Holds the process and its memory, and reads its identity. Nothing in it is stopped or written.
// `writes`: its memory may be written to later.
struct stall_error *stall_poke_process_init(struct stall_poke_process *process, pid_t pid,
					    bool writes, struct stall_poke_program *ret_program);
void stall_poke_process_deinit(struct stall_poke_process *process);

// Reads its identity again, and fails if it has changed.
struct stall_error *stall_poke_process_check(const struct stall_poke_process *process);

// All of the bytes, or an error: STALL_ERROR_NO_PROCESS if that memory is gone.
struct stall_error *stall_poke_memory_read(const struct stall_poke_process *process,
					   uint64_t address, void *buf, size_t size);
struct stall_error *stall_poke_memory_write(const struct stall_poke_process *process,
					    uint64_t address, const void *buf, size_t size);

// Parsed from, and written as, "START-TIME:START-STACK:BASE:SHA256:SHA256". Older records
// lack the last one.
struct stall_error *stall_poke_identity_parse(const char *text, struct stall_poke_identity *ret);

// The error says that it is another process, or another run of a program.
struct stall_error *stall_poke_identity_check(const struct stall_poke_process *process,
					      const struct stall_poke_identity *expected);

// The mapping that holds the bytes: an error where there is none.
struct stall_poke_mapping {
	uint64_t start, end;
	bool writable, shared;
};
struct stall_error *stall_poke_mapping_find(const struct stall_poke_process *process,
					    uint64_t address, uint64_t size,
					    struct stall_poke_mapping *ret);

#endif
